//! What *will* happen: complete, versioned, with nothing left to default.
//!
//! The SDK's `config` rooms turn what a person typed into these types; a job reads these and
//! nothing else. No secret is ever in here: a [`SecretRef`] says where the runtime finds one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::{AppName, ContentHash, RunId};
pub use crate::stored::StoredModel;

mod distill;
mod environment;
mod memory;
mod method;
mod source;

pub use crate::tool_call::ToolFormat;
pub use distill::{DistillSpec, Divergence, DivergenceSwitch, SelectionRule, TokenSelection, TopK};
pub use environment::EnvironmentSpec;
pub use memory::MemorySpec;
pub use method::{
    AdvantageEstimator, AdvantageSpec, KlLossSpec, KlLossType, KlRewardSpec, LossAggregation, OverlongSpec, PassRate,
    PolicyLoss, SampleWeighting,
};
pub use source::ResponseSource;

/// A [`RunSpec`] as it is stored: the version is part of the document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "version", deny_unknown_fields)]
pub enum VersionedRunSpec {
    /// The first layout.
    #[serde(rename = "1")]
    V1(RunSpec),
}

/// One training run, complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// Names the run's folder in the store.
    pub run_id: RunId,
    /// The student as it starts.
    pub model: ModelSpec,
    /// The prompts.
    pub data: DataSpec,
    /// How responses are made.
    pub rollout: RolloutSpec,
    /// The person's reward function; `None` is pure distillation.
    pub reward: Option<RewardSpec>,
    /// The teacher; `None` is pure reinforcement learning.
    pub teacher: Option<TeacherSpec>,
    /// A teacher in the trainer itself, whose whole distributions are learnt from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distill: Option<DistillSpec>,
    /// How rewards become advantages.
    pub advantage: AdvantageSpec,
    /// How advantages become weights.
    pub update: UpdateSpec,
    /// Evaluation inside the run, where asked for.
    pub eval: Option<EvalSpec>,
    /// When checkpoints are published.
    pub save: SaveSpec,
    /// Where it computes.
    pub node: NodeSpec,
    /// Variables the job is started with.
    pub environment: BTreeMap<String, String>,
    /// What memory it does without.
    #[serde(default, skip_serializing_if = "MemorySpec::is_none")]
    pub memory: MemorySpec,
    /// Rollout steps in the whole run, ≥ 1.
    pub num_rollout: u64,
    /// The one seed all randomness of the run derives from.
    pub seed: u64,
    /// Whose responses are learnt from.
    #[serde(default, skip_serializing_if = "ResponseSource::is_student")]
    pub responses: ResponseSource,
    /// The environment that responses of several turns are drawn in; `None` draws one turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout_environment: Option<EnvironmentSpec>,
}

/// A model on disk: a Hugging Face folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// What people call it: a hub id or a folder's name.
    pub name: String,
    /// The folder the runtime reads.
    pub folder: PathBuf,
    /// Where it came from, for one of the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubRef>,
    /// Its files in the store, for a job that does not share a disk with who launched it: they are
    /// fetched into `folder` first. `None`: the folder is there already, or comes from the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredModel>,
}

/// A repository of a hub at one commit: where a model or rows came from. A run that is continued takes
/// this commit again, whatever the branch has become.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubRef {
    /// The repository, such as `Qwen/Qwen3-0.6B`.
    pub repo: String,
    /// The branch, tag or commit that was asked for.
    pub revision: String,
    /// The commit it was.
    pub commit: String,
}

/// Rows in the store, by content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowsRef {
    /// Key in the store: JSON lines of [`crate::sample::Row`].
    pub key: String,
    /// sha256 of the object: the dataset's fingerprint.
    pub sha256: ContentHash,
    /// How many rows, ≥ 1.
    pub rows: u64,
    /// Where they came from, for a dataset of the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubRef>,
}

/// The prompts of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSpec {
    /// The training rows.
    pub train: RowsRef,
    /// Render prompts with the model's chat template; otherwise a prompt is raw text.
    pub apply_chat_template: bool,
    /// Variables of the template, such as `enable_thinking`.
    pub chat_template_kwargs: Map<String, Value>,
    /// Visit rows in an order drawn anew each epoch (from the seed), instead of file order.
    pub shuffle: bool,
    /// A prompt of more tokens than this is left out before the run, and counted.
    pub max_prompt_len: usize,
}

/// How one token is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingSpec {
    /// 0 is greedy.
    pub temperature: f64,
    /// Nucleus mass in (0, 1]; 1 keeps everything.
    pub top_p: f64,
    /// Keep the k most likely; −1 keeps everything.
    pub top_k: i64,
    /// Keep tokens at least this share as likely as the likeliest; 0 keeps everything.
    pub min_p: f64,
}

impl Default for SamplingSpec {
    /// The model's own distribution: temperature 1, nothing cut.
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: -1, min_p: 0.0 }
    }
}

/// How responses are made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RolloutSpec {
    /// Prompts a step.
    pub rollout_batch_size: usize,
    /// Responses a prompt: the group of group-relative advantages.
    pub n_samples_per_prompt: usize,
    /// Tokens a response may have; one that reaches it is *truncated*.
    pub rollout_max_response_len: usize,
    /// How a token is drawn.
    pub sampling: SamplingSpec,
    /// Texts that end a response.
    pub stop: Vec<String>,
    /// Tokens that end a response beside the model's own.
    pub stop_token_ids: Vec<i64>,
    /// Engine replicas, one a device; on a CPU always 1.
    pub rollout_num_gpus: usize,
    /// Limits of each engine.
    pub engine: EngineSpec,
}

/// Limits of one inference engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineSpec {
    /// Sequences decoded together: slots of the key-value cache.
    pub max_running_requests: usize,
    /// Requests that may wait; one more is refused.
    pub max_queued_requests: usize,
    /// Tokens a sequence may have, prompt and response together; `None` is the model's own limit.
    pub context_length: Option<usize>,
    /// Tokens prefilled in one pass.
    pub max_prefill_tokens: usize,
}

impl Default for EngineSpec {
    fn default() -> Self {
        Self { max_running_requests: 64, max_queued_requests: 1024, context_length: None, max_prefill_tokens: 8192 }
    }
}

/// The person's reward function and how it is called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardSpec {
    /// Name of the `#[training_gym::reward]` function, or of the rollout environment whose reward it is.
    pub function: String,
    /// Name of the group-level function that turns samples into rewards, if any.
    pub post_process: Option<String>,
    /// The person's own executable, by content.
    pub program: ProgramRef,
    /// Seconds one call may take before the sample is ungraded.
    pub timeout_secs: f64,
    /// Calls in flight at once.
    pub max_concurrency: usize,
    /// Share of a step's samples that may be ungraded, in [0, 1]; beyond it the run stops.
    pub max_ungraded_fraction: f64,
    /// Whether a truncated response is graded like any other; otherwise it is *ungraded*.
    pub grade_truncated: bool,
    /// Which network the function may use.
    #[serde(default, skip_serializing_if = "Egress::is_none")]
    pub egress: Egress,
    /// Files and folders of the machine that the function may read, beside the system's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PathBuf>,
}

/// Which network a reward function may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Egress {
    /// None: a filter of system calls lets it make Unix sockets alone.
    #[default]
    None,
    /// These hosts (a name, an address or a network, with `:port` where one is meant). The filter lets IP sockets through; that they
    /// reach no other host is a NetworkPolicy's to enforce.
    Declared(Vec<String>),
}

impl Egress {
    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// An executable in the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramRef {
    /// Key in the store.
    pub key: String,
    /// sha256 of the file, checked before it is started.
    pub sha256: ContentHash,
}

/// Where the runtime finds a secret. The secret itself is never in a spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SecretRef {
    /// The first line of a file that only its owner reads.
    File(PathBuf),
    /// An environment variable of the job.
    Env(String),
}

/// What the teacher's server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TeacherDialect {
    /// SGLang's `/generate` with `return_logprob`.
    #[default]
    Sglang,
    /// vLLM's `/v1/completions` with `prompt_logprobs`.
    Vllm,
}

/// The teacher and how it is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TeacherSpec {
    /// The whole URL requests go to.
    pub url: String,
    /// Its credential, by reference.
    pub token: Option<SecretRef>,
    /// Its dialect.
    pub dialect: TeacherDialect,
    /// λ in `A_t = A_t^GRPO − λ·(log π_student − log π_teacher)`; with `top_k`, the divergence's weight.
    pub opd_kl_coef: f64,
    /// |log π_student − log π_teacher| of a token is clamped to this, and counted; `None` is unclamped.
    pub log_ratio_clamp: Option<f64>,
    /// Requests in flight at once.
    pub max_concurrency: usize,
    /// Sequences in one request; they are scored together, so they are part of the result.
    pub batch_size: usize,
    /// Seconds one request may take.
    pub timeout_secs: f64,
    /// Learn from the likeliest tokens of each position, in place of the advantage's term.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<TopK>,
}

/// How the learning rate moves after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LrDecayStyle {
    /// Stays.
    Constant,
    /// Falls in a line to `min_lr`.
    Linear,
    /// Falls in half a cosine to `min_lr`.
    Cosine,
}

/// AdamW and its schedule. Steps are optimizer steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerSpec {
    /// Peak learning rate.
    pub lr: f64,
    /// Learning rate at the end of the decay.
    pub min_lr: f64,
    /// Steps from 0 to `lr`.
    pub lr_warmup_iters: u64,
    /// Steps after which the decay has ended.
    pub lr_decay_iters: u64,
    /// The shape of the decay.
    pub lr_decay_style: LrDecayStyle,
    /// Decoupled weight decay; norms and biases have none.
    pub weight_decay: f64,
    /// β₁.
    pub adam_beta1: f64,
    /// β₂.
    pub adam_beta2: f64,
    /// ε.
    pub adam_eps: f64,
    /// The gradient's norm is cut to this; `None` leaves it.
    pub clip_grad: Option<f64>,
}

/// How advantages become weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateSpec {
    /// Samples an optimizer step; divides `rollout_batch_size · n_samples_per_prompt`.
    pub global_batch_size: usize,
    /// Tokens a packed micro-batch holds at the most (a longer sample is one by itself).
    pub max_tokens_per_gpu: usize,
    /// PPO's lower clip.
    pub eps_clip: f64,
    /// PPO's upper clip (DAPO's clip-higher).
    pub eps_clip_high: f64,
    /// Dual clip for negative advantages; `None` is off.
    pub eps_clip_c: Option<f64>,
    /// What is made of the probability ratio and the clip.
    #[serde(default, skip_serializing_if = "PolicyLoss::is_default")]
    pub policy_loss: PolicyLoss,
    /// Penalty towards the starting model.
    pub kl_loss: Option<KlLossSpec>,
    /// Weight of the entropy bonus.
    pub entropy_coef: f64,
    /// Which mean the loss is.
    pub loss_aggregation: LossAggregation,
    /// Rows of the output projection computed at once: memory is this times the vocabulary.
    pub logits_chunk_size: usize,
    /// The optimizer.
    pub optimizer: OptimizerSpec,
}

/// Evaluation inside a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalSpec {
    /// The held-out rows.
    pub rows: RowsRef,
    /// Every how many steps; the last step always is evaluated.
    pub eval_interval: u64,
    /// Responses a prompt.
    pub n_samples_per_eval_prompt: usize,
    /// How a token is drawn.
    pub sampling: SamplingSpec,
    /// Tokens a response may have.
    pub eval_max_response_len: usize,
}

/// When checkpoints are published. The last step always is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaveSpec {
    /// Every how many steps; `None` is the last step only.
    pub save_interval: Option<u64>,
    /// Resume state (optimizer, cursor) is kept for this many newest checkpoints, ≥ 1.
    pub keep_resume_states: usize,
}

/// The number type weights are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32-bit floats.
    Float32,
    /// bfloat16, with 32-bit master weights where trained.
    Bfloat16,
}

/// Where a job computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// `cpu` or `cuda:N`.
    pub device: String,
    /// The compute type.
    pub dtype: Dtype,
    /// CPU threads of libtorch: part of the spec, since sums depend on it.
    pub threads: usize,
}

/// A [`ServeSpec`] as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "version", deny_unknown_fields)]
pub enum VersionedServeSpec {
    /// The first layout.
    #[serde(rename = "1")]
    V1(ServeSpec),
}

/// One deployment: a model behind HTTP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeSpec {
    /// Its name.
    pub app_name: AppName,
    /// The model.
    pub model: ModelSpec,
    /// Address to listen on, such as `127.0.0.1`.
    pub host: String,
    /// Port to listen on; 0 takes a free one.
    pub port: u16,
    /// The bearer token, by reference; `None` serves without authentication.
    pub token: Option<SecretRef>,
    /// Limits of the engine.
    pub engine: EngineSpec,
    /// Where it computes.
    pub node: NodeSpec,
}
