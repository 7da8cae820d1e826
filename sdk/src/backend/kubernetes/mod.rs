//! Jobs on a Kubernetes cluster.
//!
//! A training run is a Job, a deployment a Deployment with a Service: `crate::manifest` makes them, in
//! pure functions. This room talks to the API server: it makes the objects, looks at them, follows
//! logs, forwards ports, and removes what it made.
//!
//! **Order of making.** The Job (suspended) or Deployment (without pods) comes first, then what it
//! owns, then it is let go. So whatever is cut short, every object has an owner, and the next launch
//! of the same job finishes the work.
//!
//! **What is the same.** An annotation holds the hash of all that was asked for; a live job of the
//! same hash is adopted, another is refused with the first field that differs.
//!
//! **Retries.** The cluster starts a training job's pod again, a counted number of times; the new
//! trainer goes on from the last published state and takes the run's lease. The old pod is gone by then.

mod access;
mod ask;
mod client;
mod collect;
mod credentials;
mod doctor;
mod error;
mod forward;
mod logs;
mod look;
mod reward;
mod seam;
mod stop;
mod submit;
mod why;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1 as core;
use tokio::sync::OnceCell;
use training_gym_core::spec::SecretRef;
use training_gym_core::store::Store;

pub use crate::manifest::{InvalidOption, KubernetesOptions, PullPolicy};
pub use error::ClusterError;

use self::client::Cluster;
use self::forward::Forward;
use super::{
    Answer, Backend, Error, Job, JobId, LogOptions, Logs, Orphan, Question, Request, Resources, Secret, Share,
    Submitted,
};
use crate::doctor::Finding;
use crate::manifest::{PORT, SECRETS, slug};
use crate::program::abi::Image;

/// Where models that were put into the store are in a pod.
const MODELS: &str = "/models";
/// How often a job is looked at while somebody waits.
const POLL: Duration = Duration::from_secs(2);

/// The backend that runs jobs on a cluster. Cheap to clone.
#[derive(Clone)]
pub struct KubernetesBackend {
    inner: Arc<Inner>,
}

struct Inner {
    cluster: Arc<Cluster>,
    options: KubernetesOptions,
    /// As this program reaches it.
    store: Arc<dyn Store>,
    /// As pods reach it.
    store_url: String,
    hub_token: Option<Secret>,
    /// A `gym-runtime` of this machine to ask, instead of the one that is found.
    runtime: Option<PathBuf>,
    allowed: OnceCell<()>,
    forwards: Mutex<HashMap<JobId, Forward>>,
}

impl KubernetesBackend {
    /// A backend on the cluster that kubeconfig names, with `store` for what jobs read and write. It
    /// connects when it is first used.
    ///
    /// # Errors
    /// Where an option cannot be used, or pods could not reach the store.
    pub fn new(options: KubernetesOptions, store: Arc<dyn Store>) -> Result<Self, ClusterError> {
        let cluster = Cluster::new(options.namespace.clone());
        Self::on(cluster, options, store)
    }

    /// A backend on the cluster of this configuration.
    ///
    /// # Errors
    /// As [`KubernetesBackend::new`].
    pub fn with_config(
        config: kube::Config,
        options: KubernetesOptions,
        store: Arc<dyn Store>,
    ) -> Result<Self, ClusterError> {
        let cluster = Cluster::with_config(config, options.namespace.clone());
        Self::on(cluster, options, store)
    }

    fn on(cluster: Cluster, options: KubernetesOptions, store: Arc<dyn Store>) -> Result<Self, ClusterError> {
        options.check()?;
        let store_url = options.store_in_cluster.clone().unwrap_or_else(|| store.url());
        if !store_url.starts_with("s3://") {
            return Err(ClusterError::LocalStore { store: store_url });
        }
        Ok(Self {
            inner: Arc::new(Inner {
                cluster: Arc::new(cluster),
                options,
                store,
                store_url,
                hub_token: None,
                runtime: None,
                allowed: OnceCell::new(),
                forwards: Mutex::default(),
            }),
        })
    }

    fn change(self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = self.inner;
        if let Some(inner) = Arc::get_mut(&mut inner) {
            change(inner);
        }
        Self { inner }
    }

    /// Lets pods fetch gated models of the hub with this token.
    pub(crate) fn with_hub_token(self, token: Option<Secret>) -> Self {
        self.change(|inner| inner.hub_token = token)
    }

    /// Asks this `gym-runtime` of this machine what a launch asks, instead of one that is found.
    #[must_use]
    pub fn with_runtime(self, program: impl Into<PathBuf>) -> Self {
        let program = program.into();
        self.change(|inner| inner.runtime = Some(program))
    }

    /// The namespace its objects are in.
    pub fn namespace(&self) -> &str {
        &self.inner.cluster.namespace
    }

    /// Checks that the cluster answers and allows all that this backend does.
    ///
    /// # Errors
    /// [`ClusterError::MissingPermissions`] with all that is missing; [`ClusterError::Unreachable`]
    /// and the like.
    pub async fn check_access(&self) -> Result<(), ClusterError> {
        self.inner.cluster.check_access().await
    }

    /// As [`KubernetesBackend::check_access`], once.
    async fn allowed(&self) -> Result<(), ClusterError> {
        self.inner.allowed.get_or_try_init(|| self.check_access()).await.map(drop)
    }

    fn cluster(&self) -> &Cluster {
        &self.inner.cluster
    }

    fn unknown(&self, id: &JobId) -> Error {
        Error::UnknownJob { id: id.clone(), backend: self.name() }
    }

    /// The address of a service within the cluster.
    fn service_url(&self, id: &JobId) -> String {
        format!("http://{}.{}.svc:{PORT}", slug(id.as_str()), self.namespace())
    }

    /// The address on this machine of a service that answers.
    async fn forwarded(&self, id: &JobId) -> Result<String, Error> {
        {
            let forwards = self.inner.forwards.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(forward) = forwards.get(id).filter(|forward| forward.lives()) {
                return Ok(forward.url().to_owned());
            }
        }
        let forward = Forward::open(Arc::clone(&self.inner.cluster), slug(id.as_str()))
            .await
            .map_err(|source| Error::Io { action: "listen on", path: "127.0.0.1".into(), source })?;
        let mut forwards = self.inner.forwards.lock().unwrap_or_else(PoisonError::into_inner);
        // Two that ask at once get one.
        let kept = forwards.entry(id.clone()).or_insert_with(|| forward);
        Ok(kept.url().to_owned())
    }
}

impl fmt::Debug for KubernetesBackend {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("KubernetesBackend")
            .field("namespace", &self.inner.cluster.namespace)
            .field("store", &self.inner.store_url)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for KubernetesBackend {
    fn name(&self) -> String {
        format!("namespace `{}` of the cluster", self.namespace())
    }

    fn listen_on(&self) -> (&str, u16) {
        ("0.0.0.0", PORT)
    }

    fn models(&self) -> Option<&str> {
        Some(MODELS)
    }

    fn fetches_from_hub(&self) -> bool {
        self.inner.options.hub_cache_claim.is_some()
    }

    fn store_for_jobs(&self, _store: &str) -> String {
        self.inner.store_url.clone()
    }

    fn image(&self) -> Option<Image> {
        Some(Image::RELEASED)
    }

    fn fast_bfloat16(&self) -> bool {
        // Nobody knows the node's CPU before the pod is there.
        false
    }

    fn not_applied(&self, _resources: &Resources) -> Option<String> {
        None
    }

    fn poll_interval(&self) -> Duration {
        POLL
    }

    async fn ask(&self, question: Question) -> Result<Answer, Error> {
        self.answer(question).await
    }

    async fn share(&self, id: &JobId) -> Result<Share, Error> {
        let threads = match self.owner(id).await? {
            Some(owner) => owner.asked()?.threads(),
            None => 1,
        };
        Ok(Share::new(threads, ()))
    }

    fn secret_ref(&self, id: &JobId, name: &str) -> SecretRef {
        SecretRef::File(PathBuf::from(format!("{SECRETS}/{id}/{name}")))
    }

    async fn secret(&self, id: &JobId, name: &str) -> Result<Secret, Error> {
        let object = slug(id.as_str());
        let secret = self.cluster().get::<core::Secret>(&object).await?;
        let value = secret.and_then(|secret| secret.data?.remove(name));
        let missing = || ClusterError::Record { name: object, why: format!("it has no key `{name}`") };
        let value = value.ok_or_else(missing)?;
        Ok(Secret::new(String::from_utf8_lossy(&value.0).lines().next().unwrap_or_default()))
    }

    async fn carried_secret(&self, place: &SecretRef) -> Result<Option<Secret>, Error> {
        let SecretRef::File(path) = place else { return Ok(None) };
        let Ok(rest) = path.strip_prefix(SECRETS) else { return Ok(None) };
        let mut parts = rest.iter().filter_map(|part| part.to_str());
        let (Some(id), Some(name), None) = (parts.next(), parts.next(), parts.next()) else { return Ok(None) };
        self.secret(&JobId::read(id), name).await.map(Some)
    }

    async fn reachable(&self, url: &str) -> Result<String, Error> {
        for job in self.list().await? {
            let Some(inside) = &job.url_for_jobs else { continue };
            if let Some(path) =
                url.strip_prefix(inside.as_str()).filter(|path| path.is_empty() || path.starts_with('/'))
            {
                return Ok(format!("{}{path}", self.forwarded(&job.id).await?));
            }
        }
        Ok(url.to_owned())
    }

    async fn submit(&self, request: Request) -> Result<Submitted, Error> {
        self.start(request).await
    }

    async fn job(&self, id: &JobId) -> Result<Job, Error> {
        self.look(id).await
    }

    async fn logs(&self, id: &JobId, options: LogOptions) -> Result<Logs, Error> {
        self.owner(id).await?.ok_or_else(|| self.unknown(id))?;
        Ok(logs::lines(self.clone(), id.clone(), options))
    }

    async fn cancel(&self, id: &JobId, grace: Duration) -> Result<(), Error> {
        self.stop(id, grace).await
    }

    async fn list(&self) -> Result<Vec<Job>, Error> {
        self.look_at_all().await
    }

    async fn orphans(&self) -> Result<Vec<Orphan>, Error> {
        self.find_orphans().await
    }

    async fn remove(&self, orphan: &Orphan) -> Result<(), Error> {
        self.remove_orphan(orphan).await
    }

    async fn doctor(&self, resources: &Resources) -> Vec<Finding> {
        self.findings(resources).await
    }
}
