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

pub use training_gym_macros::{main, reward};

// The macros write `::training_gym::…`, also inside this crate.
extern crate self as training_gym;
