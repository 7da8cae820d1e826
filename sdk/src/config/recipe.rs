//! Every knob of a run, by the name the field knows it under.

use std::path::PathBuf;
use std::time::Duration;

use training_gym_core::spec::{
    AdvantageEstimator, Dtype, Egress, KlLossType, LossAggregation, LrDecayStyle, PolicyLoss, ResponseSource,
    SampleWeighting, ToolFormat,
};

use super::{ChatTemplateKwargs, Environment, Explanation, ExtraConfig, Facts, Model, Opd, settle};
use crate::reward::{EnvironmentFn, PostProcessFn, RewardFn};

/// How a run trains. Each field is `None` where unset; [`Recipe::explain`] says what then holds.
///
/// A preset is overlaid field by field with the struct-update syntax:
///
/// ```
/// use training_gym::config::{Recipe, models};
///
/// let student = models::QWEN3_5_4B;
/// let recipe = Recipe { num_rollout: Some(10), n_samples_per_prompt: Some(4), ..student.recipe() };
/// print!("{}", recipe.explain());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    /// The model whose preset this recipe began as; [`Model::recipe`] sets it and
    /// [`Recipe::explain`] names it.
    pub preset: Option<Model>,

    /// Rollout steps in the run. Unset: one pass over the training rows.
    pub num_rollout: Option<u64>,
    /// Prompts a step. Default 16.
    pub rollout_batch_size: Option<usize>,
    /// Responses a prompt: the group of group-relative advantages. Default 4, and 1 where the dataset holds
    /// the responses.
    pub n_samples_per_prompt: Option<usize>,
    /// Tokens a response may have; one that reaches it is truncated. Default 2048.
    pub rollout_max_response_len: Option<usize>,
    /// Tokens a prompt may have; a longer one is left out before the run, and counted. Default 1024.
    pub rollout_max_prompt_len: Option<usize>,
    /// Temperature of sampling, > 0. Default 1.
    pub rollout_temperature: Option<f64>,
    /// Nucleus mass in (0, 1]. Default 1: nothing cut.
    pub rollout_top_p: Option<f64>,
    /// The k most likely tokens, or −1. Default −1: nothing cut.
    pub rollout_top_k: Option<i64>,
    /// Tokens at least this share as likely as the likeliest, in [0, 1). Default 0: nothing cut.
    pub rollout_min_p: Option<f64>,
    /// Texts that end a response. Default none.
    pub rollout_stop: Option<Vec<String>>,
    /// Tokens that end a response beside the model's own. Default none.
    pub rollout_stop_token_ids: Option<Vec<i64>>,
    /// Engine replicas, one a device; on a CPU always 1. Default 1.
    pub rollout_num_gpus: Option<usize>,
    /// Visit rows in an order drawn anew each epoch, instead of file order. Default false.
    pub shuffle: Option<bool>,
    /// Variables of the chat template, such as `enable_thinking`: a JSON text or a map. Default none.
    pub apply_chat_template_kwargs: Option<ChatTemplateKwargs>,

    /// The reward of one sample: the constant that `#[training_gym::reward]` makes. Unset: none, the
    /// run is pure distillation.
    pub custom_rm_function: Option<RewardFn>,
    /// Turns the samples of a step into rewards after all are scored. Unset: their own rewards.
    pub custom_reward_post_process_function: Option<PostProcessFn>,
    /// What one call of the reward may take before the sample is ungraded. Default 60 s.
    pub reward_timeout: Option<Duration>,
    /// Calls of the reward in flight at once. Default 32.
    pub reward_max_concurrency: Option<usize>,
    /// Share of a step's samples that may be ungraded, in [0, 1]; beyond it the run stops. Default 0.5.
    pub max_ungraded_fraction: Option<f64>,
    /// Whether a truncated response is graded like any other. Default false: it is ungraded.
    pub grade_truncated: Option<bool>,
    /// Which network the reward may use. Default none: it can make no socket that leaves the machine.
    /// `Egress::Declared(hosts)` lets it use IP; that it reaches no other host is enforced by a cluster's
    /// NetworkPolicy alone, which takes addresses and networks, not names.
    pub reward_egress: Option<Egress>,
    /// Files and folders of the machine that the reward may read (and run), by absolute path; beside them it
    /// reads the system's own and its volume. Default none. They are not shipped with the program.
    pub reward_files: Option<Vec<PathBuf>>,

    /// What the model speaks with in several turns: the constant that
    /// `#[training_gym::rollout_environment]` makes. Its reward takes the place of `custom_rm_function`'s,
    /// and `reward_timeout` is what one turn may take. Unset: none, a response is one turn.
    pub rollout_environment: Option<EnvironmentFn>,
    /// Turns the model may take in a response. Default 8.
    pub max_assistant_turns: Option<usize>,
    /// Characters the model is told after one turn; the rest is cut, and says so. Default 1024.
    pub max_tool_response_length: Option<usize>,
    /// How the model writes tool calls. Default Hermes's and Qwen's `<tool_call>`.
    pub tool_format: Option<ToolFormat>,

    /// On-policy distillation from a teacher. Unset: none, the run is pure reinforcement learning.
    pub opd: Option<Opd>,
    /// How a reward becomes an advantage. Default group-relative, over the group's standard deviation.
    pub advantage: Option<AdvantageEstimator>,
    /// Whiten the final advantages over all loss tokens of a step. Default false.
    pub normalize_advantages: Option<bool>,
    /// Take a KL penalty towards the starting model from the reward, of this weight, > 0. Unset: none.
    pub kl_reward_coef: Option<f64>,
    /// Its estimator. Default `k1`.
    pub kl_reward_type: Option<KlLossType>,
    /// DAPO's overlong shaping: over the last so many tokens before `rollout_max_response_len`, a
    /// response's reward falls. Unset: off.
    pub overlong_cache_len: Option<usize>,
    /// What it has fallen by at the limit, > 0. Default 1.
    pub overlong_penalty: Option<f64>,
    /// DAPO's dynamic sampling: leave groups whose graded rewards are all equal out of the update.
    /// Default false.
    pub dynamic_sampling: Option<bool>,
    /// How much each sample's loss counts: by its problem's pass rate (PACED), or by its reward. Unset: all
    /// alike.
    pub weighting: Option<SampleWeighting>,

    /// Whose responses are learnt from: the student's, the co-resident teacher's, the dataset's (supervised
    /// fine-tuning), or another run's. Default the student's own.
    pub responses: Option<ResponseSource>,

    /// Samples an optimizer step; divides `rollout_batch_size · n_samples_per_prompt`. Unset: all of
    /// a rollout, one optimizer step each.
    pub global_batch_size: Option<usize>,
    /// Tokens of a packed micro-batch. Default 8192.
    pub max_tokens_per_gpu: Option<usize>,
    /// Rows of the output projection computed at once. Default 512.
    pub logits_chunk_size: Option<usize>,
    /// What is made of the probability ratio: PPO's, GSPO's or CISPO's loss. Default PPO's.
    pub policy_loss: Option<PolicyLoss>,
    /// PPO's lower clip, in (0, 1), or up to 1 with CISPO. Default 0.2.
    pub eps_clip: Option<f64>,
    /// PPO's upper clip, > 0. Default 0.28 (DAPO's clip-higher).
    pub eps_clip_high: Option<f64>,
    /// Dual clip for negative advantages, > 1. Unset: off.
    pub eps_clip_c: Option<f64>,
    /// Add a KL penalty towards the starting model to the loss. Default false.
    pub use_kl_loss: Option<bool>,
    /// Its weight, > 0. No default: it is named where `use_kl_loss` is on.
    pub kl_loss_coef: Option<f64>,
    /// Its estimator. Default `low_var_kl`.
    pub kl_loss_type: Option<KlLossType>,
    /// Multiply its estimates with the probability ratio. Default false.
    pub use_unbiased_kl: Option<bool>,
    /// Weight of the entropy bonus, ≥ 0. Default 0.
    pub entropy_coef: Option<f64>,
    /// Which mean the loss is. Default over tokens.
    pub loss_aggregation: Option<LossAggregation>,

    /// Compute activations again, layer by layer, on the way back, instead of keeping them: the memory of one
    /// layer's, for the time of a second forward pass. The numbers stay the same. Default false.
    pub gradient_checkpointing: Option<bool>,
    /// Keep the optimizer's moments, and float32 masters of narrower weights, in host memory but for the
    /// update. On a CPU nothing is moved. Default false.
    pub optimizer_offload: Option<bool>,
    /// Keep model weights in host memory while nobody computes with them: the student's while a step waits
    /// for scores, those of a KL penalty's reference but for its pass. On a CPU nothing is moved. Default false.
    pub param_offload: Option<bool>,
    /// Give the engine's key-value cache back after every rollout. Default false.
    pub free_cache_engine: Option<bool>,
    /// Share of the device's memory that weights, optimizer and key-value cache may take together while
    /// responses are drawn, in (0, 1]: fewer are drawn together where more would not fit. Unset: no bound but
    /// `max_running_requests`.
    pub gpu_memory_utilization: Option<f64>,

    /// Peak learning rate, > 0. Default 1e-6.
    pub lr: Option<f64>,
    /// Learning rate at the end of the decay, in [0, lr]. Default 0.
    pub min_lr: Option<f64>,
    /// Optimizer steps from 0 to `lr`. Default 0.
    pub lr_warmup_iters: Option<u64>,
    /// Optimizer steps after which the decay has ended. Unset: those of the whole run.
    pub lr_decay_iters: Option<u64>,
    /// The shape of the decay. Default constant.
    pub lr_decay_style: Option<LrDecayStyle>,
    /// Decoupled weight decay, ≥ 0. Default 0.1.
    pub weight_decay: Option<f64>,
    /// Adam's β₁, in [0, 1). Default 0.9.
    pub adam_beta1: Option<f64>,
    /// Adam's β₂, in [0, 1). Default 0.98.
    pub adam_beta2: Option<f64>,
    /// Adam's ε, > 0. Default 1e-8.
    pub adam_eps: Option<f64>,
    /// The gradient's norm is cut to this; 0 turns it off. Default 1.
    pub clip_grad: Option<f64>,

    /// Publish a checkpoint every so many steps. Unset: the last step only, which always is one.
    pub save_interval: Option<u64>,
    /// Resume state is kept for so many newest checkpoints. Default 1.
    pub keep_resume_states: Option<usize>,
    /// Evaluate every so many steps, and after the last one, on the rows given to the launch. Unset: with
    /// every checkpoint, where there are such rows.
    pub eval_interval: Option<u64>,
    /// Responses an evaluated prompt. Default 1.
    pub n_samples_per_eval_prompt: Option<usize>,
    /// Tokens an evaluated response may have. Unset: as `rollout_max_response_len`.
    pub eval_max_response_len: Option<usize>,
    /// Temperature of evaluation, ≥ 0; 0 is greedy. Unset: as `rollout_temperature`.
    pub eval_temperature: Option<f64>,
    /// Nucleus mass of evaluation, in (0, 1]. Unset: as `rollout_top_p`.
    pub eval_top_p: Option<f64>,

    /// Variables the job is started with. Default none.
    pub environment: Option<Environment>,
    /// Limits of the rollout engine: `max_running_requests` (default 64), `max_queued_requests`
    /// (1024, or a step's samples), `context_length` (prompt and response together),
    /// `max_prefill_tokens` (8192). A key nobody reads is refused.
    pub extra_config: Option<ExtraConfig>,
    /// `cpu` or `cuda:N`. Unset: what the launch's `.resources()` say.
    pub device: Option<String>,
    /// The compute type. Unset: what the launch's `.resources()` say; a CPU without AMX's bfloat16
    /// computes in 32-bit floats unless told otherwise.
    pub dtype: Option<Dtype>,
    /// The one seed all randomness of the run derives from. Default 42.
    pub seed: Option<u64>,
}

impl Recipe {
    /// Each value a run of this recipe would have, and where it came from.
    pub fn explain(&self) -> Explanation {
        settle::settle(self, &Facts::default()).explanation
    }

    /// Whether this program has something the run calls.
    pub(crate) fn needs_program(&self) -> bool {
        self.is_rewarded()
    }

    /// Whether something of the person's says how good a response is: a function, or an environment.
    pub(crate) fn is_rewarded(&self) -> bool {
        self.custom_rm_function.is_some() || self.rollout_environment.is_some()
    }
}
