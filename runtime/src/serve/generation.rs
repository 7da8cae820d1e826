//! Responses on their way from the engine to a client.
//!
//! A request for one response is refused when the queue is full. A request for several (a batch,
//! or `n` > 1) is fed: its members come in as the engine has room, and its answers keep its order.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use futures::future;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use training_gym_core::sample::FinishReason;

use super::error::ApiError;
use super::sampling::Sampling;
use super::service::Service;
use super::waiting::Held;
use crate::rollout::{Batch, Event, Request, TokenScore, TokenWatcher, Watch};
use crate::text::StopWatcher;
use training_gym_core::splitmix::GAMMA;

/// Responses one request may ask for, prompts times `n`: what is kept of each until the answer is
/// sent must fit into memory.
const MOST_RESPONSES: usize = 1 << 16;

/// Tokens one answer may have to hold, alternatives included, of prompts and responses each: one to
/// two gigabytes.
pub(super) const MOST_TOKENS: usize = 1 << 25;

/// Refuses a request for more responses than one answer can hold.
pub(super) fn check_count(responses: usize) -> Result<(), ApiError> {
    if responses <= MOST_RESPONSES {
        return Ok(());
    }
    let rule = format!("the request asks for {responses} responses, one request may for {MOST_RESPONSES}; split it");
    Err(ApiError::bad(rule))
}

/// Refuses a request whose responses, were all as long as they may be, no answer can hold.
fn check_held(service: &Service, wanted: &[Wanted]) -> Result<(), ApiError> {
    let context = service.engine().context_length();
    let of = |wanted: &Wanted| {
        let room = context.saturating_sub(wanted.prompt_ids.len());
        wanted.max_new_tokens(service).min(room).saturating_mul(1 + wanted.top_logprobs)
    };
    let held = wanted.iter().map(of).fold(0, usize::saturating_add);
    if held <= MOST_TOKENS {
        return Ok(());
    }
    let rule = format!(
        "the request asks for up to {held} tokens, alternatives included, one request may for {MOST_TOKENS}: lower the \
         most tokens of a response, the alternatives or n, or split the batch"
    );
    Err(ApiError::bad(rule))
}

/// Refuses what can never be answered.
///
/// # Errors
/// 400 for too much at once, or for a prompt that the engine can never take.
pub(super) fn check(service: &Service, wanted: &[Wanted]) -> Result<(), ApiError> {
    check_count(wanted.len())?;
    for first in wanted.iter().filter(|wanted| wanted.index == 0) {
        service.engine().check(&first.prompt_ids, first.max_new_tokens(service))?;
    }
    check_held(service, wanted)
}

/// Why a response ended, and at what.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct End {
    reason: FinishReason,
    /// The end token or the stop text.
    matched: Option<Value>,
    /// Tokens drawn.
    length: usize,
}

impl End {
    /// OpenAI's `finish_reason`.
    pub(super) fn openai(&self) -> Result<&'static str, ApiError> {
        match self.reason {
            FinishReason::Stop => Ok("stop"),
            FinishReason::Length => Ok("length"),
            FinishReason::Abort => Err(ApiError::internal("the engine gave the request up")),
        }
    }

    /// SGLang's `finish_reason`.
    pub(super) fn sglang(&self) -> Value {
        match self.reason {
            FinishReason::Stop => json!({"type": "stop", "matched": self.matched}),
            FinishReason::Length => json!({"type": "length", "length": self.length}),
            FinishReason::Abort => json!({"type": "abort", "message": "the engine gave the request up"}),
        }
    }
}

/// What came of one step: a token and the text that is certain by now, or the end.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: Option<TokenScore>,
    pub(super) end: Option<End>,
}

/// One response a client wants.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) prompt_ids: Arc<Vec<i64>>,
    pub(super) sampling: Arc<Sampling>,
    pub(super) top_logprobs: usize,
    /// Which of the prompt's `n` responses.
    pub(super) index: usize,
}

impl Wanted {
    /// The `n` responses to one prompt.
    pub(super) fn all(
        prompt_ids: &Arc<Vec<i64>>,
        sampling: &Arc<Sampling>,
        top_logprobs: usize,
    ) -> impl Iterator<Item = Self> {
        let (prompt_ids, sampling) = (Arc::clone(prompt_ids), Arc::clone(sampling));
        (0..sampling.n).map(move |index| Self {
            prompt_ids: Arc::clone(&prompt_ids),
            sampling: Arc::clone(&sampling),
            top_logprobs,
            index,
        })
    }

    fn max_new_tokens(&self, service: &Service) -> usize {
        self.sampling.max_new_tokens.unwrap_or(service.engine().context_length())
    }

    fn request(&self, service: &Service) -> Request {
        let Sampling { spec, stop, seed, .. } = &*self.sampling;
        let watch = (!stop.is_empty()).then(|| Box::new(Watch(self.text(service))) as Box<dyn TokenWatcher>);
        Request {
            prompt_ids: self.prompt_ids.to_vec(),
            sampling: spec.clone(),
            max_new_tokens: self.max_new_tokens(service),
            // Spreads the seeds of a request's `n` responses.
            seed: seed.unwrap_or_else(|| service.fresh()).wrapping_add(GAMMA.wrapping_mul(self.index as u64)),
            stop_ids: self.stop_ids(service).into_iter().collect(),
            top_logprobs: self.top_logprobs,
            watcher: watch,
        }
    }

    fn text(&self, service: &Service) -> StopWatcher {
        service.text().stop_watcher(&self.sampling.stop, self.sampling.skip_special_tokens)
    }

    fn stop_ids(&self, service: &Service) -> HashSet<i64> {
        let end = if self.sampling.ignore_eos { &[] } else { service.text().eos_token_ids() };
        self.sampling.stop_token_ids.iter().chain(end).copied().collect()
    }

    /// Takes `events` as those of this response.
    fn running(&self, service: Service, begun: Instant, events: UnboundedReceiver<Event>) -> Running {
        let (text, stop_ids) = (self.text(&service), self.stop_ids(&service));
        Running { events, text, stop_ids, last: None, drawn: 0, service, begun, ended: false }
    }
}

/// A response being drawn, or waiting for its turn in a batch. Dropping it gives it up.
pub(super) struct Generation {
    state: State,
    _held: Held,
}

enum State {
    Waiting(oneshot::Receiver<Result<Running, ApiError>>),
    Running(Box<Running>),
    Failed,
}

struct Running {
    events: UnboundedReceiver<Event>,
    text: StopWatcher,
    stop_ids: HashSet<i64>,
    last: Option<i64>,
    drawn: usize,
    service: Service,
    begun: Instant,
    ended: bool,
}

/// A whole response.
#[derive(Clone, Debug)]
pub(super) struct Complete {
    pub(super) text: String,
    pub(super) scores: Vec<TokenScore>,
    pub(super) end: End,
}

/// Submits one response, or lets several wait for their turns. Each keeps the request's room, `held`,
/// until it ends.
///
/// # Errors
/// 503 when the queue is full; for several, when very many batches wait. 400 when any of them
/// can never be taken; then none is.
pub(super) async fn start(service: &Service, wanted: Vec<Wanted>, held: &Held) -> Result<Vec<Generation>, ApiError> {
    check(service, &wanted)?;
    let new = |state| Generation { state, _held: held.clone() };
    if let [one] = wanted.as_slice() {
        let begun = Instant::now();
        let events = service.engine().generate(one.request(service)).await?;
        return Ok(vec![new(State::Running(Box::new(one.running(service.clone(), begun, events))))]);
    }
    let batch = service.engine().batch()?;
    let (turns, generations) = wanted
        .into_iter()
        .map(|wanted| {
            let (turn, running) = oneshot::channel();
            (Turn { wanted, turn }, new(State::Waiting(running)))
        })
        .unzip();
    tokio::spawn(feed(service.clone(), batch, turns));
    Ok(generations)
}

/// A member of a batch, and who waits for its turn.
struct Turn {
    wanted: Wanted,
    turn: oneshot::Sender<Result<Running, ApiError>>,
}

/// Submits the members of a batch one after another, each when there is a place, whether or not its
/// client reads what came before: a slow one must not keep a place it does not use.
async fn feed(service: Service, batch: Batch, turns: Vec<Turn>) {
    let begun = Instant::now();
    for Turn { wanted, mut turn } in turns {
        let submitted = tokio::select! {
            biased;
            () = turn.closed() => continue,
            submitted = batch.generate(|| wanted.request(&service)) => submitted,
        };
        let running = submitted.map(|events| wanted.running(service.clone(), begun, events));
        // Nobody there any more: dropped, and so given up.
        let _ = turn.send(running.map_err(ApiError::from));
    }
}

/// Waits for all of them; the first error ends the waiting.
pub(super) async fn complete(generations: Vec<Generation>) -> Result<Vec<Complete>, ApiError> {
    future::try_join_all(generations.into_iter().map(Generation::complete)).await
}

impl Generation {
    /// The next piece; `None` after the end.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>, ApiError> {
        if let State::Waiting(turn) = &mut self.state {
            let outcome = turn.await;
            self.state = State::Failed;
            let running = outcome.map_err(|_| ApiError::internal("a member of the batch was lost"))?;
            self.state = State::Running(Box::new(running?));
        }
        match &mut self.state {
            State::Running(running) => running.next().await,
            State::Waiting(_) | State::Failed => Ok(None),
        }
    }

    /// Waits for the end.
    async fn complete(mut self) -> Result<Complete, ApiError> {
        let (mut text, mut scores) = (String::new(), Vec::new());
        while let Some(piece) = self.next().await? {
            text.push_str(&piece.text);
            scores.extend(piece.score);
            if let Some(end) = piece.end {
                return Ok(Complete { text, scores, end });
            }
        }
        Err(ApiError::internal("a response had no end"))
    }
}

impl Running {
    async fn next(&mut self) -> Result<Option<Piece>, ApiError> {
        if self.ended {
            return Ok(None);
        }
        match self.events.recv().await {
            Some(Event::Token { score, .. }) => {
                if self.drawn == 0 {
                    self.service.metrics().first_token(self.begun.elapsed());
                }
                self.drawn += 1;
                self.last = Some(score.token);
                // The text of an end token is not part of the response.
                let ends = self.stop_ids.contains(&score.token);
                let text = if ends { String::new() } else { self.text.push_text(score.token) };
                Ok(Some(Piece { text, score: Some(score), end: None }))
            }
            Some(Event::Finished { reason, .. }) => {
                self.ended = true;
                self.service.metrics().finished(reason_name(reason), self.begun.elapsed());
                let text = self.text.finish();
                let by_token = || self.last.filter(|id| self.stop_ids.contains(id)).map(Value::from);
                let matched = self.text.matched().map(Value::from).or_else(by_token);
                let end = End { reason, matched, length: self.drawn };
                Ok(Some(Piece { text, score: None, end: Some(end) }))
            }
            Some(Event::Failed { cause, .. }) => {
                self.ended = true;
                Err(ApiError::stopped(&cause))
            }
            None => {
                self.ended = true;
                let cause = self.service.engine().failure();
                Err(ApiError::stopped(cause.as_deref().unwrap_or("its thread has ended")))
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.service.metrics().finished("abort", self.begun.elapsed());
        }
    }
}

fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}
