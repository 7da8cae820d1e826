//! Between a place on a node and the first container: volumes, the sandbox, its network; and probes.

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::Event;
use regex::Regex;

use super::evidence::{Case, container_of, count, message, reason, time};
use super::text::{pattern, quote};
use super::{Cause, Explanation, start};

/// A volume or a sandbox that cannot be set up, where no container has started since.
pub(super) fn explain(case: &Case) -> Option<Explanation> {
    if case.containers().iter().any(|container| container.has_started()) {
        return None;
    }
    const TROUBLE: [&str; 7] = [
        "FailedMount",
        "FailedAttachVolume",
        "FailedMapVolume",
        "FailedCreatePodSandBox",
        "FailedCreatePodContainer",
        "NetworkNotReady",
        "FailedPodSandBoxStatus",
    ];
    let moved = case.newest(&["Pulling", "Pulled", "Created", "Started"]).and_then(time);
    // A secret that is missing says more than the time-out that follows from it.
    let of_pod = |event: &&Event| {
        TROUBLE.contains(&reason(event)) && !time(event).zip(moved).is_some_and(|(at, moved)| moved > at)
    };
    let troubles: Vec<&Event> = case.events.iter().rev().copied().filter(of_pod).collect();
    let named = troubles
        .iter()
        .find_map(|event| start::reference("a volume of the pod", message(event)).filter(|found| !found.retryable));
    if named.is_some() {
        return named;
    }
    let telling =
        |event: &&&Event| !message(event).contains("timed out waiting for the condition") && !message(event).is_empty();
    let event = troubles.iter().find(telling).or(troubles.first())?;
    Some(match reason(event) {
        "FailedMount" | "FailedAttachVolume" | "FailedMapVolume" => mount(message(event)),
        _ => sandbox(case, message(event)),
    })
}

fn mount(said: &str) -> Explanation {
    static VOLUME: LazyLock<Regex> =
        LazyLock::new(|| pattern(r#"for volume "([^"]+)"|unmounted volumes=\[([^\]]+)\]"#));
    let volume = VOLUME.captures(said).and_then(|found| Some(found.get(1).or(found.get(2))?.as_str().to_owned()));
    let volume = volume.map_or_else(|| "a volume of the pod".to_owned(), |name| format!("the volume `{name}`"));
    let lower = said.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let (what, next_step, retryable) = if has(&["multi-attach", "already used by pod", "already exclusively attached"])
    {
        (
            "is still attached to another node or pod",
            "wait until the other pod is gone, or use a volume that many nodes can mount (ReadWriteMany)",
            true,
        )
    } else if has(&["not found in the list of registered csi drivers"]) {
        (
            "needs a storage driver that the node does not run",
            "install the CSI driver, or let the job run on nodes that have it",
            false,
        )
    } else if has(&["timed out", "deadline exceeded", "connection refused", "not registered"]) {
        (
            "is not mounted in time",
            "wait: the kubelet tries again; `kubectl describe pod` shows what is said meanwhile",
            true,
        )
    } else if has(&["access denied", "permission denied"]) {
        ("may not be mounted", "allow the node to mount it: export list, role or key of the storage", false)
    } else if has(&["no such file or directory", "does not exist", "hostpath type check failed", "not found"]) {
        ("is not there", "correct what it names, or make it", false)
    } else {
        ("cannot be mounted", "correct what is named; `kubectl describe pod` shows the events", false)
    };
    let explanation = Explanation::new(Cause::Mount, format!("{volume} {what}: {}", quote(said)), next_step.to_owned())
        .retryable(retryable);
    if retryable { explanation.waiting() } else { explanation }
}

fn sandbox(case: &Case, said: &str) -> Explanation {
    let lower = said.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let node = case.node_called();
    if has(&["no runtime for", "runtimehandler", "runtime handler"]) {
        return Explanation::new(
            Cause::GpuUnhealthy,
            format!("the container runtime of {node} does not know the pod's runtime class: {}", quote(said)),
            "install the NVIDIA container toolkit on the node, or leave the runtime class out".to_owned(),
        )
        .retryable(false);
    }
    let (what, next_step) = if has(&[
        "failed to assign an ip",
        "no ip addresses available",
        "no available ip",
        "insufficient free ip",
        "ip address pool",
        "no more ips",
    ]) {
        ("has no address left for the pod", "wait for other pods to end, or enlarge the cluster's address range")
    } else if has(&["cni", "network", "plugin type="]) {
        (
            "cannot set up the pod's network",
            "it is the cluster's network plugin (CNI): look at its pods on that node; another node may do",
        )
    } else if has(&["sandbox image", "pause"]) && has(&["pull", "image"]) {
        (
            "cannot pull the image of the pod's sandbox",
            "the node has no way to its registry for `pause`: import that image, or give the node access",
        )
    } else if has(&["no space left"]) {
        ("has no disk space left", "free the node's disk, or let the pod run on another node")
    } else {
        ("cannot make the pod's sandbox", "look at the container runtime on that node; another node may do")
    };
    Explanation::new(Cause::Sandbox, format!("{node} {what}: {}", quote(said)), next_step.to_owned()).waiting()
}

/// A container that runs and is not ready, because a probe says so.
pub(super) fn probe(case: &Case) -> Option<Explanation> {
    let event = case.newest(&["Unhealthy", "ProbeError"])?;
    let containers = case.containers();
    let container = match container_of(event) {
        Some(name) => containers.iter().find(|one| one.name == name),
        None => containers.iter().find(|one| one.is_running() && one.status.is_some_and(|status| !status.ready)),
    };
    if container.is_some_and(|one| !one.is_running() || one.status.is_some_and(|status| status.ready)) {
        return None;
    }
    let said = message(event);
    let lower = said.to_lowercase();
    let kind =
        ["liveness", "startup", "readiness"].into_iter().find(|kind| lower.contains(kind)).unwrap_or("readiness");
    let called = container.map_or_else(|| "the container".to_owned(), |one| one.called());
    let times = match count(event) {
        1 => String::new(),
        times => format!(", {times} times"),
    };
    let (effect, next_step) = match kind {
        "readiness" => (
            "so it gets no requests",
            "a server that still loads its model answers later: wait, and read its log if it stays so (`gym logs`)",
        ),
        _ => (
            "so the kubelet restarts it",
            "read its log (`gym logs`); where loading takes longer than the probe allows, raise the start time-out",
        ),
    };
    Some(
        Explanation::new(
            Cause::Probe,
            format!("the {kind} probe of {called} fails{times}, {effect}: {}", quote(said)),
            next_step.to_owned(),
        )
        .waiting(),
    )
}
