//! What a step's responses are told to, and what answers their turns.

use std::sync::Arc;

use serde_json::{Map, Value};
use training_gym_core::episode::{Observation, Turn};
use training_gym_core::ids::WeightVersion;
use training_gym_core::spec::EnvironmentSpec;

use super::collect::Error;
use crate::batch::{PreparedPrompt, Rollout};

/// How turns follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Turns<'a> {
    /// How many, how long, which tools.
    pub spec: &'a EnvironmentSpec,
    /// Variables of the chat template.
    pub kwargs: &'a Map<String, Value>,
}

/// A turn that waits for its answer.
#[derive(Clone, Debug)]
pub struct Question {
    /// Which sample of the step.
    pub index: u64,
    /// Which prompt of the step.
    pub group_index: u64,
    /// The prompt.
    pub prompt: Arc<PreparedPrompt>,
    /// All turns so far; the last is asked about.
    pub turns: Vec<Turn>,
    /// All response ids so far.
    pub response_ids: Vec<i64>,
    /// The weights that drew them.
    pub weight_version: WeightVersion,
}

/// What an environment said to a turn, or how it failed.
pub type Answer = Result<Observation, String>;

/// Whoever a step's responses are drawn for.
pub trait World {
    /// A response is complete.
    fn finished(&mut self, rollout: &Rollout);

    /// Whether to go on: asked once a decode step.
    fn keep_going(&self) -> bool;

    /// A turn is complete, and the environment is asked about it.
    fn ask(&mut self, question: Question);

    /// Waits for the answers to all that was asked since the last time.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    fn answers(&mut self) -> Result<Vec<(u64, Answer)>, Error>;
}

/// A world without an environment.
pub(super) struct OneTurn<F, K> {
    pub(super) finished: F,
    pub(super) keep_going: K,
}

impl<F: FnMut(&Rollout), K: Fn() -> bool> World for OneTurn<F, K> {
    fn finished(&mut self, rollout: &Rollout) {
        (self.finished)(rollout);
    }

    fn keep_going(&self) -> bool {
        (self.keep_going)()
    }

    fn ask(&mut self, question: Question) {
        panic!("sample {} asks an environment, and there is none", question.index);
    }

    fn answers(&mut self) -> Result<Vec<(u64, Answer)>, Error> {
        Ok(Vec::new())
    }
}
