//! Why a job ended or does not start: what is known of it is gathered here, and explained in one place.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job as ClusterJob;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use training_gym_core::record::{Cause, Failure};

use super::KubernetesBackend;
use super::error::ClusterError;
use super::look::{Owner, now};

/// All that is known of a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    /// Oldest first.
    pub(super) pods: Vec<Pod>,
    pub(super) job: Option<ClusterJob>,
    pub(super) deployment: Option<Deployment>,
    pub(super) events: Vec<Event>,
    /// Unix seconds.
    pub(super) now: f64,
}

/// One cause, and what to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Explanation {
    pub(super) failure: Failure,
}

impl KubernetesBackend {
    /// The job's pods and the events of these, of itself and of what stands between.
    pub(super) async fn gather(&self, owner: &Owner, pods: Vec<Pod>) -> Result<Evidence, ClusterError> {
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
        Ok(Evidence { pods, job, deployment, events, now: now() })
    }
}

/// The failure of a job that did not start in time.
pub(super) fn overdue(waiting: Option<Failure>, timeout: f64) -> Failure {
    let (why, next_step) = match waiting {
        Some(failure) => (failure.sentence, failure.next_step),
        None => ("nothing says why".to_owned(), "look at it with `kubectl describe pod`".to_owned()),
    };
    Failure {
        cause: Cause::Died,
        sentence: format!("it did not start within {timeout:.0} s: {why}"),
        next_step: format!("{next_step}; `TRAINING_GYM_START_TIMEOUT` (seconds) lets it wait for longer"),
        retryable: true,
    }
}

/// What the cluster itself says, in its own words; `None` where it says nothing.
pub(super) fn explain(evidence: &Evidence) -> Option<Explanation> {
    let pod = evidence.pods.last();
    let said = pod
        .and_then(of_containers)
        .or_else(|| of_pod(pod?))
        .or_else(|| of_job(evidence.job.as_ref()?))
        .or_else(|| of_scheduling(pod?))
        .or_else(|| of_deployment(evidence.deployment.as_ref()?))
        .or_else(|| of_events(&evidence.events))?;
    let memory = said.contains("OOMKilled");
    let name = pod.and_then(|pod| pod.metadata.name.as_deref()).unwrap_or("NAME");
    let failure = Failure {
        cause: if memory { Cause::OutOfMemory } else { Cause::Died },
        sentence: said,
        next_step: format!("look at it with `kubectl describe pod {name}`"),
        retryable: !memory,
    };
    Some(Explanation { failure })
}

fn of_containers(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let all = || status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    let waits = |container: &ContainerStatus| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason =
            waiting.reason.as_deref().filter(|reason| !matches!(*reason, "PodInitializing" | "ContainerCreating"))?;
        Some(format!("container `{}` waits: {reason}{}", container.name, colon(waiting.message.as_deref())))
    };
    let ended = |container: &ContainerStatus| {
        let state = container.state.as_ref()?.terminated.as_ref();
        let ended = state.or(container.last_state.as_ref().and_then(|state| state.terminated.as_ref()))?;
        let reason = ended.reason.as_deref().unwrap_or("no reason");
        let code = ended.exit_code;
        let message = colon(ended.message.as_deref());
        (code != 0).then(|| format!("container `{}` ended with code {code}: {reason}{message}", container.name))
    };
    all().find_map(ended).or_else(|| all().find_map(waits))
}

fn of_pod(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let reason = status.reason.as_deref()?;
    Some(format!("the pod ended: {reason}{}", colon(status.message.as_deref())))
}

fn of_scheduling(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let waits = conditions.iter().find(|found| found.type_ == "PodScheduled" && found.status != "True")?;
    Some(format!("the pod has no node: {}{}", waits.reason.as_deref()?, colon(waits.message.as_deref())))
}

fn of_job(job: &ClusterJob) -> Option<String> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let failed = conditions.iter().find(|found| found.type_ == "Failed" && found.status == "True")?;
    Some(format!("the job failed: {}{}", failed.reason.as_deref()?, colon(failed.message.as_deref())))
}

fn of_deployment(deployment: &Deployment) -> Option<String> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    let failed = conditions.iter().find(|found| found.type_ == "ReplicaFailure" && found.status == "True")?;
    Some(format!("no pod can be made: {}{}", failed.reason.as_deref()?, colon(failed.message.as_deref())))
}

fn of_events(events: &[Event]) -> Option<String> {
    let warnings = events.iter().filter(|event| event.type_.as_deref() == Some("Warning"));
    let newest = warnings.max_by(|a, b| a.metadata.creation_timestamp.cmp(&b.metadata.creation_timestamp))?;
    Some(format!("{}{}", newest.reason.as_deref()?, colon(newest.message.as_deref())))
}

fn colon(message: Option<&str>) -> String {
    message
        .map(str::trim)
        .filter(|message| !message.is_empty())
        .map(|message| format!(": {message}"))
        .unwrap_or_default()
}
