//! What the macros' output needs; not for use by hand.

pub use inventory;

pub use crate::program::entry::{Outcome, run};
pub use crate::reward::Answer;
