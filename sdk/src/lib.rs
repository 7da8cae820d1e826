//! Post-train small language models by on-policy distillation, from one typed Rust program.

#[doc(hidden)]
pub mod __private;
pub mod backend;
pub mod config;
pub mod dataset;
pub mod deploy;
pub mod error;
pub mod eval;
pub mod gym;
pub mod hub;
pub mod prelude;
pub mod program;
pub mod reward;
pub mod run;
pub mod scorers;

/// Makes an `async fn main` the program's entry, and the program one that can be shipped.
///
/// A run with a custom reward ships this executable and starts it as the *reward worker*: then the
/// registered functions are served and your `main` is not reached. Otherwise your `main` runs on a
/// multi-threaded tokio runtime. It returns nothing, or a `Result` of any error; an error is printed
/// with its chain of causes, and the exit code is 1.
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

// The macros write `::training_gym::…`, also inside this crate.
extern crate self as training_gym;
