//! The reward worker's protocol: HTTP/JSON over a Unix socket, served by the person's own
//! program, asked by the runtime.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /functions` | | [`Functions`] |
//! | `POST /reward/NAME` | [`Sample`] | [`RewardReply`] |
//! | `POST /post-process/NAME` | `[Sample]` of the whole step, in order | [`PostProcessReply`] |
//! | `POST /environment/NAME/step` | [`StepRequest`] | [`StepReply`] |
//! | `POST /environment/NAME/reward` | [`EpisodeReward`] | [`RewardReply`] |
//!
//! Requests of an environment carry all turns of their episode, so a worker that does not have it (a new
//! one, say) makes it again and steps it through those it has not seen.
//!
//! A function that fails or panics answers 200 with [`RewardReply::Failed`]: the request worked,
//! the function did not. An unknown name is 404.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::episode::{Episode, Observation, Turn};
use crate::sample::Sample;

/// Tells a program built on `#[training_gym::main]` which part it plays; its value is
/// [`REWARD_WORKER`] for the worker.
pub const ROLE_VARIABLE: &str = "TRAINING_GYM_ROLE";
/// The value of [`ROLE_VARIABLE`] that makes a program the reward worker.
pub const REWARD_WORKER: &str = "reward-worker";
/// The Unix socket the worker listens on.
pub const SOCKET_VARIABLE: &str = "TRAINING_GYM_SOCKET";

/// What a program has registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Functions {
    /// Names of `#[training_gym::reward]` functions of one sample.
    pub rewards: Vec<String>,
    /// Names of group-level functions.
    pub post_processes: Vec<String>,
    /// Names of rollout environments.
    #[serde(default)]
    pub environments: Vec<String>,
}

/// The request body of `POST /environment/NAME/step`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRequest {
    /// Which episode.
    pub episode: Episode,
    /// All turns so far; the last one is asked about. Not empty.
    pub turns: Vec<Turn>,
    /// Characters the answer may have.
    pub limit: usize,
}

/// An environment's answer to a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum StepReply {
    /// What it said.
    Observed {
        /// Cut to the request's limit.
        observation: Observation,
    },
    /// It returned an error or panicked, making the episode or stepping it.
    Failed {
        /// Its message.
        message: String,
        /// Whether it panicked.
        panicked: bool,
    },
}

/// The request body of `POST /environment/NAME/reward`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodeReward {
    /// Which episode.
    pub episode: Episode,
    /// All turns.
    pub turns: Vec<Turn>,
    /// The whole response.
    pub sample: Sample,
}

/// A reward function's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum RewardReply {
    /// It returned a number. NaN and infinities travel as `null` and are the caller's to refuse.
    Graded {
        /// The reward.
        reward: Option<f64>,
        /// What the function left in `sample.score`.
        score: Option<f64>,
        /// What the function left in `sample.metadata`.
        metadata: Map<String, Value>,
    },
    /// It returned an error or panicked.
    Failed {
        /// Its message.
        message: String,
        /// Whether it panicked.
        panicked: bool,
    },
}

/// A group-level function's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum PostProcessReply {
    /// One reward a sample, in order; `null` is ungraded.
    Rewards {
        /// The rewards.
        rewards: Vec<Option<f64>>,
    },
    /// It returned an error or panicked.
    Failed {
        /// Its message.
        message: String,
        /// Whether it panicked.
        panicked: bool,
    },
}

/// The request body of `POST /post-process/NAME`.
pub type PostProcessRequest = Vec<Sample>;
