//! Kubernetes objects: pure functions from what a job is to what a cluster is told.
//!
//! Nothing here talks to a cluster. A training run is a Job, a deployment a Deployment with a Service;
//! each owns its Secrets and its ConfigMap, so that removing the one object leaves nothing.
//!
//! The snapshots under `snapshots/` are these objects as JSON. They are written anew by
//! `GYM_RENEW_SNAPSHOTS=1 cargo test -p training-gym manifest::`, and read in a review.

mod config;
mod names;
mod options;
mod pod;
mod reward;
mod security;
mod service;
mod train;

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use training_gym_core::ids::ContentHash;

use crate::backend::{JobId, Request, Workload};

pub(crate) use config::{config_map, secret, store_secret};
pub(crate) use names::slug;
pub use options::{InvalidOption, KubernetesOptions, PullPolicy};
pub(crate) use pod::{CHECKER, FETCHER, REWARD, SECRETS, SERVER, TRAINER};
pub(crate) use reward::{reward_job, reward_name, reward_policy, reward_secret, reward_service};
pub(crate) use service::{PORT, deployment, service};
pub(crate) use train::{job, question};

/// Label: who made the object.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub(crate) const US: &str = "training-gym";
/// Label: the job's slug. It finds every object of a job.
pub(crate) const JOB: &str = "training-gym/job";
/// Label: the run.
pub(crate) const RUN: &str = "training-gym/run";
/// Label: the deployment.
pub(crate) const APP: &str = "training-gym/app";
/// Label of what belongs to a reward function's own pod: [`REWARD`].
pub(crate) const COMPONENT: &str = "app.kubernetes.io/component";
/// Annotation: the job's id, unslugged.
pub(crate) const ID: &str = "training-gym/id";
/// Annotation: the hash of all that was asked for.
pub(crate) const SPEC_HASH: &str = "training-gym/spec-sha256";
/// Annotation: what was asked for, as JSON. It holds no secret.
pub(crate) const ASKED: &str = "training-gym/asked";
/// Annotation: the submitter's labels, as JSON.
pub(crate) const LABELS: &str = "training-gym/labels";
/// Annotation: when it was submitted, in Unix seconds.
pub(crate) const SUBMITTED: &str = "training-gym/submitted-at";
/// Annotation: all that it owns was made. Without it the submission was cut short.
pub(crate) const COMPLETE: &str = "training-gym/complete";
/// Annotation: somebody asked it to stop.
pub(crate) const CANCELLED: &str = "training-gym/cancelled";
/// Label of a Job that Kueue starts.
pub(crate) const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// All that the objects of a job are made of.
#[derive(Clone, Debug)]
pub(crate) struct Plan<'a> {
    /// What was asked for.
    pub(crate) request: &'a Request,
    /// The client's options, which name an image.
    pub(crate) options: &'a KubernetesOptions,
    /// The image.
    pub(crate) image: &'a str,
    /// The store's URL as pods reach it.
    pub(crate) store: &'a str,
    /// Where its credentials come from.
    pub(crate) store_access: StoreAccess,
    /// Unix seconds.
    pub(crate) submitted_at: f64,
}

/// Where pods get the store's credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreAccess {
    /// From the cloud, by their service account, or they need none.
    Ambient,
    /// A Secret of somebody else.
    Named(String),
    /// A Secret that the job owns.
    Owned,
}

impl Plan<'_> {
    pub(crate) fn id(&self) -> JobId {
        self.request.workload.job_id()
    }

    /// The name of the job's objects.
    pub(crate) fn name(&self) -> String {
        slug(self.id().as_str())
    }

    /// The name of the Secret with the store's credentials, where there is one.
    pub(crate) fn store_secret_name(&self) -> Option<String> {
        match &self.store_access {
            StoreAccess::Ambient => None,
            StoreAccess::Named(name) => Some(name.clone()),
            StoreAccess::Owned => Some(store_secret_name(&self.name())),
        }
    }

    /// Labels of every object of the job, pods among them.
    fn labels(&self) -> BTreeMap<String, String> {
        let (key, value) = match &self.request.workload {
            Workload::Train { run_id, .. } => (RUN, run_id.to_string()),
            Workload::Serve { spec } => (APP, spec.app_name.to_string()),
        };
        [(MANAGED_BY, US.to_owned()), (JOB, self.name()), (key, value)]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }

    /// Metadata of the object that owns the others.
    fn owner_meta(&self) -> ObjectMeta {
        let asked = asked(self.request);
        let json = |value: &BTreeMap<String, String>| serde_json::to_string(value).unwrap_or_default();
        let annotations = [
            (ID, self.id().to_string()),
            (SPEC_HASH, spec_hash(self.request).to_string()),
            (ASKED, asked.to_string()),
            (LABELS, json(&self.request.labels)),
            (SUBMITTED, self.submitted_at.to_string()),
        ];
        let mut labels = self.labels();
        if let Some(queue) = &self.request.resources.queue {
            labels.insert(QUEUE.to_owned(), queue.clone());
        }
        ObjectMeta {
            name: Some(self.name()),
            labels: Some(labels),
            annotations: Some(annotations.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
            ..ObjectMeta::default()
        }
    }

    /// Metadata of an object that goes with its owner.
    fn owned_meta(&self, name: String, owner: &OwnerReference) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            labels: Some(self.labels()),
            annotations: Some(BTreeMap::from([(ID.to_owned(), self.id().to_string())])),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        }
    }
}

/// The name of a job's own Secret for the store.
pub(crate) fn store_secret_name(job: &str) -> String {
    format!("{job}-store")
}

/// What must be the same for a live job to be adopted.
pub(crate) fn asked(request: &Request) -> serde_json::Value {
    let mut asked = serde_json::json!({
        "workload": request.workload,
        "resources": request.resources,
        "environment": request.environment,
        "reward_worker": request.reward_worker,
    });
    if !request.reward_egress.is_none() {
        asked["reward_egress"] = serde_json::json!(request.reward_egress);
    }
    asked
}

/// The hash of [`asked`].
pub(crate) fn spec_hash(request: &Request) -> ContentHash {
    ContentHash::of(asked(request).to_string().as_bytes())
}

/// How an object refers to its owner. The owner is not held back until the object is gone: that would
/// need a permission of its own.
pub(crate) fn owned_by(api_version: &str, kind: &str, meta: &ObjectMeta) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: meta.name.clone()?,
        uid: meta.uid.clone()?,
        controller: None,
        block_owner_deletion: None,
    })
}

/// A Deployment that is not started: its Secrets come first.
pub(crate) fn unstarted(mut deployment: Deployment) -> Deployment {
    if let Some(spec) = &mut deployment.spec {
        spec.replicas = Some(0);
    }
    deployment
}

#[cfg(test)]
mod tests;
