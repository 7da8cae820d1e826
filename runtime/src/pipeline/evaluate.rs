//! Evaluation inside a run: held-out rows through the same engine and the same reward function.

use std::sync::Arc;

use training_gym_core::record::{Cause, Grade};
use training_gym_core::spec::{EvalSpec, RolloutSpec};

use super::failure::Stop;
use super::step::Trainer;
use crate::batch::{PromptBatch, Rollout};
use crate::data::PromptSource;
use crate::rollout::collect::{self, Draw};

/// Held-out rows, ready.
#[derive(Debug)]
pub(super) struct Evaluation {
    /// When and how.
    pub(super) spec: EvalSpec,
    /// The rows.
    pub(super) data: PromptSource,
}

/// Evaluation draws with noise of its own, so that asking for one changes no training step.
const EVALUATION_SEED: u64 = 0x6576_616c;

impl Trainer {
    /// The mean reward over the held-out rows, if `step` is one to evaluate at.
    ///
    /// # Errors
    /// When the engine refuses a prompt or no worker can be had.
    pub(super) fn evaluate_if_due(&mut self, step: u64) -> Result<Option<f64>, Stop> {
        let (Some(evaluation), Some(grader)) = (&self.evaluation, &self.grader) else { return Ok(None) };
        if !step.is_multiple_of(evaluation.spec.eval_interval) {
            return Ok(None);
        }
        let spec = RolloutSpec {
            rollout_batch_size: evaluation.data.prompts().len(),
            n_samples_per_prompt: evaluation.spec.n_samples_per_eval_prompt,
            rollout_max_response_len: evaluation.spec.eval_max_response_len,
            sampling: evaluation.spec.sampling.clone(),
            ..self.spec.rollout.clone()
        };
        let prompts = PromptBatch { step, prompts: evaluation.data.prompts().to_vec() };
        let draw = Draw { spec: &spec, text: &self.text, seed: self.spec.seed ^ EVALUATION_SEED };
        let mut tasks = Vec::new();
        let finished = |rollout: &Rollout| {
            let (grader, sample) = (Arc::clone(grader), rollout.to_sample(step));
            tasks.push(self.runtime.spawn(async move { grader.grade(&sample).await }));
        };
        let batch = collect::collect(&mut self.engine, &prompts, &draw, finished, || true)
            .map_err(|error| Stop::new(Cause::InvalidInput, &error))?;
        let mut rewards = Vec::with_capacity(batch.rollouts().len());
        for task in tasks {
            let graded = self
                .runtime
                .block_on(task)
                .map_err(|error| Stop::new(Cause::Internal, &error))?
                .map_err(|error| Stop::new(error.cause(), &error))?;
            if let Grade::Graded { reward } = graded.grade {
                rewards.push(reward);
            }
        }
        // Tasks end in any order, their handles are in the order responses ended: the sum is the same each time.
        Ok((!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64))
    }
}
