//! Scores on their way, while other responses still decode.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinSet};
use training_gym_core::record::Cause;
use training_gym_core::wire::teacher::Answer;

use super::failure::Stop;
use super::playing::Season;
use crate::batch::Rollout;
use crate::score::Error;
use crate::score::reward::{Graded, Grader};
use crate::score::share::Share;
use crate::score::teacher::Teacher;

/// Who is asked about a response.
#[derive(Clone, Debug)]
pub(super) struct Judges {
    /// The reward function, if there is one.
    pub(super) grader: Option<Arc<Grader>>,
    /// How many samples it may leave ungraded; without one, all.
    pub(super) share: Option<Arc<Share>>,
    /// The teacher, if there is one.
    pub(super) teacher: Option<Arc<Teacher>>,
}

/// What the judges said, by sample.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// Of the reward function.
    pub(super) graded: HashMap<u64, Graded>,
    /// Of the teacher.
    pub(super) taught: HashMap<u64, Answer>,
}

/// A sample's index and what the teacher thinks of its response.
type Taught = (u64, Answer);

/// Questions on their way. Dropping this gives them up.
pub(super) struct Pending {
    season: Season,
    judges: Judges,
    runtime: Handle,
    graded: JoinSet<Result<(u64, Graded), Error>>,
    taught: JoinSet<Result<Vec<Taught>, Error>>,
    waiting: Vec<Rollout>,
    failed: Arc<AtomicBool>,
}

impl Pending {
    /// Nothing asked yet about the responses of `season`.
    pub(super) fn new(season: Season, judges: Judges, runtime: Handle) -> Self {
        Self {
            season,
            judges,
            runtime,
            graded: JoinSet::new(),
            taught: JoinSet::new(),
            waiting: Vec::new(),
            failed: Arc::default(),
        }
    }

    /// Asks about one response.
    pub(super) fn ask(&mut self, rollout: &Rollout) {
        if let Some(grader) = &self.judges.grader {
            let (grader, share, failed) = (Arc::clone(grader), self.judges.share.clone(), Arc::clone(&self.failed));
            let (index, sample) = (rollout.index, rollout.to_sample(self.season.step));
            let played = self.season.played(rollout);
            let ask = async move {
                let graded = grader.grade_played(&sample, played.as_ref()).await?;
                share.map_or(Ok(()), |share| share.count(&sample, &graded))?;
                Ok((index, graded))
            };
            self.graded.spawn_on(noting(failed, ask), &self.runtime);
        }
        if let Some(teacher) = &self.judges.teacher {
            self.waiting.push(rollout.clone());
            if self.waiting.len() == teacher.batch_size() {
                self.ask_teacher();
            }
        }
    }

    /// Sends the waiting responses to the teacher as one request.
    pub(super) fn ask_teacher(&mut self) {
        let Some(teacher) = self.judges.teacher.clone() else { return };
        if self.waiting.is_empty() {
            return;
        }
        let batch = std::mem::take(&mut self.waiting);
        let ask = async move {
            let scored = teacher.score(&batch).await?;
            Ok(batch.iter().map(|rollout| rollout.index).zip(scored).collect())
        };
        self.taught.spawn_on(noting(Arc::clone(&self.failed), ask), &self.runtime);
    }

    /// Whether an answer is an error: nobody draws more responses for it.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Waits for all answers; the first error ends the waiting.
    ///
    /// # Errors
    /// Of whoever was asked.
    pub(super) async fn join(mut self) -> Result<Verdicts, Stop> {
        let mut verdicts = Verdicts::default();
        loop {
            tokio::select! {
                Some(done) = self.graded.join_next() => {
                    let (index, graded) = answer(done)?;
                    verdicts.graded.insert(index, graded);
                }
                Some(done) = self.taught.join_next() => verdicts.taught.extend(answer(done)?),
                else => return Ok(verdicts),
            }
        }
    }
}

async fn noting<T>(failed: Arc<AtomicBool>, ask: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let answer = ask.await;
    if answer.is_err() {
        failed.store(true, Ordering::Relaxed);
    }
    answer
}

fn answer<T>(done: Result<Result<T, Error>, JoinError>) -> Result<T, Stop> {
    done.map_err(|error| Stop::new(Cause::Internal, &error))?.map_err(|error| Stop::new(error.cause(), &error))
}
