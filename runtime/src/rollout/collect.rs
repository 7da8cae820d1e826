//! One step's responses: every prompt's group through the engine, each response handed on the
//! moment it ends.

use std::sync::Arc;

use training_gym_core::sample::FinishReason;
use training_gym_core::spec::RolloutSpec;

use crate::batch::{PreparedPrompt, PromptBatch, Rollout, RolloutBatch};
use crate::text::{StopWatcher, TextPipeline};

use super::{Engine, Event, Refusal, Request, RequestId, TokenWatcher};

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
/// # Errors
/// [`Error`].
pub fn collect(
    engine: &mut Engine,
    batch: &PromptBatch,
    draw: &Draw<'_>,
    mut finished: impl FnMut(&Rollout),
    keep_going: impl Fn() -> bool,
) -> Result<RolloutBatch, Error> {
    let group = draw.spec.n_samples_per_prompt as u64;
    let mut stop_ids = draw.text.tokenizer().eos_token_ids().to_vec();
    stop_ids.extend_from_slice(&draw.spec.stop_token_ids);
    let mut open: Vec<Option<Open>> = Vec::new();
    for (group_index, prompt) in batch.prompts.iter().enumerate() {
        for _ in 0..group {
            let index = open.len() as u64;
            let request = Request {
                prompt_ids: prompt.prompt_ids.clone(),
                sampling: draw.spec.sampling.clone(),
                max_new_tokens: draw.spec.rollout_max_response_len,
                seed: sample_seed(draw.seed, batch.step, index),
                stop_ids: stop_ids.clone(),
                top_logprobs: 0,
                watcher: watcher(draw),
            };
            engine.submit(RequestId(index), request).map_err(|source| Error::Refused { row: prompt.row, source })?;
            open.push(Some(Open {
                group_index: group_index as u64,
                prompt: Arc::clone(prompt),
                ids: Vec::new(),
                logprobs: Vec::new(),
            }));
        }
    }
    let mut rollouts = Vec::with_capacity(open.len());
    while !engine.is_idle() {
        if !keep_going() {
            (0..open.len()).for_each(|index| engine.abort(RequestId(index as u64)));
            engine.step();
            return Err(Error::Stopped);
        }
        for event in engine.step() {
            match event {
                Event::Token { id, score } => {
                    if let Some(open) = &mut open[id.0 as usize] {
                        open.ids.push(score.token);
                        open.logprobs.push(score.logprob.expect("a drawn token has a log-probability"));
                    }
                }
                Event::Finished { id, reason } => {
                    let Some(done) = open[id.0 as usize].take() else { continue };
                    let rollout = close(id.0, done, reason, (engine, draw));
                    finished(&rollout);
                    rollouts.push(rollout);
                }
                Event::Failed { cause, .. } => panic!("the engine died: {cause}"),
            }
        }
    }
    Ok(RolloutBatch::new(batch.step, rollouts))
}

fn close(index: u64, open: Open, finish_reason: FinishReason, (engine, draw): (&Engine, &Draw<'_>)) -> Rollout {
    Rollout {
        index,
        group_index: open.group_index,
        prompt: open.prompt,
        response: response_text(draw, &open.ids),
        response_ids: open.ids,
        rollout_logprobs: open.logprobs,
        finish_reason,
        weight_version: engine.weight_version(),
    }
}

/// Stops a response at a stop text.
struct Watch(StopWatcher);

impl TokenWatcher for Watch {
    fn push(&mut self, token: i64) -> bool {
        self.0.push(token)
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
    use super::noise::mixed;
    mixed(mixed(mixed(seed) ^ step) ^ index)
}
