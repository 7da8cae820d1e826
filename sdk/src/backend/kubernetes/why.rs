//! Why a job ended or does not start: what is known of it is gathered here, and explained in
//! [`crate::backend::explain`].

use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::{Api, ListParams};
use training_gym_core::record::{Cause, Failure, RunStatus, keys};

use super::KubernetesBackend;
use super::error::ClusterError;
use super::look::{Owner, now};
use crate::backend::Workload;
use crate::backend::explain::Evidence;

/// One answer of the API server lists this many nodes; the rest of a larger cluster changes no sentence.
const NODES: u32 = 500;

impl KubernetesBackend {
    /// The job's pods and the events of these, of itself and of what stands between; the nodes where we may
    /// see them; what the run says of itself.
    pub(super) async fn gather(
        &self,
        owner: &Owner,
        pods: Vec<k8s_openapi::api::core::v1::Pod>,
    ) -> Result<Evidence, ClusterError> {
        let events = self.cluster().list::<Event>("").await?;
        let name = owner.name();
        let about = |event: &Event| {
            let object = event.involved_object.name.as_deref().unwrap_or_default();
            // Pods and ReplicaSets are called by what made them.
            object.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let events = events.into_iter().filter(about).collect();
        let (job, deployment) = match owner {
            Owner::Train(job) => (Some((**job).clone()), None),
            Owner::Serve(deployment) => (None, Some((**deployment).clone())),
        };
        let (nodes, status) = (self.nodes().await.unwrap_or_default(), self.own_word(owner).await);
        Ok(Evidence { pods, job, deployment, events, nodes, status, now: now(), ..Evidence::default() })
    }

    /// The cluster's nodes. The shipped role does not allow this: it is a right on the whole cluster.
    pub(super) async fn nodes(&self) -> Result<Vec<Node>, ClusterError> {
        let parameters = ListParams::default().limit(NODES);
        let parameters = &parameters;
        let listed = self
            .cluster()
            .call("list nodes", |client| async move { Api::<Node>::all(client).list(parameters).await })
            .await?;
        Ok(listed.items)
    }

    /// `status.json`; nothing where there is none that can be read.
    async fn own_word(&self, owner: &Owner) -> Option<RunStatus> {
        let Ok(Workload::Train { run_id, .. }) = owner.asked() else { return None };
        let object = self.inner.store.get(&keys::status(&run_id)).await.ok()?;
        serde_json::from_slice(&object.bytes).ok()
    }
}

/// The failure of a job that did not start in time.
pub(super) fn overdue(waiting: Option<Failure>, timeout: f64) -> Failure {
    let (why, next_step) = match waiting {
        Some(failure) => (failure.sentence, failure.next_step),
        None => ("nothing says why".to_owned(), "look at it with `kubectl describe pod`".to_owned()),
    };
    Failure {
        cause: Cause::Cluster,
        sentence: format!("it did not start within {timeout:.0} s: {why}"),
        next_step: format!("{next_step}; `TRAINING_GYM_START_TIMEOUT` (seconds) lets it wait for longer"),
        retryable: true,
    }
}
