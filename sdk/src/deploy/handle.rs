//! The handle on a deployment: where it is, whether it lives, its log.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use training_gym_core::ids::AppName;
use training_gym_core::spec::{SecretRef, ServeSpec};

use super::launch::Kind;
use super::{CustomDeployment, Error, requests};
use crate::backend::{self, Backend, Job, JobId, JobState, LAST_LINES, LogOptions, Logs, Secret, Workload};
use crate::config::{Model, ModelSource};

/// Name of the bearer token among a service's secrets.
pub(super) const TOKEN: &str = "token";
const MODEL: &str = "model";
const REVISION: &str = "revision";
const FOLDER: &str = "folder";
const PROMISE: &str = "promise";

/// How long [`Deployment::stop`] lets a server finish what it is doing.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Pauses between two looks at one that is starting: from the first to the longest, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A running model behind HTTP: what [`Endpoint`](super::Endpoint) and
/// [`CustomDeployment`](super::CustomDeployment) have in common. Cheap to clone; dropping it stops
/// nothing.
#[derive(Clone)]
pub struct Deployment {
    pub(super) inner: Arc<Inner>,
    /// Whether [`Deployment::wait_until_ready`] also asks for log-probabilities.
    pub(super) probed: bool,
}

pub(super) struct Inner {
    backend: Arc<dyn Backend>,
    id: JobId,
    pub(super) spec: ServeSpec,
    pub(super) model: Model,
    pub(super) token: Option<Secret>,
    url: OnceLock<String>,
    url_for_jobs: OnceLock<String>,
    pub(super) client: reqwest::Client,
}

/// A deployment in a listing.
#[derive(Clone, Debug)]
pub struct DeploymentInfo {
    /// Its name.
    pub app_name: AppName,
    /// What its server calls the model.
    pub model: String,
    /// Whether it was launched as a [`CustomDeployment`](super::CustomDeployment), which promises
    /// log-probabilities.
    pub promises_logprobs: bool,
    /// Where it is in its life.
    pub state: JobState,
    /// Its address, where it answers.
    pub url: Option<String>,
    /// Unix seconds of its launch.
    pub launched_at: f64,
}

impl Deployment {
    /// A deployment by its name, live or dead.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub(crate) async fn find(backend: &Arc<dyn Backend>, app_name: &AppName) -> Result<Self, Error> {
        let id = JobId::serve(app_name);
        let not_found = || Error::NotFound { app_name: app_name.to_string() };
        let job = match backend.job(&id).await {
            Err(backend::Error::UnknownJob { .. }) => return Err(not_found()),
            other => other?,
        };
        let Workload::Serve { spec } = job.workload else { return Err(not_found()) };
        let token = match &spec.token {
            Some(_) => Some(backend.secret(&id, TOKEN).await?),
            None => None,
        };
        // The address is on this machine or in our cluster: never through a proxy.
        let client = reqwest::Client::builder().no_proxy().build().map_err(|error| Error::Unreachable {
            app_name: app_name.to_string(),
            path: "/",
            source: error.into(),
        })?;
        let model = model(&job.labels, &spec);
        let probed = promises_logprobs(&job.labels);
        let url = job.url.map(OnceLock::from).unwrap_or_default();
        let url_for_jobs = job.url_for_jobs.map(OnceLock::from).unwrap_or_default();
        let backend = backend.clone();
        let inner = Inner { backend, id, spec: *spec, model, token, url, url_for_jobs, client };
        Ok(Self { inner: Arc::new(inner), probed })
    }

    /// Its name.
    pub fn app_name(&self) -> &AppName {
        &self.inner.spec.app_name
    }

    /// The model it serves: for a checkpoint the one that was trained.
    pub fn model(&self) -> Model {
        self.inner.model
    }

    /// What its server calls the model: the `model` of OpenAI's protocol.
    pub fn served_model_name(&self) -> &str {
        &self.inner.spec.model.name
    }

    /// The base URL, such as `http://127.0.0.1:40123`. An OpenAI client takes this and `/v1`.
    ///
    /// # Errors
    /// [`Error::NoAddress`] until it has one: after [`Deployment::wait_until_ready`] it does.
    pub fn url(&self) -> Result<&str, Error> {
        let url = self.inner.url.get().map(String::as_str);
        url.ok_or_else(|| Error::NoAddress { app_name: self.app_name().to_string() })
    }

    /// The URL of SGLang's `/generate`, as jobs reach it: on a cluster the address within it.
    ///
    /// # Errors
    /// [`Error::NoAddress`], as [`Deployment::url`].
    pub fn generate_url(&self) -> Result<String, Error> {
        let url = self.inner.url_for_jobs.get();
        let url = url.ok_or_else(|| Error::NoAddress { app_name: self.app_name().to_string() })?;
        Ok(format!("{url}/generate"))
    }

    /// The bearer token that requests need; `None` where it serves without authentication.
    pub fn token(&self) -> Option<&Secret> {
        self.inner.token.as_ref()
    }

    /// Where a job finds the bearer token.
    pub(crate) fn token_ref(&self) -> Option<&SecretRef> {
        self.inner.spec.token.as_ref()
    }

    /// Where it is in its life.
    ///
    /// # Errors
    /// When its record is gone.
    pub async fn state(&self) -> Result<JobState, Error> {
        Ok(self.job().await?.state)
    }

    async fn job(&self) -> Result<Job, Error> {
        let job = self.inner.backend.job(&self.inner.id).await?;
        if let Some(url) = &job.url {
            self.inner.url.get_or_init(|| url.clone());
        }
        if let Some(url) = &job.url_for_jobs {
            self.inner.url_for_jobs.get_or_init(|| url.clone());
        }
        Ok(job)
    }

    /// Waits until it answers; a [`CustomDeployment`](super::CustomDeployment) must also give
    /// log-probabilities for a probe of eight tokens.
    ///
    /// # Errors
    /// [`Error::Died`] as soon as its process has ended, with its last log lines;
    /// [`Error::NotReady`] after `timeout`; [`Error::Probe`].
    pub async fn wait_until_ready(&self, timeout: Duration) -> Result<(), Error> {
        self.wait(timeout, true).await?;
        if self.probed { self.probe().await } else { Ok(()) }
    }

    /// Its log, from the beginning, until it is stopped.
    ///
    /// # Errors
    /// When its record is gone.
    pub async fn logs(&self) -> Result<Logs, Error> {
        Ok(self.inner.backend.logs(&self.inner.id, LogOptions { tail: None, follow: true }).await?)
    }

    /// Stops it, with every process it has; one that is stopped already is no error.
    ///
    /// # Errors
    /// When a local one's record is gone, or a process does not end even when killed.
    pub async fn stop(&self) -> Result<(), Error> {
        Ok(self.inner.backend.cancel(&self.inner.id, STOP_GRACE).await?)
    }

    /// Waits until it has an address and, where asked, says it is healthy.
    async fn wait(&self, timeout: Duration, healthy: bool) -> Result<(), Error> {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let job = self.job().await?;
            if let JobState::Ended(exit) = &job.state {
                return Err(self.died(exit.to_string()).await);
            }
            if job.url.is_some() && (!healthy || requests::healthy(self).await) {
                return Ok(());
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                let lines = self.last_lines().await;
                return Err(Error::NotReady { app_name: self.app_name().to_string(), waited: timeout, lines });
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Its address; of one that is still starting, once it has one.
    pub(super) async fn address(&self, timeout: Duration) -> Result<&str, Error> {
        if self.inner.url.get().is_none() {
            self.wait(timeout, false).await?;
        }
        self.url()
    }

    /// The error of a request that got no answer: its process may have ended.
    pub(super) async fn unanswered(&self, error: Error) -> Error {
        match self.state().await {
            Ok(JobState::Ended(exit)) => self.died(exit.to_string()).await,
            _ => error,
        }
    }

    async fn died(&self, exit: String) -> Error {
        Error::Died { app_name: self.app_name().to_string(), exit, lines: self.last_lines().await }
    }

    async fn last_lines(&self) -> Vec<String> {
        let options = LogOptions { tail: Some(LAST_LINES), follow: false };
        match self.inner.backend.logs(&self.inner.id, options).await {
            Ok(logs) => logs.lines().await.unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }
}

impl fmt::Debug for Deployment {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Deployment")
            .field("app_name", &self.inner.spec.app_name)
            .field("model", &self.inner.spec.model.name)
            .field("url", &self.inner.url.get())
            .finish_non_exhaustive()
    }
}

impl DeploymentInfo {
    /// What a job's record says, if it is a deployment's.
    pub(crate) fn of(job: Job) -> Option<Self> {
        let Workload::Serve { spec } = job.workload else { return None };
        Some(Self {
            app_name: spec.app_name,
            model: spec.model.name,
            promises_logprobs: promises_logprobs(&job.labels),
            state: job.state,
            url: job.url,
            launched_at: job.submitted_at,
        })
    }
}

fn promises_logprobs(labels: &BTreeMap<String, String>) -> bool {
    labels.get(PROMISE).is_some_and(|promise| promise == CustomDeployment::PROMISE)
}

/// What a later handle needs to know of a deployment beside its spec.
pub(super) fn labels(model: Model, promise: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([(PROMISE.to_owned(), promise.to_owned())]);
    match model.source() {
        ModelSource::Hub { repo, revision } => {
            labels.insert(MODEL.to_owned(), repo.to_owned());
            labels.insert(REVISION.to_owned(), revision.to_owned());
        }
        ModelSource::Stored(url) => {
            labels.insert(MODEL.to_owned(), url.to_owned());
            labels.insert(REVISION.to_owned(), "main".to_owned());
        }
        ModelSource::Folder(path) => {
            labels.insert(FOLDER.to_owned(), path.to_string_lossy().into_owned());
        }
    }
    labels
}

fn model(labels: &BTreeMap<String, String>, spec: &ServeSpec) -> Model {
    match (labels.get(MODEL), labels.get(REVISION), labels.get(FOLDER)) {
        (Some(repo), Some(revision), _) if revision != "main" => Model::hub(repo).with_revision(revision),
        (Some(repo), _, _) => Model::hub(repo),
        (None, _, Some(folder)) => Model::folder(folder),
        (None, _, None) => Model::folder(&spec.model.folder),
    }
}
