//! What the whole-system suites share. The suites themselves are in `tests/tests/`; each drives
//! the real programs over real HTTP, sockets and processes.

pub mod escapes;
pub mod fixture;
#[path = "../../runtime/tests/serve/held.rs"]
pub mod held;
pub mod house;
pub mod programs;
pub mod world;
