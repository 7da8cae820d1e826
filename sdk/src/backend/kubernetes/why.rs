//! Why a job ended or does not start: what is known of it is gathered here, and explained in one
//! place, [`explain`](crate::backend::explain).

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{Api, ListParams, LogParams};
use training_gym_core::record::{Cause, Failure, RunStatus, keys};

use super::KubernetesBackend;
use super::error::ClusterError;
use super::look::{Owner, container, is_over, is_terminated, now};
use crate::backend::explain::Evidence;
use crate::backend::{LAST_LINES, Workload};
use crate::manifest::{FETCHER, SERVER, TRAINER};

impl KubernetesBackend {
    /// What the cluster knows of a job: its objects, the events of these and of what stands between,
    /// the nodes where it has none, and what its last container said where it has ended.
    pub(super) async fn gather(&self, owner: &Owner, pods: Vec<Pod>) -> Result<Evidence, ClusterError> {
        let events = self.cluster().list::<Event>("").await?;
        let name = owner.name();
        let node = pods.last().and_then(|pod| pod.spec.as_ref()?.node_name.clone());
        let about = |event: &Event| {
            let object = event.involved_object.name.as_deref().unwrap_or_default();
            // Pods and ReplicaSets are called by what made them.
            let ours = object.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
            ours || node.as_deref().is_some_and(|node| node == object)
        };
        let events = events.into_iter().filter(about).collect();
        let mut evidence = Evidence { events, now: now(), ..Evidence::default() };
        match owner {
            Owner::Train(job) => evidence.job = Some((**job).clone()),
            Owner::Serve(deployment) => evidence.deployment = Some((**deployment).clone()),
        }
        if pods.last().is_some_and(|pod| node.is_none() && !is_over(pod)) {
            evidence.nodes = self.nodes().await;
        }
        evidence.status = self.own_word(owner).await;
        if let Some(pod) = pods.last() {
            evidence.log = self.last_words(pod).await;
        }
        evidence.pods = pods;
        Ok(evidence)
    }

    /// The cluster's nodes, where we may see them: nothing depends on it but a better sentence.
    async fn nodes(&self) -> Vec<Node> {
        let Ok(client) = self.cluster().client().await else { return Vec::new() };
        let listed = Api::<Node>::all(client).list(&ListParams::default()).await;
        listed.map(|list| list.items).unwrap_or_default()
    }

    /// `status.json`: the run's own word, and the most memory it was seen to use. Nothing where there is
    /// none that can be read.
    async fn own_word(&self, owner: &Owner) -> Option<RunStatus> {
        let Ok(Workload::Train { run_id, .. }) = owner.asked() else { return None };
        let object = self.inner.store.get(&keys::status(&run_id)).await.ok()?;
        serde_json::from_slice(&object.bytes).ok()
    }

    /// The last lines of the container that ended, where one did and they can still be had.
    async fn last_words(&self, pod: &Pod) -> Vec<String> {
        let ended = |name: &&&str| container(pod, name).is_some_and(is_terminated);
        let Some(name) = [TRAINER, SERVER, FETCHER].iter().find(ended) else { return Vec::new() };
        let parameters = LogParams {
            container: Some((**name).to_owned()),
            tail_lines: i64::try_from(LAST_LINES).ok(),
            ..LogParams::default()
        };
        let Ok(client) = self.cluster().client().await else { return Vec::new() };
        let pods = self.cluster().api::<Pod>(client);
        let text = pods.logs(pod.metadata.name.as_deref().unwrap_or_default(), &parameters).await;
        text.map(|text| text.lines().map(str::to_owned).collect()).unwrap_or_default()
    }
}

/// The failure of a job that did not start in time.
pub(super) fn overdue(waiting: Option<Failure>, timeout: f64) -> Failure {
    let failure = waiting.unwrap_or_else(|| Failure {
        cause: Cause::Cluster,
        sentence: "nothing says why".to_owned(),
        next_step: "look at it with `kubectl describe pod`".to_owned(),
        retryable: true,
    });
    Failure {
        sentence: format!("it did not start within {timeout:.0} s: {}", failure.sentence),
        next_step: format!(
            "{}; it keeps its place and may still start: `gym runs stop` or `gym deployments stop` takes it away, and \
             `TRAINING_GYM_START_TIMEOUT` (seconds) lets it wait for longer",
            failure.next_step
        ),
        ..failure
    }
}
