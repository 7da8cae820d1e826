//! One step's responses: every prompt's group through the engine, each response handed on the
//! moment it ends.

use std::sync::Arc;

use training_gym_core::ids::WeightVersion;
use training_gym_core::sample::FinishReason;
use training_gym_core::spec::RolloutSpec;

use crate::batch::{PreparedPrompt, PromptBatch, Rollout, RolloutBatch};
use crate::text::TextPipeline;
use training_gym_core::splitmix::mixed;

use super::{Engine, Event, Refusal, Request, RequestId, TokenWatcher, Watch};

/// What a response is drawn with, beside its prompt.
#[derive(Debug)]
pub struct Draw<'a> {
    /// Lengths, sampling, stops.
    pub spec: &'a RolloutSpec,
    /// The tokenizer.
    pub text: &'a TextPipeline,
    /// The run's seed.
    pub seed: u64,
}

/// Why a step has no batch.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine does not take a prompt.
    #[error("row {row} of the dataset")]
    Refused {
        /// The row.
        row: u64,
        /// The engine's word.
        #[source]
        source: Refusal,
    },
    /// The model's own numbers are none.
    #[error(
        "the student's log-probability of token {position} of sample {sample} of step {step} is {logprob}: \
         its weights or activations are not finite"
    )]
    NotFinite {
        /// What it is.
        logprob: f32,
        /// The step.
        step: u64,
        /// The sample.
        sample: u64,
        /// Which token of the response, from 0.
        position: usize,
    },
    /// `keep_going` said no.
    #[error("stopped")]
    Stopped,
}

struct Open {
    group_index: u64,
    prompt: Arc<PreparedPrompt>,
    ids: Vec<i64>,
    logprobs: Vec<f32>,
}

/// Draws `n_samples_per_prompt` responses a prompt. `finished` sees each response as it ends, in
/// an order that depends on the tokens alone; `keep_going` is asked once a decode step.
///
/// Requests are submitted in sample order, as the engine has room: a step may be larger than its
/// queue. Which responses share a batch depends on the tokens alone, so the same step gives the
/// same responses.
///
/// # Errors
/// [`Error`]; the engine is idle then.
pub fn collect(
    engine: &mut Engine,
    batch: &PromptBatch,
    draw: &Draw<'_>,
    finished: impl FnMut(&Rollout),
    keep_going: impl Fn() -> bool,
) -> Result<RolloutBatch, Error> {
    let mut stop_ids = draw.text.tokenizer().eos_token_ids().to_vec();
    stop_ids.extend_from_slice(&draw.spec.stop_token_ids);
    let mut collector = Collector { batch, draw, stop_ids, open: Vec::new(), rollouts: Vec::new() };
    // What is refused is refused before anything is drawn.
    for (group_index, prompt) in batch.prompts.iter().enumerate() {
        let request = collector.request(group_index * draw.spec.n_samples_per_prompt);
        engine.check(&request).map_err(|source| Error::Refused { row: prompt.row, source })?;
    }
    let outcome = collector.run(engine, finished, keep_going);
    if outcome.is_err() {
        (0..collector.open.len()).for_each(|index| engine.abort(RequestId(index as u64)));
        engine.step();
    }
    outcome.map(|()| RolloutBatch::new(batch.step, collector.rollouts))
}

/// A step's responses on their way.
struct Collector<'a> {
    batch: &'a PromptBatch,
    draw: &'a Draw<'a>,
    stop_ids: Vec<i64>,
    /// Those submitted so far, in sample order; `None` once ended.
    open: Vec<Option<Open>>,
    rollouts: Vec<Rollout>,
}

impl Collector<'_> {
    fn prompt(&self, index: usize) -> &Arc<PreparedPrompt> {
        &self.batch.prompts[index / self.draw.spec.n_samples_per_prompt]
    }

    fn request(&self, index: usize) -> Request {
        Request {
            prompt_ids: self.prompt(index).prompt_ids.clone(),
            sampling: self.draw.spec.sampling.clone(),
            max_new_tokens: self.draw.spec.rollout_max_response_len,
            seed: sample_seed(self.draw.seed, self.batch.step, index as u64),
            stop_ids: self.stop_ids.clone(),
            top_logprobs: 0,
            watcher: watcher(self.draw),
        }
    }

    /// Submits the next samples, as many as the engine has room for.
    fn feed(&mut self, engine: &mut Engine) -> Result<(), Error> {
        let group = self.draw.spec.n_samples_per_prompt;
        let samples = self.batch.prompts.len() * group;
        while self.open.len() < samples && engine.room() > 0 {
            let index = self.open.len();
            let prompt = Arc::clone(self.prompt(index));
            engine
                .submit(RequestId(index as u64), self.request(index))
                .map_err(|source| Error::Refused { row: prompt.row, source })?;
            let group_index = (index / group) as u64;
            self.open.push(Some(Open { group_index, prompt, ids: Vec::new(), logprobs: Vec::new() }));
        }
        Ok(())
    }

    fn run(
        &mut self,
        engine: &mut Engine,
        mut finished: impl FnMut(&Rollout),
        keep_going: impl Fn() -> bool,
    ) -> Result<(), Error> {
        loop {
            self.feed(engine)?;
            if engine.is_idle() {
                return Ok(());
            }
            if !keep_going() {
                return Err(Error::Stopped);
            }
            for event in engine.step() {
                match event {
                    Event::Token { id, score } => {
                        let Some(open) = &mut self.open[id.0 as usize] else { continue };
                        let logprob = score.logprob.expect("a drawn token has a log-probability");
                        if !logprob.is_finite() {
                            let (step, position) = (self.batch.step, open.ids.len());
                            return Err(Error::NotFinite { logprob, step, sample: id.0, position });
                        }
                        open.ids.push(score.token);
                        open.logprobs.push(logprob);
                    }
                    Event::Finished { id, reason } => {
                        let Some(done) = self.open[id.0 as usize].take() else { continue };
                        let rollout = self.close(id.0, done, reason, engine.weight_version());
                        finished(&rollout);
                        self.rollouts.push(rollout);
                    }
                    Event::Failed { cause, .. } => panic!("the engine died: {cause}"),
                }
            }
        }
    }

    fn close(&self, index: u64, open: Open, finish_reason: FinishReason, weight_version: WeightVersion) -> Rollout {
        Rollout {
            index,
            group_index: open.group_index,
            prompt: open.prompt,
            response: response_text(self.draw, &open.ids),
            response_ids: open.ids,
            rollout_logprobs: open.logprobs,
            finish_reason,
            weight_version,
        }
    }
}

fn watcher(draw: &Draw<'_>) -> Option<Box<dyn TokenWatcher>> {
    if draw.spec.stop.is_empty() {
        return None;
    }
    Some(Box::new(Watch(draw.text.tokenizer().stop_watcher(&draw.spec.stop, true))))
}

/// The response as text, up to the first stop text.
fn response_text(draw: &Draw<'_>, ids: &[i64]) -> String {
    if draw.spec.stop.is_empty() {
        return draw.text.tokenizer().decode(ids, true);
    }
    let mut watcher = draw.text.tokenizer().stop_watcher(&draw.spec.stop, true);
    let mut text: String = ids.iter().map(|&id| watcher.push_text(id)).collect();
    text.push_str(&watcher.finish());
    text
}

/// The seed of one sample's noise: a function of the run's seed, the step and the index alone.
fn sample_seed(seed: u64, step: u64, index: u64) -> u64 {
    mixed(mixed(mixed(seed) ^ step) ^ index)
}
