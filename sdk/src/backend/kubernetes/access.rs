//! Whether we may do what we do, asked before anything is made.

use futures::future::try_join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::{Api, PostParams};

use super::client::Cluster;
use super::error::ClusterError;

/// Group, resource (with its subresource), verbs: all that this backend does, and nothing else.
/// `images/manifests/base/rbac.yaml` grants it.
pub(crate) const NEEDED: [(&str, &str, &[&str]); 10] = [
    ("batch", "jobs", &["get", "list", "create", "patch", "delete"]),
    ("apps", "deployments", &["get", "list", "create", "patch", "delete"]),
    ("", "services", &["list", "create", "patch", "delete"]),
    ("networking.k8s.io", "networkpolicies", &["list", "create", "patch", "delete"]),
    ("", "secrets", &["get", "list", "create", "patch", "delete"]),
    ("", "configmaps", &["list", "create", "patch", "delete"]),
    ("", "pods", &["list", "delete"]),
    ("", "pods/log", &["get"]),
    // A forwarded port is a GET that is upgraded; newer servers also ask for `create`.
    ("", "pods/portforward", &["get", "create"]),
    ("", "events", &["list"]),
];

impl Cluster {
    /// Checks every permission that the backend uses, at once.
    ///
    /// # Errors
    /// [`ClusterError::MissingPermissions`] with all that is missing.
    pub(super) async fn check_access(&self) -> Result<(), ClusterError> {
        let each =
            NEEDED.iter().flat_map(|(group, resource, verbs)| verbs.iter().map(move |verb| (*group, *resource, *verb)));
        let answers = try_join_all(each.map(|(group, resource, verb)| async move {
            let allowed = self.may(group, resource, verb).await?;
            let called = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
            Ok::<_, ClusterError>((!allowed).then(|| format!("{verb} {called}")))
        }))
        .await?;
        let missing: Vec<String> = answers.into_iter().flatten().collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(ClusterError::MissingPermissions { namespace: self.namespace.clone(), missing })
    }

    async fn may(&self, group: &str, resource: &str, verb: &str) -> Result<bool, ClusterError> {
        let (resource, subresource) = resource.split_once('/').map_or((resource, None), |(a, b)| (a, Some(b)));
        let attributes = ResourceAttributes {
            group: Some(group.to_owned()),
            namespace: Some(self.namespace.clone()),
            resource: Some(resource.to_owned()),
            subresource: subresource.map(str::to_owned),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), non_resource_attributes: None },
            ..SelfSubjectAccessReview::default()
        };
        let review = &review;
        let answer = self
            .call("ask what is allowed", |client| async move {
                Api::<SelfSubjectAccessReview>::all(client).create(&PostParams::default(), review).await
            })
            .await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}
