//! Whether the cluster would run a job: reachable, allowed, with room, and the image there.

use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{Api, ListParams};
use training_gym_core::chain;

use super::KubernetesBackend;
use super::access::NEEDED;
use super::error::ClusterError;
use crate::backend::explain::{allocatable, quantity};
use crate::backend::{Resources, local};
use crate::doctor::{Finding, machine};

const GPU: &str = "nvidia.com/gpu";
/// One answer of the API server lists this many nodes.
const NODES: u32 = 500;
/// Kubelets list this many images of theirs and no more.
const LISTED_IMAGES: usize = 50;

impl KubernetesBackend {
    /// One finding after the other; what needs the cluster is skipped where that cannot be reached.
    pub(super) async fn findings(&self, resources: &Resources) -> Vec<Finding> {
        let mut findings = vec![self.reach().await];
        if findings[0].outcome == crate::doctor::Outcome::Failed {
            let skipped = ["namespace", "permissions", "capacity", "image"];
            findings.extend(skipped.map(|check| Finding::skipped(check, "the cluster cannot be reached")));
        } else {
            findings.push(self.namespace_there().await);
            findings.push(self.permissions().await);
            match self.listed_nodes().await {
                Ok(nodes) => {
                    findings.extend(room(&nodes, resources));
                    findings.push(self.image_there(&nodes));
                }
                Err(error) => {
                    let why =
                        format!("nodes may not be listed ({error}); that right is not in the role `images/` ships");
                    findings.push(Finding::skipped("capacity", &*why));
                    findings.push(self.image_there(&[]));
                }
            }
        }
        findings.push(Finding::ok("store for pods", self.inner.store_url.clone()));
        findings.push(match local::runtime_here(self.inner.runtime.as_deref()) {
            Ok(program) => Finding::ok("gym-runtime here", program.display().to_string()),
            // A launch then asks one on the cluster.
            Err(_) => Finding::skipped(
                "gym-runtime here",
                "none is found: a launch asks one on the cluster, which takes longer",
            ),
        });
        findings.push(machine::disk(&std::env::temp_dir()));
        findings
    }

    /// The cluster's nodes. The shipped role does not allow this: it is a right on the whole cluster.
    async fn listed_nodes(&self) -> Result<Vec<Node>, ClusterError> {
        let parameters = ListParams::default().limit(NODES);
        let parameters = &parameters;
        let listed = self
            .cluster()
            .call("list nodes", |client| async move { Api::<Node>::all(client).list(parameters).await })
            .await?;
        Ok(listed.items)
    }

    async fn reach(&self) -> Finding {
        let version =
            self.cluster().call("ask for the version", |client| async move { client.apiserver_version().await });
        match version.await {
            Ok(version) => {
                Finding::ok("cluster", format!("{}, version {}", self.cluster().server(), version.git_version))
            }
            Err(error) => failed("cluster", &error),
        }
    }

    async fn namespace_there(&self) -> Finding {
        let name = self.namespace();
        let found = self
            .cluster()
            .call("read the namespace", |client| async move { Api::<Namespace>::all(client).get_opt(name).await })
            .await;
        match found {
            Ok(Some(found)) => {
                let labels = found.metadata.labels.unwrap_or_default();
                let level = labels.get("pod-security.kubernetes.io/enforce");
                let level = level.map_or_else(String::new, |level| format!(", Pod Security `{level}`"));
                Finding::ok("namespace", format!("`{name}`{level}"))
            }
            Ok(None) => failed("namespace", &ClusterError::NoNamespace { namespace: name.to_owned() }),
            Err(ClusterError::Forbidden { .. }) => {
                Finding::skipped("namespace", format!("`{name}`: namespaces may not be read; a launch finds out"))
            }
            Err(error) => failed("namespace", &error),
        }
    }

    async fn permissions(&self) -> Finding {
        let verbs: usize = NEEDED.iter().map(|(_, _, verbs)| verbs.len()).sum();
        match self.check_access().await {
            Ok(()) => Finding::ok("permissions", format!("all {verbs} that are needed in `{}`", self.namespace())),
            Err(error) => failed("permissions", &error),
        }
    }

    /// Whether nodes hold the image already. That they can pull it is only seen when they do.
    fn image_there(&self, nodes: &[Node]) -> Finding {
        let image = match self.inner.options.image() {
            Ok(image) => image,
            Err(error) => return Finding::failed("image", chain(&error), ""),
        };
        let images = |node: &Node| node.status.as_ref().and_then(|status| status.images.clone()).unwrap_or_default();
        let holds =
            |node: &&Node| images(node).iter().any(|held| held.names.iter().flatten().any(|name| is_same(name, image)));
        let holders = nodes.iter().filter(holds).count();
        let never = self.inner.options.image_pull_policy.is_some_and(|policy| policy.as_str() == "Never");
        let complete = nodes.iter().all(|node| images(node).len() < LISTED_IMAGES);
        match (holders, nodes.len()) {
            (_, 0) => Finding::skipped("image", format!("`{image}`: the nodes are not known; the first pod pulls it")),
            (0, _) if never && complete => Finding::failed(
                "image",
                format!("`{image}` is on no node, and the pull policy is `Never`"),
                "import it on the nodes, or set `TRAINING_GYM_IMAGE_PULL_POLICY=IfNotPresent`",
            ),
            (0, all) => {
                Finding::ok("image", format!("`{image}` is on none of {all} nodes yet: the first pod pulls it"))
            }
            (holders, all) => Finding::ok("image", format!("`{image}` is on {holders} of {all} nodes")),
        }
    }
}

/// `docker.io/library/x` and `x` are one.
fn is_same(held: &str, image: &str) -> bool {
    held == image || held.strip_suffix(image).is_some_and(|front| front.ends_with('/'))
}

/// Whether some node could ever hold what is asked for. How much of it is free is not asked: that would
/// need every pod of the cluster.
fn room(nodes: &[Node], resources: &Resources) -> Vec<Finding> {
    let ready = |node: &&Node| {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        !cordoned && conditions.into_iter().any(|found| found.type_ == "Ready" && found.status == "True")
    };
    let usable: Vec<&Node> = nodes.iter().filter(ready).collect();
    let count = format!("{} of {} nodes are ready", usable.len(), nodes.len());
    let mut findings = vec![match usable.len() {
        0 => Finding::failed("nodes", count, "add a node, or see why they are not ready: `kubectl get nodes`"),
        _ => Finding::ok("nodes", count),
    }];
    let largest = |resource: &str| usable.iter().filter_map(|node| allocatable(node, resource)).fold(0.0, f64::max);
    let gpus = f64::from(resources.gpu_count());
    let most = largest(GPU);
    findings.push(match (gpus, most) {
        (0.0, _) => Finding::skipped("GPUs", "none are asked for"),
        (asked, 0.0) => Finding::failed(
            "GPUs",
            format!("{asked} × {GPU} asked for, and no node that is ready offers any"),
            "install the NVIDIA device plugin or the GPU operator, or add a node with GPUs",
        ),
        (asked, most) if asked > most => Finding::failed(
            "GPUs",
            format!("{asked} × {GPU} asked for, and the largest node has {most}"),
            "ask for fewer, or add a larger node",
        ),
        (asked, most) => Finding::ok("GPUs", format!("{asked} asked for; the largest node has {most}")),
    });
    let asked = [
        ("cpu", resources.cpu.map(|cores| cores.to_string())),
        ("memory", resources.memory.clone()),
        ("ephemeral-storage", resources.disk.clone()),
    ];
    for (name, asked) in asked.into_iter().filter_map(|(name, asked)| Some((name, asked?))) {
        let most = largest(name);
        if quantity(&asked).is_none_or(|wanted| wanted <= most) {
            continue;
        }
        let most = if name == "cpu" { most.to_string() } else { machine::size(most as u64) };
        let detail = format!("{asked} asked for, and the largest node has {most}");
        findings.push(Finding::failed(name, detail, "ask for less, or add a larger node"));
    }
    findings
}

fn failed(check: &str, error: &ClusterError) -> Finding {
    Finding::failed(check, chain(error), error.hint().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;
    use serde_json::json;

    fn node(gpus: Option<&str>, memory: &str, ready: &str) -> Node {
        let mut allocatable = json!({"cpu": "8", "memory": memory});
        if let Some(gpus) = gpus {
            allocatable[GPU] = json!(gpus);
        }
        let status = json!({"allocatable": allocatable, "conditions": [{"type": "Ready", "status": ready}]});
        serde_json::from_value(json!({"metadata": {"name": "n"}, "status": status})).unwrap()
    }

    #[test]
    fn what_no_node_can_hold_is_refused_before_anything_is_made() {
        let of = |nodes: &[Node], resources: Resources| {
            let found = room(nodes, &resources);
            found.into_iter().map(|finding| (finding.check, finding.outcome)).collect::<Vec<_>>()
        };
        let gpus = |gpus| Resources { gpus: Some(gpus), ..Resources::default() };
        let nodes = [node(Some("4"), "16Gi", "True"), node(Some("8"), "64Gi", "False")];
        assert_eq!(of(&nodes, gpus(4))[1], ("GPUs".to_owned(), Outcome::Ok));
        assert_eq!(of(&nodes, gpus(8))[1], ("GPUs".to_owned(), Outcome::Failed), "the large node is not ready");
        assert_eq!(of(&[node(None, "16Gi", "True")], gpus(1))[1].1, Outcome::Failed);
        assert_eq!(of(&nodes, Resources::default())[1].1, Outcome::Skipped);
        let memory = Resources { memory: Some("32Gi".to_owned()), ..Resources::default() };
        assert_eq!(of(&nodes, memory).last().unwrap(), &("memory".to_owned(), Outcome::Failed));
        assert_eq!(of(&[], Resources::default())[0].1, Outcome::Failed);
    }

    #[test]
    fn an_image_goes_by_its_short_name_too() {
        assert!(is_same("docker.io/library/gym:1", "gym:1") && is_same("r.io/gym:1", "r.io/gym:1"));
        assert!(!is_same("r.io/notgym:1", "gym:1") && !is_same("gym:2", "gym:1"));
    }
}
