//! One trip round the house: prompts, rollouts, scores, advantages, update, publish.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::task::JoinHandle;
use training_gym_core::ids::WeightVersion;
use training_gym_core::record::{Cause, Grade, RolloutRecord, StepMetrics};
use training_gym_core::sample::{FinishReason, Sample};
use training_gym_core::spec::RunSpec;

use super::failure::Stop;
use super::replay::Replay;
use crate::advantage::{self, AdvantageReport, OpdTerm};
use crate::batch::{Rollout, RolloutBatch, Score, ScoredBatch, TrainBatch, UpdateReport};
use crate::data::PromptSource;
use crate::rollout::Engine;
use crate::rollout::collect::{self, Draw};
use crate::score::reward::{Graded, Grader};
use crate::score::teacher::Teacher;
use crate::text::TextPipeline;
use crate::update::Updater;

/// Everything a step needs, made once.
#[derive(Debug)]
pub(super) struct Trainer {
    /// The resolved spec.
    pub(super) spec: RunSpec,
    /// Where the asynchronous parts run.
    pub(super) runtime: tokio::runtime::Handle,
    /// Tokenizer and template.
    pub(super) text: Arc<TextPipeline>,
    /// The prompts.
    pub(super) data: PromptSource,
    /// Draws responses with the same weights the updater moves.
    pub(super) engine: Engine,
    /// Moves the weights.
    pub(super) updater: Updater,
    /// The reward worker, if the run has a reward function.
    pub(super) grader: Option<Arc<Grader>>,
    /// The teacher, if the run has one.
    pub(super) teacher: Option<Arc<Teacher>>,
    /// Held-out rows, if asked for.
    pub(super) evaluation: Option<super::evaluate::Evaluation>,
    /// Scores that a lost attempt recorded.
    pub(super) replay: Replay,
    /// Set when someone asked the run to stop.
    pub(super) stop: Arc<AtomicBool>,
}

/// What a step leaves behind.
#[derive(Debug)]
pub(super) struct StepOutcome {
    /// Its line of metrics.
    pub(super) metrics: StepMetrics,
    /// Its samples.
    pub(super) records: Vec<RolloutRecord>,
}

type Task<T> = JoinHandle<Result<T, crate::score::Error>>;

/// Scores on their way, while other responses still decode.
#[derive(Default)]
struct Pending {
    graded: Vec<(u64, Task<Graded>)>,
    taught: Vec<(Vec<u64>, Task<Vec<Vec<f32>>>)>,
    waiting: Vec<Rollout>,
}

impl Trainer {
    /// Runs step `step` (from 1). `Ok(None)` means it was asked to stop; weights are as before.
    ///
    /// # Errors
    /// A [`Stop`] naming the stage that failed.
    pub(super) fn step(&mut self, step: u64) -> Result<Option<StepOutcome>, Stop> {
        let began = Instant::now();
        let recorded = self.replay.step(step);
        let mut pending = Pending::default();
        let Some(batch) = self.draw(step, &recorded, &mut pending)? else { return Ok(None) };
        let drawn = Instant::now();
        let scores = self.score(&batch, recorded, pending)?;
        let scored_at = Instant::now();
        let (train, advantages) = self.advantages(batch.scored(scores));
        let report = self.updater.apply(&train).map_err(|error| Stop::new(Cause::Numerics, &error))?;
        if report.updates == 0 {
            let sentence = format!("no update of step {step} could be applied: the loss or its gradient is not finite");
            return Err(Stop::say(Cause::Numerics, sentence));
        }
        self.engine.weights_changed(WeightVersion(step));
        let seconds = Seconds {
            rollout: (drawn - began).as_secs_f64(),
            score_wait: (scored_at - drawn).as_secs_f64(),
            update: scored_at.elapsed().as_secs_f64(),
            step: began.elapsed().as_secs_f64(),
        };
        let metrics = measure(&train, &report, &advantages, &seconds);
        Ok(Some(StepOutcome { metrics, records: records(&train) }))
    }

    fn draw(&mut self, step: u64, recorded: &Recorded, pending: &mut Pending) -> Result<Option<RolloutBatch>, Stop> {
        let prompts = self.data.batch(step, self.spec.rollout.rollout_batch_size);
        let draw = Draw { spec: &self.spec.rollout, text: &self.text, seed: self.spec.seed };
        let (grader, teacher, runtime) = (&self.grader, &self.teacher, &self.runtime);
        let finished = |rollout: &Rollout| {
            if recorded.has(rollout) {
                return;
            }
            if let Some(grader) = grader {
                let (grader, sample) = (Arc::clone(grader), rollout.to_sample(step));
                pending.graded.push((rollout.index, runtime.spawn(async move { grader.grade(&sample).await })));
            }
            if let Some(teacher) = teacher {
                pending.waiting.push(rollout.clone());
                if pending.waiting.len() == teacher.batch_size() {
                    pending.ask(teacher, runtime);
                }
            }
        };
        let stop = Arc::clone(&self.stop);
        let keep_going = move || !stop.load(Ordering::Relaxed);
        let batch = match collect::collect(&mut self.engine, &prompts, &draw, finished, keep_going) {
            Ok(batch) => batch,
            Err(collect::Error::Stopped) => return Ok(None),
            Err(error) => return Err(Stop::new(Cause::InvalidInput, &error)),
        };
        if let Some(teacher) = &self.teacher
            && !pending.waiting.is_empty()
        {
            pending.ask(teacher, &self.runtime);
        }
        Ok(Some(batch))
    }

    fn score(&self, batch: &RolloutBatch, recorded: Recorded, pending: Pending) -> Result<Vec<Score>, Stop> {
        let (graded, mut taught) = self.runtime.block_on(pending.join())?;
        let mut graded: std::collections::HashMap<u64, Graded> = graded.into_iter().collect();
        let step = batch.step();
        let samples: Vec<Sample> = batch.rollouts().iter().map(|rollout| rollout.to_sample(step)).collect();
        let all: Vec<Graded> = batch
            .rollouts()
            .iter()
            .zip(&samples)
            .map(|(rollout, sample)| {
                graded.remove(&rollout.index).or_else(|| recorded.graded(rollout)).unwrap_or_else(|| Graded {
                    grade: Grade::NotAsked,
                    score: None,
                    metadata: sample.metadata.clone(),
                })
            })
            .collect();
        let rewards = match &self.grader {
            None => vec![None; all.len()],
            Some(grader) => {
                let stop = |error: crate::score::Error| Stop::new(error.cause(), &error);
                grader.check_share(step, &samples, &all).map_err(stop)?;
                self.runtime.block_on(grader.rewards(step, samples, &all)).map_err(stop)?
            }
        };
        Ok(batch
            .rollouts()
            .iter()
            .zip(all)
            .zip(rewards)
            .map(|((rollout, graded), reward)| Score {
                grade: graded.grade,
                reward,
                score: graded.score,
                metadata: graded.metadata,
                teacher_logprobs: taught.remove(&rollout.index).or_else(|| recorded.teacher_logprobs(rollout)),
            })
            .collect())
    }

    fn advantages(&self, batch: ScoredBatch) -> (TrainBatch, AdvantageReport) {
        let opd = self
            .spec
            .teacher
            .as_ref()
            .map(|teacher| OpdTerm { coef: teacher.opd_kl_coef, log_ratio_clamp: teacher.log_ratio_clamp });
        advantage::estimate(batch, &self.spec.advantage, opd.as_ref(), self.spec.rollout.n_samples_per_prompt)
    }
}

type Joined = (Vec<(u64, Graded)>, std::collections::HashMap<u64, Vec<f32>>);

impl Pending {
    /// Sends the waiting responses to the teacher as one request.
    fn ask(&mut self, teacher: &Arc<Teacher>, runtime: &tokio::runtime::Handle) {
        let batch = std::mem::take(&mut self.waiting);
        let indices = batch.iter().map(|rollout| rollout.index).collect();
        let teacher = Arc::clone(teacher);
        self.taught.push((indices, runtime.spawn(async move { teacher.score(&batch).await })));
    }

    async fn join(self) -> Result<Joined, Stop> {
        let stop = |error: crate::score::Error| Stop::new(error.cause(), &error);
        let lost = |error: tokio::task::JoinError| Stop::new(Cause::Internal, &error);
        let mut graded = Vec::with_capacity(self.graded.len());
        for (index, task) in self.graded {
            graded.push((index, task.await.map_err(lost)?.map_err(stop)?));
        }
        let mut taught = std::collections::HashMap::new();
        for (indices, task) in self.taught {
            taught.extend(indices.into_iter().zip(task.await.map_err(lost)?.map_err(stop)?));
        }
        Ok((graded, taught))
    }
}

use super::replay::Recorded;

struct Seconds {
    rollout: f64,
    score_wait: f64,
    update: f64,
    step: f64,
}

fn measure(batch: &TrainBatch, report: &UpdateReport, advantages: &AdvantageReport, seconds: &Seconds) -> StepMetrics {
    let rollouts = batch.rollouts();
    let samples = rollouts.len() as f64;
    let tokens: usize = rollouts.iter().map(|rollout| rollout.response_ids.len()).sum();
    let truncated = rollouts.iter().filter(|rollout| rollout.finish_reason == FinishReason::Length).count();
    let rewards: Vec<f64> = batch.scores().iter().filter_map(|score| score.reward).collect();
    let ungraded = batch.scores().iter().filter(|score| matches!(score.grade, Grade::Ungraded { .. })).count();
    let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
    StepMetrics {
        step: batch.step(),
        reward: (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64),
        ungraded: ungraded as u64,
        reverse_kl: advantages.reverse_kl,
        response_len: tokens as f64 / samples,
        truncated: truncated as f64 / samples,
        entropy: report.entropy,
        loss: report.loss,
        clip_fraction: report.clip_fraction,
        logprob_gap: report.logprob_gap,
        grad_norm: finite(report.grad_norm),
        lr: report.lr,
        skipped_updates: report.skipped_updates,
        tokens: tokens as u64,
        rollout_seconds: seconds.rollout,
        score_wait_seconds: seconds.score_wait,
        update_seconds: seconds.update,
        step_seconds: seconds.step,
        weight_version: WeightVersion(batch.step()),
        eval_reward: None,
    }
}

fn records(batch: &TrainBatch) -> Vec<RolloutRecord> {
    let step = batch.step();
    batch
        .rollouts()
        .iter()
        .zip(batch.scores())
        .map(|(rollout, score)| RolloutRecord {
            step,
            index: rollout.index,
            group_index: rollout.group_index,
            row: rollout.prompt.row,
            prompt: rollout.prompt.prompt.clone(),
            prompt_ids: rollout.prompt.prompt_ids.clone(),
            response: rollout.response.clone(),
            response_ids: rollout.response_ids.clone(),
            rollout_logprobs: rollout.rollout_logprobs.clone(),
            teacher_logprobs: score.teacher_logprobs.clone(),
            finish_reason: rollout.finish_reason,
            grade: score.grade.clone(),
            reward: score.reward,
            score: score.score,
            label: rollout.prompt.label.clone(),
            metadata: score.metadata.clone(),
            weight_version: rollout.weight_version,
        })
        .collect()
}
