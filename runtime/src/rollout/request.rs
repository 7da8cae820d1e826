//! What is asked of the engine, and what it answers.

use std::sync::Arc;

use training_gym_core::ids::WeightVersion;
use training_gym_core::sample::FinishReason;
use training_gym_core::spec::SamplingSpec;

use crate::model;

/// Names a request in events. Chosen by the caller, unique among the requests that are alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Looks at a response token by token, to end it at a stop text.
pub trait TokenWatcher: Send {
    /// Sees the next token; true ends the response after it, with [`FinishReason::Stop`].
    fn push(&mut self, token: i64) -> bool;
}

/// One response to draw.
pub struct Request {
    /// The prompt, at least one token.
    pub prompt_ids: Vec<i64>,
    /// How a token is drawn.
    pub sampling: SamplingSpec,
    /// Tokens the response may have; cut to what the context has left.
    pub max_new_tokens: usize,
    /// The response's noise: one uniform number a token, a function of this and the position.
    pub seed: u64,
    /// Every token that ends the response, the model's end tokens included.
    pub stop_ids: Vec<i64>,
    /// How many of the likeliest tokens to report beside each drawn one.
    pub top_logprobs: usize,
    /// Ends the response at a stop text.
    pub watcher: Option<Box<dyn TokenWatcher>>,
}

impl Request {
    /// The model's own distribution, seed 0, nothing that ends the response before its length.
    pub fn new(prompt_ids: Vec<i64>, max_new_tokens: usize) -> Self {
        Self {
            prompt_ids,
            sampling: SamplingSpec::default(),
            max_new_tokens,
            seed: 0,
            stop_ids: Vec::new(),
            top_logprobs: 0,
            watcher: None,
        }
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Request")
            .field("prompt_tokens", &self.prompt_ids.len())
            .field("sampling", &self.sampling)
            .field("max_new_tokens", &self.max_new_tokens)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScore {
    /// The token.
    pub token: i64,
    /// log π(token | before) in float32; `None` for the first token of a sequence, which nothing
    /// precedes. Of a drawn token: after temperature (1 where greedy), before the cuts of top-k,
    /// top-p and min-p. Of a scored one: at temperature 1.
    pub logprob: Option<f32>,
    /// The likeliest tokens at this place and their log-probabilities, likeliest first.
    pub top: Vec<(i64, f32)>,
}

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The next token of the response (an end token too).
    Token {
        /// Whose.
        id: RequestId,
        /// The token.
        score: TokenScore,
    },
    /// The response is complete; nothing follows.
    Finished {
        /// Whose.
        id: RequestId,
        /// Why.
        reason: FinishReason,
    },
    /// The engine died; the response is incomplete and nothing follows. Sent by
    /// [`super::EngineHandle`] only: [`super::Engine::step`] itself panics.
    Failed {
        /// Whose.
        id: RequestId,
        /// What the engine died of.
        cause: Arc<str>,
    },
}

/// A sequence to score as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoreRequest {
    /// The whole sequence.
    pub input_ids: Vec<i64>,
    /// The first position to report; the tokens before only condition.
    pub start_len: usize,
    /// How many of the likeliest tokens to report at each position.
    pub top_logprobs: usize,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// All slots run and the queue is full.
    #[error("{limit} requests are waiting already, the most this engine queues; try again later")]
    QueueFull {
        /// `max_queued_requests`.
        limit: usize,
    },
    /// Too many scoring requests wait.
    #[error("{limit} scoring requests are waiting already, the most this engine queues; try again later")]
    ScoringFull {
        /// `max_queued_requests`.
        limit: usize,
    },
    /// The prompt leaves no room for a response, or the sequence to score is too long.
    #[error(
        "the prompt has {prompt} tokens, the context has {context_length} for prompt and response together; \
         shorten the prompt"
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens asked for.
        max_new_tokens: usize,
        /// Tokens a sequence may have.
        context_length: usize,
    },
    /// There is no token to condition on.
    #[error("the prompt is empty; at least one token is needed")]
    EmptyPrompt,
    /// A token the model has no embedding for.
    #[error("token {id} is not in the model's vocabulary of {vocab_size}")]
    UnknownToken {
        /// The token.
        id: i64,
        /// `V`.
        vocab_size: usize,
    },
    /// A sampling setting that cannot be.
    #[error("{field} = {value}: must be {bound}")]
    Sampling {
        /// The setting.
        field: &'static str,
        /// What it is.
        value: f64,
        /// What it may be.
        bound: &'static str,
    },
    /// Scoring should start after the sequence's end.
    #[error("scoring should start at position {start_len}, the sequence has {length} tokens")]
    StartPastEnd {
        /// Where it should start.
        start_len: usize,
        /// How long the sequence is.
        length: usize,
    },
    /// The engine's thread is gone.
    #[error("the engine has stopped: {cause}")]
    EngineStopped {
        /// What it died of.
        cause: String,
    },
}

/// Why new weights were not put in place; the old ones go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// They could not be read.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// They belong to another architecture than the ones they should replace.
    #[error("the new weights' config.json differs from the running model's: {difference}")]
    OtherArchitecture {
        /// The first difference.
        difference: String,
    },
    /// The engine that should have loaded the weights has stopped.
    #[error("the engine has stopped: {cause}")]
    EngineStopped {
        /// Why.
        cause: String,
    },
}

/// What an engine is doing and has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Sequences that decode now.
    pub running: usize,
    /// Requests that wait for a slot.
    pub queued: usize,
    /// Scoring requests under way or waiting.
    pub scoring: usize,
    /// Sequences that can decode at once.
    pub max_running: usize,
    /// Positions of the key-value cache in use.
    pub kv_used: usize,
    /// Positions allocated.
    pub kv_allocated: usize,
    /// Prompt tokens computed so far; a prompt that several requests share counts once.
    pub prompt_tokens: u64,
    /// Response tokens drawn so far.
    pub generated_tokens: u64,
    /// The weights it runs.
    pub weight_version: WeightVersion,
}

/// What a prompt must fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptBounds {
    /// Tokens a sequence may have, prompt and response together.
    pub context_length: usize,
    /// `V`; ids are below it.
    pub vocab_size: usize,
}

impl PromptBounds {
    /// Whether a response to the prompt can begin. `max_new_tokens` is told in the refusal.
    ///
    /// # Errors
    /// [`Refusal::EmptyPrompt`], [`Refusal::UnknownToken`], [`Refusal::TooLong`].
    pub fn check(&self, prompt_ids: &[i64], max_new_tokens: usize) -> Result<(), Refusal> {
        self.check_ids(prompt_ids)?;
        let (prompt, context_length) = (prompt_ids.len(), self.context_length);
        if prompt >= context_length {
            return Err(Refusal::TooLong { prompt, max_new_tokens, context_length });
        }
        Ok(())
    }

    pub(super) fn check_ids(&self, ids: &[i64]) -> Result<(), Refusal> {
        let vocab_size = self.vocab_size;
        if ids.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        match ids.iter().find(|&&id| id < 0 || id >= vocab_size as i64) {
            Some(&id) => Err(Refusal::UnknownToken { id, vocab_size }),
            None => Ok(()),
        }
    }
}

pub(super) fn check_sampling(sampling: &SamplingSpec) -> Result<(), Refusal> {
    let SamplingSpec { temperature, top_p, top_k, min_p } = *sampling;
    let refuse = |field, value, bound| Err(Refusal::Sampling { field, value, bound });
    if !(temperature.is_finite() && temperature >= 0.0) {
        return refuse("temperature", temperature, "finite and ≥ 0 (0 is greedy)");
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return refuse("top_p", top_p, "in (0, 1]");
    }
    if top_k != -1 && top_k < 1 {
        return refuse("top_k", top_k as f64, "≥ 1, or −1 for all");
    }
    if !(0.0..=1.0).contains(&min_p) {
        return refuse("min_p", min_p, "in [0, 1]");
    }
    Ok(())
}
