//! Watching a run to its end.

use std::time::Duration;

use training_gym_core::record::{Cause, Failure, RunState};

use super::progress::Progress;
use super::{Error, TrainResult, TrainRun};

/// How often the store is asked for news.
const PAUSE: Duration = Duration::from_millis(200);
/// The exit code of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

impl TrainRun {
    /// Waits for the run to end, showing its progress on standard error: bars on a terminal, a line
    /// a step elsewhere.
    ///
    /// Ctrl-C ends the waiting, not the run.
    ///
    /// # Errors
    /// [`Error::Failed`] with cause and next step; [`Error::Cancelled`]; [`Error::Detached`] on
    /// Ctrl-C; those of the store and the backend.
    pub async fn result(&self) -> Result<TrainResult, Error> {
        let mut progress = Progress::new(self.training_run_id(), self.spec().num_rollout);
        let watched = tokio::select! {
            watched = self.watch(&mut progress) => watched,
            _ = tokio::signal::ctrl_c() => Err(Error::Detached { run_id: self.training_run_id().clone() }),
        };
        progress.finish();
        if !matches!(watched, Err(Error::Detached { .. })) {
            // Having listened once, the process no longer ends on Ctrl-C by itself.
            tokio::spawn(async {
                if tokio::signal::ctrl_c().await.is_ok() {
                    std::process::exit(INTERRUPTED);
                }
            });
        }
        watched
    }

    async fn watch(&self, progress: &mut Progress) -> Result<TrainResult, Error> {
        loop {
            let status = self.status().await?;
            let metrics = self.metrics().await?;
            progress.show(&status, &metrics);
            let run_id = self.training_run_id().clone();
            match status.state {
                RunState::Succeeded => {
                    return TrainResult::read(self.gym(), &run_id, &self.spec().model, (status.step, metrics)).await;
                }
                RunState::Failed => {
                    let failure = status.failure.unwrap_or_else(unexplained);
                    return Err(Error::Failed { run_id, failure });
                }
                RunState::Cancelled => return Err(Error::Cancelled { run_id, step: status.step }),
                RunState::Pending | RunState::Starting | RunState::Running => tokio::time::sleep(PAUSE).await,
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
