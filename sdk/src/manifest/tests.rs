//! Snapshots of whole objects, and what must hold of every pod.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Serialize;
use serde_json::Value;
use training_gym_core::ids::ContentHash;
use training_gym_core::spec::{Dtype, Egress, EngineSpec, ModelSpec, NodeSpec, SecretRef, ServeSpec, StoredModel};

use super::*;
use crate::backend::{Resources, Secret, Toleration};

/// Set to write the snapshots anew.
const RENEW: &str = "GYM_RENEW_SNAPSHOTS";
const TOKEN: &str = "gym-0123456789abcdef-a-secret";

fn snapshot(name: &str, object: &impl Serialize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/manifest/snapshots").join(format!("{name}.json"));
    let text = format!("{}\n", serde_json::to_string_pretty(&serde_json::to_value(object).unwrap()).unwrap());
    if std::env::var_os(RENEW).is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text,
        stored,
        "{} differs; renew it with `{RENEW}=1 cargo test -p training-gym manifest::`",
        path.display()
    );
}

fn train() -> Request {
    let workload =
        Workload::Train { run_id: "run-1".parse().unwrap(), store: "s3://bucket/gym".to_owned(), threads: 2 };
    Request {
        reward_worker: true,
        secrets: BTreeMap::from([("teacher-token".to_owned(), Secret::new(TOKEN))]),
        labels: BTreeMap::from([("attempts-before".to_owned(), "0".to_owned())]),
        ..Request::new(workload)
    }
}

fn serve() -> Request {
    let manifest_sha256 = ContentHash::of(b"manifest");
    let spec = ServeSpec {
        app_name: "qwen3.5-9b-teacher".parse().unwrap(),
        model: ModelSpec {
            name: "tiny".to_owned(),
            folder: "/models/0123456789abcdef/tiny".into(),
            hub: None,
            stored: Some(StoredModel { prefix: format!("inputs/models/{manifest_sha256}/"), manifest_sha256 }),
        },
        host: "0.0.0.0".to_owned(),
        port: PORT,
        token: Some(SecretRef::File("/etc/training-gym/secrets/serve-qwen3.5-9b-teacher/token".into())),
        engine: EngineSpec::default(),
        node: NodeSpec { device: "cpu".to_owned(), dtype: Dtype::Float32, threads: 1 },
    };
    Request {
        secrets: BTreeMap::from([("token".to_owned(), Secret::new(TOKEN))]),
        ..Request::new(Workload::Serve { spec: Box::new(spec) })
    }
}

fn large() -> Resources {
    let text = |text: &str| Some(text.to_owned());
    Resources {
        gpus: Some(2),
        gpu_type: text("NVIDIA-H100-80GB-HBM3"),
        cpu: Some(7.5),
        memory: text("64Gi"),
        disk: text("200Gi"),
        shared_memory: text("8Gi"),
        node_selector: BTreeMap::from([("topology.kubernetes.io/zone".to_owned(), "eu-1a".to_owned())]),
        tolerations: vec![Toleration::of("spot"), Toleration::of("team").with_value("post-training")],
        priority_class: text("high"),
        queue: text("team-a"),
        max_retries: Some(7),
        deadline: Some(Duration::from_secs(7200)),
        grace: Some(Duration::from_secs(600)),
        ..Resources::default()
    }
}

fn options() -> KubernetesOptions {
    KubernetesOptions {
        namespace: Some("gym".to_owned()),
        image: Some("registry.example.com/gym-runtime:0.1.0".to_owned()),
        ..KubernetesOptions::default()
    }
}

fn full_options() -> KubernetesOptions {
    KubernetesOptions {
        image_pull_policy: Some(PullPolicy::Always),
        image_pull_secrets: vec!["registry".to_owned()],
        service_account: Some("training-gym-runtime".to_owned()),
        hub_cache_claim: Some("hub-cache".to_owned()),
        ..options()
    }
}

fn plan<'a>(request: &'a Request, options: &'a KubernetesOptions, store_access: StoreAccess) -> Plan<'a> {
    let image = options.image().unwrap();
    Plan { request, options, image, store: "s3://bucket/gym?endpoint=http://s3:8333", store_access, submitted_at: 1.5 }
}

fn owner() -> OwnerReference {
    OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: "Job".to_owned(),
        name: "train-run-1".to_owned(),
        uid: "00000000-0000-0000-0000-000000000001".to_owned(),
        ..OwnerReference::default()
    }
}

#[test]
fn a_training_run_is_a_job() {
    let (request, options) = (train(), options());
    let plan = plan(&request, &options, StoreAccess::Owned);
    snapshot("train-job", &job(&plan).unwrap());
    snapshot("train-secret", &secret(&plan, &owner()).unwrap());
    assert!(deployment(&plan).is_none() && config_map(&plan, &owner()).is_none());
    let keys = BTreeMap::from([("AWS_ACCESS_KEY_ID".to_owned(), Secret::new("id"))]);
    snapshot("store-secret", &store_secret(&plan, &owner(), &keys));
}

/// A run whose reward function declares hosts.
fn judged() -> Request {
    let hosts =
        ["192.0.2.7:443", "198.51.100.0/24", "0.0.0.0/0:8443", "[2001:db8::/32]:443", "169.254.169.254:80", "a.b"];
    Request { reward_egress: Egress::Declared(hosts.map(str::to_owned).to_vec()), ..train() }
}

#[test]
fn a_reward_function_with_hosts_has_a_pod_of_its_own() {
    let (request, options) = (judged(), options());
    let of = plan(&request, &options, StoreAccess::Owned);
    assert!(of.has_reward_pod());
    snapshot("judged-train-job", &job(&of).unwrap());
    snapshot("reward-job", &reward_job(&of, &owner()));
    snapshot("reward-service", &reward_service(&of, &owner()));
    snapshot("reward-policy", &reward_policy(&of, &owner()));
    snapshot("reward-secret", &reward_secret(&of, &owner(), &Secret::new(TOKEN)));
    let none = train();
    assert!(!plan(&none, &options, StoreAccess::Owned).has_reward_pod());
    assert_ne!(spec_hash(&request), spec_hash(&none), "other hosts are another job");
    let full = Request { resources: large(), ..judged() };
    let full_options = full_options();
    let pod = reward_job(&plan(&full, &full_options, StoreAccess::Owned), &owner()).spec.unwrap().template;
    let annotations = pod.metadata.unwrap().annotations.unwrap();
    assert_eq!(annotations["eks.amazonaws.com/skip-containers"], "reward");
    let pod = pod.spec.unwrap();
    assert_eq!(
        (&pod.service_account_name, pod.init_containers.as_ref()),
        (&None, None),
        "it is nobody, and fetches nothing"
    );
    assert!(!serde_json::to_string(&pod).unwrap().contains("nvidia.com"), "it needs no GPU");
    assert!(pod.volumes.iter().flatten().all(|volume| volume.persistent_volume_claim.is_none()));
}

#[test]
fn the_policy_lets_out_to_nothing_but_dns_and_what_is_declared() {
    let (request, options) = (judged(), options());
    let policy = reward_policy(&plan(&request, &options, StoreAccess::Owned), &owner()).spec.unwrap();
    let out: Vec<String> = policy
        .egress
        .iter()
        .flatten()
        .flat_map(|rule| rule.to.iter().flatten())
        .filter_map(|peer| Some(peer.ip_block.as_ref()?.cidr.clone()))
        .collect();
    assert_eq!(out, ["192.0.2.7/32", "198.51.100.0/24", "0.0.0.0/0", "2001:db8::/32"], "no metadata, no name");
    let text = serde_json::to_string(&policy).unwrap();
    assert!(text.contains(r#"{"cidr":"0.0.0.0/0","except":["169.254.169.254/32"]}"#), "{text}");
    let pods = [job(&plan(&request, &options, StoreAccess::Owned)).unwrap()]
        .into_iter()
        .chain([reward_job(&plan(&request, &options, StoreAccess::Owned), &owner())])
        .map(|job| job.spec.unwrap().template.metadata.unwrap().labels.unwrap());
    let selector = policy.pod_selector.unwrap().match_labels.unwrap();
    let chosen: Vec<bool> =
        pods.map(|labels| selector.iter().all(|(key, value)| labels.get(key) == Some(value))).collect();
    assert_eq!(chosen, [false, true], "the trainer is not held by it");
}

#[test]
fn every_resource_and_option_has_its_place() {
    let request = Request { resources: large(), ..train() };
    let mut request = Request { environment: BTreeMap::from([("NAME".to_owned(), "a$(HOME)".to_owned())]), ..request };
    request.secrets.insert(crate::backend::HUB_TOKEN.to_owned(), Secret::new(TOKEN));
    let options = full_options();
    snapshot("train-job-full", &job(&plan(&request, &options, StoreAccess::Ambient)).unwrap());
    let request = Request { resources: large(), ..serve() };
    snapshot("serve-deployment-full", &deployment(&plan(&request, &options, StoreAccess::Ambient)).unwrap());
}

#[test]
fn a_deployment_is_a_deployment_with_a_service() {
    let (request, options) = (serve(), options());
    let plan = plan(&request, &options, StoreAccess::Named("s3-keys".to_owned()));
    snapshot("serve-deployment", &deployment(&plan).unwrap());
    snapshot("serve-service", &service(&plan, &owner()));
    snapshot("serve-config-map", &config_map(&plan, &owner()).unwrap());
    assert!(job(&plan).is_none());
    assert_eq!(unstarted(deployment(&plan).unwrap()).spec.unwrap().replicas, Some(0));
}

#[test]
fn a_question_is_a_job() {
    let (request, options) = (serve(), options());
    let plan = plan(&request, &options, StoreAccess::Owned);
    snapshot("question-job", &question(&plan, &["check", "--config", "/models/x/config.json"]));
}

/// Every pod that can be made.
fn pods() -> Vec<PodSpec> {
    let mut pods = Vec::new();
    for options in [options(), full_options()] {
        for access in [StoreAccess::Ambient, StoreAccess::Owned, StoreAccess::Named("s".to_owned())] {
            for resources in [Resources::default(), large()] {
                let train = Request { resources: resources.clone(), ..train() };
                let alone = Request { reward_worker: false, secrets: BTreeMap::new(), ..train.clone() };
                let serve = Request { resources, ..serve() };
                let of = |request| plan(request, &options, access.clone());
                let judged = Request { resources: train.resources.clone(), ..judged() };
                let jobs = [
                    job(&of(&judged)),
                    Some(reward_job(&of(&judged), &owner())),
                    job(&of(&train)),
                    job(&of(&alone)),
                    Some(question(&of(&serve), &["check"])),
                ];
                pods.extend(jobs.into_iter().flatten().map(|job| job.spec.unwrap().template.spec.unwrap()));
                pods.push(deployment(&of(&serve)).unwrap().spec.unwrap().template.spec.unwrap());
            }
        }
    }
    pods
}

fn containers(pod: &PodSpec) -> impl Iterator<Item = &Container> {
    pod.init_containers.iter().flatten().chain(&pod.containers)
}

/// The rules of Pod Security `restricted`, and ours.
#[test]
fn every_pod_satisfies_the_restricted_standard() {
    for pod in pods() {
        assert_eq!((pod.host_network, pod.host_pid, pod.host_ipc), (None, None, None));
        assert_eq!(pod.automount_service_account_token, Some(false));
        assert_eq!(pod.enable_service_links, Some(false));
        let security = pod.security_context.as_ref().unwrap();
        assert_eq!((security.run_as_non_root, security.run_as_user), (Some(true), Some(65532)));
        assert_eq!(security.seccomp_profile.as_ref().unwrap().type_, "RuntimeDefault");
        let allowed = ["emptyDir", "secret", "configMap", "persistentVolumeClaim"];
        for volume in pod.volumes.iter().flatten() {
            let Value::Object(fields) = serde_json::to_value(volume).unwrap() else { panic!() };
            assert!(fields.keys().all(|key| key == "name" || allowed.contains(&key.as_str())), "{fields:?}");
        }
        for container in containers(&pod) {
            let security = container.security_context.as_ref().unwrap();
            assert_eq!(security.allow_privilege_escalation, Some(false));
            assert_eq!(security.read_only_root_filesystem, Some(true));
            let capabilities = security.capabilities.as_ref().unwrap();
            assert_eq!((capabilities.drop.as_deref(), &capabilities.add), (Some(&["ALL".to_owned()][..]), &None));
            let resources = container.resources.as_ref().unwrap();
            for (kind, limit) in resources.limits.iter().flatten() {
                assert_eq!(resources.requests.as_ref().unwrap().get(kind), Some(limit), "{kind}");
            }
            let named = |name: &str| pod.volumes.iter().flatten().any(|volume| volume.name == name);
            assert!(container.volume_mounts.iter().flatten().all(|mount| named(&mount.name)));
        }
    }
}

#[test]
fn the_reward_worker_sees_the_program_and_nothing_else() {
    for pod in pods() {
        let Some(worker) = containers(&pod).find(|container| container.name == REWARD) else { continue };
        let mounts: Vec<&str> = worker.volume_mounts.iter().flatten().map(|mount| mount.mount_path.as_str()).collect();
        let beside = mounts == ["/program", "/worker", "/tmp"];
        assert!(beside || mounts == ["/program", "/etc/training-gym/reward", "/tmp"], "{mounts:?}");
        let read_only = worker.volume_mounts.as_ref().unwrap()[usize::from(!beside)].read_only;
        assert_eq!(read_only, Some(true));
        assert_eq!(worker.env_from, None);
        let names: Vec<&str> = worker.env.iter().flatten().map(|variable| variable.name.as_str()).collect();
        assert_eq!(names, ["HOME", "TMPDIR"]);
    }
    let (request, options) = (train(), options());
    let template = job(&plan(&request, &options, StoreAccess::Owned)).unwrap().spec.unwrap().template;
    let annotations = template.metadata.unwrap().annotations.unwrap();
    assert_eq!(annotations["eks.amazonaws.com/skip-containers"], "reward");
}

#[test]
fn no_secret_is_in_anything_but_a_secret() {
    for options in [options(), full_options()] {
        for request in [train(), judged(), serve()] {
            let plan = plan(&request, &options, StoreAccess::Owned);
            let objects = [
                serde_json::to_string(&job(&plan)),
                serde_json::to_string(&deployment(&plan)),
                serde_json::to_string(&service(&plan, &owner())),
                serde_json::to_string(&config_map(&plan, &owner())),
                serde_json::to_string(&asked(&request)),
                serde_json::to_string(&reward_job(&plan, &owner())),
                serde_json::to_string(&reward_policy(&plan, &owner())),
            ];
            for object in objects {
                assert!(!object.unwrap().contains(TOKEN));
            }
            assert!(!format!("{request:?}").contains(TOKEN));
        }
    }
}

#[test]
fn the_hash_is_of_all_that_counts_and_of_nothing_else() {
    let request = train();
    let hash = spec_hash(&request);
    let other_secret = Request { secrets: BTreeMap::new(), labels: BTreeMap::new(), ..request.clone() };
    assert_eq!(spec_hash(&other_secret), hash);
    assert_ne!(spec_hash(&Request { resources: large(), ..request.clone() }), hash);
    let environment = BTreeMap::from([("A".to_owned(), "b".to_owned())]);
    assert_ne!(spec_hash(&Request { environment, ..request }), hash);
}
