//! What a run writes about itself: `status.json`, `metrics.jsonl`, `rollouts/step-N.jsonl`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::episode::EpisodeRecord;
use crate::ids::WeightVersion;
use crate::sample::{FinishReason, Prompt};
use crate::wire::teacher::TopLogprobs;

/// Exit code of what stopped because it was asked to (128 + SIGTERM, as shells count).
pub const STOPPED: u8 = 143;

/// Where a run is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// Submitted, not started.
    Pending,
    /// Loading the model, probing the teacher, starting the reward worker.
    Starting,
    /// Stepping.
    Running,
    /// Ended with a checkpoint.
    Succeeded,
    /// Ended without one, for [`Failure`].
    Failed,
    /// Stopped because someone asked.
    Cancelled,
}

impl RunState {
    /// Whether nothing more will happen in this attempt.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

/// What went wrong, in kinds a program can act on. Each has its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The spec, model, template or data do not fit. Exit code 2.
    InvalidInput,
    /// The teacher could not be reached, or answered wrongly. Exit code 3.
    Teacher,
    /// The reward function or its worker. Exit code 4.
    Reward,
    /// A loss or gradient was not finite, or no weight changed. Exit code 5.
    Numerics,
    /// The store refused or lost something. Exit code 6.
    Store,
    /// Another attempt of the same run is the owner now. Exit code 7.
    Superseded,
    /// Memory ran out. Exit code 8.
    OutOfMemory,
    /// The cluster did not start it, or took it away. No exit code of its own.
    Cluster,
    /// The process ended without saying why (killed, crashed). No exit code of its own.
    Died,
    /// A fault of ours. Exit code 1.
    Internal,
}

impl Cause {
    /// The process exit code.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Internal | Self::Died | Self::Cluster => 1,
            Self::InvalidInput => 2,
            Self::Teacher => 3,
            Self::Reward => 4,
            Self::Numerics => 5,
            Self::Store => 6,
            Self::Superseded => 7,
            Self::OutOfMemory => 8,
        }
    }
}

/// Why a run failed, for a person and for a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind.
    pub cause: Cause,
    /// One sentence: what happened.
    pub sentence: String,
    /// What to do about it.
    pub next_step: String,
    /// Whether launching again with the same run id can help by itself.
    pub retryable: bool,
}

/// `status.json`: the run's own word on where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// Where in its life.
    pub state: RunState,
    /// Steps done and published or to be published.
    pub step: u64,
    /// Steps in the whole run.
    pub num_rollout: u64,
    /// Which attempt wrote this, from 1.
    pub attempt: u64,
    /// Unix seconds of this writing.
    pub updated_at: f64,
    /// Why it failed, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The most memory its process was seen to use, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
    /// Things a person should know that stopped nothing.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One line of `metrics.jsonl`: one rollout step. Means are over the step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepMetrics {
    /// The step, from 1.
    pub step: u64,
    /// Mean reward of graded samples; null where none was graded or no reward is used.
    pub reward: Option<f64>,
    /// Samples without a grade, for whatever reason: truncated ones too, where those are not graded. (The
    /// share that may be, `max_ungraded_fraction`, leaves these out: they are no fault of a function.)
    pub ungraded: u64,
    /// Mean of log π_student − log π_teacher over response tokens: the sampled reverse KL, in nats.
    pub reverse_kl: Option<f64>,
    /// Mean response tokens.
    pub response_len: f64,
    /// Share of responses that reached the length limit.
    pub truncated: f64,
    /// Mean −log π of sampled tokens: the sampled entropy, in nats.
    pub entropy: f64,
    /// The loss that was minimised, mean of the step's optimizer steps.
    pub loss: f64,
    /// Share of tokens the clip cut.
    pub clip_fraction: f64,
    /// Mean |log π_trainer − log π_engine| of sampled tokens: what separates the two forward passes; 0
    /// where the student did not draw them.
    pub logprob_gap: f64,
    /// Gradient norm before clipping, mean of the step's optimizer steps.
    pub grad_norm: f64,
    /// Learning rate of the last optimizer step.
    pub lr: f64,
    /// Optimizer steps skipped because a gradient was not finite.
    pub skipped_updates: u64,
    /// Response tokens sampled.
    pub tokens: u64,
    /// Seconds of generating, waiting for scores, updating, and all of the step.
    pub rollout_seconds: f64,
    /// Seconds waited for rewards and the teacher after the last token.
    pub score_wait_seconds: f64,
    /// Seconds of the update.
    pub update_seconds: f64,
    /// Seconds of the whole step.
    pub step_seconds: f64,
    /// The weights after the step.
    pub weight_version: WeightVersion,
    /// Evaluation after this step, where one was due: mean reward over held-out rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_reward: Option<f64>,
    /// Tokens whose log-ratio to the teacher was clamped.
    #[serde(default)]
    pub clamped_tokens: u64,
    /// Groups whose graded rewards are all equal: they carry no reward signal.
    #[serde(default)]
    pub zero_std_groups: u64,
    /// Mean divergence from a co-resident teacher over the tokens that were taught, in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divergence: Option<f64>,
    /// Samples that dynamic sampling left out of the update.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_samples: u64,
    /// What tells whether the run is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// What the step did without, where the recipe asks for any of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<StepMemory>,
    /// Of responses of several turns.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub multi_turn: Option<MultiTurn>,
}

/// Memory that was given up for time in one step, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepMemory {
    /// Key-value cache after the last response was drawn.
    pub cache_bytes: u64,
    /// Of it, given back before the update.
    pub cache_freed_bytes: u64,
    /// Weights and optimizer state moved between the device and host memory, both ways. On a CPU, whose
    /// memory is the host's, 0: nothing is moved.
    pub moved_bytes: u64,
    /// Seconds of the moves.
    pub move_seconds: f64,
}

/// What a step's responses of several turns are made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MultiTurn {
    /// Tokens the model drew: those of mask 1.
    #[serde(rename = "tool_mask/llm_tokens")]
    pub llm_tokens: u64,
    /// Tokens of tools, environment and template: those of mask 0.
    #[serde(rename = "tool_mask/tool_tokens")]
    pub tool_tokens: u64,
    /// Their share of all response tokens.
    #[serde(rename = "tool_mask/tool_ratio")]
    pub tool_ratio: f64,
    /// Mean turns of the model in a response.
    #[serde(rename = "num_turns/mean")]
    pub turns_mean: f64,
    /// Fewest.
    #[serde(rename = "num_turns/min")]
    pub turns_min: u64,
    /// Most.
    #[serde(rename = "num_turns/max")]
    pub turns_max: u64,
}

/// Whether a run is well, in numbers; [`crate::health`] says what they mean.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// The 95th percentile of log π_student − log π_teacher over response tokens, in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse_kl_p95: Option<f64>,
    /// Mean |advantage| of the rewards alone, over response tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_advantage: Option<f64>,
    /// Mean |advantage| of the teacher's term alone, over response tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher_advantage: Option<f64>,
    /// Share of responses that ended by themselves: with an end token or a stop text.
    pub stopped_share: f64,
    /// Share of samples without a grade, where grades were asked for.
    pub ungraded_share: f64,
    /// Share of response tokens that a co-resident teacher taught.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected_share: Option<f64>,
    /// Share of the samples that their uneven weights are worth (Kish's effective sample size).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_share: Option<f64>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Whether and how a sample was graded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Grade {
    /// By the reward function.
    Graded {
        /// A finite number.
        reward: f64,
    },
    /// Not: it carries no reward, and counts neither as right nor as wrong.
    Ungraded {
        /// Why.
        reason: String,
    },
    /// The run has no reward function.
    NotAsked,
}

/// One line of `rollouts/step-N.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutRecord {
    /// The step, from 1.
    pub step: u64,
    /// Which sample of the step.
    pub index: u64,
    /// Which prompt of the step.
    pub group_index: u64,
    /// Which row of the dataset.
    pub row: u64,
    /// The prompt as in the dataset.
    pub prompt: Prompt,
    /// Its ids.
    pub prompt_ids: Vec<i64>,
    /// The response.
    pub response: String,
    /// Its ids.
    pub response_ids: Vec<i64>,
    /// 1 for each response id that the model drew, 0 for one that it was told; absent where it drew all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_mask: Option<Vec<u8>>,
    /// log π of each response id under the engine that drew it; `None` where none did (mask 0); 0 for a
    /// dataset's, which were given.
    pub rollout_logprobs: Vec<Option<f32>>,
    /// log π_teacher of each response id; `None` where the model did not draw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher_logprobs: Option<Vec<Option<f32>>>,
    /// The teacher's likeliest tokens at each position that the model drew, where they are learnt from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher_top: Option<TopLogprobs>,
    /// The turns, of a response of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub episode: Option<EpisodeRecord>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Its grade.
    pub grade: Grade,
    /// The reward after group-level post-processing, as the advantage saw it.
    pub reward: Option<f64>,
    /// What the reward function left in `sample.score`.
    #[serde(default)]
    pub score: Option<f64>,
    /// The label.
    pub label: String,
    /// The row's other columns, and what the reward function added.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// The weights that drew it.
    pub weight_version: WeightVersion,
}

/// Names of the run's documents in the store.
pub mod keys {
    use crate::ids::{ContentHash, RunId};

    /// `runs/ID/`
    pub fn run(id: &RunId) -> String {
        format!("runs/{id}/")
    }
    /// The resolved spec.
    pub fn spec(id: &RunId) -> String {
        format!("runs/{id}/spec.json")
    }
    /// The run's own word on where it is.
    pub fn status(id: &RunId) -> String {
        format!("runs/{id}/status.json")
    }
    /// A line a step.
    pub fn metrics(id: &RunId) -> String {
        format!("runs/{id}/metrics.jsonl")
    }
    /// A line a sample.
    pub fn rollouts(id: &RunId, step: u64) -> String {
        format!("runs/{id}/rollouts/step-{step}.jsonl")
    }
    /// The lease of an attempt, created once.
    pub fn attempt(id: &RunId, attempt: u64) -> String {
        format!("runs/{id}/attempts/{attempt}.json")
    }
    /// A content-addressed input.
    pub fn input(kind: &str, hash: &ContentHash) -> String {
        format!("inputs/{kind}/{hash}")
    }
}
