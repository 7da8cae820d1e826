//! Why a backend did not do what it was asked.

use std::path::PathBuf;

use super::JobId;

/// What can go wrong between us and a backend, in kinds a caller can act on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No job has this id.
    #[error("there is no job `{id}` in {backend}")]
    UnknownJob {
        /// The id asked for.
        id: JobId,
        /// Where it was looked for.
        backend: String,
    },
    /// A live job has this id and is something else.
    #[error("`{id}` is already running with another {field}: {running}, asked for {asked}; {DIFFERENT_REMEDY}")]
    Different {
        /// The id.
        id: JobId,
        /// The first field that differs.
        field: String,
        /// Its value in the running job.
        running: String,
        /// Its value in the request.
        asked: String,
    },
    /// The runtime's program was not found.
    #[error("found no `gym-runtime`: looked at {looked}; {RUNTIME_REMEDY}")]
    NoRuntime {
        /// Every place looked at, in order.
        looked: String,
    },
    /// What was named as the runtime's program is another one, or one that does not work.
    #[error("`{}` does not answer as `gym-runtime` does: {what}; {RUNTIME_REMEDY}", program.display())]
    NotRuntime {
        /// The program.
        program: PathBuf,
        /// What it did.
        what: String,
    },
    /// The program could not be started.
    #[error("cannot start `{}`; {RUNTIME_REMEDY}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file of a job could not be read or written.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// `read`, `write`, `lock`, …
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file of a job does not say what it should.
    #[error(
        "`{}` is damaged: it is not the record of a job that it was; {RECORD_REMEDY} (`pgrep -af {folder}` shows them), remove \
         `{folder}`, and launch again",
        path.display(),
        folder = path.parent().unwrap_or(path).display()
    )]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A process did not end, even when killed.
    #[error("processes of `{id}` are still there after SIGKILL: {pids:?}")]
    Unstoppable {
        /// The job.
        id: JobId,
        /// The processes.
        pids: Vec<u32>,
    },
    /// The cluster, or the way to it.
    #[cfg(feature = "kubernetes")]
    #[error(transparent)]
    Cluster(#[from] super::kubernetes::ClusterError),
    /// The task that did the work was lost.
    #[error("the task talking to the backend was stopped")]
    Interrupted,
}

/// The folder is the one this SDK was compiled from: for a crate that depends on it by path, the
/// person's own clone.
const RUNTIME_REMEDY: &str = concat!(
    "run `cargo xtask runtime` in `",
    env!("CARGO_MANIFEST_DIR"),
    "/..`, which builds it where it is looked for, or name a built one in the environment variable `TRAINING_GYM_RUNTIME`"
);
const RECORD_REMEDY: &str = "end the job's processes if there are any";
const DIFFERENT_REMEDY: &str = "stop the running one first, or use another name";

impl Error {
    /// The part of the message that says what to do, where there is something to do.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::NoRuntime { .. } | Self::NotRuntime { .. } | Self::Start { .. } => Some(RUNTIME_REMEDY),
            Self::Record { .. } => Some(RECORD_REMEDY),
            Self::Different { .. } => Some(DIFFERENT_REMEDY),
            #[cfg(feature = "kubernetes")]
            Self::Cluster(error) => error.hint(),
            _ => None,
        }
    }
}
