//! Pods no node takes: the scheduler's reasons, what was asked, what there is.

use k8s_openapi::api::core::v1::{Event, Node};

use super::evidence::{Case, message, reason, request, time};
use super::predicates::{Failed, Test, Verdict, read};
use super::text::{amount, listed, quantity, quote};
use super::{Cause, Explanation};

/// A pod without a node.
pub(super) fn explain(case: &Case) -> Option<Explanation> {
    let failed = case.newest(&["FailedScheduling", "Unschedulable"]);
    let condition = case.condition("PodScheduled").filter(|condition| condition.status == "False");
    let gated = condition.is_some_and(|condition| condition.reason.as_deref() == Some("SchedulingGated"));
    let said = condition.and_then(|condition| condition.message.as_deref()).filter(|said| !said.is_empty());
    let scaler = case.newest(&["NotTriggerScaleUp", "TriggeredScaleUp", "FailedScaleUp"]);
    let said = said.or_else(|| failed.map(message).filter(|said| !said.is_empty()));
    if gated {
        let said = said.map(quote).unwrap_or_default();
        return Some(
            Explanation::new(
                Cause::Queued,
                format!("the pod waits behind a scheduling gate ({said}): a queue has not let it through yet"),
                "wait, or look at the queue that set the gate (`kubectl get workloads` with Kueue)".to_owned(),
            )
            .waiting(),
        );
    }
    let Some(said) = said.or_else(|| scaler.filter(|event| reason(event) != "TriggeredScaleUp").map(message)) else {
        return condition.map(|_| ()).or(failed.map(|_| ())).map(|()| {
            let sentence = "no node takes the pod, and the scheduler does not say why".to_owned();
            Explanation::new(Cause::Unschedulable, sentence, look(case)).retryable(true).waiting()
        });
    };
    Some(of_words(case, said, scaler))
}

/// The scheduler's words, with what the cluster holds.
pub(super) fn of_words(case: &Case, said: &str, scaler: Option<&Event>) -> Explanation {
    let verdict = read(said);
    if let Some(explanation) = missing_plugin(case, &verdict, said) {
        return explanation;
    }
    let of_claim = |failed: &&Failed| matches!(failed.test, Test::ClaimMissing(_) | Test::ClaimUnbound(_));
    let claim = verdict.failed.iter().find(of_claim);
    if let Some(failed) = claim {
        return unbound(case, failed);
    }
    let reasons: Vec<String> = verdict.failed.iter().map(|failed| words(case, failed, &verdict)).collect();
    let known = verdict.failed.iter().any(|failed| !matches!(failed.test, Test::Other(_)));
    let of = verdict.nodes.map_or_else(String::new, |nodes| match nodes {
        0 => " (the cluster has no node)".to_owned(),
        1 => " of the 1 there is".to_owned(),
        _ => format!(" of the {nodes} there are"),
    });
    let mut sentence = match known {
        true => format!("no node{of} fits the pod: {}", listed(&reasons)),
        false => format!("no node{of} takes the pod: {}", quote(said)),
    };
    let elsewhere =
        verdict.failed.iter().all(|failed| matches!(failed.test, Test::VolumeElsewhere(_)) || is_standing(failed))
            && verdict.failed.iter().any(|failed| matches!(failed.test, Test::VolumeElsewhere(_)));
    let impossible = verdict.failed.iter().filter_map(|failed| too_much(case, failed)).collect::<Vec<_>>();
    let passing = verdict.failed.iter().any(|failed| {
        matches!(failed.test, Test::Insufficient(_) | Test::TooManyPods | Test::Cordoned | Test::Neighbours(_))
            && too_much(case, failed).is_none()
            || is_trouble(failed)
    });
    let mut retryable = passing || (verdict.failed.is_empty() && verdict.nodes == Some(0)) || !known;
    let mut next_step = advice(case, &verdict, &impossible);
    match scaler.map(|event| (reason(event), message(event))) {
        Some(("TriggeredScaleUp", _)) => {
            sentence.push_str("; the cluster's autoscaler is adding a node");
            retryable = true;
            next_step = format!("wait for the new node (minutes); if none comes, {next_step}");
        }
        Some(("NotTriggerScaleUp", why)) => sentence.push_str(&format!("; the autoscaler adds none: {}", quote(why))),
        Some(("FailedScaleUp", why)) => {
            sentence.push_str(&format!("; the autoscaler could not add one: {}", quote(why)))
        }
        _ => {}
    }
    let cause = if elsewhere { Cause::VolumeClaim } else { Cause::Unschedulable };
    Explanation::new(cause, sentence, next_step).retryable(retryable && !elsewhere).waiting()
}

/// GPUs are asked for, and the nodes that are known offer none at all.
fn missing_plugin(case: &Case, verdict: &Verdict, said: &str) -> Option<Explanation> {
    let gpu = verdict.failed.iter().find_map(|failed| match &failed.test {
        Test::Insufficient(name) if is_gpu(name) => Some(name.clone()),
        _ => None,
    })?;
    let nodes = &case.all.nodes;
    let capacity = |node: &Node| allocatable(node, &gpu).unwrap_or(0.0);
    if nodes.is_empty() || nodes.iter().any(|node| capacity(node) > 0.0) || said.contains("scale-up") {
        return None;
    }
    // A resource that is listed with 0 has a plugin that found no healthy device.
    let listed = nodes.iter().filter(|node| offers(node, &gpu)).count();
    let asked = case.asked(&gpu).map_or_else(String::new, |count| format!("{} × ", amount(&gpu, count)));
    let has_card = nodes.iter().any(|node| {
        let labels = node.metadata.labels.iter().flatten();
        labels.into_iter().any(|(key, value)| {
            (key.contains("gpu") || key.contains("accelerator") || key.contains("pci-10de"))
                && !matches!(value.as_str(), "false" | "0" | "")
        })
    });
    let count = nodes.len();
    if listed > 0 {
        return Some(Explanation::new(
            Cause::GpuUnhealthy,
            format!("{asked}`{gpu}` is asked for; {listed} of {count} nodes list the resource with 0 healthy devices"),
            "look at the device plugin's log (`kubectl -n kube-system logs -l name=nvidia-device-plugin-ds`) and at the driver \
             on the node (`nvidia-smi`)"
                .to_owned(),
        ));
    }
    let card = if has_card { ", although labels say that there are GPUs" } else { "" };
    Some(Explanation::new(
        Cause::GpuPluginMissing,
        format!("{asked}`{gpu}` is asked for, and none of the {count} nodes offers that resource{card}: the device plugin is not installed, or there is no GPU node"),
        "install the NVIDIA device plugin or the GPU operator (https://github.com/NVIDIA/k8s-device-plugin), or add a node with \
         GPUs; without GPUs leave `device` unset"
            .to_owned(),
    ))
}

fn is_gpu(name: &str) -> bool {
    name.contains('/') && (name.contains("gpu") || name.starts_with("nvidia.com/"))
}

fn offers(node: &Node, resource: &str) -> bool {
    let of = |map: &Option<std::collections::BTreeMap<String, _>>| {
        map.as_ref().is_some_and(|map| map.contains_key(resource))
    };
    node.status.as_ref().is_some_and(|status| of(&status.allocatable) || of(&status.capacity))
}

/// What a node has for pods, of a resource.
pub(crate) fn allocatable(node: &Node, resource: &str) -> Option<f64> {
    let status = node.status.as_ref()?;
    let map = status.allocatable.as_ref().or(status.capacity.as_ref())?;
    quantity(&map.get(resource)?.0)
}

/// What of it the pods that are known leave free.
fn free_of(case: &Case, node: &Node, resource: &str) -> Option<f64> {
    let there = case.all.neighbours.iter().filter(|pod| {
        let spec = pod.spec.as_ref();
        let over = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            .is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"));
        !over && spec.is_some_and(|spec| spec.node_name.is_some() && spec.node_name == node.metadata.name)
    });
    let taken: f64 = there
        .flat_map(|pod| pod.spec.iter().flat_map(|spec| &spec.containers))
        .filter_map(|container| request(container, resource))
        .sum();
    Some((allocatable(node, resource)? - taken).max(0.0))
}

fn largest(case: &Case, resource: &str) -> Option<f64> {
    case.all.nodes.iter().filter_map(|node| allocatable(node, resource)).reduce(f64::max)
}

/// What is asked for and the most any node has, where no node can ever hold it.
fn too_much(case: &Case, failed: &Failed) -> Option<(String, f64, f64)> {
    let Test::Insufficient(name) = &failed.test else { return None };
    let (asked, largest) = (case.asked(name)?, largest(case, name)?);
    (asked > largest).then(|| (name.clone(), asked, largest))
}

/// A taint or a cordon that says the node is in trouble, which passes.
fn is_trouble(failed: &Failed) -> bool {
    const TROUBLE: [&str; 9] = [
        "not-ready",
        "unreachable",
        "memory-pressure",
        "disk-pressure",
        "pid-pressure",
        "network-unavailable",
        "uninitialized",
        "ToBeDeleted",
        "node.kubernetes.io/unschedulable",
    ];
    matches!(&failed.test, Test::Taint(Some(taint)) if TROUBLE.iter().any(|word| taint.contains(word)))
        || matches!(failed.test, Test::Cordoned)
}

/// The taint every cluster's control plane has: true, and of no help.
fn is_standing(failed: &Failed) -> bool {
    matches!(&failed.test, Test::Taint(Some(taint)) if taint.contains("control-plane") || taint.contains("node-role.kubernetes.io/master"))
}

fn words(case: &Case, failed: &Failed, verdict: &Verdict) -> String {
    let count = match (failed.nodes, verdict.nodes) {
        (Some(1), _) => "1 ".to_owned(),
        (Some(count), _) => format!("{count} "),
        (None, _) => String::new(),
    };
    let have = |one: &'static str, many: &'static str| if failed.nodes == Some(1) { one } else { many };
    match &failed.test {
        Test::Insufficient(name) => {
            let asked = case.asked(name).map(|asked| format!("asked: {}", amount(name, asked)));
            let most = largest(case, name).map(|most| format!("the largest node has {}", amount(name, most)));
            let free = (!case.all.neighbours.is_empty())
                .then(|| case.all.nodes.iter().filter_map(|node| free_of(case, node, name)).reduce(f64::max))
                .flatten()
                .map(|free| format!("most free on one: {}", amount(name, free)));
            let facts: Vec<String> = [asked, most, free].into_iter().flatten().collect();
            let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join("; ")) };
            format!("{count}{} too little `{name}` free{facts}", have("has", "have"))
        }
        Test::Taint(Some(taint)) => {
            format!("{count}{} the taint `{taint}`, which the pod does not tolerate", have("has", "have"))
        }
        Test::Taint(None) => {
            format!("{count}{} taints that the pod does not tolerate{}", have("has", "have"), taints(case))
        }
        Test::Selector => format!(
            "{count}{} not the labels of the pod's node selector or affinity{}",
            have("has", "have"),
            selector(case)
        ),
        Test::Neighbours(text) => format!("{count}{text}"),
        Test::Cordoned => format!("{count}{} cordoned (unschedulable)", have("is", "are")),
        Test::TooManyPods => format!("{count}{} as many pods as it may", have("has", "have")),
        Test::VolumeElsewhere(text) => format!("{count}cannot reach a volume of the pod ({text})"),
        Test::ClaimUnbound(text) | Test::Other(text) => format!("{count}{text}"),
        Test::ClaimMissing(name) => format!("the volume claim `{name}` does not exist"),
    }
}

/// Taints of the nodes that are known, where the scheduler does not name them.
fn taints(case: &Case) -> String {
    let nodes = case.all.nodes.iter().filter_map(|node| node.spec.as_ref()?.taints.as_ref());
    let mut names: Vec<String> = nodes
        .flatten()
        .filter(|taint| taint.effect != "PreferNoSchedule")
        .map(|taint| format!("`{}={}`", taint.key, taint.value.as_deref().unwrap_or_default()))
        .collect();
    names.sort();
    names.dedup();
    if names.is_empty() { String::new() } else { format!(" (there are {})", listed(&names)) }
}

fn selector(case: &Case) -> String {
    let pod = case.pod.and_then(|pod| pod.spec.as_ref()?.node_selector.as_ref());
    let asked: Vec<String> = pod.into_iter().flatten().map(|(key, value)| format!("`{key}={value}`")).collect();
    if asked.is_empty() { String::new() } else { format!(" (asked: {})", listed(&asked)) }
}

fn advice(case: &Case, verdict: &Verdict, impossible: &[(String, f64, f64)]) -> String {
    let tests = || verdict.failed.iter().filter(|failed| !is_standing(failed));
    let lacking: Vec<String> = tests()
        .filter_map(|failed| match &failed.test {
            Test::Insufficient(name) => Some(format!("`{name}`")),
            _ => None,
        })
        .collect();
    let taint = tests().find_map(|failed| match &failed.test {
        Test::Taint(taint) if !is_trouble(failed) => Some(taint.clone()),
        _ => None,
    });
    if let Some((name, asked, largest)) = impossible.first() {
        return format!(
            "ask for at most {} of `{name}` instead of {} (no node can ever hold that), or add a larger node",
            amount(name, *largest),
            amount(name, *asked)
        );
    }
    let also = |text: String| match &taint {
        Some(Some(taint)) => {
            format!("{text}; if the nodes with the taint `{taint}` are meant for this, tolerate it in `.resources(…)`")
        }
        Some(None) => format!("{text}; if tainted nodes are meant for this, tolerate their taint in `.resources(…)`"),
        None => text,
    };
    if !lacking.is_empty() {
        let names = listed(&lacking);
        let gpu = lacking.iter().any(|name| is_gpu(name.trim_matches('`'))) && case.all.nodes.is_empty();
        let plugin = if gpu {
            " (`kubectl describe nodes` shows whether any node offers it: where none does, the device plugin is missing)"
        } else {
            ""
        };
        return also(format!("wait until {names} is free, ask for less, or add nodes{plugin}"));
    }
    if tests().any(|failed| matches!(failed.test, Test::Selector)) {
        return also("correct the node selector in `.resources(…)`, or label a node accordingly (`kubectl get nodes --show-labels`)".to_owned());
    }
    if tests().any(|failed| matches!(failed.test, Test::VolumeElsewhere(_))) {
        return "the volume's zone or node has no place for the pod: add a node there, or use a volume that can be mounted elsewhere".to_owned();
    }
    if let Some(taint) = &taint {
        let named =
            taint.as_ref().map_or_else(|| "a taint of the nodes".to_owned(), |taint| format!("the taint `{taint}`"));
        return format!("tolerate {named} in `.resources(…)`, or add nodes without it");
    }
    if tests().any(is_trouble) {
        return "wait until the nodes are ready again; `kubectl get nodes` shows their state".to_owned();
    }
    if verdict.nodes == Some(0) || verdict.failed.is_empty() {
        return "add a node, or check that there are nodes which are ready: `kubectl get nodes`".to_owned();
    }
    look(case)
}

fn look(case: &Case) -> String {
    format!("read the scheduler's events: `kubectl describe {}`", case.pod_called().replace('`', ""))
}

/// A claim that is not there or not bound, with what its provisioner says.
fn unbound(case: &Case, failed: &Failed) -> Explanation {
    let said = case
        .claim_events
        .iter()
        .rev()
        .find(|event| matches!(reason(event), "ProvisioningFailed" | "FailedBinding" | "ExternalProvisioning"));
    let said = said.map_or_else(String::new, |event| format!(" ({})", quote(message(event))));
    match &failed.test {
        Test::ClaimMissing(name) => Explanation::new(
            Cause::VolumeClaim,
            format!("the volume claim `{name}` that the pod mounts does not exist"),
            format!(
                "make it (`images/` has a manifest of the hub cache's claim), or unset `TRAINING_GYM_HUB_CACHE_CLAIM` if it names `{name}`"
            ),
        ),
        Test::ClaimUnbound(text) => {
            let explanation = Explanation::new(
                Cause::VolumeClaim,
                format!("a volume claim of the pod is not bound to a volume: {text}{said}"),
                "see why with `kubectl describe pvc`: usually there is no default storage class, or no volume of that class and size".to_owned(),
            );
            explanation.waiting()
        }
        _ => Explanation::new(Cause::VolumeClaim, format!("a volume of the pod cannot be used{said}"), look(case)),
    }
}

/// Whether a successful placement is newer than the newest refusal.
pub(super) fn is_over(case: &Case) -> bool {
    let at = |reasons: &[&str]| case.newest(reasons).and_then(time);
    match (at(&["Scheduled"]), at(&["FailedScheduling"])) {
        (Some(placed), Some(refused)) => placed >= refused,
        (Some(_), None) => true,
        _ => case.newest(&["Pulling", "Pulled", "Created", "Started", "Failed", "BackOff"]).is_some(),
    }
}
