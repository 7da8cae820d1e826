//! Responses from the student: sampling, scheduling, scoring.
//!
//! [`Engine`] is driven step by step by the thread that owns it (the trainer's); [`EngineHandle`]
//! puts one on a thread of its own (serving).
//!
//! | room | what it does |
//! |---|---|
//! | [`collect`] | one step's responses, each handed on as it ends |
//! | [`world`] | what a step's responses are told to, and what answers their turns; `open`: one on its way |
//! | `request` | what is asked and answered |
//! | `engine` | slots, packed prefill, continuous batching |
//! | `sampling` | temperature and cuts; inverting the cumulative distribution |
//! | `noise` | one uniform number by seed and position |
//! | `watch` | stop texts |
//! | `scoring` | log-probabilities of given sequences |
//! | `handle` | what others say to an engine on a thread of its own |
//! | `admission` | the places of its queue, and who waits for one |
//! | `attendant` | that thread: takes commands, scores, decodes |

mod admission;
mod attendant;
pub mod collect;
mod engine;
mod handle;
mod noise;
mod open;
mod request;
mod sampling;
mod scoring;
#[cfg(test)]
mod tests;
mod watch;
pub mod world;

pub use engine::{Engine, Error};
pub use handle::{Batch, EngineHandle};
pub use request::{
    EngineStats, Event, PromptBounds, Refusal, ReplaceError, Request, RequestId, ScoreRequest, TokenScore, TokenWatcher,
};
pub use watch::Watch;
