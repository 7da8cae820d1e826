//! New weights to the store: a checkpoint anyone may load, and the state a run resumes from.
//!
//! [`Publisher::checkpoint`] writes both into a local folder at once (the weights are about to
//! change) and uploads them beside the next step; the next call waits for the upload before.
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

use crate::update::Updater;
pub use folder::{copy_companions, set_dtype, write_model_folder};

/// The file of a resume state that holds the caller's own document.
pub const CURSOR: &str = "cursor.json";

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
    /// The source model's `config.json` is not JSON.
    #[error("{} is not JSON; restore the model's own", path.display())]
    Config {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The weights could not be written.
    #[error("cannot write the model's weights")]
    Weights(#[source] crate::model::Error),
    /// The optimizer could not be written.
    #[error("cannot write the resume state of step {step}")]
    State {
        /// The step.
        step: u64,
        /// Why.
        #[source]
        source: crate::update::Error,
    },
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
    keep_resume_states: usize,
}

impl Publisher {
    /// A publisher of the run `spec`. Uploads run on `runtime`; calls come from a thread that is
    /// not one of its workers. What waits for its upload lies below `scratch`.
    pub fn new(store: Arc<dyn Store>, spec: &RunSpec, runtime: Handle, scratch: PathBuf) -> Self {
        let target = Target {
            store,
            run_id: spec.run_id.clone(),
            model: spec.model.name.clone(),
            keep_resume_states: spec.save.keep_resume_states,
        };
        Self { target, runtime, source: spec.model.folder.clone(), scratch, upload: None }
    }

    /// Publishes the weights after step `step` as a Hugging Face folder, and the resume state: the
    /// optimizer, and `cursor` as [`CURSOR`]. Waits for the upload of the step before, writes both
    /// to local disk, and returns while they are uploaded.
    ///
    /// # Errors
    /// Those of the upload before, or of writing this step.
    pub fn checkpoint(&mut self, step: u64, updater: &Updater, cursor: &[u8]) -> Result<(), Error> {
        self.finish()?;
        let scratch = tempfile::Builder::new().prefix("gym-checkpoint-").tempdir_in(&self.scratch);
        let scratch = scratch.map_err(local("write", &self.scratch))?;
        let (model, state) = (scratch.path().join("model"), scratch.path().join("state"));
        for folder in [&model, &state] {
            std::fs::create_dir(folder).map_err(local("write", folder))?;
        }
        write_model_folder(updater.model(), &self.source, &model)?;
        updater.save_state(&state).map_err(|source| Error::State { step, source })?;
        let cursor_file = state.join(CURSOR);
        std::fs::write(&cursor_file, cursor).map_err(local("write", &cursor_file))?;

        let target = self.target.clone();
        let upload = async move {
            // Dropped, and so removed, when the upload ends.
            let scratch = scratch;
            target.upload(step, scratch.path()).await.map_err(|source| Error::Publish { step, source })
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
        for (kind, folder) in [(Kind::ResumeState, "state"), (Kind::Checkpoint, "model")] {
            let draft = Draft {
                kind,
                run_id: self.run_id.clone(),
                step,
                model: self.model.clone(),
                weight_version: WeightVersion(step),
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
