//! Training runs: launch one, watch it, come back to it, take its checkpoints.
//!
//! [`TrainConfig::launch`](crate::config::TrainConfig::launch) makes the run's spec, stores it and
//! submits its job; the [`TrainRun`] it yields is a handle. A run outlives the program that launched
//! it: [`TrainRun::attach`] finds it again.

mod check;
mod checkpoints;
mod document;
mod error;
mod launch;
mod metrics;
mod preflight;
mod progress;
mod runtime_check;
mod shipped;
mod spec_file;
mod status;
mod teacher_file;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use training_gym_core::ids::RunId;
use training_gym_core::record::RunStatus;
use training_gym_core::spec::RunSpec;

pub use check::{Checked, TrainCheck};
pub use checkpoints::{Checkpoint, Checkpoints, TrainResult};
pub use error::Error;
pub use launch::TrainLaunch;
pub use training_gym_core::record::{Cause, Failure, RunState, StepMetrics};

use crate::backend::{JobId, LogOptions, Logs};
use crate::gym::Gym;

/// How long a cancelled trainer may take to save what it has.
const CANCEL_GRACE: Duration = Duration::from_secs(60);

/// A training run. Cheap to clone; dropping it stops nothing.
#[derive(Clone, Debug)]
pub struct TrainRun {
    gym: Gym,
    spec: Arc<RunSpec>,
    notes: Arc<Vec<String>>,
}

/// A run in a listing.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// Its id.
    pub run_id: RunId,
    /// What the student was called at its start; `unknown` where the run's spec is damaged.
    pub model: String,
    /// Where it is.
    pub status: RunStatus,
}

impl TrainRun {
    fn new(gym: &Gym, spec: RunSpec) -> Self {
        Self { gym: gym.clone(), spec: Arc::new(spec), notes: Arc::default() }
    }

    fn with_notes(self, notes: Vec<String>) -> Self {
        Self { notes: Arc::new(notes), ..self }
    }

    pub(crate) async fn find(gym: &Gym, run_id: &RunId) -> Result<Self, Error> {
        let not_found = || Error::NotFound { run_id: run_id.clone(), store: gym.store().url() };
        Ok(Self::new(gym, spec_file::read(gym, run_id).await?.ok_or_else(not_found)?))
    }

    /// A run that was launched before, also by another program, of [`Gym::from_env`].
    /// [`Gym::run`] asks another client.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub async fn attach(run_id: impl AsRef<str>) -> Result<Self, Error> {
        Gym::from_env()?.run(run_id.as_ref()).await
    }

    /// Its id: what [`TrainRun::attach`] and `.run_id(…)` take.
    pub fn training_run_id(&self) -> &RunId {
        &self.spec.run_id
    }

    /// What was decided before it started.
    pub fn spec(&self) -> &RunSpec {
        &self.spec
    }

    /// What the launch found worth knowing although nothing was wrong; empty after an attach.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Its log, from the beginning of this attempt, until it ends.
    ///
    /// # Errors
    /// When there is no record of its job.
    pub async fn logs(&self) -> Result<Logs, Error> {
        let options = LogOptions { tail: None, follow: true };
        Ok(self.gym.backend().logs(&self.job_id(), options).await?)
    }

    /// The checkpoints published so far, by step; possibly none yet.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>, Error> {
        checkpoints::published(&self.gym, self.training_run_id(), &self.spec.model).await
    }

    /// Stops the run, letting it save what it has first. It can be continued with `.run_id(…)`. A run
    /// that is over, or was never started, is no error.
    ///
    /// # Errors
    /// When a process does not end even when killed.
    pub async fn cancel(&self) -> Result<(), Error> {
        launch::known(self.gym.backend().cancel(&self.job_id(), CANCEL_GRACE).await)?;
        Ok(())
    }

    async fn is_live(&self) -> Result<bool, Error> {
        let job = launch::known(self.gym.backend().job(&self.job_id()).await)?;
        Ok(job.is_some_and(|job| job.state.is_live()))
    }

    fn gym(&self) -> &Gym {
        &self.gym
    }

    fn job_id(&self) -> JobId {
        JobId::train(self.training_run_id())
    }
}

/// Every run with a spec in the store.
pub(crate) async fn list(gym: &Gym) -> Result<Vec<RunInfo>, Error> {
    let objects = gym.store().list("runs/").await?;
    let ids: BTreeSet<RunId> = objects.iter().filter_map(|object| object.key.split('/').nth(1)?.parse().ok()).collect();
    let mut runs = Vec::new();
    for run_id in ids {
        let spec = match spec_file::read(gym, &run_id).await {
            Ok(Some(spec)) => spec,
            Ok(None) => continue,
            Err(error) => {
                runs.push(RunInfo { run_id, model: "unknown".to_owned(), status: damaged(error, 0)? });
                continue;
            }
        };
        let (model, num_rollout) = (spec.model.name.clone(), spec.num_rollout);
        let status = TrainRun::new(gym, spec).status().await.or_else(|error| damaged(error, num_rollout))?;
        runs.push(RunInfo { run_id, model, status });
    }
    Ok(runs)
}

/// The status of a run whose documents cannot be read: one such run hides no other in a listing.
fn damaged(error: Error, num_rollout: u64) -> Result<RunStatus, Error> {
    let Error::Unreadable { file, remedy, source } = error else { return Err(error) };
    let failure = Failure {
        cause: Cause::Store,
        sentence: format!("`{file}` cannot be read: {source}"),
        next_step: remedy,
        retryable: false,
    };
    Ok(RunStatus {
        state: RunState::Failed,
        step: 0,
        num_rollout,
        attempt: 0,
        updated_at: 0.0,
        failure: Some(failure),
        peak_memory: None,
        notes: Vec::new(),
    })
}
