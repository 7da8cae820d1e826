//! What a run writes as it goes: rollouts, metrics, status. One task writes, in order, so steps
//! do not wait for the store; [`Journal::flush`] does, before anything that relies on it.
//!
//! The task asks for the lease at each write, not when the entry was made: between the two, a newer
//! attempt may have begun, and its metrics would be cut.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use training_gym_core::record::{Cause, Failure, RolloutRecord, RunState, RunStatus, StepMetrics, keys};
use training_gym_core::store::{self, Store};

use super::failure::Stop;
use super::lease::Lease;

enum Entry {
    Put(String, Bytes),
    WriteAt(String, u64, Bytes),
    Flush(oneshot::Sender<Result<(), Stop>>),
}

/// The run's diary.
#[derive(Debug)]
pub(super) struct Journal {
    lease: Lease,
    /// The store's URL, for error messages.
    store: String,
    num_rollout: u64,
    metrics_offset: u64,
    notes: Vec<String>,
    runtime: Handle,
    entries: Option<mpsc::UnboundedSender<Entry>>,
    writer: Option<JoinHandle<()>>,
}

impl Journal {
    /// A diary of the run and attempt of `lease`, which writes its metrics from their beginning until
    /// [told otherwise](Self::resume_metrics_at).
    pub(super) fn open(store: Arc<dyn Store>, lease: Lease, num_rollout: u64, runtime: Handle) -> Self {
        let (entries, received) = mpsc::unbounded_channel();
        let url = store.url();
        let writer = runtime.spawn(write(store, lease.clone(), received));
        Self {
            lease,
            store: url,
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
        self.send(Entry::WriteAt(keys::metrics(self.lease.run()), offset, Bytes::new()));
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
        self.send(Entry::Put(keys::rollouts(self.lease.run(), step), lines.into()));
    }

    /// Writes a step's line of metrics.
    pub(super) fn metrics(&mut self, metrics: &StepMetrics) {
        let mut line = Vec::new();
        json_line(&mut line, metrics);
        let offset = self.metrics_offset;
        self.metrics_offset += line.len() as u64;
        self.send(Entry::WriteAt(keys::metrics(self.lease.run()), offset, line.into()));
    }

    /// Writes where the run is.
    pub(super) fn status(&self, state: RunState, step: u64, failure: Option<Failure>) {
        let status = RunStatus {
            state,
            step,
            num_rollout: self.num_rollout,
            attempt: self.lease.attempt(),
            updated_at: now(),
            failure,
            peak_memory: peak_memory(),
            notes: self.notes.clone(),
        };
        let mut text = Vec::new();
        json_line(&mut text, &status);
        self.send(Entry::Put(keys::status(self.lease.run()), text.into()));
    }

    /// Waits until everything is in the store.
    ///
    /// # Errors
    /// The first since the last flush: the store's, or that a newer attempt owns the records now.
    pub(super) fn flush(&self) -> Result<(), Stop> {
        let (done, wait) = oneshot::channel();
        self.send(Entry::Flush(done));
        self.runtime.block_on(wait).unwrap_or_else(|_| {
            let (folder, store) = (keys::run(self.lease.run()), &self.store);
            let sentence = format!("cannot write `{folder}` in {store}: the task that writes the run's records ended");
            Err(Stop::say(Cause::Store, sentence))
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

async fn write(store: Arc<dyn Store>, lease: Lease, mut entries: mpsc::UnboundedReceiver<Entry>) {
    let mut failed: Option<Stop> = None;
    while let Some(entry) = entries.recv().await {
        let outcome = match entry {
            Entry::Put(key, bytes) => match lease.check(&*store).await {
                Ok(()) => store.put(&key, bytes).await.map(drop).map_err(unwritten),
                Err(stop) => Err(stop),
            },
            Entry::WriteAt(key, offset, bytes) => match lease.check(&*store).await {
                Ok(()) => store.write_at(&key, offset, bytes).await.map_err(unwritten),
                Err(stop) => Err(stop),
            },
            Entry::Flush(done) => {
                let _ = done.send(failed.take().map_or(Ok(()), Err));
                Ok(())
            }
        };
        if let Err(stop) = outcome {
            tracing::error!("{}", stop.0.sentence);
            failed.get_or_insert(stop);
        }
    }
}

fn unwritten(error: store::Error) -> Stop {
    Stop::new(Cause::Store, &error)
}

fn json_line(out: &mut Vec<u8>, value: &impl serde::Serialize) {
    serde_json::to_writer(&mut *out, value).expect("records have string keys and finite or null numbers");
    out.push(b'\n');
}

/// Unix seconds.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The most memory this process had in use so far, in bytes; where the system says it. A container that is
/// killed for memory writes no last word, so each word carries it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use training_gym_core::ids::RunId;
    use training_gym_core::store::MemoryStore;

    struct Diaries {
        runtime: tokio::runtime::Runtime,
        store: Arc<dyn Store>,
        run: RunId,
    }

    impl Diaries {
        fn new() -> Self {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            Self { runtime, store: Arc::new(MemoryStore::default()), run: "r".parse().unwrap() }
        }

        fn next(&self) -> Journal {
            let lease = self.runtime.block_on(Lease::take(&*self.store, &self.run)).unwrap();
            Journal::open(Arc::clone(&self.store), lease, 9, self.runtime.handle().clone())
        }

        fn metrics(&self) -> Bytes {
            self.runtime.block_on(self.store.get(&keys::metrics(&self.run))).unwrap().bytes
        }

        fn status(&self) -> RunStatus {
            let status = self.runtime.block_on(self.store.get(&keys::status(&self.run))).unwrap().bytes;
            serde_json::from_slice(&status).unwrap()
        }
    }

    fn line(journal: &mut Journal, step: u64) {
        let zeros: StepMetrics = serde_json::from_value(serde_json::json!({
            "step": step, "reward": null, "ungraded": 0, "reverse_kl": null, "response_len": 1.0,
            "truncated": 0.0, "entropy": 0.0, "loss": 0.0, "clip_fraction": 0.0, "logprob_gap": 0.0,
            "grad_norm": 0.0, "lr": 0.0, "skipped_updates": 0, "tokens": 1, "rollout_seconds": 0.0,
            "score_wait_seconds": 0.0, "update_seconds": 0.0, "step_seconds": 0.0, "weight_version": step,
        }))
        .unwrap();
        journal.metrics(&zeros);
    }

    #[test]
    fn a_resumed_run_cuts_what_a_lost_attempt_wrote_behind_its_state() {
        let diaries = Diaries::new();
        let mut first = diaries.next();
        line(&mut first, 1);
        let kept = first.metrics_offset();
        line(&mut first, 2);
        first.flush().unwrap();
        assert_eq!(diaries.metrics().iter().filter(|&&byte| byte == b'\n').count(), 2);
        // A writer that ended takes nothing any more: that is an error, not silence.
        first.writer.as_ref().unwrap().abort();
        let lost = loop {
            if let Err(Stop(failure)) = first.flush() {
                break failure.sentence;
            }
        };
        assert!(lost.contains("runs/r/"), "{lost}");
        drop(first);
        let mut second = diaries.next();
        second.resume_metrics_at(kept);
        second.note("careful");
        second.status(RunState::Running, 1, None);
        second.flush().unwrap();
        assert_eq!(diaries.metrics().len() as u64, kept);
        let status = diaries.status();
        assert_eq!((status.attempt, status.step, status.notes), (2, 1, vec!["careful".to_owned()]));
    }

    #[test]
    fn an_attempt_that_another_superseded_writes_nothing_more() {
        let diaries = Diaries::new();
        let mut first = diaries.next();
        line(&mut first, 1);
        first.flush().unwrap();
        let mut second = diaries.next();
        second.resume_metrics_at(0);
        (1..4).for_each(|step| line(&mut second, step));
        second.status(RunState::Running, 3, None);
        second.flush().unwrap();
        let whole = diaries.metrics();
        // What the older one would write cuts the metrics and takes the status back.
        line(&mut first, 2);
        first.rollouts(2, &[]);
        first.status(RunState::Running, 2, None);
        let Stop(failure) = first.flush().unwrap_err();
        assert_eq!((failure.cause, failure.retryable), (Cause::Superseded, false), "{}", failure.sentence);
        assert_eq!(diaries.metrics(), whole);
        assert_eq!((diaries.status().attempt, diaries.status().step), (2, 3));
        let rollouts = diaries.runtime.block_on(diaries.store.get(&keys::rollouts(&diaries.run, 2)));
        assert!(matches!(rollouts, Err(store::Error::NotFound { .. })), "{rollouts:?}");
    }
}
