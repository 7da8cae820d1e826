//! New weights to the store: a checkpoint anyone may load, and the state a run resumes from.
//!
//! [`Publisher::stage`] writes the model into a local folder at once (the weights are about to change);
//! whoever holds the optimizer puts its state beside it, and [`Publisher::publish`] uploads both beside
//! the next step. The next call waits for the upload before.
//! The resume state goes first: after a crash between the two, the run resumes at that very step and
//! publishes its checkpoint from the state, so no step is ever published with other weights.

mod folder;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use training_gym_core::checkpoint::{self, Draft, Kind};
use training_gym_core::ids::{RunId, WeightVersion};
use training_gym_core::spec::RunSpec;
use training_gym_core::store::Store;

use crate::model::Model;
pub use folder::write_model_folder;

/// The file of a resume state that holds the caller's own document.
pub const CURSOR: &str = "cursor.json";

/// The two parts of what is staged.
const MODEL: &str = "model";
const STATE: &str = "state";

/// What can go wrong while publishing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A local file or folder failed.
    #[error("cannot {action} {}; check the disk's free space and permissions", path.display())]
    Local {
        /// `read`, `write`, …
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The model's folder could not be written, or that of its source not read.
    #[error("cannot write the model's folder")]
    Folder(#[source] crate::model::Error),
    /// The store refused, or holds something else.
    #[error("cannot publish step {step}")]
    Publish {
        /// The step.
        step: u64,
        /// Why.
        #[source]
        source: checkpoint::Error,
    },
    /// The upload ended without a word.
    #[error("the upload of step {step} was aborted")]
    Aborted {
        /// The step.
        step: u64,
        /// Why.
        #[source]
        source: tokio::task::JoinError,
    },
}

/// Publishes one run's checkpoints and resume states.
#[derive(Debug)]
pub struct Publisher {
    target: Target,
    runtime: Handle,
    /// The folder every checkpoint takes its other files from.
    source: PathBuf,
    /// Where a checkpoint waits for its upload.
    scratch: PathBuf,
    upload: Option<(u64, JoinHandle<Result<(), Error>>)>,
}

/// Where and as what a step is published.
#[derive(Clone, Debug)]
struct Target {
    store: Arc<dyn Store>,
    run_id: RunId,
    model: String,
    attempt: u64,
    keep_resume_states: usize,
}

/// A step on local disk, not yet in the store; removed when dropped.
#[derive(Debug)]
pub struct Staged {
    step: u64,
    folder: tempfile::TempDir,
    state: PathBuf,
}

impl Staged {
    /// An empty folder for what the run resumes from.
    pub fn state(&self) -> &Path {
        &self.state
    }
}

impl Publisher {
    /// A publisher of the run `spec` for its attempt `attempt`. Uploads run on `runtime`; calls come
    /// from a thread that is not one of its workers. What waits for its upload lies below `scratch`.
    pub fn new(store: Arc<dyn Store>, spec: &RunSpec, attempt: u64, runtime: Handle, scratch: PathBuf) -> Self {
        let target = Target {
            store,
            run_id: spec.run_id.clone(),
            model: spec.model.name.clone(),
            attempt,
            keep_resume_states: spec.save.keep_resume_states,
        };
        Self { target, runtime, source: spec.model.folder.clone(), scratch, upload: None }
    }

    /// Waits for the upload of the step before, and writes `model`, the weights after step `step`, to
    /// local disk as a Hugging Face folder.
    ///
    /// # Errors
    /// Those of the upload before, or of writing this step.
    pub fn stage(&mut self, step: u64, model: &Model) -> Result<Staged, Error> {
        self.finish()?;
        let folder = tempfile::Builder::new().prefix("gym-checkpoint-").tempdir_in(&self.scratch);
        let folder = folder.map_err(local("write", &self.scratch))?;
        let (target, state) = (folder.path().join(MODEL), folder.path().join(STATE));
        for folder in [&target, &state] {
            std::fs::create_dir(folder).map_err(local("write", folder))?;
        }
        write_model_folder(model, &self.source, &target)?;
        Ok(Staged { step, folder, state })
    }

    /// Publishes what is staged, with `cursor` as the resume state's [`CURSOR`], and returns while it
    /// is uploaded.
    ///
    /// # Errors
    /// When the cursor cannot be written. Those of the upload are told by the next call.
    pub fn publish(&mut self, staged: Staged, cursor: &[u8]) -> Result<(), Error> {
        self.finish()?;
        let cursor_file = staged.state.join(CURSOR);
        std::fs::write(&cursor_file, cursor).map_err(local("write", &cursor_file))?;
        let (target, step) = (self.target.clone(), staged.step);
        let upload = async move {
            // Dropped, and so removed, when the upload ends.
            let staged = staged;
            target.upload(step, staged.folder.path()).await.map_err(|source| Error::Publish { step, source })
        };
        self.upload = Some((step, self.runtime.spawn(upload)));
        Ok(())
    }

    /// Waits until everything handed over is in the store.
    ///
    /// # Errors
    /// Those of the upload.
    pub fn finish(&mut self) -> Result<(), Error> {
        match self.upload.take() {
            None => Ok(()),
            Some((step, task)) => match self.runtime.block_on(task) {
                Ok(outcome) => outcome,
                Err(source) => Err(Error::Aborted { step, source }),
            },
        }
    }
}

impl Target {
    async fn upload(&self, step: u64, scratch: &Path) -> Result<(), checkpoint::Error> {
        let store = &*self.store;
        for (kind, folder) in [(Kind::ResumeState, STATE), (Kind::Checkpoint, MODEL)] {
            let draft = Draft {
                kind,
                run_id: self.run_id.clone(),
                step,
                model: self.model.clone(),
                weight_version: WeightVersion(step),
                attempt: self.attempt,
            };
            checkpoint::publish(store, &scratch.join(folder), &draft).await?;
        }
        let states = checkpoint::states(store, Kind::ResumeState, &self.run_id).await?;
        let gone = checkpoint::retention(&states, self.keep_resume_states);
        checkpoint::carry_out(store, &self.run_id, &gone).await
    }
}

fn local(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Local { action, path, source }
}
