//! Where a run is: its own word, checked against its process.

use training_gym_core::ids::RunId;
use training_gym_core::record::{Cause, Failure, RunState, RunStatus, keys};
use training_gym_core::store;

use super::document::Document;
use super::launch::known;
use super::{Error, TrainRun};
use crate::backend::{Exit, Job, JobState, LAST_LINES, LogOptions};
use crate::gym::Gym;

/// Causes whose exit code tells them apart.
const BY_CODE: [Cause; 7] = [
    Cause::InvalidInput,
    Cause::Teacher,
    Cause::Reward,
    Cause::Numerics,
    Cause::Store,
    Cause::Superseded,
    Cause::OutOfMemory,
];

/// A job's label: the attempt whose word the status was when the job was submitted. A status of that
/// attempt or an earlier one is not the job's.
pub(super) const ATTEMPTS_BEFORE: &str = "attempts-before";

impl TrainRun {
    /// Where the run is. A run whose process is gone without a last word has failed, with
    /// [`Cause::Died`], how it ended, and its last log lines; so has one that has no process at all.
    ///
    /// # Errors
    /// When the store or the backend fails.
    pub async fn status(&self) -> Result<RunStatus, Error> {
        let job = known(self.gym().backend().job(&self.job_id()).await)?;
        let stored = read(self.gym(), self.training_run_id()).await?;
        let job = match (job, &stored) {
            (None, Some(status)) if status.state.is_terminal() => return Ok(status.clone()),
            (None, _) => {
                // Another program may be between its spec and its job: it holds its share until then.
                drop(self.gym().backend().share(&self.job_id()).await?);
                match known(self.gym().backend().job(&self.job_id()).await)? {
                    Some(job) => job,
                    None => return Ok(self.without_job(stored)),
                }
            }
            (Some(job), _) => job,
        };
        if let Some(status) = current(stored.clone(), &job)
            && (job.state.is_live() || status.state.is_terminal())
        {
            return Ok(if is_last(&status, &job) { explained(status, &job) } else { retried(status) });
        }
        let JobState::Ended(exit) = &job.state else {
            let notes = job.waiting.into_iter().map(|why| format!("waiting to start: {why}")).collect();
            return Ok(RunStatus { notes, ..self.pending(stored) });
        };
        // Its last word may have come between the two looks.
        let stored = read(self.gym(), self.training_run_id()).await?;
        match current(stored.clone(), &job) {
            Some(status) if status.state.is_terminal() => Ok(explained(status, &job)),
            _ => self.ended(stored, exit).await,
        }
    }

    /// Whether a launch is to leave it as it is: it has succeeded, or its process lives and has not
    /// said its last word.
    pub(super) async fn needs_no_start(&self) -> Result<bool, Error> {
        let job = known(self.gym().backend().job(&self.job_id()).await)?;
        let stored = read(self.gym(), self.training_run_id()).await?;
        if stored.as_ref().is_some_and(|status| status.state == RunState::Succeeded) {
            return Ok(true);
        }
        let Some(job) = job.filter(|job| job.state.is_live()) else { return Ok(false) };
        Ok(!current(stored, &job).is_some_and(|status| status.state.is_terminal() && is_last(&status, &job)))
    }

    /// The attempt that wrote the stored status; 0 where there is none.
    pub(super) async fn stored_attempt(&self) -> Result<u64, Error> {
        Ok(read(self.gym(), self.training_run_id()).await?.map_or(0, |status| status.attempt))
    }

    /// The launch ended between the spec and the job, or the job's record is gone.
    fn without_job(&self, before: Option<RunStatus>) -> RunStatus {
        let failure = Failure {
            cause: Cause::Died,
            sentence: "it has no process, and nothing says how it ended".to_owned(),
            next_step: self.advice(Cause::Died),
            retryable: true,
        };
        let status = before.unwrap_or_else(|| self.pending(None));
        RunStatus { state: RunState::Failed, failure: Some(failure), ..status }
    }

    /// What to do about a run that ended without its own advice.
    fn advice(&self, cause: Cause) -> String {
        let id = self.training_run_id();
        let again = format!("launch again with `.run_id(\"{id}\")` to continue from the last published state");
        match cause {
            Cause::InvalidInput | Cause::Reward | Cause::Numerics => {
                "read the whole log with `logs()`; correct what it names, and launch without `.run_id(…)`: a corrected run \
                 is a new one"
                    .to_owned()
            }
            Cause::Teacher => format!("see that the teacher answers, then {again}"),
            Cause::Store => format!("check the store's space and permissions, then {again}"),
            Cause::Superseded => format!("follow the newer attempt: `TrainRun::attach(\"{id}\")`"),
            Cause::OutOfMemory => format!(
                "free memory, then {again}; or lower recipe.max_tokens_per_gpu or rollout_max_response_len, and launch \
                 without `.run_id(…)`"
            ),
            Cause::Died | Cause::Cluster | Cause::Internal => format!("read the whole log with `logs()`; {again}"),
        }
    }

    fn pending(&self, before: Option<RunStatus>) -> RunStatus {
        let (step, attempt) = before.map_or((0, 0), |status| (status.step, status.attempt));
        RunStatus {
            state: RunState::Pending,
            step,
            num_rollout: self.spec().num_rollout,
            attempt,
            updated_at: 0.0,
            failure: None,
            peak_memory: None,
            notes: Vec::new(),
        }
    }

    async fn ended(&self, before: Option<RunStatus>, exit: &Exit) -> Result<RunStatus, Error> {
        let status = before.unwrap_or_else(|| self.pending(None));
        if exit.cancelled {
            return Ok(RunStatus { state: RunState::Cancelled, failure: None, ..status });
        }
        if let Some(failure) = &exit.failure {
            return Ok(RunStatus { state: RunState::Failed, failure: Some(failure.clone()), ..status });
        }
        let options = LogOptions { tail: Some(LAST_LINES), follow: false };
        let lines = self.gym().backend().logs(&self.job_id(), options).await?.lines().await?;
        let lines: String = lines.iter().map(|line| format!("\n  | {line}")).collect();
        let quoted = if lines.is_empty() { String::new() } else { format!("; its last log lines:{lines}\n") };
        let cause = BY_CODE.into_iter().find(|cause| exit.code == Some(i32::from(cause.exit_code())));
        let cause = cause.unwrap_or(Cause::Died);
        let failure = Failure {
            cause,
            sentence: format!("the trainer {exit}{quoted}"),
            next_step: self.advice(cause),
            retryable: matches!(cause, Cause::Died | Cause::Teacher | Cause::Store),
        };
        Ok(RunStatus { state: RunState::Failed, failure: Some(failure), ..status })
    }
}

/// Whether what an attempt says of its end is the run's: not while the backend is about to start
/// another.
fn is_last(status: &RunStatus, job: &Job) -> bool {
    let ended = status.state.is_terminal() && status.state != RunState::Succeeded;
    !(ended && job.restarts && job.state.is_live())
}

/// What an attempt says of its end; one that was told to stop, and not by a person, does not know why
/// (a deadline, say), but the backend does.
fn explained(status: RunStatus, job: &Job) -> RunStatus {
    match &job.state {
        JobState::Ended(Exit { cancelled: false, failure: Some(failure), .. })
            if status.state == RunState::Cancelled =>
        {
            RunStatus { state: RunState::Failed, failure: Some(failure.clone()), ..status }
        }
        _ => status,
    }
}

/// An attempt ended, and the next has not begun.
fn retried(status: RunStatus) -> RunStatus {
    let why = status.failure.as_ref().map_or("it was told to stop", |failure| &failure.sentence);
    let note = format!("attempt {} ended ({why}); the next goes on from the last published state", status.attempt);
    let notes = status.notes.iter().cloned().chain([note]).collect();
    RunStatus { state: RunState::Starting, failure: None, notes, ..status }
}

/// The status, unless an earlier attempt wrote it.
fn current(stored: Option<RunStatus>, job: &Job) -> Option<RunStatus> {
    let before = job.labels.get(ATTEMPTS_BEFORE).and_then(|label| label.parse::<u64>().ok());
    stored.filter(|status| match before {
        Some(before) => status.attempt > before,
        // A job of an older version: clocks are what is left.
        None => status.updated_at >= job.submitted_at,
    })
}

async fn read(gym: &Gym, run_id: &RunId) -> Result<Option<RunStatus>, Error> {
    let key = keys::status(run_id);
    match gym.store().get(&key).await {
        Ok(object) => {
            let status = serde_json::from_slice(&object.bytes).map_err(Document::Status.unreadable(gym, run_id, &key));
            status.map(Some)
        }
        Err(store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
