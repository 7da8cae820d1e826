//! What a teacher or a penalty says of tokens that the student was told changes no weight, in any loss.

use std::sync::Arc;

use serde_json::{Map, json};
use training_gym_core::ids::WeightVersion;
use training_gym_core::record::Grade;
use training_gym_core::sample::{FinishReason, Prompt};
use training_gym_core::spec::{
    AdvantageEstimator, AdvantageSpec, KlLossType, KlRewardSpec, LossAggregation, LrDecayStyle, OptimizerSpec,
    PolicyLoss, UpdateSpec,
};
use training_gym_runtime::advantage::{AdvantageReport, Inputs, OpdTerm, estimate};
use training_gym_runtime::batch::{PreparedPrompt, Rollout, RolloutBatch, Score};
use training_gym_runtime::model::{LoadOptions, Model, ModelConfig};
use training_gym_runtime::update::Updater;

fn model() -> Model {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 64, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "max_position_embeddings": 64, "tie_word_embeddings": true, "initializer_range": 0.3,
    });
    Model::init(ModelConfig::from_json(&config).expect("a model"), LoadOptions::default(), 1)
}

/// Two turns of two and three tokens, with three told between them.
const MASK: [bool; 8] = [true, true, false, false, false, true, true, true];

fn rollouts() -> Vec<Rollout> {
    let prompt = Arc::new(PreparedPrompt {
        row: 0,
        prompt: Prompt::Text("p".into()),
        prompt_ids: vec![1, 2, 3],
        label: String::new(),
        metadata: Map::new(),
    });
    let rollout = |index: u64| Rollout {
        index,
        group_index: 0,
        prompt: Arc::clone(&prompt),
        response_ids: (0..8).map(|token| 5 + 7 * token + index as i64).collect(),
        response_mask: MASK.to_vec(),
        rollout_logprobs: vec![-2.0, -3.0, -4.0, -3.5, -2.5],
        response: String::new(),
        finish_reason: FinishReason::Stop,
        weight_version: WeightVersion(0),
        episode: None,
    };
    (0..2).map(rollout).collect()
}

/// The weights after one step, where `told` is what teacher and reference say of told tokens, and `drawn`
/// what they add to the drawn, more along the response.
fn trained(
    estimator: AdvantageEstimator,
    policy_loss: PolicyLoss,
    told: f32,
    drawn: f32,
) -> (Vec<u8>, AdvantageReport) {
    let said = |base: f32| -> Vec<f32> {
        MASK.iter().enumerate().map(|(at, &mask)| if mask { base + (drawn - 0.1) * at as f32 } else { told }).collect()
    };
    let rollouts = rollouts();
    let reference: Vec<Vec<f32>> = rollouts.iter().map(|rollout| rollout.of_drawn(said(-3.0))).collect();
    let scores = rollouts
        .iter()
        .map(|rollout| Score {
            grade: Grade::NotAsked,
            reward: Some(rollout.index as f64),
            score: None,
            metadata: Map::new(),
            teacher_logprobs: Some(rollout.of_drawn(said(-2.5))),
            teacher_top: None,
        })
        .collect();
    let spec = AdvantageSpec {
        estimator,
        normalize_advantages: true,
        kl_reward: Some(KlRewardSpec { kl_coef: 0.1, kl_type: KlLossType::K2 }),
        overlong: None,
        dynamic_sampling: false,
        weighting: None,
    };
    let inputs = Inputs {
        opd: Some(&OpdTerm { coef: 1.0, log_ratio_clamp: None }),
        n_samples_per_prompt: 2,
        max_response_len: 16,
        reference_logprobs: Some(&reference),
    };
    let (batch, report) = estimate(RolloutBatch::new(1, rollouts).scored(scores), &spec, inputs);
    assert!(batch.advantages().iter().all(|row| row.len() == 5), "an advantage for what was drawn");
    let update = UpdateSpec {
        global_batch_size: 2,
        max_tokens_per_gpu: 16,
        eps_clip: 0.2,
        eps_clip_high: 0.28,
        eps_clip_c: None,
        policy_loss,
        kl_loss: None,
        entropy_coef: 0.01,
        loss_aggregation: LossAggregation::TokenMean,
        logits_chunk_size: 3,
        optimizer: OptimizerSpec {
            lr: 1e-3,
            min_lr: 0.0,
            lr_warmup_iters: 0,
            lr_decay_iters: 10,
            lr_decay_style: LrDecayStyle::Constant,
            weight_decay: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.98,
            adam_eps: 1e-8,
            clip_grad: Some(1.0),
        },
    };
    let mut updater = Updater::new(model(), update, 1.0).expect("an updater");
    updater.apply(&batch).expect("a step");
    let mut weights = Vec::new();
    updater.for_each_master_weight(|_, bytes| weights.extend_from_slice(bytes));
    (weights, report)
}

#[test]
fn what_is_said_of_told_tokens_moves_no_weight_and_no_statistic() {
    for estimator in [
        AdvantageEstimator::GroupRelative { normalize_std: true },
        AdvantageEstimator::LeaveOneOut,
        AdvantageEstimator::ReinforcePlusPlus { gamma: 0.9 },
        AdvantageEstimator::ReinforcePlusPlusBaseline,
        AdvantageEstimator::Raw,
    ] {
        for policy_loss in [PolicyLoss::TokenRatio, PolicyLoss::SequenceRatio, PolicyLoss::Cispo] {
            let (weights, report) = trained(estimator, policy_loss, -3.0, 0.0);
            for told in [-80.0, 0.0, f32::NAN] {
                let (others, seen) = trained(estimator, policy_loss, told, 0.0);
                assert!(weights == others && report == seen, "{estimator:?} {policy_loss:?}: {told} moved something");
            }
            let (others, _) = trained(estimator, policy_loss, -3.0, 0.5);
            assert!(weights != others, "{estimator:?} {policy_loss:?}: what is said of drawn tokens matters");
        }
    }
}
