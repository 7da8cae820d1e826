//! The way to the API server: found late, kept, found again when credentials expire; each call with a
//! time limit, and tried again for a while when the server is away.

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{Attempt, ClusterError, is_transient, sorted};

/// An API server that restarts is back within this.
const PATIENCE: Duration = Duration::from_secs(60);
/// One call takes no longer.
const CALL: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A server that has just started knows no roles yet, and forbids what it allows a moment later.
const WARM_UP: Duration = Duration::from_secs(20);
/// Things done that are remembered.
const REMEMBERED: usize = 4096;
/// Who writes what is applied.
const FIELD_MANAGER: &str = "training-gym";
const IN_CLUSTER_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// A cluster and a namespace of it.
pub(super) struct Cluster {
    pub(super) namespace: String,
    connected: Mutex<Option<(Client, String)>>,
    given: Option<Config>,
    /// What was done before: if it is forbidden now, the server has just started.
    done: Mutex<HashSet<String>>,
}

impl Cluster {
    /// The cluster that kubeconfig or the pod's own service account names. Nothing is read but the
    /// namespace, where none is given.
    pub(super) fn new(namespace: Option<String>) -> Self {
        let namespace = namespace.or_else(of_kubeconfig).or_else(of_pod).unwrap_or_else(|| "default".to_owned());
        Self { namespace, connected: Mutex::default(), given: None, done: Mutex::default() }
    }

    /// A cluster by its own configuration.
    pub(super) fn with_config(config: Config, namespace: Option<String>) -> Self {
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        Self { namespace, connected: Mutex::default(), given: Some(config), done: Mutex::default() }
    }

    fn kept(&self) -> Option<(Client, String)> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn forget(&self) {
        *self.connected.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn remember(&self, action: &str) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if done.len() < REMEMBERED && !done.contains(action) {
            done.insert(action.to_owned());
        }
    }

    fn did(&self, action: &str) -> bool {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).contains(action)
    }

    /// The URL of the API server, where it is known.
    pub(super) fn server(&self) -> String {
        self.kept().map_or_else(|| "an unknown address".to_owned(), |(_, server)| server)
    }

    pub(super) async fn client(&self) -> Result<Client, ClusterError> {
        if let Some((client, _)) = self.kept() {
            return Ok(client);
        }
        let config = match &self.given {
            Some(config) => config.clone(),
            None => infer().await?,
        };
        let server = config.cluster_url.to_string();
        let at = Attempt { action: "connect", server: &server, namespace: &self.namespace };
        let client = Client::try_from(config).map_err(|error| sorted(&error, at))?;
        *self.connected.lock().unwrap_or_else(PoisonError::into_inner) = Some((client.clone(), server));
        Ok(client)
    }

    /// Calls until there is an answer that stays, for as long as a restart of the API server takes.
    pub(super) async fn call<T, F>(&self, action: &str, call: impl Fn(Client) -> F) -> Result<T, ClusterError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        self.call_within(PATIENCE, action, call).await.map_err(|error| self.sorted(action, error))
    }

    /// As [`Cluster::call`], where something not being there is an answer.
    async fn call_optional<T, F>(&self, action: &str, call: impl Fn(Client) -> F) -> Result<Option<T>, ClusterError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        match self.call_within(PATIENCE, action, call).await {
            Ok(found) => Ok(Some(found)),
            Err(Failed::Call(kube::Error::Api(status)))
                if status.code == 404 && !status.message.starts_with("namespaces ") =>
            {
                Ok(None)
            }
            Err(error) => Err(self.sorted(action, error)),
        }
    }

    pub(super) async fn call_within<T, F>(
        &self,
        patience: Duration,
        action: &str,
        call: impl Fn(Client) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut renewed = false;
        loop {
            let client = self.client().await.map_err(Failed::Sorted)?;
            let failed = match tokio::time::timeout(CALL, call(client)).await {
                Ok(Ok(answer)) => {
                    self.remember(action);
                    return Ok(answer);
                }
                Ok(Err(error)) => error,
                Err(_) => {
                    let waited = begun.elapsed();
                    if waited > patience {
                        return Err(Failed::Sorted(ClusterError::Timeout { action: action.to_owned(), waited }));
                    }
                    continue;
                }
            };
            // A token that has expired is renewed where the kubeconfig says how.
            let expired = matches!(&failed, kube::Error::Api(status) if status.code == 401);
            if expired && !renewed {
                renewed = true;
                self.forget();
                continue;
            }
            let forbidden = matches!(&failed, kube::Error::Api(status) if status.code == 403);
            let warming = forbidden && begun.elapsed() < WARM_UP && self.did(action);
            if !(is_transient(&failed) || warming) || begun.elapsed() + pause > patience {
                return Err(Failed::Call(failed));
            }
            tracing::debug!(action, "the API server did not answer; trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    pub(super) fn sorted(&self, action: &str, failed: Failed) -> ClusterError {
        match failed {
            Failed::Sorted(error) => error,
            Failed::Call(error) => {
                sorted(&error, Attempt { action, server: &self.server(), namespace: &self.namespace })
            }
        }
    }

    pub(super) async fn get<K: Kind>(&self, name: &str) -> Result<Option<K>, ClusterError> {
        let action = format!("read {} `{name}`", K::called());
        self.call_optional(&action, |client| async move { self.api::<K>(client).get(name).await }).await
    }

    pub(super) async fn list<K: Kind>(&self, selector: &str) -> Result<Vec<K>, ClusterError> {
        let action = format!("list {}s", K::called());
        let parameters = ListParams::default().labels(selector);
        let parameters = &parameters;
        let listed = self.call(&action, |client| async move { self.api::<K>(client).list(parameters).await }).await?;
        Ok(listed.items)
    }

    /// Creates an object; `None` where one of its name is there.
    pub(super) async fn create<K: Kind>(&self, name: &str, object: &K) -> Result<Option<K>, ClusterError> {
        let action = format!("create {} `{name}`", K::called());
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let parameters = &parameters;
        let made =
            self.call_within(PATIENCE, &action, |client| async move {
                self.api::<K>(client).create(parameters, object).await
            })
            .await;
        match made {
            Ok(made) => Ok(Some(made)),
            Err(Failed::Call(kube::Error::Api(status))) if status.is_already_exists() => Ok(None),
            Err(error) => Err(self.sorted(&action, error)),
        }
    }

    /// Makes an object be as given, whether it is there or not.
    pub(super) async fn apply<K: Kind>(&self, name: &str, object: &K) -> Result<K, ClusterError> {
        let action = format!("write {} `{name}`", K::called());
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let parameters = &parameters;
        self.call(&action, |client| async move {
            self.api::<K>(client).patch(name, parameters, &Patch::Apply(object)).await
        })
        .await
    }

    /// Changes some fields of an object; `None` where there is none.
    pub(super) async fn merge<K: Kind>(
        &self,
        name: &str,
        change: &serde_json::Value,
    ) -> Result<Option<K>, ClusterError> {
        let action = format!("change {} `{name}`", K::called());
        self.call_optional(&action, |client| async move {
            self.api::<K>(client).patch(name, &PatchParams::default(), &Patch::Merge(change)).await
        })
        .await
    }

    /// Removes an object, if it is still the one with this uid, and what it owns; `true` if it was there.
    pub(super) async fn delete<K: Kind>(
        &self,
        name: &str,
        uid: Option<String>,
        grace: Option<u32>,
    ) -> Result<bool, ClusterError> {
        let action = format!("remove {} `{name}`", K::called());
        let parameters = DeleteParams {
            grace_period_seconds: grace,
            propagation_policy: Some(PropagationPolicy::Background),
            preconditions: uid.map(|uid| Preconditions { uid: Some(uid), resource_version: None }),
            ..DeleteParams::default()
        };
        let parameters = &parameters;
        let deleted = self
            .call_within(PATIENCE, &action, |client| async move {
                self.api::<K>(client).delete(name, parameters).await.map(drop)
            })
            .await;
        match deleted {
            Ok(()) => Ok(true),
            // Another one has its name by now.
            Err(Failed::Call(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(false),
            Err(error) => Err(self.sorted(&action, error)),
        }
    }

    pub(super) fn api<K: Kind>(&self, client: Client) -> Api<K> {
        Api::namespaced(client, &self.namespace)
    }
}

/// A call that did not succeed.
#[derive(Debug)]
pub(super) enum Failed {
    /// As the client says.
    Call(kube::Error),
    /// Sorted already.
    Sorted(ClusterError),
}

/// An object of a namespace.
pub(super) trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + DeserializeOwned
    + Serialize
    + std::fmt::Debug
    + Send
    + Sync
    + 'static
{
    /// What messages call it.
    fn called() -> String {
        let kind = Self::kind(&()).into_owned();
        if kind == "ConfigMap" { kind } else { kind.to_lowercase() }
    }
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Serialize
        + std::fmt::Debug
        + Send
        + Sync
        + 'static
{
}

/// As `kube` looks: kubeconfig, then the pod's own service account.
async fn infer() -> Result<Config, ClusterError> {
    match Config::from_kubeconfig(&KubeConfigOptions::default()).await {
        Ok(config) => Ok(config),
        Err(error) => Config::incluster().map_err(|_| ClusterError::NoConfig { why: error.to_string() }),
    }
}

fn of_kubeconfig() -> Option<String> {
    let config = Kubeconfig::read().ok()?;
    let current = config.current_context?;
    let context = config.contexts.into_iter().find(|context| context.name == current)?.context?;
    context.namespace.filter(|namespace| !namespace.is_empty())
}

fn of_pod() -> Option<String> {
    let text = std::fs::read_to_string(IN_CLUSTER_NAMESPACE).ok()?;
    Some(text.trim().to_owned()).filter(|namespace| !namespace.is_empty())
}
