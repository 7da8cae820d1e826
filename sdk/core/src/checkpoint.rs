//! Checkpoints: a run's weights, and the state it resumes from.
//!
//! ```text
//! runs/RUN/checkpoints/step-N/   a Hugging Face folder, usable in place, and manifest.json in it
//! runs/RUN/resume/step-N/        optimizer, cursor and the like, and manifest.json in it
//! runs/RUN/latest.json           the newest checkpoint; only ever moves forward, by the newest attempt
//! ```
//!
//! A folder is never changed once its [`Manifest`] is there, and the manifest is written last, so a
//! folder without one is what a crash left and no reader trusts it.

mod manifest;
mod pointer;
mod publish;
mod read;
mod retention;

pub use manifest::{FileEntry, Kind, MANIFEST, Manifest, VersionedManifest};
pub use pointer::{Latest, advance_latest, claim_latest, latest_pointer};
pub use publish::{Draft, Published, describe, publish};
pub use read::{at, check_folder, fetch, latest, list, manifest_in, states, verify};
pub use retention::{Action, State, carry_out, retention};

use std::path::PathBuf;

use crate::store;

/// What can go wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed.
    #[error("the store failed for `{folder}`")]
    Store {
        /// The checkpoint's folder in the store.
        folder: String,
        /// Why.
        #[source]
        source: store::Error,
    },
    /// A local file or folder failed.
    #[error("cannot {action} {}", path.display())]
    Local {
        /// `read`, `write`, …
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A local folder that cannot become a checkpoint.
    #[error("cannot publish {}: {reason}", path.display())]
    Unpublishable {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Something else is published under this step already.
    #[error(
        "`{folder}` is published already with other content: {difference}; a published folder is never changed, so use another run id"
    )]
    Conflict {
        /// The folder.
        folder: String,
        /// The first difference.
        difference: String,
    },
    /// A newer attempt of the run owns its pointer.
    #[error("attempt {newer} of run {run} has begun; this is attempt {attempt}, which publishes no more")]
    Superseded {
        /// The run.
        run: crate::ids::RunId,
        /// Who wanted to publish.
        attempt: u64,
        /// Who owns the run.
        newer: u64,
    },
    /// What the manifest promises is not what the store holds.
    #[error("`{folder}` is damaged: {damage}; use an earlier checkpoint")]
    Damaged {
        /// The folder.
        folder: String,
        /// What is wrong.
        damage: String,
    },
    /// A file of a published folder is not what its manifest says.
    #[error(
        "checkpoint file `{}` {damage}: it was changed or removed after it was published; {INCOMPLETE_REMEDY}",
        path.display()
    )]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        damage: String,
    },
    /// A document of ours that cannot be read.
    #[error(
        "`{key}` cannot be read: it is damaged, or a newer version wrote it; put back a copy, or remove it to do \
         without what it describes"
    )]
    Unreadable {
        /// The document.
        key: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

const INCOMPLETE_REMEDY: &str =
    "put the file back, or remove the checkpoint's folder to do without it and use another checkpoint";

impl Error {
    fn store(folder: &str) -> impl FnOnce(store::Error) -> Self {
        let folder = folder.to_owned();
        |source| Self::Store { folder, source }
    }

    fn local(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Local { action, path, source }
    }
}

/// Seconds since 1970, to the millisecond: few enough digits that JSON gives back the same number.
fn now() -> f64 {
    let age = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (age.as_secs_f64() * 1e3).round() / 1e3
}

/// Runs file work off the async threads; a panic in it goes on in the caller.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Error::local("work on", std::path::Path::new("files"))(std::io::Error::other(error))),
        },
    }
}

#[cfg(test)]
mod tests;
