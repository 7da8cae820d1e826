//! update

pub mod adamw;
pub mod head;
pub mod loss;
pub mod packing;
pub mod schedule;
pub use packing::weights;
