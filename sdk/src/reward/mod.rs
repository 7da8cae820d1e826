//! The person's reward functions: written with `#[training_gym::reward]`, registered at link time,
//! called in the reward worker.
//!
//! ```
//! use training_gym::reward::{RewardError, Sample};
//!
//! #[training_gym::reward]
//! async fn short_and_right(sample: &mut Sample) -> Result<f64, RewardError> {
//!     let label: f64 = sample.label.parse()?;
//!     let answer = sample.response.lines().last().ok_or("the response is empty")?;
//!     let score = if answer.parse() == Ok(label) { 1.0 } else { 0.0 };
//!     sample.score = Some(score);
//!     sample.metadata.insert("answer".into(), answer.into());
//!     Ok(score)
//! }
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let mut sample = Sample::for_test("1 + 1?", "It is\n2", "2");
//! assert_eq!(SHORT_AND_RIGHT.call(&mut sample).await.unwrap(), 1.0);
//! # });
//! ```
//!
//! A function that returns an error, panics, or returns NaN leaves its sample *ungraded*: neither
//! right nor wrong, and counted.
//!
//! A [`RolloutEnvironment`] is what a model of several turns speaks with; its reward takes the place of a
//! reward function's.

mod environment;
mod episodes;
mod error;
mod function;
mod registry;
pub(crate) mod worker;

pub use environment::{EnvironmentFn, RolloutEnvironment};
pub use error::RewardError;
#[doc(hidden)]
pub use function::Answer;
pub use function::{PostProcessFn, RewardFn};
pub use training_gym_core::episode::{Episode, Observation, Turn};
pub use training_gym_core::sample::Sample;
pub use training_gym_core::tool_call::{ToolCall, ToolFormat};

pub(crate) use registry::Registry;
