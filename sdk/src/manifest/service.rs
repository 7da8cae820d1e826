//! A deployment as a Deployment and a Service.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy};
use k8s_openapi::api::core::v1::{ContainerPort, HTTPGetAction, Probe, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::pod::{self, Mount, SPEC_FILE, Size};
use super::{FETCHER, JOB, Plan, SERVER};
use crate::backend::Workload;

/// The port servers listen on, in their pod and on their Service.
pub(crate) const PORT: u16 = 8000;
const PORT_NAME: &str = "http";
const DEFAULT_GRACE: i64 = 30;

/// The Deployment of a service. `None` for another workload.
pub(crate) fn deployment(plan: &Plan<'_>) -> Option<Deployment> {
    let Workload::Serve { .. } = &plan.request.workload else { return None };
    let fetch = ["fetch", "--store", plan.store, "--spec", SPEC_FILE];
    let mounts = [Mount::Work, Mount::Models { read_only: false }, Mount::Spec];
    let mut fetcher = pod::container(plan, FETCHER, &fetch, &mounts, Size::Small);
    pod::open_store(plan, &mut fetcher);
    pod::open_hub(plan, &mut fetcher);

    let serve = ["serve", "--spec", SPEC_FILE];
    let mounts = [Mount::Work, Mount::Models { read_only: true }, Mount::Shm, Mount::Secrets, Mount::Spec];
    let mut server = pod::container(plan, SERVER, &serve, &mounts, Size::Asked);
    pod::add_variables(&mut server, pod::computing_variables(plan));
    let port = i32::from(PORT);
    server.ports = Some(vec![ContainerPort {
        name: Some(PORT_NAME.to_owned()),
        container_port: port,
        ..ContainerPort::default()
    }]);
    server.readiness_probe = Some(Probe {
        http_get: Some(HTTPGetAction {
            path: Some("/health".to_owned()),
            port: IntOrString::String(PORT_NAME.to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(2),
        timeout_seconds: Some(5),
        // A server that computes is slow to answer, not gone.
        failure_threshold: Some(15),
        ..Probe::default()
    });

    let template = pod::template(plan, vec![fetcher], server, "Always", DEFAULT_GRACE);
    Some(Deployment {
        metadata: plan.owner_meta(),
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            revision_history_limit: Some(0),
            selector: LabelSelector { match_labels: Some(selector(plan)), ..LabelSelector::default() },
            // A second pod beside the first would want a second GPU.
            strategy: Some(DeploymentStrategy { type_: Some("Recreate".to_owned()), rolling_update: None }),
            template,
            ..DeploymentSpec::default()
        }),
        status: None,
    })
}

/// The address that stays while pods come and go.
pub(crate) fn service(plan: &Plan<'_>, owner: &OwnerReference) -> Service {
    address(plan.owned_meta(plan.name(), owner), PORT_NAME, PORT, selector(plan))
}

/// An address within the cluster of the pods that `selector` finds.
pub(super) fn address(metadata: ObjectMeta, name: &str, port: u16, selector: BTreeMap<String, String>) -> Service {
    Service {
        metadata,
        spec: Some(ServiceSpec {
            ports: Some(vec![ServicePort {
                name: Some(name.to_owned()),
                port: i32::from(port),
                target_port: Some(IntOrString::String(name.to_owned())),
                ..ServicePort::default()
            }]),
            selector: Some(selector),
            type_: Some("ClusterIP".to_owned()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn selector(plan: &Plan<'_>) -> BTreeMap<String, String> {
    BTreeMap::from([(JOB.to_owned(), plan.name())])
}
