//! One response on its way from the engine to a client.

use std::collections::HashSet;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use training_gym_core::sample::FinishReason;

use super::error::ApiError;
use super::sampling::Sampling;
use super::service::Service;
use crate::rollout::{Event, Request, TokenScore, TokenWatcher, Watch};
use crate::splitmix::GAMMA;
use crate::text::StopWatcher;

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

/// A response being drawn. Dropping it gives it up.
#[derive(Debug)]
pub(super) struct Generation {
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

impl Generation {
    /// Submits the `index`-th response to `prompt_ids`.
    pub(super) async fn start(
        service: &Service,
        prompt_ids: Vec<i64>,
        sampling: &Sampling,
        top_logprobs: usize,
        index: usize,
    ) -> Result<Self, ApiError> {
        let text = service.text();
        let mut stop_ids: HashSet<i64> = sampling.stop_token_ids.iter().copied().collect();
        if !sampling.ignore_eos {
            stop_ids.extend(text.eos_token_ids());
        }
        let watcher = text.stop_watcher(&sampling.stop, sampling.skip_special_tokens);
        let watch = (!sampling.stop.is_empty()).then(|| Box::new(Watch(watcher.clone())) as Box<dyn TokenWatcher>);
        let seed = sampling.seed.unwrap_or_else(|| service.fresh());
        let request = Request {
            prompt_ids,
            sampling: sampling.spec.clone(),
            max_new_tokens: sampling.max_new_tokens.unwrap_or(service.engine().context_length()),
            // Spreads the seeds of a request's `n` responses.
            seed: seed.wrapping_add(GAMMA.wrapping_mul(index as u64)),
            stop_ids: stop_ids.iter().copied().collect(),
            top_logprobs,
            watcher: watch,
        };
        let begun = Instant::now();
        let events = service.engine().generate(request).await?;
        let service = service.clone();
        Ok(Self { events, text: watcher, stop_ids, last: None, drawn: 0, service, begun, ended: false })
    }

    /// The next piece; `None` after the end.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>, ApiError> {
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

    /// Waits for the end.
    pub(super) async fn complete(mut self) -> Result<Complete, ApiError> {
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

impl Drop for Generation {
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
