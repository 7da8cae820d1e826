//! A step's responses, whoever drew them: the student, the teacher, the dataset, or another run.

use std::sync::Arc;

use training_gym_core::ids::{RunId, WeightVersion};
use training_gym_core::record::{Cause, Grade, RolloutRecord, RunState, RunStatus, StepMetrics, keys};
use training_gym_core::sample::FinishReason;
use training_gym_core::spec::{ResponseSource, RunSpec};
use training_gym_core::store::Store;

use super::failure::Stop;
use super::memory;
use super::playing::{self, Playing, Season};
use super::replay::Recorded;
use super::scoring::Pending;
use super::step::Trainer;
use crate::batch::{PreparedPrompt, PromptBatch, Rollout, RolloutBatch, Score};
use crate::data::PromptSource;
use crate::rollout::Engine;
use crate::rollout::collect::{self, Draw};
use crate::text::TextPipeline;
use crate::update::TeacherSignal;

/// A step's responses, and what is known of them already.
pub(super) struct Responses {
    /// The responses.
    pub(super) batch: RolloutBatch,
    /// What a co-resident teacher said of them, where it drew them itself.
    pub(super) signal: Option<TeacherSignal>,
    /// Their scores, where they were recorded with them.
    pub(super) scores: Option<Vec<Score>>,
}

impl Responses {
    fn unscored(batch: RolloutBatch) -> Self {
        Self { batch, signal: None, scores: None }
    }
}

impl Trainer {
    /// `None`: it was asked to stop, or what was asked about the first responses failed.
    pub(super) fn responses(
        &mut self,
        season: Season,
        recorded: &Recorded,
        pending: &mut Pending,
    ) -> Result<Option<Responses>, Stop> {
        let step = season.step;
        if let Some(recordings) = &self.recordings {
            let read = recordings.step(step, self.spec.rollout.n_samples_per_prompt, self.spec.teacher.is_some());
            let Some(read) = self.stop.or(&self.runtime, read) else { return Ok(None) };
            let (batch, scores) = read?;
            check_prompts(batch.rollouts(), &self.data)?;
            return Ok(Some(Responses { batch, signal: None, scores: Some(scores) }));
        }
        match &self.spec.responses {
            ResponseSource::Teacher => self.drawn_by_the_teacher(season, recorded, pending),
            ResponseSource::Column { name } => {
                let prompts = self.data.batch(step, self.spec.rollout.rollout_batch_size);
                let limit = self.spec.rollout.rollout_max_response_len;
                let batch = demonstrations(&prompts, name, &self.text, limit)?;
                let unknown = batch.rollouts().iter().filter(|rollout| !recorded.has(rollout));
                unknown.for_each(|rollout| pending.ask(rollout));
                Ok(Some(Responses::unscored(batch)))
            }
            ResponseSource::Student | ResponseSource::Recorded { .. } => {
                Ok(self.draw(season, recorded, pending)?.map(Responses::unscored))
            }
        }
    }

    /// The teacher draws while the student is away, and says at once what it thinks of what it drew.
    fn drawn_by_the_teacher(
        &mut self,
        season: Season,
        recorded: &Recorded,
        pending: &mut Pending,
    ) -> Result<Option<Responses>, Stop> {
        let invalid = |error: &(dyn std::error::Error + 'static)| Stop::new(Cause::InvalidInput, error);
        let Some(teacher) = &self.co_teacher else {
            return Err(Stop::say(Cause::InvalidInput, "the teacher is to draw the responses, and there is none here"));
        };
        let parked = self.updater.park();
        let moved = parked.moved().map(|student| self.engine.reseat(student.share())).is_some();
        let seated = teacher.sit(&parked).map_err(|error| invalid(&error))?;
        let spec = &self.spec;
        let prompts = self.data.batch(season.step, spec.rollout.rollout_batch_size);
        let draw = Draw { spec: &spec.rollout, text: &self.text, seed: spec.seed, turns: playing::turns(spec) };
        let mut engine = Engine::new(seated.model().share(), &spec.rollout.engine).map_err(|error| invalid(&error))?;
        if let Some(share) = spec.memory.gpu_memory_utilization {
            let resident = seated.bytes() + parked.resident_bytes();
            // Said of the student's engine before the first step.
            let _ = memory::bound(share, &mut engine, (seated.model().options().device, resident))?;
        }
        let mut world = Playing::new(season, pending, Some(recorded), (&self.stop, &self.runtime))
            .within(spec, self.grader.as_ref());
        let drawn = collect::collect_in(&mut engine, &prompts, &draw, &mut world);
        let failure = world.into_failure();
        drop(engine);
        if let Some(stop) = failure {
            return Err(stop);
        }
        let drawn = match drawn {
            Ok(batch) => {
                let signal = seated.score(batch.rollouts()).map_err(|error| invalid(&error))?;
                Some(Responses { batch, signal: Some(signal), scores: None })
            }
            Err(collect::Error::Stopped) => None,
            Err(error) => return Err(Stop::undrawn(&error)),
        };
        drop(seated);
        parked.seat();
        if moved {
            self.engine.reseat(self.updater.model().share());
        }
        Ok(drawn)
    }
}

/// What the student's own draws alone can tell is left out: the rest would be read as a fault.
pub(super) fn off_policy(metrics: &mut StepMetrics) {
    (metrics.logprob_gap, metrics.reverse_kl) = (0.0, None);
    if let Some(health) = &mut metrics.health {
        health.reverse_kl_p95 = None;
    }
}

/// Whether every prompt has a response in the column `name`.
pub(super) fn check_column(spec: &RunSpec, data: &PromptSource) -> Result<(), Stop> {
    let ResponseSource::Column { name } = &spec.responses else { return Ok(()) };
    data.prompts().iter().try_for_each(|prompt| demonstration(prompt, name).map(drop))
}

fn demonstration<'a>(prompt: &'a PreparedPrompt, column: &str) -> Result<&'a str, Stop> {
    let text = prompt.metadata.get(column).and_then(|value| value.as_str()).filter(|text| !text.is_empty());
    text.ok_or_else(|| {
        let sentence = format!("row {} of the dataset has no text in its column `{column}`", prompt.row);
        Stop::say(Cause::InvalidInput, sentence)
            .then("name the column of the responses in recipe.responses, or fill it; then launch a new run")
    })
}

/// The dataset's own responses, one a prompt, each with the token that ends a turn; what is beyond
/// `limit` tokens is cut off.
fn demonstrations(
    prompts: &PromptBatch,
    column: &str,
    text: &TextPipeline,
    limit: usize,
) -> Result<RolloutBatch, Stop> {
    let rollouts = prompts.prompts.iter().zip(0..).map(|(prompt, index)| {
        let response = demonstration(prompt, column)?;
        let mut ids =
            text.tokenizer().encode(response, false).map_err(|error| Stop::new(Cause::InvalidInput, &error))?;
        ids.extend(text.tokenizer().turn_end());
        let whole = ids.len() <= limit;
        ids.truncate(limit);
        Ok(Rollout {
            index,
            group_index: index,
            prompt: Arc::clone(prompt),
            response: if whole { response.to_owned() } else { text.tokenizer().decode(&ids, true) },
            response_mask: vec![true; ids.len()],
            // Given, not drawn: log 1.
            rollout_logprobs: vec![0.0; ids.len()],
            response_ids: ids,
            finish_reason: if whole { FinishReason::Stop } else { FinishReason::Length },
            weight_version: WeightVersion(0),
            episode: None,
        })
    });
    Ok(RolloutBatch::new(prompts.step, rollouts.collect::<Result<_, Stop>>()?))
}

/// The rollouts of a run that succeeded, to be trained on again.
#[derive(Debug)]
pub(super) struct Recordings {
    store: Arc<dyn Store>,
    run: RunId,
    /// Its steps, ≥ 1.
    steps: u64,
    /// Samples a step.
    samples: usize,
    /// Whether grades are learnt from.
    rewarded: bool,
    /// Likeliest tokens of the teacher that are learnt from at each position.
    top: Option<usize>,
}

impl Recordings {
    /// Those that `spec` names, if it names some.
    ///
    /// # Errors
    /// When there is no such run, or it has not succeeded.
    pub(super) async fn open(store: Arc<dyn Store>, spec: &RunSpec) -> Result<Option<Self>, Stop> {
        let ResponseSource::Recorded { run_id } = &spec.responses else { return Ok(None) };
        let status = store.get(&keys::status(run_id)).await.map_err(|error| Stop::new(Cause::InvalidInput, &error))?;
        let status: RunStatus =
            serde_json::from_slice(&status.bytes).map_err(|error| Stop::new(Cause::Store, &error))?;
        if status.state != RunState::Succeeded || status.num_rollout == 0 {
            let sentence = format!(
                "the run `{run_id}`, whose rollouts are to be trained on again, has not succeeded: it is {:?} at step {}",
                status.state, status.step
            );
            return Err(Stop::say(Cause::InvalidInput, sentence).then("wait for it, then launch again"));
        }
        let samples = spec.rollout.rollout_batch_size * spec.rollout.n_samples_per_prompt;
        let top = spec.teacher.as_ref().and_then(|teacher| Some(teacher.top_k?.k));
        let rewarded = spec.reward.is_some();
        Ok(Some(Self { store, run: run_id.clone(), steps: status.num_rollout, samples, rewarded, top }))
    }

    /// What was recorded for the step that stands in for `step`: after the run's last comes its first
    /// again. `taught`: the teacher's log-probabilities are needed.
    ///
    /// # Errors
    /// When the records are damaged, or of other groups than this run's.
    async fn step(&self, step: u64, group: usize, taught: bool) -> Result<(RolloutBatch, Vec<Score>), Stop> {
        let source = (step - 1) % self.steps + 1;
        let key = keys::rollouts(&self.run, source);
        let object = self.store.get(&key).await.map_err(|error| Stop::new(Cause::Store, &error))?;
        let lines = object.bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let mut records = lines
            .map(|line| {
                serde_json::from_slice(line)
                    .map_err(|error| Stop::say(Cause::Store, format!("`{key}` is damaged: {error}")))
            })
            .collect::<Result<Vec<RolloutRecord>, Stop>>()?;
        records.sort_by_key(|record| record.index);
        let refuse = |what: String| Err(Stop::say(Cause::InvalidInput, format!("`{key}`: {what}")));
        if records.len() != self.samples {
            return refuse(format!(
                "{} rollouts were recorded, and this run's steps have {}; give it the recorded run's rollout_batch_size \
                 and n_samples_per_prompt",
                records.len(),
                self.samples
            ));
        }
        for (place, record) in records.iter().enumerate() {
            let whole = !record.response_ids.is_empty() && is_masked_alike(record, &record.rollout_logprobs);
            if record.index != place as u64 || record.group_index != (place / group) as u64 || !whole {
                return refuse(format!("sample {place} is damaged, or its groups are not of {group} samples"));
            }
            let scored = record.teacher_logprobs.as_ref().is_some_and(|all| is_masked_alike(record, all));
            if taught && !scored {
                return refuse(format!("sample {place} has no log-probabilities of a teacher"));
            }
            let named = record.teacher_top.as_ref();
            let drawn = record.rollout_logprobs.iter().flatten().count();
            if named.is_some_and(|top| top.positions() != drawn) {
                return refuse(format!("sample {place} is damaged: its teacher named tokens at other positions"));
            }
            if let Some(k) = self.top.filter(|k| taught && named.is_none_or(|top| top.k() != *k)) {
                let has = named.map_or_else(|| "none".to_owned(), |top| top.k().to_string());
                return refuse(format!("sample {place} has {has} of the teacher's likeliest tokens, opd.top_k is {k}"));
            }
            if self.rewarded && record.grade == Grade::NotAsked {
                return refuse(format!("sample {place} has no grade: the run that recorded it had no reward"));
            }
        }
        let (rollouts, scores) = records.into_iter().map(|record| recalled(record, taught)).unzip();
        Ok((RolloutBatch::new(step, rollouts), scores))
    }
}

/// Recorded ids mean what they did only to the tokenizer and template that wrote them: the prompts tell.
fn check_prompts(rollouts: &[Rollout], data: &PromptSource) -> Result<(), Stop> {
    let asks_alike = |rollout: &&Rollout| {
        let place = data.prompts().binary_search_by_key(&rollout.prompt.row, |prompt| prompt.row);
        place.is_ok_and(|at| data.prompts()[at].prompt_ids == rollout.prompt.prompt_ids)
    };
    rollouts.iter().find(|rollout| !asks_alike(rollout)).map_or(Ok(()), |rollout| {
        let (index, row) = (rollout.index, rollout.prompt.row);
        let sentence =
            format!("recorded sample {index} was asked other tokens than row {row} of this run's dataset has");
        Err(Stop::say(Cause::InvalidInput, sentence).then(
            "give the recorded run's dataset, and a model with its tokenizer and template; then launch a new run",
        ))
    })
}

/// Whether a list over the response has a number where a token was drawn, and there alone.
fn is_masked_alike(record: &RolloutRecord, values: &[Option<f32>]) -> bool {
    values.len() == record.response_ids.len()
        && match &record.response_mask {
            Some(mask) => {
                mask.len() == values.len()
                    && mask.contains(&1)
                    && values.iter().zip(mask).all(|(at, &drawn)| at.is_some() == (drawn == 1))
            }
            None => values.iter().all(Option::is_some),
        }
}

fn recalled(record: RolloutRecord, taught: bool) -> (Rollout, Score) {
    let prompt = PreparedPrompt {
        row: record.row,
        prompt: record.prompt,
        prompt_ids: record.prompt_ids,
        label: record.label,
        metadata: record.metadata.clone(),
    };
    let drawn = |mask: Vec<u8>| mask.into_iter().map(|drawn| drawn == 1).collect();
    let rollout = Rollout {
        index: record.index,
        group_index: record.group_index,
        prompt: Arc::new(prompt),
        response_mask: record.response_mask.map_or_else(|| vec![true; record.response_ids.len()], drawn),
        response_ids: record.response_ids,
        rollout_logprobs: record.rollout_logprobs.into_iter().flatten().collect(),
        response: record.response,
        finish_reason: record.finish_reason,
        weight_version: record.weight_version,
        episode: record.episode,
    };
    let score = Score {
        grade: record.grade,
        reward: record.reward,
        score: record.score,
        metadata: record.metadata,
        teacher_logprobs: record.teacher_logprobs.filter(|_| taught).map(|all| all.into_iter().flatten().collect()),
        teacher_top: record.teacher_top.filter(|_| taught),
    };
    (rollout, score)
}
