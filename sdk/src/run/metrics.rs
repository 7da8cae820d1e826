//! What a run measures, read as it grows.

use training_gym_core::ids::RunId;
use training_gym_core::record::{StepMetrics, keys};
use training_gym_core::store;

use super::document::Document;
use super::{Error, TrainRun};
use crate::gym::Gym;

/// The lines of `metrics.jsonl` read so far, and where the next one begins.
#[derive(Default)]
pub(super) struct Metrics {
    steps: Vec<StepMetrics>,
    /// Bytes of whole lines read.
    offset: u64,
    /// Lines read, empty ones included.
    lines: usize,
    attempt: u64,
}

impl Metrics {
    /// Reads what has come since, and returns all. `attempt` is the newest that is known: a new one
    /// cuts what an earlier one wrote behind its last published state, so it is read from the start.
    pub(super) async fn read(&mut self, gym: &Gym, run_id: &RunId, attempt: u64) -> Result<&[StepMetrics], Error> {
        if self.attempt != attempt {
            *self = Self { attempt, ..Self::default() };
        }
        let on = self.offset > 0;
        match self.more(gym, run_id).await {
            Ok(true) => {}
            // Cut since, before a status said that there is another attempt.
            Ok(false) | Err(Error::Unreadable { .. }) if on => {
                *self = Self { attempt, ..Self::default() };
                self.more(gym, run_id).await?;
            }
            Ok(false) => {}
            Err(error) => return Err(error),
        }
        Ok(&self.steps)
    }

    /// Reads on; false where the file has become shorter.
    async fn more(&mut self, gym: &Gym, run_id: &RunId) -> Result<bool, Error> {
        let key = keys::metrics(run_id);
        let bytes = match gym.store().get_from(&key, self.offset).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(false),
            Err(store::Error::NotFound { .. }) => return Ok(self.offset == 0),
            Err(error) => return Err(error.into()),
        };
        // Whole lines only: the last may be half written.
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        for line in bytes[..whole].split_inclusive(|&byte| byte == b'\n') {
            self.lines += 1;
            if !line.trim_ascii().is_empty() {
                let damaged = Document::Metrics(self.lines).unreadable(gym, run_id, &key);
                self.steps.push(serde_json::from_slice(line).map_err(damaged)?);
            }
            self.offset += line.len() as u64;
        }
        Ok(true)
    }
}

impl TrainRun {
    /// What the run has measured so far, a line a step.
    ///
    /// # Errors
    /// When the store fails, or a line is damaged.
    pub async fn metrics(&self) -> Result<Vec<StepMetrics>, Error> {
        let mut metrics = Metrics::default();
        metrics.read(self.gym(), self.training_run_id(), 0).await?;
        Ok(metrics.steps)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use training_gym_core::store::{MemoryStore, Store};

    use super::*;

    fn line(step: u64) -> String {
        let mut value = serde_json::json!({"step": step, "reward": 0.5, "reverse_kl": 0.25});
        for name in [
            "ungraded",
            "response_len",
            "truncated",
            "entropy",
            "loss",
            "clip_fraction",
            "logprob_gap",
            "grad_norm",
            "lr",
            "skipped_updates",
            "tokens",
            "rollout_seconds",
            "score_wait_seconds",
            "update_seconds",
            "step_seconds",
            "weight_version",
        ] {
            value[name] = 0.into();
        }
        format!("{value}\n")
    }

    #[tokio::test]
    async fn a_log_is_read_on_and_anew_where_it_was_cut() {
        let home = tempfile::tempdir().unwrap();
        let store = Arc::new(MemoryStore::new());
        let gym = Gym::local(home.path()).unwrap().with_store(store.clone());
        let run_id: RunId = "r".parse().unwrap();
        let key = keys::metrics(&run_id);
        let put = |text: String| store.put(&key, Bytes::from(text));
        let mut metrics = Metrics::default();
        let steps = async |metrics: &mut Metrics, attempt| -> Vec<u64> {
            metrics.read(&gym, &run_id, attempt).await.unwrap().iter().map(|step| step.step).collect()
        };
        assert!(steps(&mut metrics, 1).await.is_empty());
        let (one, two) = (line(1), line(2));
        put(format!("{one}{}", &two[..9])).await.unwrap();
        assert_eq!(steps(&mut metrics, 1).await, [1]);
        // What was read is not read again: it may be anything by now.
        let garbled = "x".repeat(one.len() - 1);
        put(format!("{garbled}\n{two}{}", line(3))).await.unwrap();
        assert_eq!(steps(&mut metrics, 1).await, [1, 2, 3]);
        // Shorter, then as long again with other lines, at whose middle the reader stood.
        put(one.clone()).await.unwrap();
        assert_eq!(steps(&mut metrics, 1).await, [1]);
        put(format!("{one}{two}")).await.unwrap();
        assert_eq!(steps(&mut metrics, 1).await, [1, 2]);
        put(format!("{one}{}{}", line(1_000_000), line(4))).await.unwrap();
        assert_eq!(steps(&mut metrics, 1).await, [1, 1_000_000, 4]);
        // Another attempt: from the start, even where the old place would do.
        put(format!("{}{two}{}", line(7), line(5))).await.unwrap();
        assert_eq!(steps(&mut metrics, 2).await, [7, 2, 5]);
        // Damage is damage, and its line is named.
        put(format!("{one}\nnonsense\n")).await.unwrap();
        let text = metrics.read(&gym, &run_id, 2).await.unwrap_err().to_string();
        assert!(text.contains("metrics.jsonl:3"), "{text}");
    }
}
