//! What the person's program may do: less than the trainer, on every machine alike.
//!
//! ```text
//! trainer or `gym-runtime reward-worker`   [`Generation::start`]
//!     └─ gym-runtime confine PLAN          [`confine`]: a session of its own, no inherited files or
//!         │                                capabilities, limits, Landlock, a filter of system calls
//!         └─ exec the person's program     with a short list of variables, in its volume
//! ```
//!
//! The restrictions are laid on by a process of ours that then *becomes* the program, so nothing has to
//! be computed between fork and exec, and none of it can be taken off again. How a generation is ended
//! is here too: the whole process group, which the program cannot leave.
//!
//! The same three files serve the local form, where the trainer starts the program itself, and the
//! sidecar, where [`supervise`] does on another container's behalf ([`control`] is what they say to
//! each other), and the pod of its own that a function with egress has ([`remote`]).

mod calls;
mod confine;
pub mod control;
mod door;
mod files;
mod generation;
mod lines;
pub mod remote;
mod supervisor;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use training_gym_core::spec::Egress;

pub use confine::{become_unreadable, confine};
pub use generation::{Generation, Launcher};
pub use supervisor::{End, Place, Supervisor, supervise};

/// Why a program cannot be confined or kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A step of the confinement failed: then nothing is started.
    #[error("cannot confine the reward worker: {what}")]
    Confine {
        /// Which step, and what may help.
        what: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The filter or the rules could not be made.
    #[error("cannot confine the reward worker: {0}")]
    Rules(String),
    /// The program does not start.
    #[error("cannot be started from {}; it must be an executable of this machine's kind", program.display())]
    Exec {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The supervisor has no place to answer.
    #[error("the reward worker's supervisor cannot {what} {}", path.display())]
    Supervisor {
        /// What it wanted to do.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    fn confine(what: &str) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.to_owned();
        move |source| Self::Confine { what, source }
    }
}

/// One start of the person's program: what it is, and what it is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The executable.
    pub program: PathBuf,
    /// The one folder it may write to, by absolute path: its working folder, `HOME` and `TMPDIR`.
    pub volume: PathBuf,
    /// The socket it shall listen on: by absolute path, or by its name in the volume.
    pub socket: PathBuf,
    /// Variables that the recipe declares for it.
    pub environment: BTreeMap<String, String>,
    /// Which network it may use.
    pub egress: Egress,
    /// What it may read beside the system's own files.
    pub files: Vec<PathBuf>,
}
