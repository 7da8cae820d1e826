//! From rewards and log-probabilities to advantages: pure functions, no tensors.
//!
//! ```text
//! rewards ──length, KL──► ──estimator──► one advantage a sample ──broadcast──► [M] a sample
//!                                     − λ·(log π_student − log π_teacher)   (distillation)
//!                                     ──whiten──► with_advantages ──dynamic sampling──► weights
//! ```
//!
//! | room | what it does |
//! |---|---|
//! | `shaping` | what is taken from a reward first |
//! | `group` | rewards beside those of their prompt's group |
//! | `returns` | REINFORCE++'s sums along a response |
//! | `distillation` | the teacher's term |
//! | `whitening` | mean 0, variance 1 |
//! | `weighting` | how much each sample counts |
//!
//! Everything is computed in `f64` and rounded once to `f32`.

mod distillation;
mod group;
mod returns;
mod shaping;
mod weighting;
mod whitening;

use training_gym_core::health::quantile;
use training_gym_core::spec::{AdvantageEstimator, AdvantageSpec};

use crate::batch::{Rollout, ScoredBatch, TrainBatch};

pub use distillation::{DistillationSums, OpdTerm, subtract_reverse_kl};
pub use group::{GroupAdvantages, group_relative, informative, leave_one_out, raw};
pub use returns::discounted_returns;
pub use shaping::{kl_estimates, overlong_penalty};
pub use weighting::{rate, weights};
pub use whitening::whiten;

/// What was seen while advantages were made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdvantageReport {
    /// Mean of log π_student − log π_teacher over response tokens, before any clamp: the sampled
    /// reverse KL, in nats. `None` without a teacher.
    pub reverse_kl: Option<f64>,
    /// Tokens whose log-ratio was clamped.
    pub clamped: u64,
    /// Groups whose graded rewards are all equal (a single graded sample too): they carry no
    /// reward signal.
    pub zero_std_groups: u64,
    /// Samples that dynamic sampling left out of the update.
    pub dropped: u64,
    /// Where samples are weighed: the share of them that so uneven weights are worth, `(Σw)²/(n·Σw²)`
    /// (Kish's effective sample size); 0 where all weights are 0.
    pub effective_share: Option<f64>,
    /// Mean |advantage| of the rewards alone, over response tokens.
    pub task_advantage: Option<f64>,
    /// Mean |λ·(log π_student − log π_teacher)|, clamped, over response tokens.
    pub teacher_advantage: Option<f64>,
    /// The 95th percentile of log π_student − log π_teacher over response tokens.
    pub reverse_kl_p95: Option<f64>,
}

/// What advantages are made of beside the batch and the estimator.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The teacher's term, where a teacher scored the tokens.
    pub opd: Option<&'a OpdTerm>,
    /// Samples a group, ≥ 1.
    pub n_samples_per_prompt: usize,
    /// Tokens a response may have.
    pub max_response_len: usize,
    /// log π of each drawn id under the starting model, `[M]` a sample, where the reward has a KL
    /// penalty.
    pub reference_logprobs: Option<&'a [Vec<f32>]>,
}

/// Makes the advantages of one step. The student's log-probabilities are the engine's own
/// (`rollout_logprobs`): those the tokens were drawn with.
///
/// An ungraded sample (reward `None`) is left out of its group's mean and deviation and gets
/// advantage 0; the distillation term applies to it like to any other.
///
/// # Shapes
/// One `[M]` list a sample, in sample order.
///
/// # Panics
/// When `n_samples_per_prompt` is 0, when `opd` or a KL penalty is asked for and a sample lacks the
/// log-probabilities it needs, or when a reward or log-probability is not finite: faults of the
/// stages before.
pub fn estimate(batch: ScoredBatch, spec: &AdvantageSpec, inputs: Inputs<'_>) -> (TrainBatch, AdvantageReport) {
    let group_size = inputs.n_samples_per_prompt;
    let penalties = penalties(&batch, spec, inputs);
    let rewards = shaped_rewards(&batch, spec, (&penalties, inputs.max_response_len));
    let groups = match spec.estimator {
        AdvantageEstimator::GroupRelative { normalize_std } => group_relative(&rewards, group_size, normalize_std),
        AdvantageEstimator::ReinforcePlusPlusBaseline => group_relative(&rewards, group_size, false),
        AdvantageEstimator::LeaveOneOut => leave_one_out(&rewards, group_size),
        AdvantageEstimator::ReinforcePlusPlus { .. } | AdvantageEstimator::Raw => raw(&rewards, group_size),
        AdvantageEstimator::Ignored => {
            GroupAdvantages { advantages: vec![0.0; rewards.len()], ..raw(&rewards, group_size) }
        }
        AdvantageEstimator::Demonstrated => {
            GroupAdvantages { advantages: vec![1.0; rewards.len()], zero_std_groups: 0 }
        }
    };
    let mut report = AdvantageReport { zero_std_groups: groups.zero_std_groups, ..AdvantageReport::default() };

    let rollouts = batch.rollouts();
    let rows = groups.advantages.iter().zip(&penalties).zip(rollouts);
    let mut advantages: Vec<Vec<f64>> =
        rows.map(|((&advantage, kl), rollout)| along(spec, advantage, kl, rollout)).collect();
    let tokens = advantages.iter().map(Vec::len).sum::<usize>().max(1) as f64;
    if rewards.iter().any(Option::is_some) {
        report.task_advantage =
            Some(advantages.iter().flatten().map(|advantage| advantage.abs()).sum::<f64>() / tokens);
    }
    if let Some(term) = inputs.opd {
        let mut sums = DistillationSums::default();
        for ((row, rollout), score) in advantages.iter_mut().zip(rollouts).zip(batch.scores()) {
            let Some(teacher) = &score.teacher_logprobs else {
                panic!("sample {} has no teacher log-probabilities, and the run distils", rollout.index)
            };
            subtract_reverse_kl(row, &rollout.rollout_logprobs, teacher, term, &mut sums);
        }
        report.reverse_kl = sums.mean();
        report.reverse_kl_p95 = quantile(&sums.log_ratios, 0.95);
        report.teacher_advantage = Some(term.coef.abs() * sums.strength / tokens);
        report.clamped = sums.clamped;
    }
    let kept = if spec.dynamic_sampling { informative(&rewards, group_size) } else { vec![true; rollouts.len()] };
    report.dropped = kept.iter().filter(|kept| !**kept).count() as u64;
    if spec.normalize_advantages {
        let masks: Vec<Vec<bool>> = advantages.iter().zip(&kept).map(|(row, &kept)| vec![kept; row.len()]).collect();
        whiten(&mut advantages, &masks);
    }
    let advantages = advantages.into_iter().map(|row| row.into_iter().map(|a| a as f32).collect()).collect();
    let weights = spec.weighting.as_ref().map(|weighting| {
        let rewards: Vec<Option<f64>> = batch.scores().iter().map(|score| score.reward).collect();
        weights(&rewards, group_size, weighting)
    });
    report.effective_share = weights.as_deref().map(effective_share);
    let train = batch.with_advantages(advantages);
    let train = match weights {
        Some(weights) => train.with_weights(weights),
        None => train,
    };
    let train = if report.dropped > 0 {
        train.with_weights(kept.iter().map(|&kept| f64::from(u8::from(kept))).collect())
    } else {
        train
    };
    (train, report)
}

/// `(Σw)²/(n·Σw²)`, 0 where there is no weight.
fn effective_share(weights: &[f64]) -> f64 {
    let (sum, squares) = weights.iter().fold((0.0, 0.0), |(sum, squares), w| (sum + w, squares + w * w));
    if squares > 0.0 { sum * sum / (weights.len() as f64 * squares) } else { 0.0 }
}

/// The KL penalty of each drawn token, `[M]` a sample; zeros without one.
fn penalties(batch: &ScoredBatch, spec: &AdvantageSpec, inputs: Inputs<'_>) -> Vec<Vec<f64>> {
    let rollouts = batch.rollouts();
    let Some(kl) = &spec.kl_reward else {
        return rollouts.iter().map(|rollout| vec![0.0; rollout.drawn()]).collect();
    };
    let reference = inputs.reference_logprobs.expect("a KL penalty in the reward needs the starting model's word");
    assert_eq!(reference.len(), rollouts.len(), "one list of reference log-probabilities a sample");
    let of =
        |(rollout, reference): (&Rollout, &Vec<f32>)| kl_estimates(&rollout.rollout_logprobs, reference, kl.kl_type);
    rollouts.iter().zip(reference).map(of).collect()
}

/// Rewards after the penalty for length and, where the estimator takes it from the response as a
/// whole (as verl's `use_kl_in_reward`), the sum of the KL penalty.
fn shaped_rewards(
    batch: &ScoredBatch,
    spec: &AdvantageSpec,
    (penalties, max_response_len): (&[Vec<f64>], usize),
) -> Vec<Option<f64>> {
    let whole = spec.kl_reward.as_ref().filter(|_| !spec.estimator.penalises_tokens());
    let shape = |((score, rollout), kl): ((&crate::batch::Score, &Rollout), &Vec<f64>)| {
        let length = rollout.response_ids.len();
        let overlong = spec.overlong.as_ref().map_or(0.0, |spec| overlong_penalty(length, max_response_len, spec));
        let drift = whole.map_or(0.0, |spec| spec.kl_coef * kl.iter().sum::<f64>());
        score.reward.map(|reward| reward + overlong - drift)
    };
    batch.scores().iter().zip(batch.rollouts()).zip(penalties).map(shape).collect()
}

/// A sample's advantage along its drawn tokens, `[M]`. A discount is by place in the response: what the
/// student was told passes time, and nothing else.
fn along(spec: &AdvantageSpec, advantage: f64, kl: &[f64], rollout: &Rollout) -> Vec<f64> {
    let coef = spec.kl_reward.as_ref().map_or(0.0, |spec| spec.kl_coef);
    match spec.estimator {
        AdvantageEstimator::ReinforcePlusPlus { gamma } => {
            let kl: Vec<f64> = rollout.along_response(kl).into_iter().map(Option::unwrap_or_default).collect();
            rollout.of_drawn(discounted_returns(advantage, &kl, &rollout.response_mask, (coef, gamma)))
        }
        AdvantageEstimator::ReinforcePlusPlusBaseline => kl.iter().map(|kl| advantage - coef * kl).collect(),
        _ => vec![advantage; kl.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{PreparedPrompt, RolloutBatch, Score};
    use training_gym_core::ids::WeightVersion;
    use training_gym_core::record::Grade;
    use training_gym_core::sample::{FinishReason, Prompt};
    use training_gym_core::spec::{KlLossType, KlRewardSpec, OverlongSpec};

    /// Reward, the student's log-probabilities, the teacher's.
    type Case<'a> = (Option<f64>, &'a [f32], Option<&'a [f32]>);

    fn batch(samples: &[Case<'_>]) -> ScoredBatch {
        let prompt = std::sync::Arc::new(PreparedPrompt {
            row: 0,
            prompt: Prompt::Text("p".to_owned()),
            prompt_ids: vec![1],
            label: String::new(),
            metadata: serde_json::Map::new(),
        });
        let rollouts = samples
            .iter()
            .enumerate()
            .map(|(index, (_, student, _))| Rollout {
                index: index as u64,
                group_index: index as u64 / 2,
                prompt: prompt.clone(),
                response_ids: vec![2; student.len()],
                response_mask: vec![true; student.len()],
                rollout_logprobs: student.to_vec(),
                response: String::new(),
                finish_reason: FinishReason::Stop,
                weight_version: WeightVersion(0),
                episode: None,
            })
            .collect();
        let scores = samples
            .iter()
            .map(|(reward, _, teacher)| Score {
                grade: Grade::NotAsked,
                reward: *reward,
                score: None,
                metadata: serde_json::Map::new(),
                teacher_logprobs: teacher.map(<[f32]>::to_vec),
                teacher_top: None,
            })
            .collect();
        RolloutBatch::new(1, rollouts).scored(scores)
    }

    const GRPO: AdvantageSpec = AdvantageSpec {
        estimator: AdvantageEstimator::GroupRelative { normalize_std: false },
        normalize_advantages: false,
        kl_reward: None,
        overlong: None,
        dynamic_sampling: false,
        weighting: None,
    };

    fn groups_of(n_samples_per_prompt: usize, opd: Option<&OpdTerm>) -> Inputs<'_> {
        Inputs { opd, n_samples_per_prompt, max_response_len: 4, reference_logprobs: None }
    }

    #[test]
    fn the_teacher_term_is_subtracted_clamped_and_counted() {
        let scored = batch(&[
            (Some(1.0), &[-1.0, -2.0], Some(&[-1.5, -2.0])),
            (Some(0.0), &[-1.0], Some(&[-31.0])),
            (None, &[-0.5], Some(&[-0.25])),
            (Some(3.0), &[-0.5], Some(&[-0.5])),
        ]);
        let term = OpdTerm { coef: 2.0, log_ratio_clamp: Some(10.0) };
        let (train, report) = estimate(scored, &GRPO, groups_of(2, Some(&term)));
        assert_eq!(train.advantages(), [vec![0.5 - 1.0, 0.5], vec![-0.5 - 20.0], vec![0.5], vec![0.0]]);
        assert_eq!(report.clamped, 1);
        assert_eq!(report.zero_std_groups, 1, "the second group has one graded sample");
        assert_eq!(report.task_advantage, Some(1.5 / 5.0));
        assert_eq!(report.teacher_advantage, Some(2.0 * (0.5 + 10.0 + 0.25) / 5.0));
        assert!((report.reverse_kl_p95.unwrap() - (0.5 + 0.8 * 29.5)).abs() < 1e-9, "{report:?}");
        assert!((report.reverse_kl.unwrap() - (0.5 + 0.0 + 30.0 - 0.25 + 0.0) / 5.0).abs() < 1e-9);
    }

    #[test]
    fn pure_distillation_and_pure_reinforcement_are_the_same_call() {
        let term = OpdTerm { coef: 1.0, log_ratio_clamp: None };
        let (train, report) = estimate(batch(&[(None, &[-1.0], Some(&[-3.0]))]), &GRPO, groups_of(1, Some(&term)));
        assert_eq!(train.advantages(), [vec![-2.0]]);
        assert_eq!((report.reverse_kl, report.zero_std_groups), (Some(2.0), 0));

        let raw = AdvantageSpec { estimator: AdvantageEstimator::Raw, ..GRPO };
        let (train, report) =
            estimate(batch(&[(Some(-1.0), &[-1.0, -1.0], None), (None, &[-1.0], None)]), &raw, groups_of(2, None));
        assert_eq!(train.advantages(), [vec![-1.0, -1.0], vec![0.0]]);
        let task_advantage = Some(2.0 / 3.0);
        assert_eq!(report, AdvantageReport { zero_std_groups: 1, task_advantage, ..AdvantageReport::default() });
    }

    #[test]
    fn whitening_comes_last() {
        let scored = batch(&[(Some(1.0), &[-1.0, -2.0], Some(&[-1.5, -2.0])), (Some(0.0), &[-1.0], Some(&[-1.0]))]);
        let spec = AdvantageSpec { normalize_advantages: true, ..GRPO };
        let (train, _) = estimate(scored, &spec, groups_of(2, Some(&OpdTerm { coef: 1.0, log_ratio_clamp: None })));
        let all: Vec<f64> = train.advantages().concat().iter().map(|&a| f64::from(a)).collect();
        let mean = all.iter().sum::<f64>() / 3.0;
        let variance = all.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / 2.0;
        assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-6, "{all:?}");
    }

    #[test]
    #[should_panic(expected = "no teacher log-probabilities")]
    fn a_missing_teacher_is_never_a_zero() {
        estimate(
            batch(&[(None, &[-1.0], None)]),
            &GRPO,
            groups_of(1, Some(&OpdTerm { coef: 1.0, log_ratio_clamp: None })),
        );
    }

    #[test]
    fn length_and_drift_are_taken_from_the_reward_before_it_is_compared() {
        let samples = [(Some(1.0), &[-1.0f32, -1.0, -1.0, -1.0][..], None), (Some(1.0), &[-1.0][..], None)];
        let reference = [vec![-1.5, -1.0, -1.0, -1.0], vec![-3.0]];
        let kl = |kl_type| Some(KlRewardSpec { kl_coef: 0.5, kl_type });
        let inputs = Inputs { reference_logprobs: Some(&reference), ..groups_of(2, None) };
        let overlong = Some(OverlongSpec { cache_len: 2, penalty: 1.0 });
        let spec = AdvantageSpec { kl_reward: kl(KlLossType::K1), overlong: overlong.clone(), ..GRPO };
        // 1 − 1 (the limit) − 0.5·0.5 and 1 − 0.5·2: the second is worth 0.25 more.
        let (train, report) = estimate(batch(&samples), &spec, inputs);
        assert_eq!(train.advantages(), [vec![-0.125; 4], vec![0.125]]);
        assert_eq!(report.zero_std_groups, 0);

        // Along the tokens: the reward's mean first, then each token's own penalty.
        let spec = AdvantageSpec {
            estimator: AdvantageEstimator::ReinforcePlusPlusBaseline,
            kl_reward: kl(KlLossType::K2),
            ..spec.clone()
        };
        let (train, _) = estimate(batch(&samples), &spec, inputs);
        assert_eq!(train.advantages(), [vec![-0.5 - 0.0625, -0.5, -0.5, -0.5], vec![0.5 - 1.0]]);
        // Summed to the end, discounted.
        let spec = AdvantageSpec {
            estimator: AdvantageEstimator::ReinforcePlusPlus { gamma: 0.5 },
            kl_reward: kl(KlLossType::K1),
            overlong,
            ..GRPO
        };
        let (train, _) = estimate(batch(&samples), &spec, inputs);
        assert_eq!(train.advantages(), [vec![-0.25, 0.0, 0.0, 0.0], vec![1.0 - 1.0]]);
    }

    #[test]
    fn groups_without_a_difference_leave_the_update_and_the_whitening() {
        let spec = AdvantageSpec { dynamic_sampling: true, normalize_advantages: true, ..GRPO };
        let samples = [
            (Some(1.0), &[-1.0f32][..], None),
            (Some(1.0), &[-1.0; 3], None),
            (Some(0.0), &[-1.0], None),
            (Some(2.0), &[-1.0], None),
        ];
        let (train, report) = estimate(batch(&samples), &spec, groups_of(2, None));
        assert_eq!((train.weights(), report.dropped), (&[0.0, 0.0, 1.0, 1.0][..], 2));
        let half = 0.5f32.sqrt();
        assert!((train.advantages()[2][0] + half).abs() < 1e-6 && (train.advantages()[3][0] - half).abs() < 1e-6);
    }
}
