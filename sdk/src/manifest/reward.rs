//! The pod of a reward function that uses the network: apart from the trainer, with a token and a
//! NetworkPolicy of its own, and without the store.
//!
//! It is a Job: a Pod would not be replaced when its node goes, a Deployment would never end. The
//! trainer brings the program, so the pod reaches nothing but what the function declares; and it says
//! when the run is over.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{ContainerPort, Probe, Secret, Service, TCPSocketAction};
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use training_gym_core::spec::Egress;

use super::pod::{self, Mount, PROGRAM_FOLDER, Size};
use super::service::address;
use super::{COMPONENT, JOB, Plan, REWARD};
use crate::backend::{Request, Resources};
use crate::config::Destination;

/// The port its supervisor listens on.
const PORT: u16 = 8001;
const PORT_NAME: &str = "reward";
/// Its token, where the trainer and it see it.
pub(super) const TOKEN_FILE: &str = "/etc/training-gym/reward/token";
/// The key of its Secret.
pub(super) const TOKEN: &str = "token";
/// A function that takes its whole container along is started again this often.
const RETRIES: i32 = 1000;
const GRACE: i64 = 10;

impl Plan<'_> {
    /// Whether the reward function has a pod of its own.
    pub(crate) fn has_reward_pod(&self) -> bool {
        self.request.reward_worker && !self.request.reward_egress.is_none()
    }

    /// The name of that pod's objects.
    pub(crate) fn reward_name(&self) -> String {
        reward_name(&self.name())
    }

    /// Where its supervisor is reached, from the same namespace.
    pub(super) fn reward_address(&self) -> String {
        format!("{}:{PORT}", self.reward_name())
    }
}

/// The name of a job's own objects for its reward pod.
pub(crate) fn reward_name(job: &str) -> String {
    format!("{job}-reward")
}

fn labelled(meta: &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) {
    meta.labels.get_or_insert_default().insert(COMPONENT.to_owned(), REWARD.to_owned());
}

/// The labels that its pods have and no others.
fn selector(plan: &Plan<'_>) -> BTreeMap<String, String> {
    BTreeMap::from([(JOB.to_owned(), plan.name()), (COMPONENT.to_owned(), REWARD.to_owned())])
}

/// The Job that keeps the pod.
pub(crate) fn reward_job(plan: &Plan<'_>, owner: &OwnerReference) -> Job {
    // It computes on the CPU, and is nobody in the cloud.
    let asked = &plan.request.resources;
    let resources = Resources { gpus: Some(0), gpu_type: None, device: None, grace: None, ..asked.clone() };
    let request = Request { resources, secrets: BTreeMap::new(), ..plan.request.clone() };
    let options = super::KubernetesOptions { service_account: None, ..plan.options.clone() };
    let of = Plan { request: &request, options: &options, ..plan.clone() };
    let listen = format!("0.0.0.0:{PORT}");
    let arguments =
        ["reward-worker", "--program-folder", PROGRAM_FOLDER, "--listen", &listen, "--token-file", TOKEN_FILE];
    let mounts = [Mount::Program { read_only: false }, Mount::RewardToken, Mount::WorkerScratch];
    let mut worker = pod::container(&of, REWARD, &arguments, &mounts, Size::Small);
    worker.ports = Some(vec![ContainerPort {
        name: Some(PORT_NAME.to_owned()),
        container_port: i32::from(PORT),
        ..ContainerPort::default()
    }]);
    worker.readiness_probe = Some(Probe {
        tcp_socket: Some(TCPSocketAction { port: IntOrString::String(PORT_NAME.to_owned()), host: None }),
        period_seconds: Some(2),
        ..Probe::default()
    });
    let mut template = pod::template(&of, Vec::new(), worker, "OnFailure", GRACE);
    labelled(template.metadata.get_or_insert_default());
    let mut metadata = plan.owned_meta(plan.reward_name(), owner);
    labelled(&mut metadata);
    Job {
        metadata,
        spec: Some(JobSpec {
            active_deadline_seconds: asked
                .deadline
                .map(|deadline| i64::try_from(deadline.as_secs()).unwrap_or(i64::MAX)),
            backoff_limit: Some(RETRIES),
            template,
            ..JobSpec::default()
        }),
        status: None,
    }
}

/// The address that stays while its pod is replaced.
pub(crate) fn reward_service(plan: &Plan<'_>, owner: &OwnerReference) -> Service {
    address(plan.owned_meta(plan.reward_name(), owner), PORT_NAME, PORT, selector(plan))
}

/// The token that the trainer shows it: neither sees another Secret by it.
pub(crate) fn reward_secret(plan: &Plan<'_>, owner: &OwnerReference, token: &crate::backend::Secret) -> Secret {
    Secret {
        metadata: plan.owned_meta(plan.reward_name(), owner),
        data: Some(BTreeMap::from([(TOKEN.to_owned(), ByteString(format!("{}\n", token.expose()).into_bytes()))])),
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// In from the run's trainer alone; out to the cluster's DNS and to what is declared, never to a cloud's
/// metadata address. What is no address was refused before; here it opens nothing.
pub(crate) fn reward_policy(plan: &Plan<'_>, owner: &OwnerReference) -> NetworkPolicy {
    let tcp = |port: u16| NetworkPolicyPort {
        port: Some(IntOrString::Int(i32::from(port))),
        protocol: Some("TCP".to_owned()),
        end_port: None,
    };
    let hosts = match &plan.request.reward_egress {
        Egress::None => &[][..],
        Egress::Declared(hosts) => hosts,
    };
    let declared = hosts.iter().filter_map(|host| Destination::parse(host)).filter(|to| !to.is_metadata());
    let mut egress = vec![dns()];
    egress.extend(declared.map(|to| {
        let exceptions = to.exceptions();
        let block = IPBlock { cidr: to.cidr(), except: (!exceptions.is_empty()).then_some(exceptions) };
        NetworkPolicyEgressRule {
            ports: to.port.map(|port| vec![tcp(port)]),
            to: Some(vec![NetworkPolicyPeer { ip_block: Some(block), ..NetworkPolicyPeer::default() }]),
        }
    }));
    let trainer = LabelSelector {
        match_labels: Some(BTreeMap::from([(JOB.to_owned(), plan.name())])),
        match_expressions: Some(vec![LabelSelectorRequirement {
            key: COMPONENT.to_owned(),
            operator: "NotIn".to_owned(),
            values: Some(vec![REWARD.to_owned()]),
        }]),
    };
    let from = NetworkPolicyPeer { pod_selector: Some(trainer), ..NetworkPolicyPeer::default() };
    NetworkPolicy {
        metadata: plan.owned_meta(plan.reward_name(), owner),
        spec: Some(NetworkPolicySpec {
            egress: Some(egress),
            ingress: Some(vec![NetworkPolicyIngressRule { from: Some(vec![from]), ports: Some(vec![tcp(PORT)]) }]),
            pod_selector: Some(LabelSelector { match_labels: Some(selector(plan)), ..LabelSelector::default() }),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
        }),
    }
}

fn dns() -> NetworkPolicyEgressRule {
    let labels = |key: &str, value: &str| {
        let match_labels = Some(BTreeMap::from([(key.to_owned(), value.to_owned())]));
        Some(LabelSelector { match_labels, ..LabelSelector::default() })
    };
    let port = |protocol: &str| NetworkPolicyPort {
        port: Some(IntOrString::Int(53)),
        protocol: Some(protocol.to_owned()),
        end_port: None,
    };
    NetworkPolicyEgressRule {
        ports: Some(vec![port("UDP"), port("TCP")]),
        to: Some(vec![NetworkPolicyPeer {
            namespace_selector: labels("kubernetes.io/metadata.name", "kube-system"),
            pod_selector: labels("k8s-app", "kube-dns"),
            ip_block: None,
        }]),
    }
}
