//! What goes wrong between us and a cluster, sorted by what to do about it.
//!
//! No text of another program gets into a message where it might hold a credential: what a
//! credentials plugin printed is left out.

use std::time::Duration;

use kube::core::Status;
use training_gym_core::store;

use crate::manifest::InvalidOption;

/// Why a cluster did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Nothing says where the cluster is.
    #[error("cannot find a cluster: {why}; {CONFIG_REMEDY}")]
    NoConfig {
        /// What is wrong with the kubeconfig.
        why: String,
    },
    /// The API server does not answer.
    #[error("cannot {action}: the cluster at {server} does not answer ({why}); {REACH_REMEDY}")]
    Unreachable {
        /// What was to be done.
        action: String,
        /// Its URL.
        server: String,
        /// What happened.
        why: String,
    },
    /// 401: it does not know who asks.
    #[error(
        "cannot {action}: the cluster at {server} does not accept the credentials of the kubeconfig; {LOGIN_REMEDY}"
    )]
    Unauthorized {
        /// What was to be done.
        action: String,
        /// Its URL.
        server: String,
    },
    /// 403: it knows who asks, and does not let them.
    #[error("cannot {action}: {said}; {RBAC_REMEDY}")]
    Forbidden {
        /// What was to be done.
        action: String,
        /// The server's words.
        said: String,
    },
    /// What the backend needs and may not do, all of it.
    #[error("not allowed in namespace `{namespace}`: {}; {RBAC_REMEDY}", missing.join(", "))]
    MissingPermissions {
        /// The namespace.
        namespace: String,
        /// Such as `create jobs.batch`.
        missing: Vec<String>,
    },
    /// The namespace is not there.
    #[error(
        "there is no namespace `{namespace}`: create it with `kubectl create namespace {namespace}`, or name another in \
         `TRAINING_GYM_NAMESPACE`"
    )]
    NoNamespace {
        /// Its name.
        namespace: String,
    },
    /// A quota is used up.
    #[error("cannot {action}: {said}; {QUOTA_REMEDY}")]
    Quota {
        /// What was to be done.
        action: String,
        /// The server's words.
        said: String,
    },
    /// A policy, a webhook or the server's own rules refuse the object.
    #[error("cannot {action}: the cluster refuses it: {said}; {REFUSED_REMEDY}")]
    Refused {
        /// What was to be done.
        action: String,
        /// The server's words.
        said: String,
    },
    /// Somebody else changed it at the same time.
    #[error("cannot {action}: somebody else changed it meanwhile ({said}); {AGAIN_REMEDY}")]
    Conflict {
        /// What was to be done.
        action: String,
        /// The server's words.
        said: String,
    },
    /// It took too long.
    #[error("cannot {action}: no answer within {} s; {REACH_REMEDY}", waited.as_secs())]
    Timeout {
        /// What was to be done.
        action: String,
        /// How long it was given.
        waited: Duration,
    },
    /// Something else.
    #[error("cannot {action}: {said}")]
    Unexpected {
        /// What was to be done.
        action: String,
        /// What happened.
        said: String,
    },
    /// An option cannot be used.
    #[error(transparent)]
    Option(#[from] InvalidOption),
    /// Pods cannot reach the store.
    #[error("pods cannot reach the store {store}; {STORE_REMEDY}")]
    LocalStore {
        /// Its URL.
        store: String,
    },
    /// Pods would have no credentials for the store.
    #[error("pods would have no credentials for the store: {why}; {CREDENTIALS_REMEDY}")]
    NoStoreCredentials {
        /// Why not.
        why: String,
    },
    /// Files could not be put into the store.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A question to the runtime could not be answered in the cluster.
    #[error("cannot ask the cluster's `gym-runtime`: {why}")]
    NoAnswer {
        /// What happened to its job.
        why: String,
    },
    /// An object of ours does not say what it should.
    #[error("object `{name}` is not as it was made: {why}; remove it with `kubectl delete` and launch again")]
    Record {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
}

const CONFIG_REMEDY: &str = "set `KUBECONFIG`, or write ~/.kube/config (`aws eks update-kubeconfig`, `gcloud container clusters get-credentials`)";
const REACH_REMEDY: &str = "check with `kubectl get --raw /readyz`; a VPN or a proxy may be missing";
const LOGIN_REMEDY: &str = "log in again (`aws sso login`, `gcloud auth login`) and check with `kubectl auth whoami`";
const RBAC_REMEDY: &str =
    "ask who runs the cluster to apply `images/manifests/base/rbac.yaml` and to bind you to its role";
const QUOTA_REMEDY: &str =
    "ask for less in `.resources(…)`, stop what is not needed (`gym deployments`), or have the quota raised";
const REFUSED_REMEDY: &str = "change what it names, in `.resources(…)` or the client's options";
const AGAIN_REMEDY: &str = "try again";
const STORE_REMEDY: &str =
    "name an `s3://` store in `TRAINING_GYM_STORE`, and in `TRAINING_GYM_STORE_IN_CLUSTER` if pods reach it elsewhere";
const CREDENTIALS_REMEDY: &str = "name a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in \
     `TRAINING_GYM_STORE_SECRET`, or a service account with access in `TRAINING_GYM_SERVICE_ACCOUNT`";

impl ClusterError {
    /// The part of the message that says what to do, where there is something to do.
    pub fn hint(&self) -> Option<&str> {
        Some(match self {
            Self::NoConfig { .. } => CONFIG_REMEDY,
            Self::Unreachable { .. } | Self::Timeout { .. } => REACH_REMEDY,
            Self::Unauthorized { .. } => LOGIN_REMEDY,
            Self::Forbidden { .. } | Self::MissingPermissions { .. } => RBAC_REMEDY,
            Self::Quota { .. } => QUOTA_REMEDY,
            Self::Refused { .. } => REFUSED_REMEDY,
            Self::Conflict { .. } => AGAIN_REMEDY,
            Self::LocalStore { .. } => STORE_REMEDY,
            Self::NoStoreCredentials { .. } => CREDENTIALS_REMEDY,
            _ => return None,
        })
    }

    /// Whether the same may succeed a little later by itself.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. } | Self::Conflict { .. })
    }
}

/// Where and what, for a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt<'a> {
    /// Such as "create job `x`".
    pub(super) action: &'a str,
    pub(super) server: &'a str,
    pub(super) namespace: &'a str,
}

/// Sorts an error of the client.
pub(super) fn sorted(error: &kube::Error, at: Attempt<'_>) -> ClusterError {
    let action = at.action.to_owned();
    let server = at.server.to_owned();
    match error {
        kube::Error::Api(status) => of_status(status, at),
        kube::Error::InferConfig(error) => ClusterError::NoConfig { why: error.to_string() },
        kube::Error::InferKubeconfig(error) => ClusterError::NoConfig { why: error.to_string() },
        // Its text may hold what a credentials plugin printed.
        kube::Error::Auth(_) => ClusterError::Unauthorized { action, server },
        kube::Error::Service(error) if is_auth(error.as_ref()) => ClusterError::Unauthorized { action, server },
        kube::Error::Service(error) => ClusterError::Unreachable { action, server, why: innermost(error.as_ref()) },
        kube::Error::HyperError(error) => ClusterError::Unreachable { action, server, why: innermost(error) },
        kube::Error::ReadEvents(error) => ClusterError::Unreachable { action, server, why: innermost(error) },
        kube::Error::UpgradeConnection(error) => ClusterError::Unreachable { action, server, why: innermost(error) },
        other => ClusterError::Unexpected { action, said: innermost(other) },
    }
}

/// Sorts what the API server answered.
pub(super) fn of_status(status: &Status, at: Attempt<'_>) -> ClusterError {
    let action = at.action.to_owned();
    let said = status.message.trim().to_owned();
    let server = at.server.to_owned();
    let lower = said.to_lowercase();
    if status.code == 401 {
        return ClusterError::Unauthorized { action, server };
    }
    let namespace = format!("namespaces \"{}\" not found", at.namespace);
    if status.code == 404 && said.contains(&namespace) {
        return ClusterError::NoNamespace { namespace: at.namespace.to_owned() };
    }
    if lower.contains("exceeded quota") || lower.contains("failed quota") {
        return ClusterError::Quota { action, said };
    }
    let by_policy =
        ["admission", "podsecurity", "limitrange", "usage per container", "denied the request", "is terminat"];
    match status.code {
        403 | 400 | 422 if by_policy.iter().any(|word| lower.contains(word)) => ClusterError::Refused { action, said },
        403 => ClusterError::Forbidden { action, said },
        400 | 405 | 406 | 413 | 415 | 422 => ClusterError::Refused { action, said },
        409 => ClusterError::Conflict { action, said },
        408 | 429 | 500 | 502 | 503 | 504 => ClusterError::Unreachable { action, server, why: said },
        _ => ClusterError::Unexpected { action, said },
    }
}

/// Whether the API server may answer the same request a moment later: it restarts, is overloaded, or
/// the way to it broke.
pub(super) fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 408 | 429 | 500 | 502 | 503 | 504),
        kube::Error::Service(error) => !is_auth(error.as_ref()),
        kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => true,
        _ => false,
    }
}

fn is_auth(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<kube::client::AuthError>().is_some() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The last cause, which says the most.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16, reason: &str, message: &str) -> ClusterError {
        let status = Status::failure(message, reason).with_code(code);
        let at = Attempt { action: "create job `train-r`", server: "https://k:6443", namespace: "gym" };
        let error = sorted(&kube::Error::Api(status.boxed()), at);
        let text = error.to_string();
        assert!(error.hint().is_none_or(|hint| text.contains(hint)), "{text}");
        error
    }

    #[test]
    fn each_answer_has_its_kind_and_remedy() {
        let forbidden = "jobs.batch is forbidden: User \"u\" cannot create resource \"jobs\" in API group \"batch\"";
        let quota = "pods \"x\" is forbidden: exceeded quota: q, requested: nvidia.com/gpu=2, used: 0, limited: 1";
        let unlimited = "pods \"x\" is forbidden: failed quota: q: must specify limits.memory for: trainer";
        let security = "pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": …";
        let webhook = "admission webhook \"validate.kyverno.svc\" denied the request: no";
        let range = "pods \"x\" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi";
        let invalid = "Job.batch \"x\" is invalid: spec.template.spec.priorityClassName: not found";
        type Case = (u16, &'static str, &'static str, fn(&ClusterError) -> bool);
        let cases: [Case; 12] = [
            (401, "Unauthorized", "Unauthorized", |e| matches!(e, ClusterError::Unauthorized { .. })),
            (403, "Forbidden", forbidden, |e| matches!(e, ClusterError::Forbidden { .. })),
            (403, "Forbidden", quota, |e| matches!(e, ClusterError::Quota { .. })),
            (403, "Forbidden", unlimited, |e| matches!(e, ClusterError::Quota { .. })),
            (403, "Forbidden", security, |e| matches!(e, ClusterError::Refused { .. })),
            (400, "BadRequest", webhook, |e| matches!(e, ClusterError::Refused { .. })),
            (403, "Forbidden", range, |e| matches!(e, ClusterError::Refused { .. })),
            (422, "Invalid", invalid, |e| matches!(e, ClusterError::Refused { .. })),
            (404, "NotFound", "namespaces \"gym\" not found", |e| matches!(e, ClusterError::NoNamespace { .. })),
            (409, "Conflict", "the object has been modified", |e| matches!(e, ClusterError::Conflict { .. })),
            (503, "ServiceUnavailable", "apiserver is shutting down", |e| e.is_transient()),
            (418, "", "teapot", |e| matches!(e, ClusterError::Unexpected { .. })),
        ];
        for (code, reason, message, expected) in cases {
            let error = answered(code, reason, message);
            assert!(expected(&error), "{code} {message}: {error:?}");
        }
        let text = answered(403, "Forbidden", forbidden).to_string();
        assert!(text.contains("images/manifests/base/rbac.yaml") && text.contains("create job `train-r`"), "{text}");
        assert!(
            answered(404, "NotFound", "namespaces \"gym\" not found")
                .to_string()
                .contains("kubectl create namespace gym")
        );
    }

    #[test]
    fn what_heals_by_itself_is_told_from_what_does_not() {
        let api = |code| kube::Error::Api(Status::failure("", "").with_code(code).boxed());
        assert!([408, 429, 500, 502, 503, 504].map(api).iter().all(is_transient));
        assert!(![400, 401, 403, 404, 409, 410, 422].map(api).iter().any(is_transient));
    }
}
