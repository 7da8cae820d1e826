//! Scores that a lost attempt recorded behind the step this one resumes at. A server may answer
//! differently the second time; the run must not.
//!
//! A record is used only for the very same response: same weights, same ids.

use std::collections::HashMap;

use training_gym_core::ids::RunId;
use training_gym_core::record::{Cause, Grade, RolloutRecord, keys};
use training_gym_core::store::{Error, Store};

use super::failure::Stop;
use crate::batch::Rollout;
use crate::score::reward::Graded;

/// Records by step.
#[derive(Debug, Default)]
pub(super) struct Replay {
    steps: HashMap<u64, Recorded>,
}

/// The records of one step, by sample.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    samples: HashMap<u64, RolloutRecord>,
}

impl Replay {
    /// Reads what lies behind `done` steps.
    ///
    /// # Errors
    /// When the store fails. A file that is no record is ignored: its step is scored anew.
    pub(super) async fn load(store: &dyn Store, run: &RunId, done: u64) -> Result<Self, Stop> {
        let mut steps = HashMap::new();
        for step in done + 1.. {
            let bytes = match store.get(&keys::rollouts(run, step)).await {
                Ok(object) => object.bytes,
                Err(Error::NotFound { .. }) => break,
                Err(error) => return Err(Stop::new(Cause::Store, &error)),
            };
            let records: Result<Vec<RolloutRecord>, _> = bytes
                .split(|&byte| byte == b'\n')
                .filter(|line| !line.is_empty())
                .map(serde_json::from_slice::<RolloutRecord>)
                .collect();
            let Ok(records) = records else { continue };
            let samples = records.into_iter().map(|record| (record.index, record)).collect();
            steps.insert(step, Recorded { samples });
        }
        Ok(Self { steps })
    }

    /// Takes the records of `step`.
    pub(super) fn step(&mut self, step: u64) -> Recorded {
        self.steps.remove(&step).unwrap_or_default()
    }
}

impl Recorded {
    fn of(&self, rollout: &Rollout) -> Option<&RolloutRecord> {
        let record = self.samples.get(&rollout.index)?;
        let same = record.weight_version == rollout.weight_version
            && record.response_ids == rollout.response_ids
            && record.prompt_ids == rollout.prompt.prompt_ids;
        same.then_some(record)
    }

    /// Whether this response was scored before.
    pub(super) fn has(&self, rollout: &Rollout) -> bool {
        self.of(rollout).is_some()
    }

    /// Its recorded grade.
    pub(super) fn graded(&self, rollout: &Rollout) -> Option<Graded> {
        let record = self.of(rollout)?;
        if record.grade == Grade::NotAsked {
            return None;
        }
        Some(Graded { grade: record.grade.clone(), score: record.score, metadata: record.metadata.clone() })
    }

    /// Its recorded teacher log-probabilities.
    pub(super) fn teacher_logprobs(&self, rollout: &Rollout) -> Option<Vec<f32>> {
        self.of(rollout)?.teacher_logprobs.clone()
    }
}
