//! Attribute macros of training-gym. Their documentation is where they are re-exported:
//! `training_gym::main` and `training_gym::reward`.

mod main_function;
mod reward_function;

use proc_macro::TokenStream;

/// Makes an `async fn main` the program's entry, and the program one that can be shipped.
///
/// A run with a custom reward ships this executable and starts it as the *reward worker*: then the
/// registered functions are served and your `main` is not reached. Otherwise your `main` runs on a
/// multi-threaded tokio runtime. It returns nothing, or a `Result<(), E>` of any error; an error is
/// printed with its chain of causes, and the exit code is 1.
///
/// ```
/// #[training_gym::main]
/// async fn main() -> anyhow::Result<()> {
///     Ok(())
/// }
/// ```
#[proc_macro_attribute]
pub fn main(arguments: TokenStream, item: TokenStream) -> TokenStream {
    main_function::expand(arguments.into(), item.into()).unwrap_or_else(|error| error.into_compile_error()).into()
}

/// Registers a reward function and makes a constant of it: `math_rm` becomes `MATH_RM`.
///
/// The function stays as it is. The constant is a `reward::RewardFn`: a name and a pointer, for
/// `Recipe::custom_rm_function`, with `.call(&mut sample)` for unit tests. It captures nothing,
/// since it runs in another process than the one that launches.
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
/// With `post_process` it registers a group-level function: it sees all samples of a step, in
/// order, after each is scored, and returns one reward for each. Its constant is a
/// `reward::PostProcessFn`, for `Recipe::custom_reward_post_process_function`. NaN leaves a sample
/// ungraded.
///
/// ```
/// use training_gym::reward::{RewardError, Sample};
///
/// #[training_gym::reward(post_process)]
/// async fn from_scores(samples: &mut [Sample]) -> Result<Vec<f64>, RewardError> {
///     Ok(samples.iter().map(|sample| sample.score.unwrap_or(f64::NAN)).collect())
/// }
/// # fn main() { assert_eq!(FROM_SCORES.name(), "from_scores"); }
/// ```
///
/// Both forms also take a plain `fn`. Two functions of one kind and name are refused at start.
#[proc_macro_attribute]
pub fn reward(arguments: TokenStream, item: TokenStream) -> TokenStream {
    reward_function::expand(arguments.into(), item.into()).unwrap_or_else(|error| error.into_compile_error()).into()
}
