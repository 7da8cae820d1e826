//! The types that cross from stage to stage, and the shape glossary.
//!
//! `PromptBatch → RolloutBatch → ScoredBatch → TrainBatch → UpdateReport`: each is made from the
//! former and only so, so "advantages before rewards" does not compile. Samples are in sample
//! order: `index = group_index · n_samples_per_prompt + i`.
//!
//! | letter | meaning |
//! |---|---|
//! | `B` | sequences decoded together |
//! | `T` | tokens of a packed pass, all its sequences end to end |
//! | `N` | rows that carry loss |
//! | `R` | response tokens of one sample |
//! | `M` | those of them that the student drew: all, unless it is a response of several turns |
//! | `L` | layers |
//! | `H` | hidden size |
//! | `A`, `K` | attention heads, key-value heads |
//! | `D` | head dimension |
//! | `V` | vocabulary |
//!
//! A token that the student did not draw (a tool's, the environment's, the template's between turns) is in
//! `response_ids`, and the mask is 0 there. It has no log-probability, no advantage and no row in a loss:
//! per-token lists are `[M]`, so there is nothing that could be counted by mistake.

use serde_json::{Map, Value};
use training_gym_core::episode::EpisodeRecord;
use training_gym_core::ids::WeightVersion;
use training_gym_core::record::Grade;
use training_gym_core::sample::{FinishReason, Prompt, Sample};
use training_gym_core::wire::teacher::TopLogprobs;

/// One prompt of a step, ready for the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedPrompt {
    /// Which row of the dataset.
    pub row: u64,
    /// As in the dataset.
    pub prompt: Prompt,
    /// Its ids, rendered and tokenised once.
    pub prompt_ids: Vec<i64>,
    /// The row's label.
    pub label: String,
    /// The row's other columns.
    pub metadata: Map<String, Value>,
}

/// The prompts of one step.
#[derive(Clone, Debug)]
pub struct PromptBatch {
    /// The step, from 1.
    pub step: u64,
    /// One a group.
    pub prompts: Vec<std::sync::Arc<PreparedPrompt>>,
}

/// One response as the engine drew it.
#[derive(Clone, Debug)]
pub struct Rollout {
    /// Which sample of the step.
    pub index: u64,
    /// Which prompt of the step.
    pub group_index: u64,
    /// The prompt.
    pub prompt: std::sync::Arc<PreparedPrompt>,
    /// Response ids, the end token included where one was drawn. Never empty.
    pub response_ids: Vec<i64>,
    /// Which of them the student drew, `[R]`.
    pub response_mask: Vec<bool>,
    /// log π of each id that was drawn, under the untempered-by-cuts distribution it was drawn at
    /// (after temperature, before top-k/top-p/min-p), `[M]`.
    pub rollout_logprobs: Vec<f32>,
    /// The response as text, special tokens left out.
    pub response: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The weights that drew it.
    pub weight_version: WeightVersion,
    /// The turns, of a response in an environment.
    pub episode: Option<EpisodeRecord>,
}

impl Rollout {
    /// Tokens that the student drew: `M`.
    pub fn drawn(&self) -> usize {
        self.response_mask.iter().filter(|drawn| **drawn).count()
    }

    /// Of a list over the response's tokens, what stands at those that were drawn.
    ///
    /// # Shapes
    /// `[R]` → `[M]`
    ///
    /// # Panics
    /// When the list is not one of `R`.
    pub fn of_drawn<T>(&self, values: Vec<T>) -> Vec<T> {
        assert_eq!(values.len(), self.response_mask.len(), "one value a token of sample {}", self.index);
        values.into_iter().zip(&self.response_mask).filter_map(|(value, drawn)| drawn.then_some(value)).collect()
    }

    /// Over the response's tokens, `None` where none was drawn.
    ///
    /// # Shapes
    /// `[M]` → `[R]`
    ///
    /// # Panics
    /// When the list is not one of `M`.
    pub fn along_response<T: Copy>(&self, values: &[T]) -> Vec<Option<T>> {
        assert_eq!(values.len(), self.drawn(), "one value a drawn token of sample {}", self.index);
        let mut values = values.iter();
        self.response_mask.iter().map(|&drawn| if drawn { values.next().copied() } else { None }).collect()
    }

    /// As a reward function sees it.
    pub fn to_sample(&self, step: u64) -> Sample {
        let mut tokens = self.prompt.prompt_ids.clone();
        tokens.extend_from_slice(&self.response_ids);
        Sample {
            index: self.index,
            group_index: self.group_index,
            row: self.prompt.row,
            step,
            prompt: self.prompt.prompt.clone(),
            response: self.response.clone(),
            tokens,
            response_length: self.response_ids.len(),
            label: self.prompt.label.clone(),
            finish_reason: self.finish_reason,
            score: None,
            metadata: self.prompt.metadata.clone(),
        }
    }
}

/// All responses of one step, in sample order.
#[derive(Clone, Debug)]
pub struct RolloutBatch {
    step: u64,
    rollouts: Vec<Rollout>,
}

impl RolloutBatch {
    /// Puts the responses into sample order.
    ///
    /// # Panics
    /// When indices are not exactly `0..len`, a response is empty or none of it was drawn, or a response, its
    /// mask and its log-probabilities differ in length: faults of the rollout stage.
    pub fn new(step: u64, mut rollouts: Vec<Rollout>) -> Self {
        rollouts.sort_by_key(|rollout| rollout.index);
        for (position, rollout) in rollouts.iter().enumerate() {
            assert_eq!(rollout.index, position as u64, "samples of a step are numbered without gaps");
            assert!(!rollout.response_ids.is_empty(), "sample {position} has no response token");
            assert_eq!(rollout.response_ids.len(), rollout.response_mask.len(), "mask of sample {position}");
            assert!(rollout.drawn() > 0, "sample {position} has no drawn token");
            assert_eq!(rollout.drawn(), rollout.rollout_logprobs.len(), "sample {position}");
        }
        Self { step, rollouts }
    }

    /// The step, from 1.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The responses, in sample order.
    pub fn rollouts(&self) -> &[Rollout] {
        &self.rollouts
    }

    /// Adds what scoring found: one [`Score`] a sample, in sample order.
    ///
    /// # Panics
    /// When the counts differ, or a teacher scored another number of tokens than were drawn.
    pub fn scored(self, scores: Vec<Score>) -> ScoredBatch {
        assert_eq!(self.rollouts.len(), scores.len(), "one score a sample");
        for (rollout, score) in self.rollouts.iter().zip(&scores) {
            if let Some(teacher) = &score.teacher_logprobs {
                assert_eq!(teacher.len(), rollout.drawn(), "teacher of sample {}", rollout.index);
            }
            if let Some(top) = &score.teacher_top {
                assert_eq!(top.positions(), rollout.drawn(), "teacher of sample {}", rollout.index);
            }
        }
        ScoredBatch { batch: self, scores }
    }
}

/// What scoring found about one sample.
#[derive(Clone, Debug)]
pub struct Score {
    /// The reward function's word.
    pub grade: Grade,
    /// The reward the advantage is made of, after group-level post-processing; `None` is ungraded
    /// or not asked.
    pub reward: Option<f64>,
    /// What the reward function left in `sample.score`.
    pub score: Option<f64>,
    /// The sample's metadata after the reward function.
    pub metadata: Map<String, Value>,
    /// log π_teacher of each id that was drawn, `[M]`; `None` without a teacher.
    pub teacher_logprobs: Option<Vec<f32>>,
    /// The teacher's likeliest tokens at each of those, `[M, k]`, where they are learnt from.
    pub teacher_top: Option<TopLogprobs>,
}

/// A step's responses with rewards and teacher log-probabilities.
#[derive(Clone, Debug)]
pub struct ScoredBatch {
    batch: RolloutBatch,
    scores: Vec<Score>,
}

impl ScoredBatch {
    /// The step, from 1.
    pub fn step(&self) -> u64 {
        self.batch.step
    }

    /// The responses, in sample order.
    pub fn rollouts(&self) -> &[Rollout] {
        &self.batch.rollouts
    }

    /// The scores, in sample order.
    pub fn scores(&self) -> &[Score] {
        &self.scores
    }

    /// Adds advantages: `[M]` a sample, in sample order. The batch is frozen from here on.
    ///
    /// # Panics
    /// When counts or lengths differ, or an advantage is not finite.
    pub fn with_advantages(self, advantages: Vec<Vec<f32>>) -> TrainBatch {
        assert_eq!(self.scores.len(), advantages.len(), "one list of advantages a sample");
        for (rollout, row) in self.batch.rollouts.iter().zip(&advantages) {
            assert_eq!(rollout.drawn(), row.len(), "advantages of sample {}", rollout.index);
            assert!(row.iter().all(|a| a.is_finite()), "advantages of sample {} are finite", rollout.index);
        }
        let weights = vec![1.0; self.scores.len()];
        TrainBatch { scored: self, advantages, weights }
    }
}

/// What the update works on.
#[derive(Clone, Debug)]
pub struct TrainBatch {
    scored: ScoredBatch,
    advantages: Vec<Vec<f32>>,
    weights: Vec<f64>,
}

impl TrainBatch {
    /// The step, from 1.
    pub fn step(&self) -> u64 {
        self.scored.step()
    }

    /// The responses, in sample order.
    pub fn rollouts(&self) -> &[Rollout] {
        self.scored.rollouts()
    }

    /// The scores, in sample order.
    pub fn scores(&self) -> &[Score] {
        self.scored.scores()
    }

    /// The advantages, `[M]` a sample.
    pub fn advantages(&self) -> &[Vec<f32>] {
        &self.advantages
    }

    /// How much each sample's loss counts beside the others', 1 unless said otherwise; the update scales
    /// those of a global batch to mean 1. A sample of
    /// weight 0 is left out of the update, and of the number of tokens or samples its mean is over.
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// Multiplies the samples' weights, in sample order.
    ///
    /// # Panics
    /// When the count differs, or a factor is negative or not finite.
    #[must_use]
    pub fn with_weights(mut self, factors: Vec<f64>) -> Self {
        assert_eq!(self.weights.len(), factors.len(), "one weight a sample");
        for (index, (weight, factor)) in self.weights.iter_mut().zip(factors).enumerate() {
            assert!(factor.is_finite() && factor >= 0.0, "the weight of sample {index} is {factor}");
            *weight *= factor;
        }
        self
    }
}

/// What one step's update did. Means are over the step's optimizer steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateReport {
    /// The loss.
    pub loss: f64,
    /// Share of tokens the clip cut.
    pub clip_fraction: f64,
    /// Mean |log π_trainer − log π_engine| of response tokens before the update.
    pub logprob_gap: f64,
    /// Mean −log π of sampled tokens.
    pub entropy: f64,
    /// Gradient norm before clipping.
    pub grad_norm: f64,
    /// Learning rate of the last optimizer step.
    pub lr: f64,
    /// Optimizer steps done.
    pub updates: u64,
    /// Optimizer steps skipped because a gradient was not finite.
    pub skipped_updates: u64,
    /// Mean divergence from a co-resident teacher, over the tokens that were taught, in nats.
    pub divergence: Option<f64>,
    /// Mean of log π_student − log π_teacher over the same tokens: the sampled reverse KL.
    pub log_ratio: Option<f64>,
    /// The 95th percentile of the same.
    pub log_ratio_p95: Option<f64>,
    /// Share of the response tokens that were taught.
    pub selected: Option<f64>,
    /// Seconds of the output head and the loss, forward and back.
    pub head_seconds: f64,
    /// Seconds of scoring tokens to select some, the student's pass included.
    pub scoring_seconds: f64,
}
