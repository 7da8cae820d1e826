//! Post-train small language models by on-policy distillation, from one typed Rust program.
//!
//! ```no_run
//! use training_gym::prelude::*;
//!
//! #[training_gym::main]
//! async fn main() -> anyhow::Result<()> {
//!     let student = models::QWEN3_0_6B;
//!     let teacher = CustomDeployment::launch(models::QWEN3_4B).app_name("teacher").await?;
//!     teacher.wait_until_ready(Duration::from_secs(15 * 60)).await?;
//!
//!     let dataset = HuggingFaceDataset::new("zhuzilin/dapo-math-17k").input_key("prompt").label_key("label");
//!     let recipe = Recipe { num_rollout: Some(10), opd: Some(Opd::from(&teacher)), ..student.recipe() };
//!     let config = TrainConfig { model: student, dataset: dataset.split("train[:100]")?, recipe };
//!
//!     let result = config.launch().await?.result().await?;
//!     let trained = Endpoint::launch(result.checkpoints().last()).await?;
//!     trained.wait_until_ready(Duration::from_secs(15 * 60)).await?;
//!     println!("{}", trained.chat(&[Message::user("2 + 2 = ?")], &ChatOptions::default()).await?.content);
//!     Ok(())
//! }
//! ```
//!
//! `examples/dapo_math_opd.rs` is the whole of it: a reward function, a baseline, and evaluation
//! before and after.
//!
//! | room | what it holds |
//! |---|---|
//! | [`config`] | what a person types: model, recipe, distillation, run; the only road to a spec |
//! | [`dataset`] | prompts and labels, from the hub or from files, split as `datasets` splits them |
//! | [`hub`] | files from a Hugging Face hub, through the cache that Python's client shares |
//! | [`reward`](mod@reward) | reward functions: `#[training_gym::reward]`, the sample they see, the worker |
//! | [`scorers`] | rules that grade answers, equal to their references |
//! | [`program`] | the person's own executable, shipped with a run that has a reward function |
//! | [`deploy`] | a model behind HTTP: launch, wait, chat, log-probabilities, stop |
//! | [`run`] | a training run: launch, watch, attach, cancel, checkpoints |
//! | [`curriculum`] | programs of several runs, each from the weights of the one before: sparse-to-dense |
//! | [`eval`] | how good a deployment is on held-out rows |
//! | [`gym`] | the client: which backend and which store |
//! | [`backend`] | where jobs run: one trait, and processes of this machine or pods of a cluster behind it |
//! | [`prepare`] | data files into rows: duplicates, lengths, split, report |
//! | [`doctor`] | what is in order and what is not, before anything runs: one table with remedies |
//! | [`error`] | one error for a whole program |
//! | [`prelude`] | the names a program needs |
//! | [`spec`], [`record`], [`sample`], [`ids`], [`wire`], [`store`], [`checkpoint`], [`stored`], [`worker`], [`health`], [`splitmix`], [`episode`], [`tool_call`] | the ground floor that SDK and runtime share |
//! | [`external`] | what public signatures take from other crates |
//!
//! Every type in a public signature has a name under `training_gym`: a program needs no other crate
//! of ours.
//!
//! ```
//! use training_gym::spec::SamplingSpec;
//! use training_gym::wire::{GenerateReply, GenerateRequest};
//!
//! fn greedy(sampling: &SamplingSpec) -> bool {
//!     sampling.temperature == 0.0
//! }
//! # async fn generate(
//! #     teacher: &training_gym::deploy::CustomDeployment,
//! #     request: GenerateRequest,
//! # ) -> Result<Vec<GenerateReply>, training_gym::deploy::Error> {
//! teacher.generate(&request).await
//! # }
//! ```
//!
//! What this is not: there is no tensor in this crate. Training, sampling and serving happen in
//! `gym-runtime`, which reads specs and nothing else.

#![warn(unnameable_types)]

#[doc(hidden)]
pub mod __private;
pub mod backend;
pub mod config;
pub mod curriculum;
pub mod dataset;
pub mod deploy;
pub mod doctor;
pub mod error;
pub mod eval;
pub mod gym;
#[cfg(feature = "kubernetes")]
pub(crate) mod manifest;
pub mod prelude;
pub mod prepare;
pub mod program;
pub mod reward;
pub mod run;
pub mod scorers;

/// Files from a Hugging Face hub, through the cache that Python's client shares.
pub use training_gym_hub as hub;

pub use training_gym_core::{
    checkpoint, episode, health, ids, record, sample, spec, splitmix, store, stored, tool_call, wire, worker,
};

/// What public signatures take from other crates, under the very versions that are used here.
pub mod external {
    /// For an own [`Backend`](crate::backend::Backend), [`Store`](crate::store::Store) or
    /// [`ChatTarget`](crate::eval::ChatTarget).
    pub use async_trait::async_trait;
    /// An object's content in a [`Store`](crate::store::Store).
    pub use bytes::Bytes;
    /// What [`Logs`](crate::backend::Logs) are.
    pub use futures::Stream;
    /// Kubernetes objects: what [`explain`](crate::backend::explain) reads.
    #[cfg(feature = "kubernetes")]
    pub use k8s_openapi;
    /// JSON values and errors: metadata of a sample, variables of a chat template, engine arguments.
    pub use serde_json;
}

/// Makes an `async fn main` the program's entry, and the program one that can be shipped.
///
/// A run with a custom reward ships this executable and starts it as the *reward worker*: then the
/// registered functions are served and your `main` is not reached. Otherwise your `main` runs on a
/// multi-threaded tokio runtime. It returns nothing, or a `Result` of any error; an error is printed
/// with its chain of causes, and the exit code is 1. Ctrl-C is yours: see
/// [`TrainRun::result`](run::TrainRun::result).
///
/// ```
/// #[training_gym::main]
/// async fn main() -> anyhow::Result<()> {
///     Ok(())
/// }
/// ```
pub use training_gym_macros::main;
/// Registers a reward function and makes a constant of it: `math_rm` becomes `MATH_RM`.
///
/// The function, `async` or not, stays as it is. The constant is a [`RewardFn`](reward::RewardFn):
/// a name and a pointer, for `Recipe::custom_rm_function`, with `.call(&mut sample)` for unit tests.
/// It captures nothing, since it runs in another process than the one that launches.
///
/// ```
/// use training_gym::reward::{RewardError, Sample};
///
/// /// 1 for the right answer, −1 for a wrong one.
/// #[training_gym::reward]
/// async fn exact(sample: &mut Sample) -> Result<f64, RewardError> {
///     Ok(if sample.response.trim() == sample.label { 1.0 } else { -1.0 })
/// }
/// # fn main() { assert_eq!(EXACT.name(), "exact"); }
/// ```
///
/// With `post_process` it registers a group-level function: it sees all samples of a step, in order,
/// after each is scored, and returns one reward for each; NaN leaves a sample ungraded. Its constant
/// is a [`PostProcessFn`](reward::PostProcessFn), for `Recipe::custom_reward_post_process_function`.
///
/// ```
/// use training_gym::reward::{RewardError, Sample};
///
/// #[training_gym::reward(post_process)]
/// fn from_scores(samples: &mut [Sample]) -> Result<Vec<f64>, RewardError> {
///     Ok(samples.iter().map(|sample| sample.score.unwrap_or(f64::NAN)).collect())
/// }
/// # fn main() { assert_eq!(FROM_SCORES.name(), "from_scores"); }
/// ```
///
/// Two functions of one kind and name are refused at start.
pub use training_gym_macros::reward;
/// Registers a rollout environment and makes a constant of it: `GuessNumber` becomes `GUESS_NUMBER`.
///
/// It stands on the `impl` of [`RolloutEnvironment`](reward::RolloutEnvironment). The constant is an
/// [`EnvironmentFn`](reward::EnvironmentFn), for `Recipe::rollout_environment`.
///
/// ```
/// use training_gym::reward::{Episode, Observation, RewardError, RolloutEnvironment, Sample, Turn};
///
/// struct Lock {
///     code: String,
///     open: bool,
/// }
///
/// #[training_gym::rollout_environment]
/// impl RolloutEnvironment for Lock {
///     async fn reset(episode: &Episode) -> Result<Self, RewardError> {
///         Ok(Self { code: episode.label.clone(), open: false })
///     }
///
///     async fn step(&mut self, turn: &Turn) -> Result<Observation, RewardError> {
///         self.open = turn.content == self.code;
///         Ok(if self.open { Observation::done() } else { Observation::user("Still locked.") })
///     }
///
///     async fn reward(&mut self, _sample: &mut Sample) -> Result<f64, RewardError> {
///         Ok(if self.open { 1.0 } else { 0.0 })
///     }
/// }
/// # fn main() { assert_eq!(LOCK.name(), "lock"); }
/// ```
pub use training_gym_macros::rollout_environment;

// The macros write `::training_gym::…`, also inside this crate.
extern crate self as training_gym;
