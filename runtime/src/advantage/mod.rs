//! From rewards and log-probabilities to advantages: pure functions, no tensors.
//!
//! ```text
//! rewards ──group_relative──► one advantage a sample ──broadcast──► [R] a sample
//!                                                  − λ·(log π_student − log π_teacher)   (distillation)
//!                                                  ──whiten──► with_advantages
//! ```
//!
//! Everything is computed in `f64` and rounded once to `f32`.

mod distillation;
mod group;
mod whitening;

use training_gym_core::spec::{AdvantageEstimator, AdvantageSpec};

use crate::batch::{ScoredBatch, TrainBatch};

pub use distillation::{DistillationSums, OpdTerm, subtract_reverse_kl};
pub use group::{GroupAdvantages, group_relative, raw};
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
}

/// Makes the advantages of one step. The student's log-probabilities are the engine's own
/// (`rollout_logprobs`): those the tokens were drawn with.
///
/// An ungraded sample (reward `None`) is left out of its group's mean and deviation and gets
/// advantage 0; the distillation term applies to it like to any other.
///
/// # Shapes
/// One `[R]` list a sample, in sample order.
///
/// # Panics
/// When `n_samples_per_prompt` is 0, when `opd` is given and a sample has no teacher
/// log-probabilities, or when a reward or log-probability is not finite: faults of the stages
/// before.
pub fn estimate(
    batch: ScoredBatch,
    spec: &AdvantageSpec,
    opd: Option<&OpdTerm>,
    n_samples_per_prompt: usize,
) -> (TrainBatch, AdvantageReport) {
    let rewards: Vec<Option<f64>> = batch.scores().iter().map(|score| score.reward).collect();
    let groups = match spec.estimator {
        AdvantageEstimator::GroupRelative { normalize_std } => {
            group_relative(&rewards, n_samples_per_prompt, normalize_std)
        }
        AdvantageEstimator::Raw => raw(&rewards, n_samples_per_prompt),
    };
    let mut report = AdvantageReport { zero_std_groups: groups.zero_std_groups, ..AdvantageReport::default() };

    let rollouts = batch.rollouts();
    let mut advantages: Vec<Vec<f64>> =
        groups.advantages.iter().zip(rollouts).map(|(&a, rollout)| vec![a; rollout.response_ids.len()]).collect();
    if let Some(term) = opd {
        let mut sums = DistillationSums::default();
        for ((row, rollout), score) in advantages.iter_mut().zip(rollouts).zip(batch.scores()) {
            let Some(teacher) = &score.teacher_logprobs else {
                panic!("sample {} has no teacher log-probabilities, and the run distils", rollout.index)
            };
            subtract_reverse_kl(row, &rollout.rollout_logprobs, teacher, term, &mut sums);
        }
        report.reverse_kl = sums.mean();
        report.clamped = sums.clamped;
    }
    if spec.normalize_advantages {
        let masks: Vec<Vec<bool>> = advantages.iter().map(|row| vec![true; row.len()]).collect();
        whiten(&mut advantages, &masks);
    }
    let advantages = advantages.into_iter().map(|row| row.into_iter().map(|a| a as f32).collect()).collect();
    (batch.with_advantages(advantages), report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{PreparedPrompt, Rollout, RolloutBatch, Score};
    use training_gym_core::ids::WeightVersion;
    use training_gym_core::record::Grade;
    use training_gym_core::sample::{FinishReason, Prompt};

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
                rollout_logprobs: student.to_vec(),
                response: String::new(),
                finish_reason: FinishReason::Stop,
                weight_version: WeightVersion(0),
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
            })
            .collect();
        RolloutBatch::new(1, rollouts).scored(scores)
    }

    const GRPO: AdvantageSpec = AdvantageSpec {
        estimator: AdvantageEstimator::GroupRelative { normalize_std: false },
        normalize_advantages: false,
    };

    #[test]
    fn the_teacher_term_is_subtracted_clamped_and_counted() {
        let scored = batch(&[
            (Some(1.0), &[-1.0, -2.0], Some(&[-1.5, -2.0])),
            (Some(0.0), &[-1.0], Some(&[-31.0])),
            (None, &[-0.5], Some(&[-0.25])),
            (Some(3.0), &[-0.5], Some(&[-0.5])),
        ]);
        let term = OpdTerm { coef: 2.0, log_ratio_clamp: Some(10.0) };
        let (train, report) = estimate(scored, &GRPO, Some(&term), 2);
        assert_eq!(train.advantages(), [vec![0.5 - 1.0, 0.5], vec![-0.5 - 20.0], vec![0.5], vec![0.0]]);
        assert_eq!(report.clamped, 1);
        assert_eq!(report.zero_std_groups, 1, "the second group has one graded sample");
        assert!((report.reverse_kl.unwrap() - (0.5 + 0.0 + 30.0 - 0.25 + 0.0) / 5.0).abs() < 1e-9);
    }

    #[test]
    fn pure_distillation_and_pure_reinforcement_are_the_same_call() {
        let term = OpdTerm { coef: 1.0, log_ratio_clamp: None };
        let (train, report) = estimate(batch(&[(None, &[-1.0], Some(&[-3.0]))]), &GRPO, Some(&term), 1);
        assert_eq!(train.advantages(), [vec![-2.0]]);
        assert_eq!((report.reverse_kl, report.zero_std_groups), (Some(2.0), 0));

        let raw = AdvantageSpec { estimator: AdvantageEstimator::Raw, ..GRPO };
        let (train, report) =
            estimate(batch(&[(Some(-1.0), &[-1.0, -1.0], None), (None, &[-1.0], None)]), &raw, None, 2);
        assert_eq!(train.advantages(), [vec![-1.0, -1.0], vec![0.0]]);
        assert_eq!(report, AdvantageReport { zero_std_groups: 1, ..AdvantageReport::default() });
    }

    #[test]
    fn whitening_comes_last() {
        let scored = batch(&[(Some(1.0), &[-1.0, -2.0], Some(&[-1.5, -2.0])), (Some(0.0), &[-1.0], Some(&[-1.0]))]);
        let spec = AdvantageSpec { normalize_advantages: true, ..GRPO };
        let (train, _) = estimate(scored, &spec, Some(&OpdTerm { coef: 1.0, log_ratio_clamp: None }), 2);
        let all: Vec<f64> = train.advantages().concat().iter().map(|&a| f64::from(a)).collect();
        let mean = all.iter().sum::<f64>() / 3.0;
        let variance = all.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / 2.0;
        assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-6, "{all:?}");
    }

    #[test]
    #[should_panic(expected = "no teacher log-probabilities")]
    fn a_missing_teacher_is_never_a_zero() {
        estimate(batch(&[(None, &[-1.0], None)]), &GRPO, Some(&OpdTerm { coef: 1.0, log_ratio_clamp: None }), 1);
    }
}
