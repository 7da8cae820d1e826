//! What the cluster's objects say of a job.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job as ClusterJob;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde_json::Value;

use super::KubernetesBackend;
use super::error::ClusterError;
use super::why;
use crate::backend::explain::{Evidence, explain};
use crate::backend::{Error, Exit, Job, JobId, JobState, Workload};
use crate::manifest::{
    APP, ASKED, CANCELLED, COMPLETE, COMPONENT, FETCHER, ID, JOB, LABELS, MANAGED_BY, REWARD, RUN, SERVER, SPEC_HASH,
    SUBMITTED, TRAINER, US, owned_by, slug,
};

/// Starts of a server that ended each time, after which it counts as ended.
const HOPELESS: i32 = 3;

/// The object that a job is: it owns the others.
#[derive(Clone, Debug)]
pub(super) enum Owner {
    Train(Box<ClusterJob>),
    Serve(Box<Deployment>),
}

impl Owner {
    pub(super) fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Train(job) => &job.metadata,
            Self::Serve(deployment) => &deployment.metadata,
        }
    }

    pub(super) fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.meta().annotations.as_ref()?.get(key).map(String::as_str)
    }

    pub(super) fn reference(&self) -> Result<OwnerReference, ClusterError> {
        let (version, kind) = match self {
            Self::Train(_) => ("batch/v1", "Job"),
            Self::Serve(_) => ("apps/v1", "Deployment"),
        };
        let reference = owned_by(version, kind, self.meta());
        reference.ok_or_else(|| self.damaged("the server gave it no uid"))
    }

    pub(super) fn spec_hash(&self) -> Option<&str> {
        self.annotation(SPEC_HASH)
    }

    /// Whether all that it owns was made.
    pub(super) fn is_complete(&self) -> bool {
        self.annotation(COMPLETE).is_some()
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.annotation(CANCELLED).is_some()
    }

    /// All that was asked for, as JSON.
    pub(super) fn asked_json(&self) -> Result<Value, ClusterError> {
        let text = self.annotation(ASKED).ok_or_else(|| self.damaged("it lacks an annotation of ours"))?;
        serde_json::from_str(text).map_err(|error| self.damaged(&error.to_string()))
    }

    /// The workload that was asked for.
    pub(super) fn asked(&self) -> Result<Workload, ClusterError> {
        let workload = self.asked_json()?.get("workload").cloned().unwrap_or_default();
        serde_json::from_value(workload).map_err(|error| self.damaged(&error.to_string()))
    }

    fn damaged(&self, why: &str) -> ClusterError {
        ClusterError::Record { name: self.name().to_owned(), why: why.to_owned() }
    }

    pub(super) fn id(&self) -> JobId {
        JobId::read(self.annotation(ID).unwrap_or_default())
    }

    /// Whether a pod is of this very object, and not of one of the same name before it.
    pub(super) fn has(&self, pod: &Pod) -> bool {
        let meta = &pod.metadata;
        match self {
            Self::Train(job) => {
                meta.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == job.metadata.uid.as_ref())
            }
            // A ReplicaSet stands between; the old ones' pods are older than this.
            Self::Serve(deployment) => {
                let label = meta.labels.as_ref().and_then(|labels| labels.get(JOB));
                let named = label.is_some() && label == deployment.metadata.name.as_ref();
                named && meta.creation_timestamp >= deployment.metadata.creation_timestamp
            }
        }
    }

    /// Unix seconds of the submission.
    pub(super) fn submitted_at(&self) -> f64 {
        let written = self.annotation(SUBMITTED).and_then(|text| text.parse().ok());
        written.unwrap_or_else(|| seconds(self.meta().creation_timestamp.as_ref()).unwrap_or(0.0))
    }

    /// Unix seconds since which it may start: not while a queue holds it.
    fn allowed_since(&self) -> Option<f64> {
        match self {
            Self::Train(job) => seconds(job.status.as_ref()?.start_time.as_ref()),
            Self::Serve(deployment) => seconds(deployment.metadata.creation_timestamp.as_ref()),
        }
    }

    /// The condition with which a Job is over.
    pub(super) fn end(&self) -> Option<End> {
        let Self::Train(job) = self else { return None };
        let conditions = job.status.as_ref()?.conditions.as_ref()?;
        let holds = |kind: &str| conditions.iter().find(|found| found.type_ == kind && found.status == "True");
        let at = |time: Option<&Time>| seconds(time).unwrap_or(0.0);
        if let Some(complete) = holds("Complete") {
            return Some(End { well: true, at: at(complete.last_transition_time.as_ref()) });
        }
        holds("Failed").map(|failed| End { well: false, at: at(failed.last_transition_time.as_ref()) })
    }
}

/// How a Job is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct End {
    pub(super) well: bool,
    /// Unix seconds.
    pub(super) at: f64,
}

/// A state, and what holds up one that has not started.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) state: JobState,
    pub(super) waiting: Option<String>,
}

impl From<JobState> for Seen {
    fn from(state: JobState) -> Self {
        Self { state, waiting: None }
    }
}

impl KubernetesBackend {
    /// The object of a job, where there is one.
    pub(super) async fn owner(&self, id: &JobId) -> Result<Option<Owner>, ClusterError> {
        let name = slug(id.as_str());
        if id.as_str().starts_with("train-") {
            let job = self.cluster().get::<ClusterJob>(&name).await?;
            return Ok(job.map(|job| Owner::Train(Box::new(job))));
        }
        let deployment = self.cluster().get::<Deployment>(&name).await?;
        Ok(deployment.map(|deployment| Owner::Serve(Box::new(deployment))))
    }

    /// The pods of a job, oldest first.
    pub(super) async fn pods(&self, owner: &Owner) -> Result<Vec<Pod>, ClusterError> {
        let pods = self.cluster().list::<Pod>(&format!("{JOB}={}", owner.name())).await?;
        Ok(of_owner(owner, pods))
    }

    pub(super) async fn look(&self, id: &JobId) -> Result<Job, Error> {
        let owner = self.owner(id).await?.ok_or_else(|| self.unknown(id))?;
        let pods = self.pods(&owner).await?;
        let mut seen = state(&owner, &pods, None, self.inner.options.start_timeout().as_secs_f64());
        if seen.state == JobState::Starting || matches!(&seen.state, JobState::Ended(exit) if is_unexplained(exit)) {
            let evidence = self.gather(&owner, pods).await?;
            seen = state(&owner, &evidence.pods, Some(&evidence), self.inner.options.start_timeout().as_secs_f64());
        }
        let mut job = self.described(&owner, seen)?;
        if job.state == JobState::Running && job.url_for_jobs.is_some() {
            job.url = Some(self.forwarded(id).await?);
        }
        Ok(job)
    }

    pub(super) async fn look_at_all(&self) -> Result<Vec<Job>, Error> {
        let ours = |kind: &str| format!("{MANAGED_BY}={US},{kind}");
        let jobs = self.cluster().list::<ClusterJob>(&format!("{},{COMPONENT}!={REWARD}", ours(RUN))).await?;
        let deployments = self.cluster().list::<Deployment>(&ours(APP)).await?;
        let pods = self.cluster().list::<Pod>(&format!("{MANAGED_BY}={US}")).await?;
        let jobs = jobs.into_iter().map(|job| Owner::Train(Box::new(job)));
        let owners = jobs.chain(deployments.into_iter().map(|deployment| Owner::Serve(Box::new(deployment))));
        let mut all = Vec::new();
        for owner in owners {
            let pods = of_owner(&owner, pods.clone());
            let seen = state(&owner, &pods, None, self.inner.options.start_timeout().as_secs_f64());
            // One that somebody else made with our labels hides no other.
            all.extend(self.described(&owner, seen).ok());
        }
        all.sort_by(|a: &Job, b: &Job| a.id.cmp(&b.id));
        Ok(all)
    }

    fn described(&self, owner: &Owner, seen: Seen) -> Result<Job, ClusterError> {
        let workload = owner.asked()?;
        let labels = owner.annotation(LABELS).and_then(|text| serde_json::from_str::<BTreeMap<_, _>>(text).ok());
        let id = workload.job_id();
        let serves = matches!(workload, Workload::Serve { .. });
        let url_for_jobs = (serves && seen.state == JobState::Running).then(|| self.service_url(&id));
        Ok(Job {
            url: None,
            url_for_jobs,
            restarts: !serves,
            waiting: seen.waiting,
            labels: labels.unwrap_or_default(),
            submitted_at: owner.submitted_at(),
            state: seen.state,
            workload,
            id,
        })
    }
}

fn is_unexplained(exit: &Exit) -> bool {
    !exit.cancelled && exit.code != Some(0) && exit.failure.is_none()
}

fn of_owner(owner: &Owner, pods: Vec<Pod>) -> Vec<Pod> {
    let mut pods: Vec<Pod> = pods.into_iter().filter(|pod| owner.has(pod)).collect();
    pods.sort_by(|a, b| a.metadata.creation_timestamp.cmp(&b.metadata.creation_timestamp));
    pods
}

/// Where a job is in its life. Pure.
pub(super) fn state(owner: &Owner, pods: &[Pod], evidence: Option<&Evidence>, start_timeout: f64) -> Seen {
    let explained = || evidence.and_then(explain);
    let failure = || explained().map(|found| found.failure());
    let cancelled = Exit { cancelled: true, ..Exit::default() };
    if owner.meta().deletion_timestamp.is_some() {
        return JobState::Ended(cancelled).into();
    }
    let main = match owner {
        Owner::Train(_) => TRAINER,
        Owner::Serve(_) => SERVER,
    };
    let code = pods.iter().rev().find_map(|pod| exit_code(container(pod, main)?));
    if let Some(end) = owner.end() {
        let exit = match (end.well, owner.is_cancelled()) {
            (true, _) => Exit { code: Some(0), ..Exit::default() },
            (false, true) => cancelled,
            (false, false) => Exit { code, failure: failure(), ..Exit::default() },
        };
        return JobState::Ended(exit).into();
    }
    let newest = pods.last();
    let live = pods.iter().any(|pod| !is_over(pod));
    if owner.is_cancelled() && !live {
        return JobState::Ended(cancelled).into();
    }
    let running = match owner {
        Owner::Train(_) => newest.and_then(|pod| container(pod, main)).is_some_and(is_running),
        Owner::Serve(_) => pods.iter().any(is_ready),
    };
    if running {
        return JobState::Running.into();
    }
    let hopeless = |pod: &Pod| [FETCHER, main].iter().filter_map(|name| container(pod, name)).any(is_hopeless);
    if matches!(owner, Owner::Serve(_)) && newest.is_some_and(hopeless) {
        let code = newest.and_then(|pod| [main, FETCHER].iter().find_map(|name| exit_code(container(pod, name)?)));
        return JobState::Ended(Exit { code, failure: failure(), ..Exit::default() }).into();
    }
    let waiting = explained();
    let begun = pods.iter().any(|pod| container(pod, main).is_some_and(has_begun));
    let overdue =
        evidence.zip(owner.allowed_since()).is_some_and(|(evidence, since)| evidence.now - since > start_timeout);
    if overdue && !begun {
        let failure = Some(why::overdue(waiting.map(|found| found.failure()), start_timeout));
        return JobState::Ended(Exit { failure, ..Exit::default() }).into();
    }
    Seen { state: JobState::Starting, waiting: waiting.map(|found| found.sentence) }
}

pub(super) fn container<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    all.into_iter().find(|container| container.name == name)
}

/// How its present or last start ended.
fn exit_code(container: &ContainerStatus) -> Option<i32> {
    let ended =
        |state: Option<&k8s_openapi::api::core::v1::ContainerState>| Some(state?.terminated.as_ref()?.exit_code);
    ended(container.state.as_ref()).or_else(|| ended(container.last_state.as_ref()))
}

pub(super) fn is_running(container: &ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|state| state.running.is_some())
}

pub(super) fn is_terminated(container: &ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|state| state.terminated.is_some())
}

/// Whether it ran at all.
fn has_begun(container: &ContainerStatus) -> bool {
    is_running(container) || exit_code(container).is_some()
}

fn is_hopeless(container: &ContainerStatus) -> bool {
    container.restart_count >= HOPELESS && !is_running(container) && exit_code(container).is_some_and(|code| code != 0)
}

/// Whether nothing of it runs any more.
pub(super) fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub(super) fn seconds(time: Option<&Time>) -> Option<f64> {
    time.map(|time| time.0.as_millisecond() as f64 / 1e3)
}

pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
#[path = "look_tests.rs"]
mod tests;
