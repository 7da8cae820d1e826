//! The client: which backend runs jobs, which store holds what they read and write.
//!
//! [`Gym::from_env`] is what `launch()` uses unless `.on(&gym)` names another. There is no global
//! client: two can live in one program.

mod model;
mod orphans;
mod staging;
mod stored;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use training_gym_core::ids::{AppName, RunId};
use training_gym_core::store::{self, FileStore, Store};

#[cfg(feature = "kubernetes")]
use crate::backend::Secret;
#[cfg(feature = "kubernetes")]
use crate::backend::kubernetes::{ClusterError, KubernetesBackend, KubernetesOptions};
use crate::backend::{Backend, LocalBackend};
use crate::deploy::{self, Deployment, DeploymentInfo};
use crate::hub::{self, Hub};
use crate::run::{self, RunInfo, TrainRun};

pub(crate) use model::ModelError;
pub use orphans::Leftover;
#[cfg(feature = "kubernetes")]
pub(crate) use staging::stage;
pub(crate) use stored::Spot;

/// The variable that names the state folder.
const HOME_VARIABLE: &str = "TRAINING_GYM_HOME";
/// The variable that names the backend.
const BACKEND_VARIABLE: &str = "TRAINING_GYM_BACKEND";
/// The variable that names the store.
const STORE_VARIABLE: &str = "TRAINING_GYM_STORE";
const BACKEND_REMEDY: &str = "set `TRAINING_GYM_BACKEND` to `local` or `kubernetes`, or leave it unset for `local`";
const STORE_REMEDY: &str = "set `TRAINING_GYM_STORE` to an `s3://bucket/prefix` that you and the cluster's pods reach";
/// The state folder under the person's home.
const DEFAULT_HOME: &str = ".local/share/training-gym";
const HOME_REMEDY: &str =
    "set `TRAINING_GYM_HOME` (or the argument of `Gym::local`) to a folder that can be made and written";

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither the variable nor a home folder says where state goes.
    #[error("neither `{HOME_VARIABLE}` nor `HOME` says where jobs and checkpoints go; {HOME_REMEDY}")]
    NoHome,
    /// The state folder cannot be made or written.
    #[error("`{}` cannot be the state folder; {HOME_REMEDY}", path.display())]
    Home {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// No backend has this name.
    #[error("`{BACKEND_VARIABLE}` = `{given}`: there is no such backend; {BACKEND_REMEDY}")]
    NoBackend {
        /// As given.
        given: String,
    },
    /// A cluster needs a store that its pods reach.
    #[error("no store is named, and pods do not see this machine's folders; {STORE_REMEDY}")]
    NoStore,
    /// The cluster's options cannot be used.
    #[cfg(feature = "kubernetes")]
    #[error(transparent)]
    Cluster(#[from] crate::backend::kubernetes::ClusterError),
    /// The settings of the hub cannot be used.
    #[error(transparent)]
    Hub(#[from] hub::Error),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Error {
    /// The part of the message that says what to do, where there is something to do.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::NoBackend { .. } => Some(BACKEND_REMEDY),
            Self::NoStore => Some(STORE_REMEDY),
            #[cfg(feature = "kubernetes")]
            Self::Cluster(error) => error.hint(),
            Self::NoHome | Self::Home { .. } => Some(HOME_REMEDY),
            Self::Hub(_) | Self::Store(_) => None,
        }
    }
}

/// A client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gym {
    inner: Arc<Inner>,
}

#[derive(Clone, Debug)]
struct Inner {
    backend: Arc<dyn Backend>,
    store: Arc<dyn Store>,
    hub: Hub,
    home: PathBuf,
}

impl Gym {
    /// The client that the environment describes. By default the embedded one: processes of this
    /// machine, with state under `TRAINING_GYM_HOME` (default `~/.local/share/training-gym`) and the
    /// hub that its variables name. `TRAINING_GYM_STORE` names another store;
    /// `TRAINING_GYM_BACKEND=kubernetes` a cluster, with the variables that `docs/guides/kubernetes.md`
    /// lists.
    ///
    /// # Errors
    /// When no folder can be state, or a variable cannot be used.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_env_in(home()?)
    }

    /// As [`Gym::from_env`], with its state under `home` whatever `TRAINING_GYM_HOME` says.
    ///
    /// # Errors
    /// As [`Gym::from_env`].
    pub fn from_env_in(home: impl Into<PathBuf>) -> Result<Self, Error> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let store = set(STORE_VARIABLE);
        match set(BACKEND_VARIABLE).as_deref() {
            None | Some("local") => {
                let gym = Self::local(home)?;
                match store {
                    Some(url) => Ok(gym.with_store(store::open(&url)?)),
                    None => Ok(gym),
                }
            }
            #[cfg(feature = "kubernetes")]
            Some("kubernetes") => {
                let options = KubernetesOptions::from_env().map_err(ClusterError::from)?;
                Self::of_cluster(Self::local(home)?, &store.ok_or(Error::NoStore)?, options)
            }
            Some(other) => Err(Error::NoBackend { given: other.to_owned() }),
        }
    }

    /// A client of the cluster that kubeconfig names, with the store at `store`, which pods reach as
    /// well. Copies of what is in the store are kept under `TRAINING_GYM_HOME`.
    ///
    /// # Errors
    /// When an option or the store's URL cannot be used. The cluster is first asked when it is needed.
    #[cfg(feature = "kubernetes")]
    pub fn kubernetes(store: &str, options: KubernetesOptions) -> Result<Self, Error> {
        Self::of_cluster(Self::local(home()?)?, store, options)
    }

    /// The same with the state folder of `gym`.
    #[cfg(feature = "kubernetes")]
    fn of_cluster(gym: Self, store: &str, options: KubernetesOptions) -> Result<Self, Error> {
        let store = store::open(store)?;
        let token = gym.hub().options().token.as_ref().map(|token| Secret::new(token.reveal()));
        let backend = KubernetesBackend::new(options, Arc::clone(&store))?.with_hub_token(token);
        Ok(gym.with_backend(Arc::new(backend)).with_store(store))
    }

    /// The embedded client with its state under `home`.
    ///
    /// # Errors
    /// As [`Gym::from_env`].
    pub fn local(home: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = home.into();
        let home = std::path::absolute(&path).map_err(|source| Error::Home { path, source })?;
        let store = FileStore::open(home.join("store")).map_err(|error| match error {
            store::Error::Folder { source, .. } => Error::Home { path: home.clone(), source },
            other => other.into(),
        })?;
        let store = Arc::new(store);
        let backend = Arc::new(LocalBackend::new(&home));
        Ok(Self { inner: Arc::new(Inner { backend, store, hub: Hub::from_env()?, home }) })
    }

    /// The same client on the local backend, with this `gym-runtime` program instead of the one that
    /// is found: see [`LocalBackend::with_runtime`].
    #[must_use]
    pub fn with_runtime(self, program: impl Into<PathBuf>) -> Self {
        let program = program.into();
        self.change(|inner| inner.backend = Arc::new(LocalBackend::new(&inner.home).with_runtime(program)))
    }

    /// The same client with another backend.
    #[must_use]
    pub fn with_backend(self, backend: Arc<dyn Backend>) -> Self {
        self.change(|inner| inner.backend = backend)
    }

    /// The same client with another store.
    #[must_use]
    pub fn with_store(self, store: Arc<dyn Store>) -> Self {
        self.change(|inner| inner.store = store)
    }

    /// The same client with another hub for models.
    #[must_use]
    pub fn with_hub(self, hub: Hub) -> Self {
        self.change(|inner| inner.hub = hub)
    }

    fn change(self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.inner);
        change(&mut inner);
        Self { inner: Arc::new(inner) }
    }

    /// Where jobs run.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// Where artefacts are.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Where models come from.
    pub fn hub(&self) -> &Hub {
        &self.inner.hub
    }

    /// The state folder.
    pub fn home(&self) -> &Path {
        &self.inner.home
    }

    /// Where copies of remote artefacts are kept.
    pub(crate) fn cache(&self) -> PathBuf {
        self.inner.home.join("cache")
    }

    /// The deployments that were not stopped, by name: those that run, and those whose process ended
    /// by itself.
    ///
    /// # Errors
    /// When their records cannot be read.
    pub async fn deployments(&self) -> Result<Vec<DeploymentInfo>, deploy::Error> {
        let jobs = self.backend().list().await?.into_iter();
        Ok(jobs.filter(|job| !job.state.was_cancelled()).filter_map(DeploymentInfo::of).collect())
    }

    /// A deployment by its name, also one that another program launched.
    ///
    /// # Errors
    /// [`deploy::Error::NotFound`].
    pub async fn deployment(&self, app_name: &str) -> Result<Deployment, deploy::Error> {
        let app_name: AppName = app_name.parse()?;
        Deployment::find(self.backend(), &app_name).await
    }

    /// All runs in the store, by id, with their state.
    ///
    /// # Errors
    /// When the store or the backend fails.
    pub async fn runs(&self) -> Result<Vec<RunInfo>, run::Error> {
        run::list(self).await
    }

    /// A run by its id, also one that another program launched.
    ///
    /// # Errors
    /// [`run::Error::NotFound`].
    pub async fn run(&self, run_id: &str) -> Result<TrainRun, run::Error> {
        let run_id: RunId = run_id.parse()?;
        TrainRun::find(self, &run_id).await
    }
}

/// The state folder that the environment names.
fn home() -> Result<PathBuf, Error> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set(HOME_VARIABLE).or_else(|| Some(set("HOME")?.join(DEFAULT_HOME))).ok_or(Error::NoHome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_that_cannot_be_is_named_with_cause_and_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let below = file.join("home");
        // Nobody, root included, makes folders in /proc.
        for home in [file.as_path(), &below, Path::new("/proc/gym")] {
            let error = Gym::local(home).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&format!("`{}`", home.display())), "{text}");
            assert!(text.contains("TRAINING_GYM_HOME") && error.hint().is_some(), "{text}");
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains("os error"), "{cause}");
        }
    }
}
