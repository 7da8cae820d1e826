//! Scores that a lost attempt recorded behind the step this one resumes at. A server may answer
//! differently the second time; the run must not.
//!
//! A record is used only for the very same response: same weights, same ids.

use std::collections::HashMap;
use std::sync::Arc;

use training_gym_core::ids::RunId;
use training_gym_core::record::{Cause, Grade, RolloutRecord, keys};
use training_gym_core::store::{Error, Store};
use training_gym_core::wire::teacher;

use super::failure::Stop;
use super::playing;
use crate::batch::Rollout;
use crate::rollout::world::{Answer, Question};
use crate::score::reward::Graded;

/// The records that were there when this attempt began, read a step at a time.
#[derive(Debug)]
pub(super) struct Replay {
    store: Arc<dyn Store>,
    run: RunId,
    /// The last step with records.
    last: u64,
}

/// The records of one step, by sample.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    samples: HashMap<u64, RolloutRecord>,
    damage: Option<String>,
}

impl Replay {
    /// Looks how far an earlier attempt came.
    ///
    /// # Errors
    /// When the store fails.
    pub(super) async fn open(store: Arc<dyn Store>, run: RunId) -> Result<Self, Stop> {
        let prefix = format!("{}rollouts/", keys::run(&run));
        let listed = store.list(&prefix).await.map_err(|error| Stop::new(Cause::Store, &error))?;
        let number = |key: &str| key.strip_prefix(&prefix)?.strip_prefix("step-")?.strip_suffix(".jsonl")?.parse().ok();
        let last = listed.iter().filter_map(|object| number(&object.key)).max().unwrap_or(0);
        Ok(Self { store, run, last })
    }

    /// Reads the records of `step`; none where none are.
    ///
    /// # Errors
    /// When the store fails. A line that is no record is left out and told by
    /// [`Recorded::damage`]: its response is scored anew.
    pub(super) async fn step(&self, step: u64) -> Result<Recorded, Stop> {
        if step > self.last {
            return Ok(Recorded::default());
        }
        let key = keys::rollouts(&self.run, step);
        let bytes = match self.store.get(&key).await {
            Ok(object) => object.bytes,
            Err(Error::NotFound { .. }) => return Ok(Recorded::default()),
            Err(error) => return Err(Stop::new(Cause::Store, &error)),
        };
        let mut recorded = Recorded::default();
        for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
            match serde_json::from_slice::<RolloutRecord>(line) {
                Ok(record) => drop(recorded.samples.insert(record.index, record)),
                Err(error) => {
                    recorded.damage.get_or_insert_with(|| {
                        format!(
                            "`{key}` is damaged in line {} ({error}): what an earlier attempt recorded there is lost, \
                             those responses are scored anew, and where an answer differs this time, so do the weights",
                            index + 1
                        )
                    });
                }
            }
        }
        Ok(recorded)
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

    /// What was wrong with the file, as a person should know it.
    pub(super) fn damage(&self) -> Option<String> {
        self.damage.clone()
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

    /// What the teacher is recorded to have said of the tokens that were drawn.
    pub(super) fn taught(&self, rollout: &Rollout) -> Option<teacher::Answer> {
        let record = self.of(rollout)?;
        let logprobs: Vec<f32> = record.teacher_logprobs.as_ref()?.iter().flatten().copied().collect();
        let whole = logprobs.len() == rollout.drawn()
            && record.teacher_top.as_ref().is_none_or(|top| top.positions() == rollout.drawn());
        whole.then(|| teacher::Answer { logprobs, top: record.teacher_top.clone() })
    }

    /// What an environment said to this turn before.
    pub(super) fn answer(&self, question: &Question) -> Option<Answer> {
        let record = self.samples.get(&question.index)?;
        let same = record.weight_version == question.weight_version && record.prompt_ids == question.prompt.prompt_ids;
        if !same {
            return None;
        }
        playing::recorded_answer(record.episode.as_ref()?, &record.response_ids, question)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use training_gym_core::store::MemoryStore;

    fn line(step: u64, index: u64) -> String {
        let record = serde_json::json!({
            "step": step, "index": index, "group_index": 0, "row": 0, "prompt": "p", "prompt_ids": [1],
            "response": "r", "response_ids": [2], "rollout_logprobs": [-1.0], "teacher_logprobs": null,
            "finish_reason": "stop", "grade": {"outcome": "graded", "reward": 1.0}, "reward": 1.0, "score": null,
            "label": "", "metadata": {}, "weight_version": step - 1,
        });
        format!("{record}\n")
    }

    #[tokio::test]
    async fn a_step_is_read_when_it_comes_and_what_is_damaged_is_named() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let run: RunId = "r".parse().unwrap();
        let put = async |step, text: String| {
            store.put(&keys::rollouts(&run, step), text.into()).await.unwrap();
        };
        put(2, line(2, 0) + &line(2, 1)).await;
        put(4, "not yet".to_owned()).await;
        let replay = Replay::open(Arc::clone(&store), run.clone()).await.unwrap();
        let whole = replay.step(2).await.unwrap();
        assert_eq!((whole.samples.len(), whole.damage()), (2, None));
        // Read when it is the step's turn, not before.
        put(4, line(4, 0) + "{\"step\": 4,\n" + &line(4, 2)).await;
        let damaged = replay.step(4).await.unwrap();
        assert_eq!(damaged.samples.len(), 2, "what is sound is used");
        let words = damaged.damage().unwrap();
        assert!(words.starts_with("`runs/r/rollouts/step-4.jsonl` is damaged in line 2 (EOF"), "{words}");
        assert!(words.contains("scored anew"), "{words}");
        // What this attempt writes itself is never read back.
        put(5, line(5, 0)).await;
        for step in [1, 3, 5] {
            let none = replay.step(step).await.unwrap();
            assert_eq!((none.samples.len(), none.damage()), (0, None), "{step}");
        }
    }
}
