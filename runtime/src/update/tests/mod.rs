mod distilled;
mod likeliest;
mod masked;
mod memory;
mod methods;

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tch::{Device, Kind, Tensor, no_grad};
use training_gym_core::ids::WeightVersion;
use training_gym_core::record::Grade;
use training_gym_core::sample::{FinishReason, Prompt};
use training_gym_core::spec::{
    KlLossSpec, KlLossType, LossAggregation, LrDecayStyle, OptimizerSpec, PolicyLoss, UpdateSpec,
};

use super::*;
use crate::batch::{PreparedPrompt, RolloutBatch, Score};
use crate::model::{LoadOptions, ModelConfig};

const VOCAB: i64 = 29;

fn config(tied: bool) -> ModelConfig {
    ModelConfig::from_json(&config_json(tied, VOCAB, 16)).unwrap()
}

fn config_json(tied: bool, vocab_size: i64, hidden_size: i64) -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": vocab_size,
        "hidden_size": hidden_size, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": tied, "initializer_range": 0.3, "hidden_act": "silu",
        "attention_bias": false,
    })
}

fn model(dtype: Kind, tied: bool) -> Model {
    Model::init(config(tied), LoadOptions { device: Device::Cpu, dtype }, 7)
}

fn spec() -> UpdateSpec {
    UpdateSpec {
        global_batch_size: 6,
        max_tokens_per_gpu: 17,
        eps_clip: 0.2,
        eps_clip_high: 0.28,
        eps_clip_c: Some(3.0),
        policy_loss: PolicyLoss::TokenRatio,
        kl_loss: None,
        entropy_coef: 0.0,
        loss_aggregation: LossAggregation::TokenMean,
        logits_chunk_size: 5,
        optimizer: OptimizerSpec {
            lr: 1e-3,
            min_lr: 0.0,
            lr_warmup_iters: 0,
            lr_decay_iters: 100,
            lr_decay_style: LrDecayStyle::Linear,
            weight_decay: 0.01,
            adam_beta1: 0.9,
            adam_beta2: 0.98,
            adam_eps: 1e-8,
            clip_grad: Some(1.0),
        },
    }
}

/// Whole numbers that look random and are the same everywhere.
fn draw(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

fn unit(seed: &mut u64) -> f32 {
    (draw(seed) % 2001) as f32 / 1000.0 - 1.0
}

/// Samples of unequal length whose engine log-probabilities are near the model's own.
fn batch(model: &Model, temperature: f64, seed: u64) -> TrainBatch {
    let mut seed = seed;
    let mut ids = |count: u64| -> Vec<i64> { (0..count).map(|_| (draw(&mut seed) % VOCAB as u64) as i64).collect() };
    let shapes = [(3, 4), (1, 1), (5, 9), (2, 12), (4, 2), (3, 7)];
    let drawn: Vec<(Vec<i64>, Vec<i64>)> = shapes.iter().map(|&(p, r)| (ids(p), ids(r))).collect();
    let mut advantages = Vec::new();
    let mut rollouts = Vec::new();
    for (index, (prompt_ids, response_ids)) in drawn.into_iter().enumerate() {
        let own = Vec::<f32>::try_from(logprobs(model, &prompt_ids, &response_ids, temperature).0).unwrap();
        advantages.push(own.iter().map(|_| unit(&mut seed)).collect());
        rollouts.push(Rollout {
            index: index as u64,
            group_index: index as u64 / 2,
            rollout_logprobs: own.iter().map(|logprob| logprob + 0.4 * unit(&mut seed)).collect(),
            prompt: Arc::new(PreparedPrompt {
                row: 0,
                prompt: Prompt::Text(String::new()),
                prompt_ids,
                label: String::new(),
                metadata: Map::new(),
            }),
            response_mask: vec![true; response_ids.len()],
            response_ids,
            response: String::new(),
            finish_reason: FinishReason::Stop,
            weight_version: WeightVersion(0),
            episode: None,
        });
    }
    let score = || Score {
        grade: Grade::NotAsked,
        reward: None,
        score: None,
        metadata: Map::new(),
        teacher_logprobs: None,
        teacher_top: None,
    };
    let scores = rollouts.iter().map(|_| score()).collect();
    RolloutBatch::new(1, rollouts).scored(scores).with_advantages(advantages)
}

/// log π and entropy of one response, from one unpadded pass and whole logits. Differentiable.
fn logprobs(model: &Model, prompt: &[i64], response: &[i64], temperature: f64) -> (Tensor, Tensor) {
    let ids = [prompt, response].concat();
    let hidden = model.hidden(&Tensor::from_slice(&ids), &[ids.len()]);
    let logits = model.logits(&hidden).to_kind(Kind::Float) / temperature;
    let rows = logits.narrow(0, prompt.len() as i64 - 1, response.len() as i64).log_softmax(-1, None);
    let entropy = -(rows.exp() * &rows).sum_dim_intlist([-1i64].as_slice(), false, None);
    (rows.gather(1, &Tensor::from_slice(response).unsqueeze(1), false).squeeze_dim(1), entropy)
}

/// The rows of a response that the student drew.
fn drawn(rollout: &Rollout, rows: &Tensor) -> Tensor {
    let places: Vec<i64> = rollout.of_drawn((0..rollout.response_ids.len() as i64).collect());
    rows.index_select(0, &Tensor::from_slice(&places))
}

/// The loss as its definition says, over whole logits and one sample at a time.
fn naive_loss(model: &Model, reference: Option<&Model>, batch: &TrainBatch, updater: &Updater) -> Tensor {
    let spec = &updater.spec;
    let samples = batch.rollouts().len() as f64;
    let tokens: usize = batch.rollouts().iter().map(Rollout::drawn).sum();
    let mut total = Tensor::zeros([1], tch::kind::FLOAT_CPU);
    for (rollout, advantages) in batch.rollouts().iter().zip(batch.advantages()) {
        let ids = (&rollout.prompt.prompt_ids, &rollout.response_ids);
        let (logprob, entropy) = logprobs(model, ids.0, ids.1, updater.temperature);
        let (logprob, entropy) = (drawn(rollout, &logprob), drawn(rollout, &entropy));
        let ratio = (&logprob - Tensor::from_slice(&rollout.rollout_logprobs)).exp();
        let advantages = Tensor::from_slice(advantages);
        let gain = (&ratio * &advantages).minimum(&(ratio.clamp(0.8, 1.28) * &advantages));
        let gain = gain.maximum(&(&advantages * 3.0)).where_self(&advantages.lt(0.0), &gain);
        let mut loss = gain.neg() - &entropy * spec.entropy_coef;
        if let Some(reference) = reference {
            let other = no_grad(|| drawn(rollout, &logprobs(reference, ids.0, ids.1, updater.temperature).0));
            let difference = &other - &logprob;
            loss += (difference.exp() - 1.0 - &difference) * 0.2;
        }
        total += match spec.loss_aggregation {
            LossAggregation::TokenMean => loss.sum(None) / tokens as f64,
            LossAggregation::SampleMean => loss.mean(None) / samples,
            LossAggregation::ConstantLength { length } => loss.sum(None) / (length as f64 * samples),
        };
    }
    total
}

/// Moves weights a little, so that a reference differs.
fn shake(model: &Model) {
    no_grad(|| {
        for (index, (_, parameter)) in model.parameters().iter().enumerate() {
            let wave = (Tensor::arange(parameter.numel() as i64, tch::kind::FLOAT_CPU) + index as f64).sin() * 0.05;
            let mut parameter = parameter.detach();
            parameter += wave.view_as(&parameter).to_kind(parameter.kind());
        }
    });
}

fn master(updater: &Updater) -> Vec<u8> {
    let mut all = Vec::new();
    updater.for_each_master_weight(|name, bytes| {
        all.extend_from_slice(name.as_bytes());
        all.extend_from_slice(bytes);
    });
    all
}

#[test]
fn packed_and_chunked_gradients_equal_the_naive_ones() {
    for (tied, aggregation, extras) in [
        (true, LossAggregation::TokenMean, false),
        (false, LossAggregation::SampleMean, true),
        (true, LossAggregation::SampleMean, true),
    ] {
        let model = model(Kind::Float, tied);
        let mut spec = UpdateSpec { loss_aggregation: aggregation, ..spec() };
        if extras {
            spec.entropy_coef = 0.03;
            spec.kl_loss = Some(KlLossSpec { kl_loss_coef: 0.2, kl_loss_type: KlLossType::K3, unbiased: false });
        }
        let updater = Updater::new(model, spec, 0.8).unwrap();
        shake(&updater.model);
        let batch = batch(&updater.model, 0.8, 1);
        let (gradients, sums) = updater.gradients(&batch, &[0, 1, 2, 3, 4, 5], None).unwrap();
        let (_, ours) = gradients.finish(updater.model.parameters(), None);

        let loss = naive_loss(&updater.model, updater.reference.as_ref(), &batch, &updater);
        let inputs: Vec<&Tensor> = updater.model.parameters().iter().map(|(_, parameter)| parameter).collect();
        let naive = Tensor::run_backward(&[&loss], &inputs, false, false);
        assert!((loss.double_value(&[0]) - sums.loss).abs() < 1e-5, "{loss:?} and {sums:?}");
        for ((name, _), (ours, naive)) in updater.model.parameters().iter().zip(ours.iter().zip(&naive)) {
            let gap = (ours - naive).abs().max().double_value(&[]);
            assert!(gap < 1e-5, "{name}: {gap}, largest {}", naive.abs().max().double_value(&[]));
            assert!(naive.abs().max().double_value(&[]) > 1e-5, "{name} has a gradient");
        }
    }
}

#[test]
fn the_gradient_is_the_slope_of_the_loss() {
    let updater = Updater::new(model(Kind::Float, true), spec(), 1.0).unwrap();
    let batch = batch(&updater.model, 1.0, 2);
    let (norm, direction) =
        updater.gradients(&batch, &[0, 1, 2, 3, 4, 5], None).unwrap().0.finish(updater.model.parameters(), None);
    let move_by = |step: f64| {
        no_grad(|| {
            for ((_, parameter), slope) in updater.model.parameters().iter().zip(&direction) {
                let mut parameter = parameter.detach();
                parameter += slope * (step / norm);
            }
        });
    };
    let step = 2e-3;
    move_by(step);
    let above = updater.gradients(&batch, &[0, 1, 2, 3, 4, 5], None).unwrap().1.loss;
    move_by(-2.0 * step);
    let below = updater.gradients(&batch, &[0, 1, 2, 3, 4, 5], None).unwrap().1.loss;
    let slope = (above - below) / (2.0 * step);
    assert!((slope / norm - 1.0).abs() < 1e-2, "slope {slope}, gradient {norm}");
}

#[test]
fn a_step_raises_what_was_good_and_reports_what_it_saw() {
    let start = model(Kind::Float, true);
    let engine = start.share();
    let before = batch(&engine, 1.0, 3);
    let rollouts: Vec<Rollout> = before
        .rollouts()
        .iter()
        .map(|rollout| {
            let own = logprobs(&engine, &rollout.prompt.prompt_ids, &rollout.response_ids, 1.0).0;
            Rollout { rollout_logprobs: Vec::try_from(own.detach()).unwrap(), ..rollout.clone() }
        })
        .collect();
    let advantages: Vec<Vec<f32>> = rollouts.iter().map(|rollout| vec![1.0; rollout.response_ids.len()]).collect();
    let total = |model: &Model| -> f64 {
        rollouts
            .iter()
            .map(|r| logprobs(model, &r.prompt.prompt_ids, &r.response_ids, 1.0).0.sum(Kind::Double).double_value(&[]))
            .sum()
    };
    let first = total(&engine);
    let scores = before.scores().to_vec();
    let train = RolloutBatch::new(1, rollouts.clone()).scored(scores).with_advantages(advantages);
    let mut updater = Updater::new(start, UpdateSpec { global_batch_size: 3, ..spec() }, 1.0).unwrap();
    let fingerprint = master(&updater);
    let report = updater.apply(&train).unwrap();
    assert!(total(&engine) > first + 0.1, "the engine's shared weights moved: {first} to {}", total(&engine));
    assert_ne!(master(&updater), fingerprint);
    assert_eq!((report.updates, report.skipped_updates, updater.optimizer_steps()), (2, 0, 2));
    assert!(report.logprob_gap < 1e-5, "{report:?}");
    let tokens: usize = rollouts.iter().map(|rollout| rollout.response_ids.len()).sum();
    assert!((report.entropy + first / tokens as f64).abs() < 0.2 && report.grad_norm > 0.0, "{report:?}");
    assert!((report.lr - 1e-3 * 0.98).abs() < 1e-12, "{report:?}");
    assert!(report.loss < -0.9 && report.loss > -1.3, "{report:?}");
}

#[test]
fn what_is_not_finite_is_skipped_and_counted() {
    let mut updater = Updater::new(model(Kind::Float, true), spec(), 1.0).unwrap();
    let good = batch(&updater.model, 1.0, 4);
    let mut rollouts = good.rollouts().to_vec();
    rollouts[2].rollout_logprobs[0] = f32::NEG_INFINITY;
    let bad = RolloutBatch::new(1, rollouts).scored(good.scores().to_vec()).with_advantages(good.advantages().to_vec());
    let before = master(&updater);
    let report = updater.apply(&bad).unwrap();
    assert_eq!((report.updates, report.skipped_updates, updater.optimizer_steps()), (0, 1, 0));
    assert_eq!(master(&updater), before);
    assert_eq!(updater.apply(&good).unwrap().updates, 1);
}

fn bytes(model: &Model) -> Vec<f64> {
    model
        .parameters()
        .iter()
        .flat_map(|(_, p)| Vec::<f64>::try_from(p.detach().flatten(0, -1).to_kind(Kind::Double)).unwrap())
        .collect()
}

#[test]
fn a_saved_state_goes_on_bit_for_bit() {
    for dtype in [Kind::Float, Kind::BFloat16] {
        let folder = tempfile::tempdir().unwrap();
        let spec = UpdateSpec {
            kl_loss: Some(KlLossSpec { kl_loss_coef: 0.1, kl_loss_type: KlLossType::LowVarKl, unbiased: false }),
            ..spec()
        };
        let fresh = || Updater::new(model(dtype, true), spec.clone(), 1.0).unwrap();
        let mut whole = fresh();
        let batches: Vec<TrainBatch> = (0..3).map(|seed| batch(&whole.model, 1.0, seed)).collect();
        whole.apply(&batches[0]).unwrap();
        whole.apply(&batches[1]).unwrap();
        whole.save_state(folder.path()).unwrap();
        whole.apply(&batches[2]).unwrap();

        let mut resumed = fresh();
        resumed.load_state(folder.path()).unwrap();
        assert_eq!(resumed.optimizer_steps(), 2);
        let report = resumed.apply(&batches[2]).unwrap();
        assert_eq!(bytes(&resumed.model), bytes(&whole.model));
        assert_eq!(master(&resumed), master(&whole));
        assert_eq!(report.updates, 1);
        let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["optimizer.safetensors"], "nothing else is left");
    }
}

#[test]
fn a_wrong_state_is_refused_by_name_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut updater = Updater::new(model(Kind::Float, true), spec(), 1.0).unwrap();
    assert!(matches!(updater.load_state(folder.path()), Err(Error::Read { .. })));
    let other = Updater::new(model(Kind::Float, false), spec(), 1.0).unwrap();
    other.save_state(folder.path()).unwrap();
    let before = master(&updater);
    let error = updater.load_state(folder.path()).unwrap_err();
    assert!(matches!(error, Error::OtherModel { .. }), "{error}");

    updater.save_state(folder.path()).unwrap();
    let path = folder.path().join("optimizer.safetensors");
    let whole = std::fs::read(&path).unwrap();
    for cut in [0, 4, 100, whole.len() - 1] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        assert!(updater.load_state(folder.path()).is_err(), "cut to {cut}");
    }
    std::fs::write(&path, [&[0xff; 8], &whole[8..]].concat()).unwrap();
    assert!(matches!(updater.load_state(folder.path()), Err(Error::Damaged { .. })));
    assert_eq!((master(&updater), updater.optimizer_steps()), (before, 0));
    assert!(matches!(updater.save_state(&folder.path().join("none")), Err(Error::Write { .. })));
}

#[test]
fn impossible_settings_and_tokens_are_refused() {
    let zero = UpdateSpec { logits_chunk_size: 0, ..spec() };
    let error = Updater::new(model(Kind::Float, true), zero, 1.0).unwrap_err();
    assert_eq!(error.to_string(), "update.logits_chunk_size = 0: must be ≥ 1");
    assert!(Updater::new(model(Kind::Float, true), spec(), f64::NAN).is_err());

    let mut updater = Updater::new(model(Kind::Float, true), spec(), 0.0).unwrap();
    let good = batch(&updater.model, 1.0, 5);
    let mut rollouts = good.rollouts().to_vec();
    rollouts[3].response_ids[1] = VOCAB;
    let bad = RolloutBatch::new(1, rollouts).scored(good.scores().to_vec()).with_advantages(good.advantages().to_vec());
    assert!(matches!(updater.apply(&bad), Err(Error::Token { id: VOCAB, sample: 3, .. })));
}
