//! Evaluation inside a run: held-out rows through the same engine and the same reward function.

use std::sync::Arc;

use training_gym_core::record::Grade;
use training_gym_core::spec::{EvalSpec, RolloutSpec};

use super::failure::Stop;
use super::playing::{self, Playing, Season};
use super::scoring::{Judges, Pending, Verdicts};
use super::step::Trainer;
use crate::batch::PromptBatch;
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

/// What an evaluation found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evaluated {
    /// Mean over graded samples; `None` where there is none.
    pub(super) reward: Option<f64>,
    /// Held-out samples.
    pub(super) samples: usize,
    /// Those among them without a grade: they count neither as right nor as wrong.
    pub(super) ungraded: usize,
}

/// Evaluation draws with noise of its own, so that asking for one changes no training step.
const EVALUATION_SEED: u64 = 0x6576_616c;

/// Whether `step` of `num_rollout` is evaluated: every so many steps, and the last one, whose
/// checkpoint is what a person takes (as verl's `test_freq`).
fn is_due(step: u64, interval: u64, num_rollout: u64) -> bool {
    step.is_multiple_of(interval) || step == num_rollout
}

impl Trainer {
    /// The mean reward over the held-out rows, if `step` is one to evaluate at and nobody asks to
    /// stop meanwhile.
    ///
    /// # Errors
    /// When the engine refuses a prompt or no worker can be had.
    pub(super) fn evaluate_if_due(&mut self, step: u64) -> Result<Option<Evaluated>, Stop> {
        let (Some(evaluation), Some(grader)) = (&self.evaluation, &self.grader) else { return Ok(None) };
        if !is_due(step, evaluation.spec.eval_interval, self.spec.num_rollout) {
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
        let seed = self.spec.seed ^ EVALUATION_SEED;
        let draw = Draw { spec: &spec, text: &self.text, seed, turns: playing::turns(&self.spec) };
        let judges = Judges { grader: Some(Arc::clone(grader)), share: None, teacher: None };
        let season = Season { step, evaluation: true, seed: self.spec.seed };
        let mut pending = Pending::new(season, judges, self.runtime.clone());
        let mut world = Playing::new(season, &mut pending, None, (&self.stop, &self.runtime))
            .within(&self.spec, self.grader.as_ref());
        let drawn = collect::collect_in(&mut self.engine, &prompts, &draw, &mut world);
        let failure = world.into_failure();
        if self.spec.memory.free_cache_engine {
            self.engine.free_cache();
        }
        // The next step's is its own.
        let _ = self.engine.take_cache_peak();
        if let Some(stop) = failure {
            return Err(stop);
        }
        if let Err(error) = &drawn
            && !matches!(error, collect::Error::Stopped)
        {
            return Err(Stop::undrawn(error));
        }
        let Some(verdicts) = self.stop.or(&self.runtime, pending.join()) else { return Ok(None) };
        let (Verdicts { graded, .. }, Ok(batch)) = (verdicts?, drawn) else { return Ok(None) };
        // In sample order: the sum is the same each time.
        let rewards: Vec<f64> = batch
            .rollouts()
            .iter()
            .filter_map(|rollout| match graded.get(&rollout.index)?.grade {
                Grade::Graded { reward } => Some(reward),
                _ => None,
            })
            .collect();
        Ok(Some(Evaluated {
            reward: (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64),
            samples: batch.rollouts().len(),
            ungraded: batch.rollouts().len() - rewards.len(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::is_due;

    #[test]
    fn the_multiples_of_the_interval_and_the_last_step_are_due() {
        let due = |interval, num_rollout| {
            (1..=num_rollout).filter(|step| is_due(*step, interval, num_rollout)).collect::<Vec<u64>>()
        };
        assert_eq!(due(3, 7), [3, 6, 7]);
        assert_eq!(due(3, 6), [3, 6]);
        assert_eq!(due(10, 4), [4]);
        assert_eq!(due(1, 2), [1, 2]);
    }
}
