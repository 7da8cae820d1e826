//! The run: takes the lease, prepares, steps, publishes, and says how it ended.
//!
//! This is the only room that sees two stages at once.
//!
//! A run succeeds only if at least one step ran, every loss was finite, the weights changed, the
//! engine confirmed their version, and the last checkpoint's manifest is in the store. Anything
//! else ends with a [`training_gym_core::record::Failure`] and its exit code.

mod evaluate;
mod failure;
mod journal;
mod lease;
mod memory;
mod playing;
mod prepare;
mod replay;
mod scoring;
mod signal;
mod source;
mod step;

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::watch;
use training_gym_core::checkpoint::{self, Kind, Manifest};
use training_gym_core::health;
use training_gym_core::ids::{RunId, WeightVersion};
use training_gym_core::record::{Cause, RunState, STOPPED, StepMetrics, keys};
use training_gym_core::spec::{RunSpec, VersionedRunSpec};
use training_gym_core::store::{self, Store};

use self::failure::Stop;
use self::journal::Journal;
use self::lease::Lease;
pub use self::prepare::Workers;
use self::prepare::{Cursor, Prepared, Surroundings};
use self::signal::StopSignal;
use self::step::Trainer;
use crate::publish::{self, Publisher};
use crate::settings;

/// Share of truncated responses in the first step beyond which a person should know.
const MANY_TRUNCATED: f64 = 0.5;

/// How long the process waits at its end for what was left behind.
const PATIENCE: Duration = Duration::from_millis(500);

/// Runs the run `id` of the store at `url` and returns the process's exit code.
///
/// When it was asked to stop while it prepared, a thread may still be computing: end the process
/// without libtorch's destructors.
pub fn run(url: &str, id: &RunId, workers: Workers) -> u8 {
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&Stop::new(Cause::Internal, &error)),
    };
    let code = run_on(&runtime, url, id, workers);
    // Not by dropping it, which would wait for files that are still being read.
    runtime.shutdown_timeout(PATIENCE);
    code
}

fn run_on(runtime: &Runtime, url: &str, id: &RunId, workers: Workers) -> u8 {
    let (sender, stop) = StopSignal::new();
    if let Err(error) = watch_for_sigterm(runtime, sender) {
        return complain(&Stop::new(Cause::Internal, &error));
    }
    let opened = store::open(url).map_err(|error| Stop::new(Cause::InvalidInput, &error));
    let read = opened.and_then(|store| {
        let begin = async {
            let spec = read_spec(&*store, id).await?;
            Ok((spec, Lease::take(&*store, id).await?))
        };
        let begun = stop.or(runtime.handle(), begin).transpose()?;
        Ok(begun.map(|(spec, lease)| (store, spec, lease)))
    });
    let (store, spec, lease) = match read {
        Ok(Some(read)) => read,
        Ok(None) => {
            tracing::info!("run {id} was asked to stop before it began");
            return STOPPED;
        }
        Err(stop) => return complain(&stop),
    };
    let handle = runtime.handle().clone();
    let journal = Journal::open(Arc::clone(&store), lease.clone(), spec.num_rollout, handle.clone());
    let mut attempt = Attempt { store, runtime: handle, journal, lease, stop, workers, step: 0, first: None };
    // A panic is a fault of ours; the run's status must say so all the same.
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| attempt.train(spec)));
    match outcome.unwrap_or_else(|panic| Err(panicked(&*panic))) {
        Ok(RunState::Succeeded) => {
            attempt.end(RunState::Succeeded, None);
            tracing::info!("run {id} succeeded");
            0
        }
        Ok(state) => {
            attempt.end(state, None);
            tracing::info!("run {id} stopped after step {}; launch it again with its id to go on", attempt.step);
            STOPPED
        }
        Err(stop) => {
            // A newer attempt owns the status now.
            if stop.0.cause != Cause::Superseded {
                attempt.end(RunState::Failed, Some(&stop));
            }
            complain(&stop)
        }
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Stop {
    let words = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    let first = words.lines().next().unwrap_or_default();
    // libtorch's own words for it; there is no code to look at.
    let memory = ["out of memory", "can't allocate memory", "DefaultCPUAllocator"];
    let cause = if memory.iter().any(|text| words.contains(text)) { Cause::OutOfMemory } else { Cause::Internal };
    Stop::say(cause, format!("the trainer panicked: {first}"))
}

fn complain(Stop(failure): &Stop) -> u8 {
    tracing::error!("{}", failure.sentence);
    tracing::error!("next step: {}", failure.next_step);
    failure.cause.exit_code()
}

async fn read_spec(store: &dyn Store, id: &RunId) -> Result<RunSpec, Stop> {
    let key = keys::spec(id);
    let object = store.get(&key).await.map_err(|error| {
        let cause = if matches!(error, store::Error::NotFound { .. }) { Cause::InvalidInput } else { Cause::Store };
        Stop::new(cause, &error)
    })?;
    let VersionedRunSpec::V1(spec) = serde_json::from_slice(&object.bytes)
        .map_err(|error| Stop::say(Cause::InvalidInput, format!("`{key}` is not a run's spec: {error}")))?;
    if spec.run_id != *id || spec.num_rollout == 0 {
        return Err(Stop::say(
            Cause::InvalidInput,
            format!("`{key}` is not a spec of run {id} with at least one step"),
        ));
    }
    Ok(spec)
}

/// SIGTERM asks the run to publish what it has and end. It is noticed from the return of this on.
fn watch_for_sigterm(runtime: &Runtime, stop: watch::Sender<bool>) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let _context = runtime.enter();
    let mut term = signal(SignalKind::terminate())?;
    runtime.spawn(async move {
        term.recv().await;
        tracing::info!("asked to stop: the step under way is given up, the last finished one published");
        stop.send_replace(true);
    });
    Ok(())
}

/// A folder for the run's temporary files (the reward program, its sockets, checkpoints on their
/// way), removed when the run ends.
fn scratch() -> Result<tempfile::TempDir, Stop> {
    let base = settings::scratch_base().map_err(|error| Stop::new(Cause::InvalidInput, &error))?;
    tempfile::Builder::new().prefix("gym-train-").tempdir_in(&base).map_err(|error| {
        Stop::say(Cause::InvalidInput, format!("cannot make a temporary folder in {}: {error}", base.display()))
            .then("check TMPDIR and free space, then launch again with the same run id")
    })
}

struct Attempt {
    store: Arc<dyn Store>,
    runtime: tokio::runtime::Handle,
    journal: Journal,
    lease: Lease,
    stop: StopSignal,
    workers: Workers,
    /// Steps done.
    step: u64,
    /// What this attempt's first step measured: later ones are compared with it.
    first: Option<StepMetrics>,
}

impl Attempt {
    /// Trains to the end or until asked to stop.
    fn train(&mut self, spec: RunSpec) -> Result<RunState, Stop> {
        let newest = checkpoint::latest(&*self.store, Kind::ResumeState, &spec.run_id);
        let Some(resume) = self.stop.or(&self.runtime, newest) else { return Ok(RunState::Cancelled) };
        let resume = resume.map_err(|error| Stop::checkpoint(&error))?;
        self.step = resume.as_ref().map_or(0, |resume| resume.step);
        self.journal.status(RunState::Starting, self.step, None);

        let scratch = scratch()?;
        let Some(prepared) = self.prepare(spec, resume, scratch.path())? else { return Ok(RunState::Cancelled) };
        let Prepared { mut trainer, mut publisher, mut cursor, notes } = prepared;
        notes.into_iter().for_each(|note| self.journal.note(note));
        self.journal.resume_metrics_at(cursor.metrics_offset);
        let (total, save_interval) = (trainer.spec.num_rollout, trainer.spec.save.save_interval);
        let done = cursor.step;
        self.step = done;
        if done > 0 && self.checkpoint_is_missing(&trainer.spec.run_id)? {
            self.publish(&mut publisher, &trainer, &mut cursor)?;
        }
        self.journal.status(RunState::Running, done, None);
        while self.step < total && !self.stop.is_set() {
            let Some(mut outcome) = trainer.step(self.step + 1)? else { break };
            self.step += 1;
            self.confirm_version(&trainer)?;
            if self.step == 1 && outcome.metrics.truncated > MANY_TRUNCATED {
                self.journal.note(format!(
                    "{:.0} % of the first step's responses reached rollout_max_response_len = {} and are truncated: \
                     raise it, or turn thinking off (apply_chat_template_kwargs)",
                    100.0 * outcome.metrics.truncated,
                    trainer.spec.rollout.rollout_max_response_len
                ));
            }
            outcome.note.take().into_iter().for_each(|note| self.journal.note(note));
            cursor.learned |= outcome.metrics.grad_norm > 0.0;
            if let Some(found) = trainer.evaluate_if_due(self.step)? {
                outcome.metrics.eval_reward = found.reward;
                if found.ungraded > 0 {
                    self.journal.restate(
                        "evaluation",
                        format!(
                            "{} of {} held-out samples after step {} are ungraded and left out of eval_reward",
                            found.ungraded, found.samples, self.step
                        ),
                    );
                }
            }
            self.note_what_was_seen(&outcome.metrics, &trainer);
            log_step(&outcome.metrics, total);
            // Before the first word about this step: an old trainer that survived its node must
            // not write over the new one's.
            self.runtime.block_on(self.lease.check(&*self.store))?;
            self.journal.rollouts(self.step, &outcome.records);
            self.journal.metrics(&outcome.metrics);
            self.journal.status(RunState::Running, self.step, None);
            let due = save_interval.is_some_and(|interval| self.step.is_multiple_of(interval));
            if due || self.step == total {
                self.publish(&mut publisher, &trainer, &mut cursor)?;
            }
        }
        if self.step < total {
            if cursor.step < self.step {
                self.publish(&mut publisher, &trainer, &mut cursor)?;
            }
            self.flush(&mut publisher)?;
            return Ok(RunState::Cancelled);
        }
        self.flush(&mut publisher)?;
        self.no_silent_success(&trainer, &cursor)?;
        Ok(RunState::Succeeded)
    }

    /// Prepares on a thread of its own: loading a model computes for minutes without looking up, and
    /// who asks to stop meanwhile gets his answer at once. `None`: somebody did.
    fn prepare(&self, spec: RunSpec, resume: Option<Manifest>, scratch: &Path) -> Result<Option<Prepared>, Stop> {
        let around = Surroundings {
            store: Arc::clone(&self.store),
            runtime: self.runtime.clone(),
            stop: self.stop.clone(),
            attempt: self.lease.attempt(),
            scratch: scratch.to_owned(),
            workers: self.workers.clone(),
        };
        // libtorch counts threads per thread: these are the steps', `prepare` sets its own.
        settings::use_threads(&spec.node);
        match self.stop.or_leave(&self.runtime, move || prepare::prepare(spec, resume, &around)) {
            Some(prepared) => prepared,
            None => Ok(None),
        }
    }

    /// Whether a lost attempt published its resume state and died before the checkpoint.
    fn checkpoint_is_missing(&self, run: &RunId) -> Result<bool, Stop> {
        let found = self.runtime.block_on(checkpoint::at(&*self.store, Kind::Checkpoint, run, self.step));
        found.map(|manifest| manifest.is_none()).map_err(|error| Stop::checkpoint(&error))
    }

    fn confirm_version(&self, trainer: &Trainer) -> Result<(), Stop> {
        let (found, expected) = (trainer.engine.weight_version(), WeightVersion(self.step));
        if found != expected {
            let sentence = format!("the rollout engine serves weights {found} after step {expected}");
            return Err(Stop::say(Cause::Internal, sentence));
        }
        Ok(())
    }

    /// Publishes the weights and the resume state of `self.step`, and moves the cursor there. What the
    /// state refers to is in the store before it.
    fn publish(&self, publisher: &mut Publisher, trainer: &Trainer, cursor: &mut Cursor) -> Result<(), Stop> {
        self.journal.flush()?;
        self.runtime.block_on(self.lease.check(&*self.store))?;
        (cursor.step, cursor.metrics_offset) = (self.step, self.journal.metrics_offset());
        let unpublished = |error: publish::Error| Stop::unpublished(&error);
        let staged = publisher.stage(self.step, trainer.updater.model()).map_err(unpublished)?;
        trainer.updater.save_state(staged.state()).map_err(|error| Stop::new(Cause::Store, &error))?;
        publisher.publish(staged, &cursor.to_json()).map_err(unpublished)
    }

    fn flush(&self, publisher: &mut Publisher) -> Result<(), Stop> {
        publisher.finish().map_err(|error| Stop::unpublished(&error))?;
        self.journal.flush()?;
        self.runtime.block_on(self.lease.check(&*self.store))
    }

    fn note_what_was_seen(&mut self, metrics: &StepMetrics, trainer: &Trainer) {
        let first = self.first.get_or_insert_with(|| metrics.clone()).clone();
        for alarm in health::alarms(&[first, metrics.clone()]) {
            // The first step's truncation has a note of its own.
            if !(metrics.step == 1 && alarm.topic == "truncation") {
                self.journal.restate(alarm.topic, alarm.sentence);
            }
        }
        if metrics.clamped_tokens > 0 {
            self.journal.restate("teacher", format!(
                "the log-ratios of {} of {} tokens of step {} were clamped (log_ratio_clamp): the teacher finds them \
                 all but impossible; clamped_tokens in metrics.jsonl counts them",
                metrics.clamped_tokens, metrics.tokens, metrics.step
            ));
        }
        let restarts = trainer.grader.as_ref().map_or(0, |grader| grader.worker_restarts());
        if restarts > 0 {
            self.journal.restate(
                "reward worker",
                format!(
                    "replaced {restarts} times by step {}: a call took too long or ended it; the run's log says which",
                    metrics.step
                ),
            );
        }
    }

    /// Judges the whole run, not this attempt's steps: a run that was cut must end as one that was not.
    fn no_silent_success(&self, trainer: &Trainer, cursor: &Cursor) -> Result<(), Stop> {
        let total = trainer.spec.num_rollout;
        if prepare::fingerprint(&trainer.updater) == cursor.start_weights {
            return Err(Stop::say(Cause::Numerics, format!("{total} steps ran and no weight changed"))
                .then("look at lr, grad_norm and skipped_updates in metrics.jsonl; recipe.lr may be too small"));
        }
        if !cursor.learned {
            let sentence = format!(
                "no step of the {total} carried a signal (grad_norm is 0 in each): every group's rewards are equal, \
                 ungraded or truncated, and there is nothing to learn from"
            );
            return Err(Stop::say(Cause::Numerics, sentence)
                .then("look at the rewards in the rollouts of the last step; then launch a new run"));
        }
        let manifest = self
            .runtime
            .block_on(checkpoint::latest(&*self.store, Kind::Checkpoint, &trainer.spec.run_id))
            .map_err(|error| Stop::new(Cause::Store, &error))?;
        match manifest {
            Some(manifest) if manifest.step == total => Ok(()),
            _ => Err(Stop::say(Cause::Store, format!("the checkpoint of step {total} is not in the store"))),
        }
    }

    /// Writes how it ended, unless a newer attempt owns the status now.
    fn end(&self, state: RunState, stop: Option<&Stop>) {
        self.journal.status(state, self.step, stop.map(|stop| stop.0.clone()));
        if let Err(Stop(failure)) = self.journal.flush() {
            tracing::error!("the run's last status was not written: {}", failure.sentence);
        }
    }
}

fn log_step(metrics: &StepMetrics, total: u64) {
    tracing::info!(
        "step {}/{total}: reward {}, reverse_kl {}, response_len {:.1}, truncated {:.0} %, loss {:.4}, grad_norm {:.3}, {:.2} s",
        metrics.step,
        metrics.reward.map_or_else(|| "-".to_owned(), |reward| format!("{reward:.3}")),
        metrics.reverse_kl.map_or_else(|| "-".to_owned(), |kl| format!("{kl:.4}")),
        metrics.response_len,
        100.0 * metrics.truncated,
        metrics.loss,
        metrics.grad_norm,
        metrics.step_seconds,
    );
}
