//! One step's responses: every prompt's group through the engine, each response handed on the
//! moment it ends.
//!
//! In an environment a response goes on turn by turn. Turns are drawn in rounds: everybody's next turn
//! begins when everybody's last one was answered. So which sequences share a batch depends on the tokens
//! alone, never on how fast an environment answers; it is asked meanwhile, as each turn ends.

use std::collections::VecDeque;
use std::sync::Arc;

use training_gym_core::episode::EpisodeEnd;
use training_gym_core::sample::FinishReason;
use training_gym_core::spec::RolloutSpec;
use training_gym_core::splitmix::mixed;

use super::open::{Next, Open};
use super::world::{OneTurn, Question, Turns, World};
use super::{Engine, Event, Refusal, Request, RequestId, TokenWatcher, Watch};
use crate::batch::{PromptBatch, Rollout, RolloutBatch};
use crate::text::TextPipeline;

/// What a response is drawn with, beside its prompt.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// Lengths, sampling, stops.
    pub spec: &'a RolloutSpec,
    /// The tokenizer.
    pub text: &'a TextPipeline,
    /// The run's seed.
    pub seed: u64,
    /// How turns follow each other, in an environment.
    pub turns: Option<Turns<'a>>,
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
        "the drawing model's log-probability of token {position} of sample {sample} of step {step} is {logprob}: \
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

/// Draws `n_samples_per_prompt` responses a prompt, of one turn. `finished` sees each response as it ends,
/// in an order that depends on the tokens alone; `keep_going` is asked once a decode step.
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
    let draw = Draw { turns: None, ..*draw };
    collect_in(engine, batch, &draw, &mut OneTurn { finished, keep_going })
}

/// As [`collect`], for a world: with `draw.turns`, one that answers each turn.
///
/// # Errors
/// As [`collect`].
pub fn collect_in(
    engine: &mut Engine,
    batch: &PromptBatch,
    draw: &Draw<'_>,
    world: &mut dyn World,
) -> Result<RolloutBatch, Error> {
    let mut stop_ids = draw.text.tokenizer().eos_token_ids().to_vec();
    stop_ids.extend_from_slice(&draw.spec.stop_token_ids);
    let mut collector =
        Collector { batch, draw, stop_ids, open: Vec::new(), again: VecDeque::new(), rollouts: Vec::new() };
    // What is refused is refused before anything is drawn.
    for (group_index, prompt) in batch.prompts.iter().enumerate() {
        let first = Open::new(group_index as u64, Arc::clone(prompt));
        let request = collector.request(group_index * draw.spec.n_samples_per_prompt, &first);
        engine.check(&request).map_err(|source| Error::Refused { row: prompt.row, source })?;
    }
    let outcome = collector.run(engine, world);
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
    open: Vec<Option<Open<'a>>>,
    /// Those whose next turn waits for a place in the engine, in sample order.
    again: VecDeque<usize>,
    rollouts: Vec<Rollout>,
}

impl Collector<'_> {
    fn request(&self, index: usize, open: &Open<'_>) -> Request {
        Request {
            prompt_ids: open.prompt_ids(),
            sampling: self.draw.spec.sampling.clone(),
            max_new_tokens: self.draw.spec.rollout_max_response_len - open.ids.len(),
            seed: turn_seed(self.draw.seed, (self.batch.step, index as u64), open.turn()),
            stop_ids: self.stop_ids.clone(),
            top_logprobs: 0,
            watcher: watcher(self.draw),
        }
    }

    /// Submits the next samples, as many as the engine has room for; then the next turns.
    fn feed(&mut self, engine: &mut Engine) -> Result<(), Error> {
        let group = self.draw.spec.n_samples_per_prompt;
        let samples = self.batch.prompts.len() * group;
        while engine.room() > 0 {
            let index = if self.open.len() < samples {
                let index = self.open.len();
                let prompt = Arc::clone(&self.batch.prompts[index / group]);
                self.open.push(Some(Open::new((index / group) as u64, prompt)));
                index
            } else if let Some(index) = self.again.pop_front() {
                index
            } else {
                return Ok(());
            };
            let open = self.open[index].as_ref().expect("it goes on");
            engine
                .submit(RequestId(index as u64), self.request(index, open))
                .map_err(|source| Error::Refused { row: open.prompt.row, source })?;
        }
        Ok(())
    }

    fn run(&mut self, engine: &mut Engine, world: &mut dyn World) -> Result<(), Error> {
        loop {
            self.feed(engine)?;
            if engine.is_idle() {
                if !self.next_round(engine, world)? {
                    return Ok(());
                }
                continue;
            }
            if !world.keep_going() {
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
                        open.push(score.token, logprob);
                    }
                    Event::Finished { id, reason } => self.turn_ended(id.0 as usize, reason, engine, world),
                    Event::Failed { cause, .. } => panic!("the engine died: {cause}"),
                }
            }
        }
    }

    /// One turn is complete: the response too, or the environment is asked.
    fn turn_ended(&mut self, index: usize, reason: FinishReason, engine: &Engine, world: &mut dyn World) {
        let draw = self.draw;
        let Some(turns) = &draw.turns else { return self.close(index, (reason, None), engine, world) };
        let Some(open) = &mut self.open[index] else { return };
        open.close_turn(draw, turns, &self.stop_ids);
        if reason == FinishReason::Stop {
            world.ask(Question {
                index: index as u64,
                group_index: open.group_index,
                prompt: Arc::clone(&open.prompt),
                turns: open.said(),
                response_ids: open.ids.clone(),
                weight_version: engine.weight_version(),
            });
        } else {
            self.close(index, (reason, Some(EpisodeEnd::Length)), engine, world);
        }
    }

    /// Takes what the environments answered, in sample order. `false`: nobody had asked.
    fn next_round(&mut self, engine: &Engine, world: &mut dyn World) -> Result<bool, Error> {
        let draw = self.draw;
        let Some(turns) = &draw.turns else { return Ok(false) };
        let mut answers = world.answers()?;
        answers.sort_by_key(|(index, _)| *index);
        let limits = (draw.spec.rollout_max_response_len, engine.context_length());
        let any = !answers.is_empty();
        for (index, answer) in answers {
            let index = index as usize;
            let open = self.open[index].as_mut().expect("it waits for its answer");
            match open.take(answer, (draw, turns), &self.stop_ids, limits) {
                Next::Turn => self.again.push_back(index),
                Next::End(end) => {
                    let reason = if end == EpisodeEnd::Length { FinishReason::Length } else { FinishReason::Stop };
                    self.close(index, (reason, Some(end)), engine, world);
                }
            }
        }
        Ok(any)
    }

    fn close(&mut self, index: usize, end: (FinishReason, Option<EpisodeEnd>), engine: &Engine, world: &mut dyn World) {
        let Some(open) = self.open[index].take() else { return };
        let rollout = open.finish(index as u64, self.draw, end, engine.weight_version());
        world.finished(&rollout);
        self.rollouts.push(rollout);
    }
}

fn watcher(draw: &Draw<'_>) -> Option<Box<dyn TokenWatcher>> {
    if draw.spec.stop.is_empty() {
        return None;
    }
    Some(Box::new(Watch(draw.text.tokenizer().stop_watcher(&draw.spec.stop, true))))
}

/// The seed of one turn's noise: a function of the run's seed, the step, the sample and the turn alone.
fn turn_seed(seed: u64, (step, index): (u64, u64), turn: usize) -> u64 {
    let sample = mixed(mixed(mixed(seed) ^ step) ^ index);
    if turn == 0 { sample } else { mixed(sample ^ turn as u64) }
}
