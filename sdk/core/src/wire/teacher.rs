//! A teacher's answer to "how likely is this response?", read once and strictly.
//!
//! [`request`] builds the body of one HTTP request for a batch of sequences, [`response_logprobs`]
//! reads the answer, for both dialects. The ids a server returns are compared with the ids sent, at
//! every position, so that a log-probability is never one token off; whatever is not a finite
//! log-probability is a [`TeacherFault`] of its own, never a number. [`request_top`] and
//! [`response_answers`] ask for the likeliest tokens of each position too.

mod json;
mod probe;
mod sglang;
mod top;
mod vllm;

use serde_json::Value;

pub use probe::{ModelMismatch, PROBE_TOKENS, ProbeFault, check_probe, compare_models, probe_sequence};
pub use top::TopLogprobs;

use crate::spec::TeacherDialect;

/// At or below this a log-probability stands for −∞: vLLM writes −9999.0, others −1e30 or less.
/// No softmax of real logits comes near it.
pub const NEGATIVE_INFINITY_AT: f64 = -9999.0;

/// Rounding may lift a log-probability of 0 by this much; beyond it the number is something else.
const ROUNDING: f64 = 1e-3;

/// A prompt and its response as ids: what the student was asked and what it drew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence<'a> {
    tokens: &'a [i64],
    response_length: usize,
}

/// A sequence nobody can score.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a sequence of {tokens} tokens has no prompt before its {response_length} response tokens: a teacher needs at least one"
)]
pub struct NoPrompt {
    tokens: usize,
    response_length: usize,
}

impl<'a> Sequence<'a> {
    /// `tokens` are the prompt's ids, then the `response_length` ids of the response.
    ///
    /// # Errors
    /// Where no id is left for the prompt: the first response token then follows nothing.
    pub fn new(tokens: &'a [i64], response_length: usize) -> Result<Self, NoPrompt> {
        if response_length < tokens.len() {
            Ok(Self { tokens, response_length })
        } else {
            Err(NoPrompt { tokens: tokens.len(), response_length })
        }
    }

    /// Ids before the response, ≥ 1.
    fn prompt_len(&self) -> usize {
        self.tokens.len() - self.response_length
    }

    /// The first position whose item is asked for: the last of the prompt, whose own
    /// log-probability is always null, so that nothing of the prompt is scored for nothing.
    fn start(&self) -> usize {
        self.prompt_len() - 1
    }
}

/// What is wrong with a teacher's answer. Positions count from 0 over prompt and response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TeacherFault {
    /// The body is not the dialect's JSON.
    #[error("the teacher's answer is not a {dialect} answer: `{excerpt}`; check the URL and the dialect")]
    Malformed {
        /// The dialect.
        dialect: &'static str,
        /// The body's beginning.
        excerpt: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Another number of replies than of sequences.
    #[error(
        "the teacher answered {received} sequences where {sent} were sent; check that no proxy splits or drops requests"
    )]
    ReplyCount {
        /// Sequences sent.
        sent: usize,
        /// Replies received.
        received: usize,
    },
    /// The server gave the request up.
    #[error("the teacher aborted the request: {message}; it may be out of memory or shutting down: see its log")]
    Aborted {
        /// The server's words.
        message: String,
    },
    /// No log-probabilities of the prompt at all.
    #[error(
        "the teacher's answer has no `{field}`: turn off speculative decoding on it, or use a server that returns log-probabilities of prompts"
    )]
    NoLogprobs {
        /// The field that is missing.
        field: &'static str,
    },
    /// Another number of positions than asked for.
    #[error(
        "the teacher scored {received} positions where {expected} were asked for (from position {start}); turn off prefix caching or chunked prefill on it, or use another version"
    )]
    PositionCount {
        /// The first position asked for.
        start: usize,
        /// Positions asked for.
        expected: usize,
        /// Positions received.
        received: usize,
    },
    /// The server scored another id than the one sent.
    #[error(
        "the teacher scored id {received} at position {position}, where id {sent} was sent; its tokenizer or alignment differs from the student's"
    )]
    TokenId {
        /// Where.
        position: usize,
        /// The id sent.
        sent: i64,
        /// The id the server says it scored.
        received: String,
    },
    /// A null where a response token's log-probability belongs.
    #[error(
        "the teacher's log-probability at position {position} is null: it was not scored, or it was −inf or NaN, which some servers write as null; probe the teacher with a short request and look at its log"
    )]
    Null {
        /// Where.
        position: usize,
    },
    /// The teacher gives the token no probability.
    #[error(
        "the teacher's log-probability at position {position} is −inf: it rules the student's token out; remove token masks or a grammar from the teacher, or check that both have the same vocabulary"
    )]
    NegativeInfinity {
        /// Where.
        position: usize,
    },
    /// Not a number.
    #[error(
        "the teacher's log-probability at position {position} is NaN; the teacher overflows: serve it in bfloat16 or float32 instead of float16"
    )]
    NotANumber {
        /// Where.
        position: usize,
    },
    /// A number that no log-probability can be.
    #[error(
        "the teacher's log-probability at position {position} is {value}, which is above 0; the server returns something else than natural log-probabilities"
    )]
    Positive {
        /// Where.
        position: usize,
        /// The number.
        value: f64,
    },
    /// Fewer of the likeliest tokens than asked for.
    #[error(
        "the teacher named {received} of the {expected} likeliest tokens at position {position}; let it return more \
         (vLLM: --max-logprobs {expected}), or lower opd.top_k.k"
    )]
    TopCount {
        /// Where.
        position: usize,
        /// How many were asked for.
        expected: usize,
        /// How many came.
        received: usize,
    },
    /// One of the likeliest tokens comes twice.
    #[error(
        "the teacher named id {id} twice among the likeliest tokens of position {position}; its answer is no \
         distribution: use another version of the server"
    )]
    TopTwice {
        /// Where.
        position: usize,
        /// The id.
        id: i64,
    },
    /// The likeliest tokens are likelier together than 1.
    #[error(
        "the likeliest tokens of position {position} have a probability of {mass} together; the server returns \
         something else than natural log-probabilities"
    )]
    TopMass {
        /// Where.
        position: usize,
        /// Their sum.
        mass: f64,
    },
}

/// What a teacher says of one response.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// log π_teacher of each response id at temperature 1, in nats, `[R]`.
    pub logprobs: Vec<f32>,
    /// The likeliest tokens of each position, where they were asked for.
    pub top: Option<TopLogprobs>,
}

/// The log-probabilities of one response, or what is wrong with them.
pub type Scored = Result<Vec<f32>, TeacherFault>;

/// The body of one request that scores `sequences`. `model` is the name a vLLM server serves;
/// SGLang has no use for it.
pub fn request(dialect: TeacherDialect, sequences: &[Sequence<'_>], model: Option<&str>) -> Value {
    request_top(dialect, sequences, model, 0)
}

/// As [`request`], and asks for the `top` likeliest tokens of each position.
pub fn request_top(dialect: TeacherDialect, sequences: &[Sequence<'_>], model: Option<&str>, top: usize) -> Value {
    match dialect {
        TeacherDialect::Sglang => sglang::request(sequences, top),
        TeacherDialect::Vllm => vllm::request(sequences, model, top),
    }
}

/// Reads the answer to [`request`]: for each sequence, in order, log π_teacher of each response id
/// at temperature 1, in nats.
///
/// # Errors
/// Outside, when the answer as a whole cannot be read ([`TeacherFault::Malformed`],
/// [`TeacherFault::ReplyCount`]); inside, when one sequence's cannot.
pub fn response_logprobs(
    dialect: TeacherDialect,
    sequences: &[Sequence<'_>],
    body: &[u8],
) -> Result<Vec<Scored>, TeacherFault> {
    let answers = response_answers(dialect, sequences, 0, body)?;
    Ok(answers.into_iter().map(|answer| answer.map(|answer| answer.logprobs)).collect())
}

/// Reads the answer to [`request_top`] with the same `top`; 0 is none.
///
/// # Errors
/// As [`response_logprobs`].
pub fn response_answers(
    dialect: TeacherDialect,
    sequences: &[Sequence<'_>],
    top: usize,
    body: &[u8],
) -> Result<Vec<Result<Answer, TeacherFault>>, TeacherFault> {
    match dialect {
        TeacherDialect::Sglang => sglang::parse(sequences, top, body),
        TeacherDialect::Vllm => vllm::parse(sequences, top, body),
    }
}

/// One position of an answer as the server wrote it.
struct Item {
    /// `None` is JSON's null.
    logprob: Option<f64>,
    /// Whether the server scored this id here, and if not, what it says it scored.
    scored: Result<(), String>,
    /// The tokens it named here, in any order.
    named: Vec<(i64, Option<f64>)>,
}

/// Which part of a sequence a server's items are about.
#[derive(Clone, Copy)]
struct Asked<'a> {
    sequence: Sequence<'a>,
    /// The first item's position; the last one's is the sequence's.
    start: usize,
    /// Likeliest tokens a position.
    top: usize,
}

/// The response part of `items`, which cover the positions from `start` to the end of the sequence.
fn read_items(asked: Asked<'_>, items: impl ExactSizeIterator<Item = Item>) -> Result<Answer, TeacherFault> {
    let Asked { sequence, start, top } = asked;
    let expected = sequence.tokens.len() - start;
    if items.len() != expected {
        return Err(TeacherFault::PositionCount { start, expected, received: items.len() });
    }
    let mut logprobs = Vec::with_capacity(sequence.response_length);
    let mut likeliest = (top > 0).then(|| TopLogprobs::new(top));
    for (position, item) in (start..).zip(items) {
        if let Err(received) = item.scored {
            return Err(TeacherFault::TokenId { position, sent: sequence.tokens[position], received });
        }
        if position >= sequence.prompt_len() {
            logprobs.push(finite(position, item.logprob)?);
            if let Some(likeliest) = &mut likeliest {
                likeliest.push(position, &item.named)?;
            }
        }
    }
    Ok(Answer { logprobs, top: likeliest })
}

fn finite(position: usize, logprob: Option<f64>) -> Result<f32, TeacherFault> {
    match logprob {
        None => Err(TeacherFault::Null { position }),
        Some(value) if value.is_nan() => Err(TeacherFault::NotANumber { position }),
        Some(value) if value <= NEGATIVE_INFINITY_AT => Err(TeacherFault::NegativeInfinity { position }),
        Some(value) if value > ROUNDING => Err(TeacherFault::Positive { position, value }),
        Some(value) => Ok(value.min(0.0) as f32),
    }
}

#[cfg(test)]
mod tests;
