//! Pods that were taken away: evicted, preempted, drained, or with their node.

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::Event;
use regex::Regex;

use super::evidence::{Case, message, reason};
use super::text::{bytes, pattern, quantity, quote};
use super::{Cause, Explanation};

const AGAIN: &str = "launch again with the run id: it goes on from its last published state";

/// What the pod's own `reason` says.
pub(super) fn of_status(case: &Case) -> Option<Explanation> {
    let status = case.pod?.status.as_ref()?;
    if case.phase() == "Unknown" && status.reason.as_deref().unwrap_or_default().is_empty() {
        return Some(node_lost(case, status.message.as_deref().unwrap_or_default()));
    }
    let reason = status.reason.as_deref().filter(|reason| !reason.is_empty())?;
    let said = status.message.as_deref().unwrap_or_default();
    Some(match reason {
        "Evicted" => evicted(case, said).ended(),
        "Preempting" | "Preempted" => preempted(case, said).ended(),
        "NodeLost" => node_lost(case, said),
        "Shutdown" | "Terminated" | "NodeShutdown" => shutdown(case, said).ended(),
        "UnexpectedAdmissionError" => rejected_device(case, said).ended(),
        "NodeAffinity" | "TaintToleration" | "PodToleratesNodeTaints" | "NodePorts" | "HostPorts" => {
            let sentence = format!("{} turned the pod away: {}", case.node_called(), quote(said));
            let next = "the node changed between placement and start: launch again, and look at its labels and taints if it stays so";
            Explanation::new(Cause::Unschedulable, sentence, next.to_owned()).retryable(true).ended()
        }
        "TopologyAffinityError" => {
            let sentence = format!(
                "{} cannot give the pod its processors and devices together: {}",
                case.node_called(),
                quote(said)
            );
            let next = "ask for fewer CPUs or GPUs, so that they fit on one NUMA node, or use nodes with another topology policy";
            Explanation::new(Cause::Unschedulable, sentence, next.to_owned()).ended()
        }
        other if other.starts_with("OutOf") => {
            let resource = other.trim_start_matches("OutOf");
            let sentence = format!(
                "{} turned the pod away, as it has too little `{resource}` left: {}",
                case.node_called(),
                quote(said)
            );
            let next =
                "launch again: the scheduler's view of the node was older than the node; if it stays so, ask for less";
            Explanation::new(Cause::Unschedulable, sentence, next.to_owned()).retryable(true).ended()
        }
        _ => return None,
    })
}

/// What the `DisruptionTarget` condition says (1.26 and later).
pub(super) fn of_condition(case: &Case) -> Option<Explanation> {
    let condition = case.condition("DisruptionTarget").filter(|condition| condition.status == "True")?;
    let said = condition.message.as_deref().unwrap_or_default();
    Some(match condition.reason.as_deref().unwrap_or_default() {
        "PreemptionByScheduler" | "PreemptionByKubeScheduler" => preempted(case, said).ended(),
        "TerminationByKubelet" if said.contains("shutdown") => shutdown(case, said).ended(),
        "TerminationByKubelet" if said.contains("critical pod") => preempted(case, said).ended(),
        "TerminationByKubelet" => evicted(case, said).ended(),
        "DeletionByTaintManager" => match spot(case) {
            Some(event) => taken_back(case, event),
            None => tainted(case, said),
        },
        "DeletionByPodGC" => node_lost(case, said),
        "EvictionByEvictionAPI" => drained(case, said).ended(),
        other => {
            let sentence = format!("the pod was taken away ({other}): {}", quote(said));
            Explanation::new(Cause::Unknown, sentence, AGAIN.to_owned()).retryable(true).ended()
        }
    })
}

/// What the newest event that takes the pod away says.
pub(super) fn of_events(case: &Case) -> Option<Explanation> {
    let taken = |event: &&&Event| {
        matches!(
            reason(event),
            "Evicted"
                | "Preempted"
                | "Preempting"
                | "TaintManagerEviction"
                | "NodeNotReady"
                | "ScaleDown"
                | "NodeShutdown"
                | "EvictedByVPA"
                | "TerminatedDueToNodeShutdown"
                | "Disrupted"
                | "Drained"
        ) && !message(event).contains("Cancelling deletion")
    };
    let event = *case.events.iter().rev().find(taken)?;
    let said = message(event);
    let explanation = match reason(event) {
        "Preempted" | "Preempting" => preempted(case, said),
        "TaintManagerEviction" | "NodeNotReady" => match spot(case) {
            Some(event) => taken_back(case, event),
            None => tainted(case, said),
        },
        "ScaleDown" | "Drained" | "EvictedByVPA" | "Disrupted" => drained(case, said),
        "NodeShutdown" | "TerminatedDueToNodeShutdown" => shutdown(case, said),
        // Karpenter and `kubectl drain` use the same word as the kubelet.
        _ if said.to_lowercase().contains("spot") || said.to_lowercase().contains("interruption") => {
            taken_back(case, event)
        }
        _ if is_pressure(said) => evicted(case, said),
        _ => drained(case, said),
    };
    Some(explanation.ended())
}

/// A node that does not answer while the pod is still on it.
pub(super) fn of_node(case: &Case) -> Option<Explanation> {
    let conditions = case.node?.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    if ready.status == "True" {
        return None;
    }
    if let Some(event) = spot(case) {
        return Some(taken_back(case, event));
    }
    let said =
        format!("{} {}", ready.reason.as_deref().unwrap_or_default(), ready.message.as_deref().unwrap_or_default());
    if said.contains("shutting down") || said.contains("shutdown") {
        return Some(shutdown(case, &said));
    }
    Some(node_lost(case, &said).waiting())
}

fn is_pressure(said: &str) -> bool {
    ["low on resource", "had condition", "EmptyDir", "ephemeral", "exceed"].iter().any(|word| said.contains(word))
        || said.is_empty()
}

/// By the kubelet: for the node's sake, or because the pod wrote more than it may.
pub(super) fn evicted(case: &Case, said: &str) -> Explanation {
    static EMPTY_DIR: LazyLock<Regex> =
        LazyLock::new(|| pattern(r#"EmptyDir volume "([^"]+)" exceeds the limit "([^"]+)""#));
    static CONTAINER: LazyLock<Regex> =
        LazyLock::new(|| pattern(r#"Container (\S+) exceeded its local ephemeral storage limit "([^"]+)""#));
    static POD: LazyLock<Regex> =
        LazyLock::new(|| pattern(r"ephemeral local storage usage exceeds the total limit of containers (\w+)"));
    static LOW: LazyLock<Regex> = LazyLock::new(|| {
        pattern(r"low on resource: \[?([\w/-]+)\]?(?:\. Threshold quantity: (\w+), available: (\w+))?")
    });
    static USED: LazyLock<Regex> = LazyLock::new(|| pattern(r"Container (\S+) was using (\w+), request is (\w+)"));
    static CONDITION: LazyLock<Regex> = LazyLock::new(|| pattern(r"had condition: \[([^\]]+)\]"));
    let event = case.events.iter().rev().find(|event| reason(event) == "Evicted").map(|event| message(event));
    let said = if said.is_empty() { event.unwrap_or_default() } else { said };
    let size = |text: &str| quantity(text).map_or_else(|| text.to_owned(), bytes);
    let own = |sentence: String, next_step: &str| {
        Explanation::new(Cause::Evicted, sentence, next_step.to_owned()).retryable(false)
    };
    if let Some(found) = EMPTY_DIR.captures(said) {
        let (volume, limit) = (&found[1], size(&found[2]));
        return own(
            format!("the pod was evicted: its volume `{volume}` outgrew its limit of {limit}"),
            "raise the volume's size in `.resources(…)` (`work` holds models and temporary files, `dshm` is /dev/shm), or write less",
        );
    }
    if let Some(found) = CONTAINER.captures(said) {
        return own(
            format!(
                "the pod was evicted: container `{}` wrote more than its {} of ephemeral storage",
                &found[1],
                size(&found[2])
            ),
            "raise the ephemeral storage in `.resources(…)`, or write less to the container's file system",
        );
    }
    if let Some(found) = POD.captures(said) {
        return own(
            format!("the pod was evicted: it wrote more than its {} of ephemeral storage", size(&found[1])),
            "raise the ephemeral storage in `.resources(…)`, or write less",
        );
    }
    if let Some(found) = LOW.captures(said) {
        let resource = match &found[1] {
            "MemoryPressure" => "memory",
            "DiskPressure" => "ephemeral-storage",
            "PIDPressure" => "pids",
            other => other,
        };
        let facts = match (found.get(2), found.get(3)) {
            (Some(threshold), Some(left)) => {
                format!(" ({} left, its threshold is {})", size(left.as_str()), size(threshold.as_str()))
            }
            _ => String::new(),
        };
        let used = USED.captures(said).map_or_else(String::new, |found| {
            format!("; container `{}` used {} and had asked for {}", &found[1], size(&found[2]), size(&found[3]))
        });
        let advice = match resource {
            "memory" => format!(
                "ask for as much memory as the job uses in `.resources(…)`: pods that use more than they asked for go first. Then {AGAIN}"
            ),
            _ if resource.contains("storage") || resource.contains("fs") => {
                format!(
                    "ask for ephemeral storage in `.resources(…)`, so that the pod lands where there is room. Then {AGAIN}"
                )
            }
            _ => AGAIN.to_owned(),
        };
        return Explanation::new(
            Cause::Evicted,
            format!("the pod was evicted: {} ran low on {resource}{facts}{used}", case.node_called()),
            advice,
        );
    }
    if let Some(found) = CONDITION.captures(said) {
        return Explanation::new(
            Cause::Evicted,
            format!("{} turned the pod away, as it is under {}", case.node_called(), &found[1]),
            format!("{AGAIN}; another node, or this one once it has recovered, can take it"),
        );
    }
    let quoted = if said.is_empty() { "the kubelet does not say why".to_owned() } else { quote(said) };
    Explanation::new(
        Cause::Evicted,
        format!("the pod was evicted from {}: {quoted}", case.node_called()),
        AGAIN.to_owned(),
    )
}

fn preempted(case: &Case, said: &str) -> Explanation {
    static BY: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)preempted by (?:pod )?(\S+) on node"));
    let event = case.newest(&["Preempted"]).map(message);
    let by =
        [Some(said), event].into_iter().flatten().find_map(|said| Some(BY.captures(said)?.get(1)?.as_str().to_owned()));
    let by = by.map_or_else(String::new, |by| format!(" (`{by}`)"));
    let why = if said.is_empty() { String::new() } else { format!(": {}", quote(said)) };
    Explanation::new(
        Cause::Preempted,
        format!("the pod had to make room for one of higher priority{by}{why}"),
        format!("{AGAIN}; give the run a higher priority class in `.resources(…)` if it should stay"),
    )
}

/// Whether the node, or what the pod asks of one, says that it may be taken back at any time.
fn is_spot(case: &Case) -> bool {
    let labels = case.node.and_then(|node| node.metadata.labels.as_ref());
    let asked = case.pod.and_then(|pod| pod.spec.as_ref()?.node_selector.as_ref());
    labels.into_iter().chain(asked).flatten().any(|(key, value)| match key.as_str() {
        "cloud.google.com/gke-spot" | "cloud.google.com/gke-preemptible" => value == "true",
        "eks.amazonaws.com/capacityType" | "karpenter.sh/capacity-type" | "kubernetes.azure.com/scalesetpriority" => {
            value.eq_ignore_ascii_case("spot")
        }
        _ => false,
    })
}

/// The notice that a spot or preemptible machine is taken back.
fn spot<'a>(case: &Case<'a>) -> Option<&'a Event> {
    let words = ["spot", "preempt", "interruption", "reclaim"];
    let told = case.node_events.iter().chain(&case.events).rev().copied();
    told.into_iter().find(|event| {
        let text = format!("{} {}", reason(event), message(event)).to_lowercase();
        !matches!(reason(event), "FailedScheduling" | "Preempted" | "NotTriggerScaleUp")
            && words.iter().any(|word| text.contains(word))
    })
}

fn taken_back(case: &Case, event: &Event) -> Explanation {
    Explanation::new(
        Cause::Preempted,
        format!(
            "{} is a spot machine and was taken back ({}: {})",
            case.node_called(),
            reason(event),
            quote(message(event))
        ),
        format!("{AGAIN}; lower `save_interval` to lose fewer steps, or use machines on demand"),
    )
    .ended()
}

/// By a `NoExecute` taint: mostly a node that stopped answering.
fn tainted(case: &Case, said: &str) -> Explanation {
    let taints = case.node.and_then(|node| node.spec.as_ref()?.taints.as_ref());
    let executing = taints.into_iter().flatten().filter(|taint| taint.effect == "NoExecute");
    let other =
        executing.map(|taint| taint.key.clone()).find(|key| !key.contains("not-ready") && !key.contains("unreachable"));
    match other {
        Some(key) if key.contains("out-of-service") || key.contains("shutdown") => shutdown(case, said),
        Some(key) => Explanation::new(
            Cause::Drained,
            format!("the pod was removed from {}, which got the taint `{key}`", case.node_called()),
            format!("{AGAIN}; tolerate the taint in `.resources(…)` if the job belongs there"),
        ),
        None => node_lost(case, said),
    }
}

fn node_lost(case: &Case, said: &str) -> Explanation {
    let why = if said.trim().is_empty() { String::new() } else { format!(": {}", quote(said)) };
    Explanation::new(
        Cause::NodeLost,
        format!("{} stopped answering or is gone, and the pod with it{why}", case.node_called()),
        AGAIN.to_owned(),
    )
    .ended()
}

fn shutdown(case: &Case, said: &str) -> Explanation {
    if let Some(event) = spot(case) {
        return taken_back(case, event);
    }
    let why = if said.trim().is_empty() { String::new() } else { format!(": {}", quote(said)) };
    if is_spot(case) {
        return Explanation::new(
            Cause::Preempted,
            format!("{} is a spot machine and was shut down{why}", case.node_called()),
            format!("{AGAIN}; lower `save_interval` to lose fewer steps, or use machines on demand"),
        );
    }
    Explanation::new(Cause::NodeShutdown, format!("{} was shut down{why}", case.node_called()), AGAIN.to_owned())
}

fn drained(case: &Case, said: &str) -> Explanation {
    if let Some(event) = spot(case) {
        return taken_back(case, event);
    }
    let why = if said.trim().is_empty() { String::new() } else { format!(": {}", quote(said)) };
    Explanation::new(
        Cause::Drained,
        format!("the pod was moved off {} (a drain, an upgrade or a scale-down){why}", case.node_called()),
        AGAIN.to_owned(),
    )
}

fn rejected_device(case: &Case, said: &str) -> Explanation {
    let device = said.contains("device") || said.contains("Allocate failed") || said.contains("gpu");
    let next = "launch again: another node can take it; if it stays so, look at the device plugin's log and `nvidia-smi` on the node";
    let cause = if device { Cause::GpuUnhealthy } else { Cause::Unschedulable };
    Explanation::new(cause, format!("{} turned the pod away: {}", case.node_called(), quote(said)), next.to_owned())
        .retryable(true)
}
