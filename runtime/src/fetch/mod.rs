//! `gym-runtime fetch`: what a job needs of the outside, brought to its machine before it starts.
//!
//! The person's program comes by its hash, the model's files by a manifest whose hash the spec names, or
//! from the hub at the commit the launch saw. Everything appears whole or not at all, and what is there
//! already is taken as it is, so several pods may fetch into one volume, and one that was ended goes on
//! where it stopped. It alone and the trainer hold credentials; the program that is fetched does not run
//! here.

mod model;
mod program;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use training_gym_core::ids::{ContentHash, RunId};
use training_gym_core::record::{Cause, STOPPED, keys};
use training_gym_core::spec::{DistillSpec, ModelSpec, ProgramRef, RunSpec, VersionedRunSpec};
use training_gym_core::store::{self, Store};
use training_gym_core::stored;
use training_gym_hub as hub;

use crate::settings::{self, FetchOptions};

/// Why something was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error("cannot fetch from the store")]
    Store(#[from] store::Error),
    /// The spec is none.
    #[error("`{key}` is not a run's spec; launch the run again with a new id")]
    Spec {
        /// Its key.
        key: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A deployment's spec is none.
    #[error(transparent)]
    ServeSpec(#[from] settings::Error),
    /// A run with a reward function needs its program, and there is no place for it.
    #[error("run {run} has a reward function, and its program has no folder here: add --program-folder")]
    NoProgramFolder {
        /// The run.
        run: RunId,
    },
    /// What was fetched is not what the spec names.
    #[error("{what} has sha256 {found}, not {expected}: it was replaced after the launch; launch again")]
    Replaced {
        /// Which thing.
        what: String,
        /// What it has.
        found: ContentHash,
        /// What it should have.
        expected: ContentHash,
    },
    /// The model's manifest is not used.
    #[error("cannot fetch model `{model}`")]
    Manifest {
        /// The model.
        model: String,
        /// Why.
        #[source]
        source: stored::Error,
    },
    /// Another model lies where this one belongs.
    #[error(
        "{} holds something else than model `{model}`: {difference}; remove that folder, or use another volume",
        path.display()
    )]
    Occupied {
        /// The folder.
        path: PathBuf,
        /// The model.
        model: String,
        /// What differs.
        difference: String,
    },
    /// Nobody can say where the model's files are.
    #[error(
        "model `{model}` is neither at {} nor in the store nor of a hub: a job on another machine cannot see a folder \
         of yours; launch it from the machine that has the folder, which stores it",
        path.display()
    )]
    Nowhere {
        /// The model.
        model: String,
        /// Where it was expected.
        path: PathBuf,
    },
    /// The hub.
    #[error("cannot fetch model `{model}` from the hub")]
    Hub {
        /// The model.
        model: String,
        /// Why.
        #[source]
        source: Box<hub::Error>,
    },
    /// The disk.
    #[error("cannot {action} {}; check the volume's free space and permissions", path.display())]
    Disk {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    fn disk(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Disk { action, path, source }
    }

    /// The kind, for the exit code.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Store(store::Error::Invalid { .. }) => Cause::InvalidInput,
            Self::Store(_) | Self::Replaced { .. } | Self::Manifest { .. } | Self::Disk { .. } => Cause::Store,
            _ => Cause::InvalidInput,
        }
    }
}

/// What is to be fetched.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The models: what is trained or served, then a teacher beside it.
    pub models: Vec<ModelSpec>,
    /// The person's program, and the folder it goes to.
    pub program: Option<(ProgramRef, PathBuf)>,
}

/// Fetches what `options` name and returns the process's exit code. SIGTERM ends it at once; what came
/// so far stays for the next try.
pub fn run(options: &FetchOptions) -> u8 {
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(Cause::Internal, &error),
    };
    let code = runtime.block_on(async {
        // Registered by hand: nobody ends a process 1 that listens for nothing.
        let mut term = match signal(SignalKind::terminate()) {
            Ok(term) => term,
            Err(error) => return complain(Cause::Internal, &error),
        };
        tokio::select! {
            fetched = fetch_as(options) => match fetched {
                Ok(()) => 0,
                Err(error) => complain(error.cause(), &error),
            },
            _ = term.recv() => {
                tracing::info!("asked to stop; what has come stays for the next try");
                STOPPED
            }
        }
    });
    runtime.shutdown_background();
    code
}

fn complain(cause: Cause, error: &dyn std::error::Error) -> u8 {
    tracing::error!("{}", training_gym_core::chain(error));
    cause.exit_code()
}

async fn fetch_as(options: &FetchOptions) -> Result<(), Error> {
    let store = store::open(&options.store)?;
    let wanted = match (&options.run, &options.spec) {
        (Some(run), _) => of_run(&*store, run, options.program_folder.as_deref()).await?,
        (None, Some(path)) => Wanted { models: vec![settings::serve_spec(path)?.model], program: None },
        (None, None) => unreachable!("the command line has one of them"),
    };
    fetch(store, &wanted).await
}

/// What a run needs.
///
/// # Errors
/// When its spec cannot be read, or it needs a folder that is not given.
pub async fn of_run(store: &dyn Store, run: &RunId, programs: Option<&Path>) -> Result<Wanted, Error> {
    let key = keys::spec(run);
    let object = store.get(&key).await?;
    let VersionedRunSpec::V1(RunSpec { model, distill, reward, .. }) =
        serde_json::from_slice(&object.bytes).map_err(|source| Error::Spec { key, source })?;
    let program = match (reward, programs) {
        (None, _) => None,
        (Some(reward), Some(folder)) => Some((reward.program, folder.to_owned())),
        // Its worker has a pod of its own, which the trainer brings it to.
        (Some(reward), None) if !reward.egress.is_none() => None,
        (Some(_), None) => return Err(Error::NoProgramFolder { run: run.clone() }),
    };
    Ok(Wanted { models: models(model, distill), program })
}

/// The student, and the teacher that is computed beside it.
fn models(student: ModelSpec, distill: Option<DistillSpec>) -> Vec<ModelSpec> {
    std::iter::once(student).chain(distill.map(|distill| distill.teacher)).collect()
}

/// Fetches it.
///
/// # Errors
/// [`Error`].
pub async fn fetch(store: Arc<dyn Store>, wanted: &Wanted) -> Result<(), Error> {
    if let Some((program, folder)) = &wanted.program {
        program::fetch(&*store, program, folder).await?;
    }
    for model in &wanted.models {
        model::fetch(Arc::clone(&store), model).await?;
    }
    Ok(())
}

/// Hashes a file off the async threads.
async fn hash(path: &Path) -> Result<ContentHash, Error> {
    let file = path.to_owned();
    let hashed = tokio::task::spawn_blocking(move || ContentHash::of_file(&file)).await;
    hashed.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(Error::disk("read", path))
}

#[cfg(test)]
mod tests;
