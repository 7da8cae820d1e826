//! One trip round the house: prompts, rollouts, scores, advantages, update, publish.

use std::sync::Arc;
use std::time::Instant;

use training_gym_core::ids::WeightVersion;
use training_gym_core::record::{Cause, Grade, Health, RolloutRecord, StepMemory, StepMetrics};
use training_gym_core::sample::{FinishReason, Sample};
use training_gym_core::spec::RunSpec;

use super::failure::Stop;
use super::playing::{self, Playing, Season};
use super::replay::{Recorded, Replay};
use super::scoring::{Judges, Pending, Verdicts};
use super::signal::StopSignal;
use super::source::{self, Recordings, Responses};
use crate::advantage::{self, AdvantageReport, Inputs, OpdTerm};
use crate::batch::{Rollout, RolloutBatch, Score, ScoredBatch, TrainBatch, UpdateReport};
use crate::data::PromptSource;
use crate::rollout::Engine;
use crate::rollout::collect::{self, Draw};
use crate::score::reward::{Graded, Grader};
use crate::score::teacher::Teacher;
use crate::text::TextPipeline;
use crate::update::{self, CoTeacher, TeacherSignal, Updater};

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
    /// A teacher that shares the updater's device, if the run has one.
    pub(super) co_teacher: Option<CoTeacher>,
    /// Held-out rows, if asked for.
    pub(super) evaluation: Option<super::evaluate::Evaluation>,
    /// Scores that a lost attempt recorded.
    pub(super) replay: Replay,
    /// Rollouts of another run, where those are trained on.
    pub(super) recordings: Option<Recordings>,
    /// Set when someone asked the run to stop.
    pub(super) stop: StopSignal,
}

/// What a step leaves behind.
#[derive(Debug)]
pub(super) struct StepOutcome {
    /// Its line of metrics.
    pub(super) metrics: StepMetrics,
    /// Its samples.
    pub(super) records: Vec<RolloutRecord>,
    /// What a person should know of it.
    pub(super) note: Option<String>,
}

impl Trainer {
    /// Runs step `step` (from 1). `Ok(None)` means it was asked to stop; weights are as before.
    ///
    /// # Errors
    /// A [`Stop`] naming the stage that failed.
    pub(super) fn step(&mut self, step: u64) -> Result<Option<StepOutcome>, Stop> {
        let began = Instant::now();
        let Some(recorded) = self.stop.or(&self.runtime, self.replay.step(step)) else { return Ok(None) };
        let recorded = recorded?;
        let judges = Judges {
            grader: self.grader.clone(),
            share: self.grader.as_ref().map(|grader| Arc::new(grader.share(step, self.samples()))),
            teacher: self.teacher.clone(),
        };
        let season = Season { step, evaluation: false, seed: self.spec.seed };
        let mut pending = Pending::new(season, judges, self.runtime.clone());
        let drawn = self.responses(season, &recorded, &mut pending)?;
        pending.ask_teacher();
        let drawn_at = Instant::now();
        let mut memory = self.leave_device();
        let verdicts = self.stop.or(&self.runtime, pending.join());
        if self.updater.onload_student() {
            self.engine.reseat(self.updater.model().share());
        }
        let Some(verdicts) = verdicts else { return Ok(None) };
        let (verdicts, Some(Responses { batch, signal, scores })) = (verdicts?, drawn) else { return Ok(None) };
        let scores = match scores {
            Some(scores) => Some(scores),
            None => self.score(&batch, &recorded, verdicts)?,
        };
        let Some(scores) = scores else { return Ok(None) };
        let scored_at = Instant::now();
        let (train, advantages) = self.advantages(batch.scored(scores));
        let report = self.update(&train, signal)?;
        if report.updates == 0 && report.skipped_updates > 0 {
            let skipped = report.skipped_updates;
            let sentence = format!("no weight moved at step {step}: no loss or gradient of {skipped} was finite");
            return Err(Stop::say(Cause::Numerics, sentence));
        }
        self.engine.weights_changed(WeightVersion(step));
        let seconds = Seconds {
            rollout: (drawn_at - began).as_secs_f64(),
            score_wait: (scored_at - drawn_at).as_secs_f64(),
            update: scored_at.elapsed().as_secs_f64(),
            step: began.elapsed().as_secs_f64(),
        };
        let mut metrics = measure(&train, &report, &advantages, &seconds);
        if !self.spec.responses.is_student() {
            source::off_policy(&mut metrics);
        }
        let moves = self.updater.take_moves();
        (memory.moved_bytes, memory.move_seconds) = (moves.bytes, moves.seconds);
        metrics.memory = (!self.spec.memory.is_none()).then_some(memory);
        check_finite(&metrics)?;
        Ok(Some(StepOutcome { metrics, records: records(&train), note: recorded.damage() }))
    }

    /// After the last token: gives up what nobody needs while scores are waited for.
    fn leave_device(&mut self) -> StepMemory {
        let cache_bytes = self.engine.take_cache_peak() as u64;
        // What an idle engine gave back by itself counts where it was asked to.
        let freed = self.spec.memory.free_cache_engine;
        if freed {
            self.engine.free_cache();
        }
        let waits = self.grader.is_some() || self.teacher.is_some();
        if waits && self.updater.offload_student() {
            self.engine.reseat(self.updater.model().share());
        }
        StepMemory { cache_bytes, cache_freed_bytes: if freed { cache_bytes } else { 0 }, ..StepMemory::default() }
    }

    /// Samples of a step.
    fn samples(&self) -> usize {
        self.spec.rollout.rollout_batch_size * self.spec.rollout.n_samples_per_prompt
    }

    /// `None`: it was asked to stop, or what was asked about the first responses failed.
    pub(super) fn draw(
        &mut self,
        season: Season,
        recorded: &Recorded,
        pending: &mut Pending,
    ) -> Result<Option<RolloutBatch>, Stop> {
        let spec = &self.spec;
        let prompts = self.data.batch(season.step, spec.rollout.rollout_batch_size);
        let draw = Draw { spec: &spec.rollout, text: &self.text, seed: spec.seed, turns: playing::turns(spec) };
        let mut world = Playing::new(season, pending, Some(recorded), (&self.stop, &self.runtime))
            .within(spec, self.grader.as_ref());
        let drawn = collect::collect_in(&mut self.engine, &prompts, &draw, &mut world);
        if let Some(stop) = world.into_failure() {
            return Err(stop);
        }
        let batch = match drawn {
            Ok(batch) => batch,
            Err(collect::Error::Stopped) => return Ok(None),
            Err(error) => return Err(Stop::undrawn(&error)),
        };
        Ok(Some(batch))
    }

    /// `None`: it was asked to stop.
    fn score(&self, batch: &RolloutBatch, recorded: &Recorded, verdicts: Verdicts) -> Result<Option<Vec<Score>>, Stop> {
        let Verdicts { mut graded, mut taught } = verdicts;
        let step = batch.step();
        let samples: Vec<Sample> = batch.rollouts().iter().map(|rollout| rollout.to_sample(step)).collect();
        let mut all: Vec<Graded> = batch
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
            Some(grader) => match self.stop.or(&self.runtime, grader.rewards(step, samples, &mut all)) {
                Some(rewards) => rewards.map_err(|error| Stop::new(error.cause(), &error))?,
                None => return Ok(None),
            },
        };
        let scores = batch
            .rollouts()
            .iter()
            .zip(all)
            .zip(rewards)
            .map(|((rollout, graded), reward)| {
                let answer = taught.remove(&rollout.index).or_else(|| recorded.taught(rollout));
                let (teacher_logprobs, teacher_top) =
                    answer.map_or((None, None), |answer| (Some(answer.logprobs), answer.top));
                Score {
                    grade: graded.grade,
                    reward,
                    score: graded.score,
                    metadata: graded.metadata,
                    teacher_logprobs,
                    teacher_top,
                }
            })
            .collect();
        Ok(Some(scores))
    }

    fn advantages(&mut self, batch: ScoredBatch) -> (TrainBatch, AdvantageReport) {
        let opd = self
            .spec
            .teacher
            .as_ref()
            // Likeliest tokens are learnt from in the loss itself.
            .filter(|teacher| teacher.top_k.is_none())
            .map(|teacher| OpdTerm { coef: teacher.opd_kl_coef, log_ratio_clamp: teacher.log_ratio_clamp });
        let reference = match self.spec.advantage.kl_reward {
            Some(_) => Some(self.updater.reference_logprobs(batch.rollouts())),
            None => None,
        };
        let inputs = Inputs {
            opd: opd.as_ref(),
            n_samples_per_prompt: self.spec.rollout.n_samples_per_prompt,
            max_response_len: self.spec.rollout.rollout_max_response_len,
            reference_logprobs: reference.as_deref(),
        };
        advantage::estimate(batch, &self.spec.advantage, inputs)
    }

    /// Both phases where a teacher shares the device: it scores while the student is away, and is gone
    /// before the student is back. `signal` is what it said already.
    fn update(&mut self, train: &TrainBatch, signal: Option<TeacherSignal>) -> Result<UpdateReport, Stop> {
        let numerics = |error: update::Error| Stop::new(Cause::Numerics, &error);
        if let Some(distill) = &self.spec.distill {
            self.updater.minimise(distill.divergence_at(train.step(), self.spec.num_rollout));
        }
        if let Some(top) = self.spec.teacher.as_ref().and_then(|teacher| teacher.top_k) {
            let vocab = self.updater.model().config().vocab_size as i64;
            let signal =
                TeacherSignal::of_server(train, top, vocab).map_err(|error| Stop::new(Cause::Teacher, &error))?;
            return self.updater.apply_taught(train, &signal).map_err(numerics);
        }
        let Some(teacher) = &self.co_teacher else { return self.updater.apply(train).map_err(numerics) };
        if let Some(signal) = signal {
            return self.updater.apply_taught(train, &signal).map_err(numerics);
        }
        let parked = self.updater.park();
        let moved = parked.moved().map(|student| self.engine.reseat(student.share())).is_some();
        let signal =
            teacher.score(&parked, train.rollouts()).map_err(|error| Stop::new(Cause::InvalidInput, &error))?;
        parked.seat();
        if moved {
            self.engine.reseat(self.updater.model().share());
        }
        self.updater.apply_taught(train, &signal).map_err(numerics)
    }
}

struct Seconds {
    rollout: f64,
    score_wait: f64,
    update: f64,
    step: f64,
}

fn measure(batch: &TrainBatch, report: &UpdateReport, advantages: &AdvantageReport, seconds: &Seconds) -> StepMetrics {
    let rollouts = batch.rollouts();
    let samples = rollouts.len() as f64;
    let length: usize = rollouts.iter().map(|rollout| rollout.response_ids.len()).sum();
    let tokens: usize = rollouts.iter().map(Rollout::drawn).sum();
    let truncated = rollouts.iter().filter(|rollout| rollout.finish_reason == FinishReason::Length).count();
    let rewards: Vec<f64> = batch.scores().iter().filter_map(|score| score.reward).collect();
    let ungraded = batch.scores().iter().filter(|score| matches!(score.grade, Grade::Ungraded { .. })).count();
    StepMetrics {
        step: batch.step(),
        reward: (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64),
        ungraded: ungraded as u64,
        reverse_kl: advantages.reverse_kl.or(report.log_ratio),
        divergence: report.divergence,
        response_len: length as f64 / samples,
        truncated: truncated as f64 / samples,
        entropy: report.entropy,
        loss: report.loss,
        clip_fraction: report.clip_fraction,
        logprob_gap: report.logprob_gap,
        grad_norm: report.grad_norm,
        lr: report.lr,
        skipped_updates: report.skipped_updates,
        tokens: tokens as u64,
        rollout_seconds: seconds.rollout,
        score_wait_seconds: seconds.score_wait,
        update_seconds: seconds.update,
        step_seconds: seconds.step,
        weight_version: WeightVersion(batch.step()),
        eval_reward: None,
        clamped_tokens: advantages.clamped,
        zero_std_groups: advantages.zero_std_groups,
        dropped_samples: advantages.dropped,
        memory: None,
        health: Some(Health {
            reverse_kl_p95: advantages.reverse_kl_p95.or(report.log_ratio_p95),
            task_advantage: advantages.task_advantage,
            teacher_advantage: advantages.teacher_advantage,
            stopped_share: rollouts.iter().filter(|rollout| rollout.finish_reason == FinishReason::Stop).count() as f64
                / samples,
            ungraded_share: ungraded as f64 / samples,
            selected_share: report.selected,
            effective_share: advantages.effective_share,
        }),
        multi_turn: playing::diagnostics(rollouts),
    }
}

/// JSON has no NaN: a number that is none would read as missing.
fn check_finite(metrics: &StepMetrics) -> Result<(), Stop> {
    let numbers = [
        ("loss", Some(metrics.loss)),
        ("grad_norm", Some(metrics.grad_norm)),
        ("entropy", Some(metrics.entropy)),
        ("logprob_gap", Some(metrics.logprob_gap)),
        ("clip_fraction", Some(metrics.clip_fraction)),
        ("lr", Some(metrics.lr)),
        ("reverse_kl", metrics.reverse_kl),
        ("divergence", metrics.divergence),
        ("reward", metrics.reward),
    ];
    match numbers.into_iter().find(|(_, value)| value.is_some_and(|value| !value.is_finite())) {
        None => Ok(()),
        Some((name, value)) => {
            let sentence = format!("{name} of step {} is {}", metrics.step, value.unwrap_or_default());
            Err(Stop::say(Cause::Numerics, sentence))
        }
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
            response_mask: rollout
                .episode
                .is_some()
                .then(|| rollout.response_mask.iter().map(|&drawn| u8::from(drawn)).collect()),
            rollout_logprobs: rollout.along_response(&rollout.rollout_logprobs),
            teacher_logprobs: score.teacher_logprobs.as_ref().map(|teacher| rollout.along_response(teacher)),
            teacher_top: score.teacher_top.clone(),
            episode: rollout.episode.clone(),
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
