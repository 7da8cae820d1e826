//! Watching a run to its end.

use training_gym_core::record::{Cause, Failure, RunState};

use super::metrics::Metrics;
use super::progress::Progress;
use super::{Error, TrainResult, TrainRun};
use crate::program::interrupt;

impl TrainRun {
    /// Waits for the run to end, showing its progress on standard error: bars on a terminal, a line
    /// a step elsewhere.
    ///
    /// Ctrl-C ends the waiting, not the run. Once this has listened for it, a process no longer ends
    /// on Ctrl-C by itself. What it does then is its own to say, with [`tokio::signal::ctrl_c`]; one
    /// that `#[training_gym::main]` started ends at the second Ctrl-C within five seconds, whatever
    /// else it does about the first.
    ///
    /// # Errors
    /// [`Error::Failed`] with cause and next step; [`Error::Cancelled`]; [`Error::Detached`] on
    /// Ctrl-C; those of the store and the backend.
    pub async fn result(&self) -> Result<TrainResult, Error> {
        interrupt::listened();
        let mut progress = Progress::new(self.training_run_id(), self.spec().num_rollout);
        let watched = tokio::select! {
            watched = self.watch(&mut progress) => watched,
            _ = tokio::signal::ctrl_c() => Err(Error::Detached { run_id: self.training_run_id().clone() }),
        };
        progress.finish();
        watched
    }

    async fn watch(&self, progress: &mut Progress) -> Result<TrainResult, Error> {
        let mut metrics = Metrics::default();
        loop {
            let status = self.status().await?;
            progress.show(&status, metrics.read(self.gym(), self.training_run_id(), status.attempt).await?);
            let run_id = self.training_run_id().clone();
            match status.state {
                RunState::Succeeded => {
                    let metrics = self.metrics().await?;
                    return TrainResult::read(self.gym(), &run_id, &self.spec().model, (status.step, metrics)).await;
                }
                RunState::Failed => {
                    let failure = status.failure.unwrap_or_else(unexplained);
                    return Err(Error::Failed { run_id, failure });
                }
                RunState::Cancelled => return Err(Error::Cancelled { run_id, step: status.step }),
                RunState::Pending | RunState::Starting | RunState::Running => {
                    tokio::time::sleep(self.gym().backend().poll_interval()).await;
                }
            }
        }
    }
}

fn unexplained() -> Failure {
    Failure {
        cause: Cause::Internal,
        sentence: "it does not say why".to_owned(),
        next_step: "read its log with `logs()`".to_owned(),
        retryable: false,
    }
}
