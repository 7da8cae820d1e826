//! What the whole-system suites share. The suites themselves are in `tests/tests/`; each drives
//! the real programs over real HTTP, sockets and processes.

pub mod escapes;
pub mod fixture;
pub mod house;
pub mod programs;
