//! The person's reward function, asked sample by sample as responses finish.
//!
//! A call that errors, panics, returns no finite number, takes too long, or kills its worker
//! leaves its sample *ungraded*; it never becomes a 0. When a worker dies with several samples in
//! flight nobody knows which one killed it, so each is asked again alone: one that kills the
//! worker then is the culprit, the others get their grade.

use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{RwLock, Semaphore};
use training_gym_core::chain;
use training_gym_core::record::Grade;
use training_gym_core::sample::{FinishReason, Sample};
use training_gym_core::spec::RewardSpec;
use training_gym_core::worker::{PostProcessReply, RewardReply};

use super::Error;
use super::share::Share;
use super::worker::{Connection, Worker, functions};

/// What grading found about one sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Graded {
    /// The function's word.
    pub grade: Grade,
    /// What it left in `sample.score`.
    pub score: Option<f64>,
    /// What it left in `sample.metadata`.
    pub metadata: Map<String, Value>,
}

/// Asks the reward worker.
#[derive(Debug)]
pub struct Grader {
    worker: Worker,
    spec: RewardSpec,
    slots: Semaphore,
    /// Read by ordinary calls, held alone by a call that is asked again.
    alone: RwLock<()>,
}

enum Answer {
    Reply(RewardReply),
    Unknown,
    TimedOut,
    Died(String),
}

/// Why the group-level function gave no reply.
enum Unanswered {
    TimedOut,
    Died(String),
    Refused(String),
}

impl Grader {
    /// Starts the worker and checks that it has the functions the spec names.
    ///
    /// # Errors
    /// [`Error::Worker`], [`Error::UnknownFunction`].
    pub async fn start(worker: Worker, spec: RewardSpec) -> Result<Self, Error> {
        let connection = worker.connect().await?;
        let known = functions(&connection.client).await.map_err(|error| Error::Worker {
            what: format!("does not list its functions: {error}"),
            log: String::new(),
        })?;
        if !known.rewards.contains(&spec.function) {
            return Err(Error::UnknownFunction { name: spec.function, known: known.rewards });
        }
        if let Some(name) = spec.post_process.as_ref().filter(|name| !known.post_processes.contains(name)) {
            return Err(Error::UnknownFunction { name: name.clone(), known: known.post_processes });
        }
        let slots = Semaphore::new(spec.max_concurrency.max(1));
        Ok(Self { worker, spec, slots, alone: RwLock::new(()) })
    }

    /// Grades one sample.
    ///
    /// # Errors
    /// Only when no worker can be had at all.
    pub async fn grade(&self, sample: &Sample) -> Result<Graded, Error> {
        if sample.finish_reason == FinishReason::Length && !self.spec.grade_truncated {
            return Ok(ungraded(sample, "the response was truncated".to_owned()));
        }
        let _slot = self.slots.acquire().await;
        let shared = {
            let _shared = self.alone.read().await;
            self.ask_and_clear(sample).await?
        };
        let answer = match shared {
            Answer::Died(_) => {
                let _alone = self.alone.write().await;
                self.ask_and_clear(sample).await?
            }
            answer => answer,
        };
        Ok(match answer {
            Answer::Reply(RewardReply::Graded { reward: Some(reward), score, metadata }) if reward.is_finite() => {
                Graded { grade: Grade::Graded { reward }, score, metadata }
            }
            Answer::Reply(RewardReply::Graded { score, metadata, .. }) => Graded {
                grade: Grade::Ungraded { reason: "it returned NaN or an infinity".to_owned() },
                score,
                metadata,
            },
            Answer::Reply(RewardReply::Failed { message, panicked }) => {
                let how = if panicked { "panicked" } else { "failed" };
                ungraded(sample, format!("it {how}: {message}"))
            }
            Answer::Unknown => ungraded(sample, "the worker no longer has the function".to_owned()),
            Answer::TimedOut => ungraded(sample, format!("it took longer than {} s", self.spec.timeout_secs)),
            Answer::Died(error) => ungraded(sample, format!("its worker died while it ran alone ({error})")),
        })
    }

    /// Asks, and ends a worker that did not answer: whatever hangs may hold one of its threads for
    /// good, and one whose connection broke may still be on its way out. The caller holds its side
    /// of `alone` meanwhile, so nobody who is asked alone is ever hit by another's kill.
    async fn ask_and_clear(&self, sample: &Sample) -> Result<Answer, Error> {
        let Connection { generation, client } = self.worker.connect().await?;
        let answer = self.ask(&client, sample).await;
        if matches!(answer, Answer::TimedOut | Answer::Died(_)) {
            self.worker.kill(generation).await;
        }
        Ok(answer)
    }

    async fn ask(&self, client: &reqwest::Client, sample: &Sample) -> Answer {
        let call = async {
            let url = format!("http://worker/reward/{}", self.spec.function);
            let response = client.post(url).json(sample).send().await?;
            if response.status() == reqwest::StatusCode::NOT_FOUND {
                return Ok(None);
            }
            response.error_for_status()?.json::<RewardReply>().await.map(Some)
        };
        match tokio::time::timeout(self.timeout(), call).await {
            Ok(Ok(Some(reply))) => Answer::Reply(reply),
            Ok(Ok(None)) => Answer::Unknown,
            Ok(Err(error)) => Answer::Died(chain(&error.without_url())),
            Err(_) => Answer::TimedOut,
        }
    }

    /// Counts what the function leaves ungraded of the `samples` samples of step `step`.
    pub fn share(&self, step: u64, samples: usize) -> Share {
        Share::new(&self.spec, step, samples)
    }

    /// The rewards advantages are made of: each sample's own, or what the group-level function
    /// makes of the whole step. A sample that was ungraded stays so. One that the function returns
    /// NaN or an infinity for becomes ungraded, in `graded` too: it is never a number that nobody
    /// gave. All that are ungraded count towards the step's share.
    ///
    /// # Errors
    /// [`Error::TooManyUngraded`], naming the function whose sample was one too many;
    /// [`Error::PostProcess`] when the group-level function fails or returns another number of
    /// rewards.
    pub async fn rewards(
        &self,
        step: u64,
        mut samples: Vec<Sample>,
        graded: &mut [Graded],
    ) -> Result<Vec<Option<f64>>, Error> {
        // Once more over all of them: grades recorded by a lost attempt count too.
        let share = self.share(step, samples.len());
        samples.iter().zip(&*graded).try_for_each(|(sample, graded)| share.count(sample, graded))?;
        let own = |graded: &Graded| match graded.grade {
            Grade::Graded { reward } => Some(reward),
            _ => None,
        };
        let Some(function) = &self.spec.post_process else { return Ok(graded.iter().map(own).collect()) };
        for (sample, graded) in samples.iter_mut().zip(&*graded) {
            sample.score = graded.score;
            sample.metadata.clone_from(&graded.metadata);
        }
        let rewards = self.post_processed(function, step, &samples).await?;
        let mut finite = Vec::with_capacity(rewards.len());
        for (reward, graded) in rewards.into_iter().zip(graded) {
            let reward = reward.filter(|reward| reward.is_finite());
            if reward.is_none() && own(graded).is_some() {
                let reason = format!("post-process function `{function}` returned NaN or an infinity");
                share.count_post_processed(function, &reason)?;
                graded.grade = Grade::Ungraded { reason };
            }
            finite.push(own(graded).and(reward));
        }
        Ok(finite)
    }

    /// One reward a sample, as the group-level function returned them.
    async fn post_processed(&self, function: &str, step: u64, samples: &[Sample]) -> Result<Vec<Option<f64>>, Error> {
        let failed = |reason: String| Error::PostProcess { function: function.to_owned(), step, reason };
        let reply = match self.post_process(function, samples).await? {
            // A worker that was killed from outside is no fault of the function: once more.
            Err(Unanswered::Died(_)) => self.post_process(function, samples).await?,
            answered => answered,
        };
        let reply = reply.map_err(|unanswered| {
            failed(match unanswered {
                Unanswered::TimedOut => format!("it took longer than {} s", self.spec.timeout_secs),
                Unanswered::Died(error) => format!("its worker died twice while it ran ({error})"),
                Unanswered::Refused(error) => error,
            })
        })?;
        match reply {
            PostProcessReply::Rewards { rewards } if rewards.len() == samples.len() => Ok(rewards),
            PostProcessReply::Rewards { rewards } => {
                Err(failed(format!("it returned {} rewards for {} samples", rewards.len(), samples.len())))
            }
            PostProcessReply::Failed { message, panicked } => {
                Err(failed(if panicked { format!("it panicked: {message}") } else { message }))
            }
        }
    }

    /// Asks the group-level function once; a worker that does not answer is ended.
    async fn post_process(
        &self,
        function: &str,
        samples: &[Sample],
    ) -> Result<Result<PostProcessReply, Unanswered>, Error> {
        let _alone = self.alone.write().await;
        let Connection { generation, client } = self.worker.connect().await?;
        let call = async {
            let url = format!("http://worker/post-process/{function}");
            let response = client.post(url).json(samples).send().await?.error_for_status()?;
            response.json::<PostProcessReply>().await
        };
        let unanswered = match tokio::time::timeout(self.timeout(), call).await {
            Ok(Ok(reply)) => return Ok(Ok(reply)),
            Ok(Err(error)) if error.is_status() => Unanswered::Refused(chain(&error.without_url())),
            Ok(Err(error)) => Unanswered::Died(chain(&error.without_url())),
            Err(_) => Unanswered::TimedOut,
        };
        if !matches!(unanswered, Unanswered::Refused(_)) {
            self.worker.kill(generation).await;
        }
        Ok(Err(unanswered))
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.spec.timeout_secs)
    }

    /// How often the worker was replaced.
    pub fn worker_restarts(&self) -> u64 {
        self.worker.restarts()
    }
}

fn ungraded(sample: &Sample, reason: String) -> Graded {
    tracing::warn!(sample = sample.index, step = sample.step, "ungraded: {reason}");
    Graded { grade: Grade::Ungraded { reason }, score: None, metadata: sample.metadata.clone() }
}
