//! The person's reward function, asked sample by sample as responses finish.
//!
//! A call that errors, panics, returns no finite number, takes too long, or kills its worker
//! leaves its sample *ungraded*; it never becomes a 0. When a worker dies with several samples in
//! flight nobody knows which one killed it, so each is asked again alone: one that kills the
//! worker then is the culprit, the others get their grade.

use serde_json::{Map, Value};
use training_gym_core::chain;
use training_gym_core::episode::{Episode, EpisodeEnd, EpisodeRecord, Observation};
use training_gym_core::record::Grade;
use training_gym_core::sample::{FinishReason, Sample};
use training_gym_core::spec::RewardSpec;
use training_gym_core::worker::{EpisodeReward, PostProcessReply, RewardReply, StepReply, StepRequest};

use super::Error;
use super::asking::{Answer, Asking, Call};
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
    asking: Asking,
    spec: RewardSpec,
    /// Whether `spec.function` names a rollout environment.
    environment: bool,
}

/// An episode and what was said in it, as its environment is asked for the reward.
#[derive(Clone, Debug)]
pub struct Played {
    /// The episode.
    pub episode: Episode,
    /// Its turns and its end.
    pub record: EpisodeRecord,
}

/// A reward's reply may have so many bytes.
const LONGEST_REPLY: usize = 64 << 20;
/// A step's reply may have so many bytes beside the text it is allowed.
const STEP_REPLY: usize = 1 << 20;
/// Bytes of JSON that one character may take.
const CHARACTER: usize = 16;

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
        Self::begin(worker, spec, false).await
    }

    /// As [`start`](Self::start), where `spec.function` names a rollout environment.
    ///
    /// # Errors
    /// As there.
    pub async fn of_environment(worker: Worker, spec: RewardSpec) -> Result<Self, Error> {
        Self::begin(worker, spec, true).await
    }

    async fn begin(worker: Worker, spec: RewardSpec, environment: bool) -> Result<Self, Error> {
        let connection = worker.connect().await?;
        let known = functions(&connection.client).await.map_err(|error| Error::Worker {
            what: format!("does not list its functions: {error}"),
            log: String::new(),
        })?;
        let (kind, names) = match environment {
            true => ("rollout environment", known.environments),
            false => ("reward function", known.rewards),
        };
        if !names.contains(&spec.function) {
            return Err(Error::UnknownFunction { kind, name: spec.function, known: names });
        }
        if let Some(name) = spec.post_process.as_ref().filter(|name| !known.post_processes.contains(name)) {
            let kind = "post-process function";
            return Err(Error::UnknownFunction { kind, name: name.clone(), known: known.post_processes });
        }
        let asking = Asking::new(worker, spec.timeout_secs, spec.max_concurrency);
        Ok(Self { asking, spec, environment })
    }

    /// Grades one sample.
    ///
    /// # Errors
    /// Only when no worker can be had at all.
    pub async fn grade(&self, sample: &Sample) -> Result<Graded, Error> {
        self.grade_played(sample, None).await
    }

    /// Grades one sample; one that was `played` in an environment, by that.
    ///
    /// # Errors
    /// Only when no worker can be had at all.
    pub async fn grade_played(&self, sample: &Sample, played: Option<&Played>) -> Result<Graded, Error> {
        if let Some(EpisodeEnd::Failed { reason }) = played.map(|played| &played.record.end) {
            return Ok(ungraded(sample, reason.clone()));
        }
        if sample.finish_reason == FinishReason::Length && !self.spec.grade_truncated {
            return Ok(ungraded(sample, "the response was truncated".to_owned()));
        }
        let (name, most) = (&self.spec.function, LONGEST_REPLY);
        let answer = match played {
            None => self.asking.ask(&Call { path: format!("/reward/{name}"), body: sample, most }).await?,
            Some(Played { episode, record }) => {
                let (episode, turns) = (episode.clone(), record.steps());
                let body = EpisodeReward { episode, turns, sample: sample.clone() };
                self.asking.ask(&Call { path: format!("/environment/{name}/reward"), body: &body, most }).await?
            }
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
            Answer::Reply(RewardReply::Failed { message, panicked }) => ungraded(sample, failed(panicked, &message)),
            other => ungraded(sample, other.reason(self.asking.timeout())),
        })
    }

    /// What the environment says to a turn, or how it failed: the sample is ungraded for that.
    ///
    /// # Errors
    /// Only when no worker can be had at all.
    pub async fn step(&self, request: &StepRequest) -> Result<Result<Observation, String>, Error> {
        let path = format!("/environment/{}/step", self.spec.function);
        let most = STEP_REPLY.saturating_add(request.limit.saturating_mul(CHARACTER));
        Ok(match self.asking.ask(&Call { path, body: request, most }).await? {
            Answer::Reply(StepReply::Observed { observation }) => Ok(observation.limited(request.limit)),
            Answer::Reply(StepReply::Failed { message, panicked }) => Err(failed(panicked, &message)),
            other => Err(Answer::<StepReply>::reason(&other, self.asking.timeout())),
        })
    }

    /// Counts what the function leaves ungraded of the `samples` samples of step `step`.
    pub fn share(&self, step: u64, samples: usize) -> Share {
        let share = Share::new(&self.spec, step, samples);
        if self.environment { share.of_environment() } else { share }
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
        let _alone = self.asking.alone.write().await;
        let Connection { generation, client } = self.asking.worker.connect().await?;
        let call = async {
            let url = format!("http://worker/post-process/{function}");
            let response = client.post(url).json(samples).send().await?.error_for_status()?;
            response.json::<PostProcessReply>().await
        };
        let unanswered = match tokio::time::timeout(self.asking.timeout(), call).await {
            Ok(Ok(reply)) => return Ok(Ok(reply)),
            Ok(Err(error)) if error.is_status() => Unanswered::Refused(chain(&error.without_url())),
            Ok(Err(error)) => Unanswered::Died(chain(&error.without_url())),
            Err(_) => Unanswered::TimedOut,
        };
        if !matches!(unanswered, Unanswered::Refused(_)) {
            self.asking.worker.kill(generation).await;
        }
        Ok(Err(unanswered))
    }

    /// How often the worker was replaced.
    pub fn worker_restarts(&self) -> u64 {
        self.asking.worker.restarts()
    }
}

fn failed(panicked: bool, message: &str) -> String {
    format!("it {}: {message}", if panicked { "panicked" } else { "failed" })
}

fn ungraded(sample: &Sample, reason: String) -> Graded {
    tracing::warn!(sample = sample.index, step = sample.step, "ungraded: {reason}");
    Graded { grade: Grade::Ungraded { reason }, score: None, metadata: sample.metadata.clone() }
}
