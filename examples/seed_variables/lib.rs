//! The environment variables of the reference scripts (`train_opd.sh`, `train_grpo.sh`, `eval_math.sh`), as
//! knobs of ours: what a person who comes from those scripts types, the programs beside this crate read.
//!
//! ```sh
//! gym data prepare --data-dir data --out data/prepared        # or let the program do it
//! MODEL_PATH=Qwen/Qwen3-4B TEACHER_MODEL_PATH=Qwen/Qwen3-8B opd_from_environment
//! MODEL_PATH=Qwen/Qwen3-4B grpo_from_environment
//! MODEL_PATH=Qwen/Qwen3-4B VAL_N=16 eval_from_environment
//! DATABASE_DIR=/data/databases query_database
//! ```
//!
//! [`VARIABLES`] is the list; `docs/reference/seed-variables.md` is the same list for people, and a test keeps
//! them so. A value that cannot be is refused by the variable's name, with all others that are wrong. One that
//! does not apply is never silently ignored: [`Knobs::notes`] says so.

#![forbid(unsafe_code)]

mod data;
mod knobs;
mod read;
pub mod rewards;
mod table;
#[cfg(test)]
mod tests;
mod train;

pub use data::{Data, data};
pub use knobs::{Distillation, Knobs, Sampling, Training};
pub use read::{Environment, Problems};
pub use table::{Program, VARIABLES, Variable};
pub use train::train;
