//! What a run writes as it goes: rollouts, metrics, status. One task writes, in order, so steps
//! do not wait for the store; [`Journal::flush`] does, before anything that relies on it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use training_gym_core::ids::RunId;
use training_gym_core::record::{Failure, RolloutRecord, RunState, RunStatus, StepMetrics, keys};
use training_gym_core::store::{self, Store};

enum Entry {
    Put(String, Bytes),
    WriteAt(String, u64, Bytes),
    Flush(oneshot::Sender<Result<(), store::Error>>),
}

/// The run's diary.
#[derive(Debug)]
pub(super) struct Journal {
    run: RunId,
    /// The store's URL, for error messages.
    store: String,
    attempt: u64,
    num_rollout: u64,
    metrics_offset: u64,
    notes: Vec<String>,
    runtime: Handle,
    entries: Option<mpsc::UnboundedSender<Entry>>,
    writer: Option<JoinHandle<()>>,
}

impl Journal {
    /// A diary of `run` that writes its metrics from byte `metrics_offset` on.
    pub(super) fn open(store: Arc<dyn Store>, run: RunId, attempt: u64, num_rollout: u64, runtime: Handle) -> Self {
        let (entries, received) = mpsc::unbounded_channel();
        let url = store.url();
        let writer = runtime.spawn(write(store, received));
        Self {
            run,
            store: url,
            attempt,
            num_rollout,
            metrics_offset: 0,
            notes: Vec::new(),
            runtime,
            entries: Some(entries),
            writer: Some(writer),
        }
    }

    /// Metrics go on from here; what a lost attempt wrote behind it is cut.
    pub(super) fn resume_metrics_at(&mut self, offset: u64) {
        self.metrics_offset = offset;
        self.send(Entry::WriteAt(keys::metrics(&self.run), offset, Bytes::new()));
    }

    /// Where the next line of metrics begins.
    pub(super) fn metrics_offset(&self) -> u64 {
        self.metrics_offset
    }

    /// Remembers something a person should know; it is in every status from now on.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        tracing::warn!("{note}");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Remembers the newest word on `topic`, in place of the former one.
    pub(super) fn restate(&mut self, topic: &'static str, note: impl std::fmt::Display) {
        let note = format!("{topic}: {note}");
        tracing::warn!("{note}");
        match self.notes.iter_mut().find(|known| known.strip_prefix(topic).is_some_and(|rest| rest.starts_with(": "))) {
            Some(known) => *known = note,
            None => self.notes.push(note),
        }
    }

    /// Writes a step's samples.
    pub(super) fn rollouts(&self, step: u64, records: &[RolloutRecord]) {
        let mut lines = Vec::new();
        for record in records {
            json_line(&mut lines, record);
        }
        self.send(Entry::Put(keys::rollouts(&self.run, step), lines.into()));
    }

    /// Writes a step's line of metrics.
    pub(super) fn metrics(&mut self, metrics: &StepMetrics) {
        let mut line = Vec::new();
        json_line(&mut line, metrics);
        let offset = self.metrics_offset;
        self.metrics_offset += line.len() as u64;
        self.send(Entry::WriteAt(keys::metrics(&self.run), offset, line.into()));
    }

    /// Writes where the run is.
    pub(super) fn status(&self, state: RunState, step: u64, failure: Option<Failure>) {
        let status = RunStatus {
            state,
            step,
            num_rollout: self.num_rollout,
            attempt: self.attempt,
            updated_at: now(),
            failure,
            notes: self.notes.clone(),
        };
        let mut text = Vec::new();
        json_line(&mut text, &status);
        self.send(Entry::Put(keys::status(&self.run), text.into()));
    }

    /// Waits until everything is in the store.
    ///
    /// # Errors
    /// The first error since the last flush.
    pub(super) fn flush(&self) -> Result<(), store::Error> {
        let (done, wait) = oneshot::channel();
        self.send(Entry::Flush(done));
        self.runtime.block_on(wait).unwrap_or_else(|_| {
            Err(store::Error::Io {
                action: "write",
                key: keys::run(&self.run),
                store: self.store.clone(),
                source: std::io::Error::other("the task that writes the run's records ended"),
            })
        })
    }

    fn send(&self, entry: Entry) {
        if let Some(entries) = &self.entries {
            // The writer lives as long as we do.
            let _ = entries.send(entry);
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.entries = None;
        if let Some(writer) = self.writer.take() {
            let _ = self.runtime.block_on(writer);
        }
    }
}

async fn write(store: Arc<dyn Store>, mut entries: mpsc::UnboundedReceiver<Entry>) {
    let mut failed: Option<store::Error> = None;
    while let Some(entry) = entries.recv().await {
        let outcome = match entry {
            Entry::Put(key, bytes) => store.put(&key, bytes).await.map(drop),
            Entry::WriteAt(key, offset, bytes) => store.write_at(&key, offset, bytes).await,
            Entry::Flush(done) => {
                let _ = done.send(failed.take().map_or(Ok(()), Err));
                Ok(())
            }
        };
        if let Err(error) = outcome {
            tracing::error!("{}", training_gym_core::chain(&error));
            failed.get_or_insert(error);
        }
    }
}

fn json_line(out: &mut Vec<u8>, value: &impl serde::Serialize) {
    serde_json::to_writer(&mut *out, value).expect("records have string keys and finite or null numbers");
    out.push(b'\n');
}

/// Unix seconds.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use training_gym_core::store::MemoryStore;

    #[test]
    fn a_resumed_run_cuts_what_a_lost_attempt_wrote_behind_its_state() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let run: RunId = "r".parse().unwrap();
        let open = |attempt| Journal::open(Arc::clone(&store), run.clone(), attempt, 9, runtime.handle().clone());
        let metrics = || runtime.block_on(store.get(&keys::metrics(&run))).unwrap().bytes;
        let line = |journal: &mut Journal, step: u64| {
            let zeros: StepMetrics = serde_json::from_value(serde_json::json!({
                "step": step, "reward": null, "ungraded": 0, "reverse_kl": null, "response_len": 1.0,
                "truncated": 0.0, "entropy": 0.0, "loss": 0.0, "clip_fraction": 0.0, "logprob_gap": 0.0,
                "grad_norm": 0.0, "lr": 0.0, "skipped_updates": 0, "tokens": 1, "rollout_seconds": 0.0,
                "score_wait_seconds": 0.0, "update_seconds": 0.0, "step_seconds": 0.0, "weight_version": step,
            }))
            .unwrap();
            journal.metrics(&zeros);
        };
        let mut first = open(1);
        line(&mut first, 1);
        let kept = first.metrics_offset();
        line(&mut first, 2);
        first.flush().unwrap();
        assert_eq!(metrics().iter().filter(|&&byte| byte == b'\n').count(), 2);
        // A writer that ended takes nothing any more: that is an error, not silence.
        first.writer.as_ref().unwrap().abort();
        let lost = loop {
            if let Err(error) = first.flush() {
                break error.to_string();
            }
        };
        assert!(lost.contains("runs/r/"), "{lost}");
        drop(first);
        let mut second = open(2);
        second.resume_metrics_at(kept);
        second.note("careful");
        second.status(RunState::Running, 1, None);
        second.flush().unwrap();
        assert_eq!(metrics().len() as u64, kept);
        let status = runtime.block_on(store.get(&keys::status(&run))).unwrap().bytes;
        let status: RunStatus = serde_json::from_slice(&status).unwrap();
        assert_eq!((status.attempt, status.step, status.notes), (2, 1, vec!["careful".to_owned()]));
    }
}
