//! What is known of a job on a cluster, and which part of it is about the pod that counts.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    Container as ContainerSpec, ContainerStateTerminated, ContainerStatus, Event, Node, Pod, PodCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;
use training_gym_core::record::RunStatus;

/// Everything that may be known when a job does not do what it should. Any part may be missing.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// The job's pods. Of several the newest counts.
    pub pods: Vec<Pod>,
    /// The training job.
    pub job: Option<Job>,
    /// The deployment of an endpoint.
    pub deployment: Option<Deployment>,
    /// Its replica set.
    pub replica_set: Option<ReplicaSet>,
    /// Events of any of these and of the node, in any order.
    pub events: Vec<Event>,
    /// Nodes that are known, the pod's own among them or not.
    pub nodes: Vec<Node>,
    /// Pods of others on these nodes: what they ask for is not free.
    pub neighbours: Vec<Pod>,
    /// Kueue's `Workload` of the job.
    pub workload: Option<Value>,
    /// The run's own word.
    pub status: Option<RunStatus>,
    /// The last lines of the container that failed.
    pub log: Vec<String>,
    /// Seconds a pod may take to start.
    pub start_timeout: Option<f64>,
    /// Now, in Unix seconds.
    pub now: f64,
}

impl Evidence {
    /// Sorts objects as the API server gives them (`kubectl get … -o json`, lists included) into
    /// their places. `status.json` is known by its `num_rollout`. What is not known here is left out.
    pub fn from_objects(objects: impl IntoIterator<Item = Value>, now: f64) -> Self {
        let mut evidence = Self { now, ..Self::default() };
        let mut pods: Vec<Pod> = Vec::new();
        let mut waiting: Vec<Value> = objects.into_iter().collect();
        waiting.reverse();
        while let Some(mut object) = waiting.pop() {
            let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
            if let Some(Value::Array(items)) = object.get_mut("items").map(Value::take) {
                let of = kind.trim_end_matches("List");
                waiting.extend(items.into_iter().rev().map(|mut item| {
                    if let Value::Object(fields) = &mut item
                        && !of.is_empty()
                    {
                        fields.entry("kind").or_insert_with(|| of.into());
                    }
                    item
                }));
                continue;
            }
            match kind.as_str() {
                "Pod" => pods.extend(serde_json::from_value(object)),
                "Job" => evidence.job = serde_json::from_value(object).ok().or(evidence.job),
                "Deployment" => evidence.deployment = serde_json::from_value(object).ok().or(evidence.deployment),
                "ReplicaSet" => evidence.replica_set = serde_json::from_value(object).ok().or(evidence.replica_set),
                "Event" => evidence.events.extend(event(object)),
                "Node" => evidence.nodes.extend(serde_json::from_value(object)),
                "Workload" => evidence.workload = Some(object),
                _ if object.get("num_rollout").is_some() => evidence.status = serde_json::from_value(object).ok(),
                _ => {}
            }
        }
        let ours = |pod: &Pod| is_ours(pod, evidence.job.as_ref());
        let known = pods.iter().any(ours);
        let (own, others) = pods.into_iter().partition(|pod| !known || ours(pod));
        evidence.pods = own;
        evidence.neighbours = others;
        evidence
    }

    /// A pod and its events.
    pub fn of_pod(pod: Pod, events: Vec<Event>, now: f64) -> Self {
        Self { pods: vec![pod], events, now, ..Self::default() }
    }
}

fn is_ours(pod: &Pod, job: Option<&Job>) -> bool {
    let label = |name: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(name));
    match job {
        Some(job) => {
            let owners = pod.metadata.owner_references.iter().flatten();
            let owned = owners.into_iter().any(|owner| job.metadata.uid.as_ref() == Some(&owner.uid));
            let named = label("batch.kubernetes.io/job-name").or_else(|| label("job-name"));
            owned || (named.is_some() && named == job.metadata.name.as_ref())
        }
        None => label("app.kubernetes.io/managed-by").is_some_and(|name| name == "training-gym"),
    }
}

/// An event of either API: `events.k8s.io` has other names for the same fields.
fn event(mut object: Value) -> Option<Event> {
    if let Value::Object(fields) = &mut object {
        let renamed = [
            ("regarding", "involvedObject"),
            ("note", "message"),
            ("deprecatedCount", "count"),
            ("deprecatedFirstTimestamp", "firstTimestamp"),
            ("deprecatedLastTimestamp", "lastTimestamp"),
            ("deprecatedSource", "source"),
            ("reportingController", "reportingComponent"),
        ];
        for (from, to) in renamed {
            if let Some(value) = fields.remove(from) {
                fields.entry(to).or_insert(value);
            }
        }
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    serde_json::from_value(object).ok()
}

/// What a container is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Init,
    Sidecar,
    Main,
}

/// A container: what was asked for, and how it is.
#[derive(Clone, Copy)]
pub(super) struct Container<'a> {
    pub(super) name: &'a str,
    pub(super) role: Role,
    pub(super) spec: Option<&'a ContainerSpec>,
    pub(super) status: Option<&'a ContainerStatus>,
}

impl<'a> Container<'a> {
    /// Such as "init container `fetch`".
    pub(super) fn called(&self) -> String {
        let role = match self.role {
            Role::Init => "init container",
            Role::Sidecar => "sidecar",
            Role::Main => "container",
        };
        format!("{role} `{}`", self.name)
    }

    pub(super) fn image(&self) -> &'a str {
        let asked = self.spec.and_then(|spec| spec.image.as_deref());
        asked.or_else(|| Some(self.status?.image.as_str())).unwrap_or_default()
    }

    /// Why it waits, and the message with that.
    pub(super) fn waiting(&self) -> Option<(&'a str, &'a str)> {
        let waiting = self.status?.state.as_ref()?.waiting.as_ref()?;
        Some((waiting.reason.as_deref().unwrap_or_default(), waiting.message.as_deref().unwrap_or_default()))
    }

    pub(super) fn terminated(&self) -> Option<&'a ContainerStateTerminated> {
        self.status?.state.as_ref()?.terminated.as_ref()
    }

    /// How it ended the last time, where it was started again or is about to be.
    pub(super) fn last_terminated(&self) -> Option<&'a ContainerStateTerminated> {
        self.status?.last_state.as_ref()?.terminated.as_ref()
    }

    pub(super) fn is_running(&self) -> bool {
        self.status.and_then(|status| status.state.as_ref()).is_some_and(|state| state.running.is_some())
    }

    /// Whether it ever ran.
    pub(super) fn has_started(&self) -> bool {
        self.is_running() || self.terminated().is_some() || self.last_terminated().is_some()
    }

    pub(super) fn restarts(&self) -> i32 {
        self.status.map_or(0, |status| status.restart_count)
    }

    pub(super) fn limit(&self, resource: &str) -> Option<f64> {
        let limits = self.spec?.resources.as_ref()?.limits.as_ref()?;
        super::text::quantity(&limits.get(resource)?.0)
    }
}

/// The evidence about the pod that counts.
pub(super) struct Case<'a> {
    pub(super) all: &'a Evidence,
    pub(super) pod: Option<&'a Pod>,
    /// The pod's, oldest first; without a pod those of the one that the newest event is about.
    pub(super) events: Vec<&'a Event>,
    /// Of the job, the replica set, the deployment and the queue, oldest first.
    pub(super) owner_events: Vec<&'a Event>,
    /// Of the pod's node.
    pub(super) node_events: Vec<&'a Event>,
    /// Of volume claims.
    pub(super) claim_events: Vec<&'a Event>,
    /// The pod's node.
    pub(super) node: Option<&'a Node>,
}

impl<'a> Case<'a> {
    pub(super) fn new(all: &'a Evidence) -> Self {
        let pod = all.pods.iter().max_by(|a, b| {
            let made = |pod: &Pod| seconds(pod.metadata.creation_timestamp.as_ref()).unwrap_or(0.0);
            made(a).total_cmp(&made(b))
        });
        let node_name = pod.and_then(|pod| pod.spec.as_ref()?.node_name.as_deref());
        let node = all.nodes.iter().find(|node| node_name.is_some() && node.metadata.name.as_deref() == node_name);
        let mut sorted: Vec<&Event> = all.events.iter().collect();
        sorted.sort_by(|a, b| time(a).unwrap_or(0.0).total_cmp(&time(b).unwrap_or(0.0)));
        let kind = |event: &Event| event.involved_object.kind.clone().unwrap_or_default();
        let of =
            |kinds: &[&str]| sorted.iter().copied().filter(|event| kinds.contains(&kind(event).as_str())).collect();
        let mut pod_events: Vec<&Event> = of(&["Pod", ""]);
        match pod {
            Some(pod) => pod_events.retain(|event| is_about(event, pod)),
            None => {
                let newest = pod_events.last().and_then(|event| event.involved_object.name.clone());
                pod_events.retain(|event| event.involved_object.name == newest);
            }
        }
        let job_uid = all.job.as_ref().and_then(|job| job.metadata.uid.as_deref());
        let mut owner_events: Vec<&Event> =
            of(&["Job", "ReplicaSet", "Deployment", "Workload", "JobSet", "StatefulSet"]);
        owner_events.retain(|event| {
            let other = |uid: &str| kind(event) == "Job" && job_uid.is_some_and(|ours| ours != uid);
            !event.involved_object.uid.as_deref().is_some_and(other)
        });
        let mut node_events: Vec<&Event> = of(&["Node"]);
        node_events.retain(|event| node_name.is_none() || event.involved_object.name.as_deref() == node_name);
        let claim_events = of(&["PersistentVolumeClaim"]);
        Self { all, pod, events: pod_events, owner_events, node_events, claim_events, node }
    }

    /// Init containers and sidecars in their order, then the others.
    pub(super) fn containers(&self) -> Vec<Container<'a>> {
        let Some(pod) = self.pod else { return Vec::new() };
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
        let main = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
        let init_statuses = status.and_then(|status| status.init_container_statuses.as_deref()).unwrap_or_default();
        let main_statuses = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
        let mut found = paired(init, init_statuses, true);
        found.extend(paired(main, main_statuses, false));
        found
    }

    pub(super) fn phase(&self) -> &'a str {
        self.pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()).unwrap_or_default()
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
    }

    pub(super) fn condition(&self, kind: &str) -> Option<&'a PodCondition> {
        let conditions = self.pod?.status.as_ref()?.conditions.as_deref()?;
        conditions.iter().find(|condition| condition.type_ == kind)
    }

    /// Whether the pod has a node.
    pub(super) fn is_scheduled(&self) -> bool {
        let named = self.node_name().is_some();
        named || self.condition("PodScheduled").is_some_and(|condition| condition.status == "True")
    }

    pub(super) fn is_ready(&self) -> bool {
        self.phase() == "Running" && self.condition("Ready").is_some_and(|condition| condition.status == "True")
    }

    pub(super) fn node_name(&self) -> Option<&'a str> {
        self.pod?.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
    }

    /// Such as "node `a`", or "its node".
    pub(super) fn node_called(&self) -> String {
        self.node_name().map_or_else(|| "its node".to_owned(), |name| format!("node `{name}`"))
    }

    pub(super) fn pod_called(&self) -> String {
        let name = self.pod.and_then(|pod| pod.metadata.name.as_deref());
        name.map_or_else(|| "the pod".to_owned(), |name| format!("pod `{name}`"))
    }

    /// What a pod of this job asks for in all, by resource: the largest init container, or the sum.
    pub(super) fn asked(&self, resource: &str) -> Option<f64> {
        let template = self.all.job.as_ref().and_then(|job| job.spec.as_ref()?.template.spec.as_ref());
        let deployed = || self.all.deployment.as_ref().and_then(|made| made.spec.as_ref()?.template.spec.as_ref());
        let spec = self.pod.and_then(|pod| pod.spec.as_ref()).or(template).or_else(deployed)?;
        let sum: f64 = spec.containers.iter().filter_map(|one| request(one, resource)).sum();
        let init = spec.init_containers.iter().flatten();
        let sidecars: f64 = init.clone().filter(|one| is_sidecar(one)).filter_map(|one| request(one, resource)).sum();
        let largest = init.filter(|one| !is_sidecar(one)).filter_map(|one| request(one, resource)).fold(0.0, f64::max);
        Some((sum + sidecars).max(largest)).filter(|asked| *asked > 0.0)
    }

    /// The newest event with one of these reasons.
    pub(super) fn newest(&self, reasons: &[&str]) -> Option<&'a Event> {
        self.events.iter().rev().copied().find(|event| reasons.contains(&reason(event)))
    }

    /// Seconds since the pod was made.
    pub(super) fn age(&self) -> Option<f64> {
        let made = seconds(self.pod?.metadata.creation_timestamp.as_ref())?;
        Some(self.all.now - made).filter(|age| *age >= 0.0 && self.all.now > 0.0)
    }
}

fn paired<'a>(specs: &'a [ContainerSpec], statuses: &'a [ContainerStatus], init: bool) -> Vec<Container<'a>> {
    let role = |spec: Option<&ContainerSpec>| match spec {
        _ if !init => Role::Main,
        Some(spec) if is_sidecar(spec) => Role::Sidecar,
        _ => Role::Init,
    };
    let of = |name: &str| statuses.iter().find(|status| status.name == name);
    let known = specs.iter().map(|spec| Container {
        name: &spec.name,
        role: role(Some(spec)),
        spec: Some(spec),
        status: of(&spec.name),
    });
    let unknown = statuses.iter().filter(|status| specs.iter().all(|spec| spec.name != status.name));
    known
        .chain(unknown.map(|status| Container {
            name: &status.name,
            role: role(None),
            spec: None,
            status: Some(status),
        }))
        .collect()
}

pub(super) fn is_sidecar(container: &ContainerSpec) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// What a container asks for; a limit alone is also a request.
pub(super) fn request(container: &ContainerSpec, resource: &str) -> Option<f64> {
    let resources = container.resources.as_ref()?;
    let of = |map: &Option<
        std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    >| { super::text::quantity(&map.as_ref()?.get(resource)?.0) };
    of(&resources.requests).or_else(|| of(&resources.limits))
}

/// Whether an event is about this very pod: one of the same name made later has another uid.
fn is_about(event: &Event, pod: &Pod) -> bool {
    let object = &event.involved_object;
    match (object.uid.as_deref().filter(|uid| !uid.is_empty()), pod.metadata.uid.as_deref()) {
        (Some(about), Some(uid)) => about == uid,
        _ => match (object.name.as_deref(), pod.metadata.name.as_deref()) {
            (Some(about), Some(name)) => {
                let made = seconds(pod.metadata.creation_timestamp.as_ref());
                // Two seconds: the clocks of API server and kubelet are two.
                let before = time(event).zip(made).is_some_and(|(seen, made)| seen + 2.0 < made);
                about == name && !before
            }
            _ => true,
        },
    }
}

/// When an event was last seen, in Unix seconds.
pub(super) fn time(event: &Event) -> Option<f64> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let micro = [series, event.event_time.as_ref()].into_iter().flatten().map(|at| at.0.as_millisecond() as f64 / 1e3);
    let whole = [event.last_timestamp.as_ref(), event.first_timestamp.as_ref()].into_iter().filter_map(seconds);
    let seen =
        micro.chain(whole).fold(None, |newest: Option<f64>, at| Some(newest.map_or(at, |newest| newest.max(at))));
    seen.or_else(|| seconds(event.metadata.creation_timestamp.as_ref()))
}

pub(super) fn seconds(at: Option<&Time>) -> Option<f64> {
    at.map(|at| at.0.as_millisecond() as f64 / 1e3)
}

pub(super) fn reason(event: &Event) -> &str {
    event.reason.as_deref().unwrap_or_default()
}

pub(super) fn message(event: &Event) -> &str {
    event.message.as_deref().unwrap_or_default()
}

/// How often it was seen.
pub(super) fn count(event: &Event) -> i32 {
    let series = event.series.as_ref().and_then(|series| series.count);
    series.or(event.count).unwrap_or(1).max(1)
}

/// The container an event is about: `spec.containers{trainer}`.
pub(super) fn container_of(event: &Event) -> Option<&str> {
    let path = event.involved_object.field_path.as_deref()?;
    path.split_once('{')?.1.strip_suffix('}')
}
