//! Attribute macros of training-gym, documented where they are re-exported: `training_gym::main`,
//! `training_gym::reward` and `training_gym::rollout_environment`. What they expand to names `::training_gym::…`, so a program uses them
//! through that crate.

mod environment;
mod main_function;
mod reward_function;

use proc_macro::TokenStream;

/// Makes an `async fn main` the program's entry; documented as `training_gym::main`.
#[proc_macro_attribute]
pub fn main(arguments: TokenStream, item: TokenStream) -> TokenStream {
    main_function::expand(arguments.into(), item.into()).unwrap_or_else(|error| error.into_compile_error()).into()
}

/// Registers a reward function and makes a constant of it; documented as `training_gym::reward`.
#[proc_macro_attribute]
pub fn reward(arguments: TokenStream, item: TokenStream) -> TokenStream {
    reward_function::expand(arguments.into(), item.into()).unwrap_or_else(|error| error.into_compile_error()).into()
}

/// Registers a rollout environment and makes a constant of it; documented as
/// `training_gym::rollout_environment`.
#[proc_macro_attribute]
pub fn rollout_environment(arguments: TokenStream, item: TokenStream) -> TokenStream {
    environment::expand(arguments.into(), item.into()).unwrap_or_else(|error| error.into_compile_error()).into()
}
