//! A pod of ours: volumes, containers, what each may see.
//!
//! | volume | holds | seen by |
//! |---|---|---|
//! | `work` at `/job`, `tmp` at `/job/tmp` | the job's working folder, which is `HOME`; temporary files | fetcher, trainer, server |
//! | `models` at `/models` | the model; a claim where the options name one | fetcher; trainer and server read |
//! | `program` at `/program` | the person's program | fetcher; the reward worker reads |
//! | `worker` at `/worker` | sockets between trainer and reward worker | those two |
//! | `worker-tmp` at `/tmp` | the reward worker's own files | it alone |
//! | `reward-token` at `/etc/training-gym/reward` | what the trainer shows to a reward worker in a pod of its own | those two |
//! | `shm` at `/dev/shm` | shared memory | trainer, server |
//! | `secrets`, `spec` | the job's Secret and ConfigMap | trainer or server; the spec also the fetcher |

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, EmptyDirVolumeSource, EnvFromSource, EnvVar, EnvVarSource, KeyToPath,
    LocalObjectReference, PersistentVolumeClaimVolumeSource, PodSpec, PodTemplateSpec, ResourceRequirements,
    SecretEnvSource, SecretKeySelector, SecretVolumeSource, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Plan, security};
use crate::backend::{HUB_TOKEN, TolerationEffect};

/// Container that brings model and program.
pub(crate) const FETCHER: &str = "fetch";
/// Container that runs the person's program.
pub(crate) const REWARD: &str = "reward";
/// Container that trains.
pub(crate) const TRAINER: &str = "trainer";
/// Container that serves.
pub(crate) const SERVER: &str = "server";
/// Container that answers a question.
pub(crate) const CHECKER: &str = "check";
/// Below it each job finds its secrets, in a folder of its id.
pub(crate) const SECRETS: &str = "/etc/training-gym/secrets";
/// A deployment's spec.
pub(super) const SPEC_FILE: &str = "/etc/training-gym/spec/spec.json";

pub(super) const PROGRAM_FOLDER: &str = "/program";
pub(super) const SOCKETS: &str = "/worker";
const RUNTIME: &str = "/usr/local/bin/gym-runtime";
const GPU: &str = "nvidia.com/gpu";
/// What the small containers beside the main one get where memory is limited at all: a quota on
/// memory wants every container to say.
const SMALL_MEMORY: &str = "1Gi";

/// A folder of the pod, and where a container sees it.
#[derive(Clone, Copy)]
pub(super) enum Mount {
    Work,
    Models { read_only: bool },
    Program { read_only: bool },
    Sockets,
    WorkerScratch,
    RewardToken,
    Shm,
    Secrets,
    Spec,
}

impl Mount {
    fn mounts(self, plan: &Plan<'_>) -> Vec<VolumeMount> {
        let at = |name: &str, path: &str, read_only: bool| VolumeMount {
            name: name.to_owned(),
            mount_path: path.to_owned(),
            read_only: read_only.then_some(true),
            ..VolumeMount::default()
        };
        match self {
            Self::Work => vec![at("work", "/job", false), at("tmp", "/job/tmp", false)],
            Self::Models { read_only } => vec![at("models", "/models", read_only)],
            Self::Program { read_only } => vec![at("program", PROGRAM_FOLDER, read_only)],
            Self::Sockets => vec![at("worker", SOCKETS, false)],
            Self::WorkerScratch => vec![at("worker-tmp", "/tmp", false)],
            Self::RewardToken => vec![at("reward-token", "/etc/training-gym/reward", true)],
            Self::Shm => vec![at("shm", "/dev/shm", false)],
            Self::Secrets if files(plan).next().is_none() => Vec::new(),
            Self::Secrets => vec![at("secrets", &format!("{SECRETS}/{}", plan.id()), true)],
            Self::Spec => vec![at("spec", "/etc/training-gym/spec", true)],
        }
    }
}

/// The job's secrets that are files of its main container: the hub's token is the fetcher's.
fn files<'a>(plan: &'a Plan<'_>) -> impl Iterator<Item = &'a str> {
    plan.request.secrets.keys().map(String::as_str).filter(|name| *name != HUB_TOKEN)
}

fn file(name: &str) -> KeyToPath {
    KeyToPath { key: name.to_owned(), path: name.to_owned(), mode: None }
}

/// How large a container is.
#[derive(Clone, Copy)]
pub(super) enum Size {
    /// As the launch asked.
    Asked,
    /// Little: it copies files, or runs a reward function.
    Small,
}

/// A container that runs `gym-runtime`.
pub(super) fn container(plan: &Plan<'_>, name: &str, arguments: &[&str], mounts: &[Mount], size: Size) -> Container {
    let work = mounts.iter().any(|mount| matches!(mount, Mount::Work));
    let (home, tmp) = if work { ("/job", "/job/tmp") } else { ("/tmp", "/tmp") };
    Container {
        name: name.to_owned(),
        image: Some(plan.image.to_owned()),
        image_pull_policy: plan.options.image_pull_policy.map(|policy| policy.as_str().to_owned()),
        command: Some(vec![RUNTIME.to_owned()]),
        args: Some(arguments.iter().map(|argument| literal(argument)).collect()),
        working_dir: Some(home.to_owned()),
        env: Some(vec![variable("HOME", home), variable("TMPDIR", tmp)]),
        resources: Some(resources(plan, size)),
        security_context: Some(security::of_container()),
        volume_mounts: Some(mounts.iter().flat_map(|mount| mount.mounts(plan)).collect()),
        // The last lines of the log explain an end that nothing else does.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

/// `$(NAME)` in an argument would be replaced by a variable.
fn literal(argument: &str) -> String {
    argument.replace("$(", "$$(")
}

pub(super) fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(literal(value)), value_from: None }
}

/// Gives a container more variables; one it has already stays.
pub(super) fn add_variables(container: &mut Container, variables: impl IntoIterator<Item = EnvVar>) {
    let there = container.env.get_or_insert_default();
    for variable in variables {
        if !there.iter().any(|other| other.name == variable.name) {
            there.push(variable);
        }
    }
}

/// Lets a container into the store.
pub(super) fn open_store(plan: &Plan<'_>, container: &mut Container) {
    if let Some(name) = plan.store_secret_name() {
        let secret_ref = Some(SecretEnvSource { name, optional: None });
        container.env_from = Some(vec![EnvFromSource { secret_ref, ..EnvFromSource::default() }]);
    }
}

/// Lets a container fetch gated models of the hub.
pub(super) fn open_hub(plan: &Plan<'_>, container: &mut Container) {
    if plan.request.secrets.contains_key(HUB_TOKEN) {
        let key = SecretKeySelector { name: plan.name(), key: HUB_TOKEN.to_owned(), optional: None };
        let value_from = EnvVarSource { secret_key_ref: Some(key), ..EnvVarSource::default() };
        let variable = EnvVar { name: "HF_TOKEN".to_owned(), value: None, value_from: Some(value_from) };
        add_variables(container, [variable]);
    }
    if plan.options.hub_cache_claim.is_some() {
        add_variables(container, [variable("HF_HUB_CACHE", "/models")]);
    }
}

/// Libtorch's threads, and the recipe's variables.
pub(super) fn computing_variables(plan: &Plan<'_>) -> Vec<EnvVar> {
    let threads = plan.request.workload.threads().to_string();
    let own = [variable("OMP_NUM_THREADS", &threads), variable("OMP_WAIT_POLICY", "PASSIVE")];
    let asked = plan.request.environment.iter().map(|(name, value)| variable(name, value));
    own.into_iter().chain(asked).collect()
}

fn resources(plan: &Plan<'_>, size: Size) -> ResourceRequirements {
    let asked = &plan.request.resources;
    let quantity = |text: &str| Quantity(text.to_owned());
    let mut limits = BTreeMap::new();
    let cpu = match size {
        Size::Small => "100m".to_owned(),
        Size::Asked => asked.cpu.map_or_else(|| "500m".to_owned(), |cores| format!("{}m", (cores * 1e3).ceil())),
    };
    match size {
        Size::Small => {
            if asked.memory.is_some() {
                limits.insert("memory".to_owned(), quantity(SMALL_MEMORY));
            }
        }
        Size::Asked => {
            if let Some(memory) = &asked.memory {
                limits.insert("memory".to_owned(), quantity(memory));
            }
            if let Some(disk) = &asked.disk {
                limits.insert("ephemeral-storage".to_owned(), quantity(disk));
            }
            if asked.gpu_count() > 0 {
                limits.insert(GPU.to_owned(), quantity(&asked.gpu_count().to_string()));
            }
        }
    }
    let mut requests = limits.clone();
    requests.insert("cpu".to_owned(), quantity(&cpu));
    ResourceRequirements { requests: Some(requests), limits: (!limits.is_empty()).then_some(limits), claims: None }
}

/// The pod around the containers.
pub(super) fn template(
    plan: &Plan<'_>,
    init: Vec<Container>,
    main: Container,
    restart_policy: &str,
    default_grace: i64,
) -> PodTemplateSpec {
    let asked = &plan.request.resources;
    let mut annotations = BTreeMap::from([(super::ID.to_owned(), plan.id().to_string())]);
    if init.iter().chain([&main]).any(|container| container.name == REWARD) {
        // A cloud's webhook puts its token into every container, except those named here.
        annotations.insert("eks.amazonaws.com/skip-containers".to_owned(), REWARD.to_owned());
    }
    let mut node_selector = asked.node_selector.clone();
    if asked.gpu_count() > 0
        && let Some((key, value)) = asked.gpu_label()
    {
        node_selector.insert(key.to_owned(), value.to_owned());
    }
    let secrets = &plan.options.image_pull_secrets;
    let pull_secrets = secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
    let volumes = volumes(plan, init.iter().chain([&main]));
    let tolerations = tolerations(plan);
    let spec = PodSpec {
        automount_service_account_token: Some(false),
        containers: vec![main],
        enable_service_links: Some(false),
        image_pull_secrets: (!secrets.is_empty()).then(|| pull_secrets.collect()),
        init_containers: (!init.is_empty()).then_some(init),
        node_selector: (!node_selector.is_empty()).then_some(node_selector),
        priority_class_name: asked.priority_class.clone(),
        restart_policy: Some(restart_policy.to_owned()),
        security_context: Some(security::of_pod()),
        service_account_name: plan.options.service_account.clone(),
        termination_grace_period_seconds: Some(
            asked.grace.map_or(default_grace, |grace| i64::try_from(grace.as_secs()).unwrap_or(i64::MAX)),
        ),
        tolerations: (!tolerations.is_empty()).then_some(tolerations),
        volumes: Some(volumes),
        ..PodSpec::default()
    };
    let metadata = ObjectMeta { labels: Some(plan.labels()), annotations: Some(annotations), ..ObjectMeta::default() };
    PodTemplateSpec { metadata: Some(metadata), spec: Some(spec) }
}

fn tolerations(plan: &Plan<'_>) -> Vec<Toleration> {
    let asked = &plan.request.resources;
    let mut tolerations: Vec<Toleration> = asked
        .tolerations
        .iter()
        .map(|toleration| Toleration {
            key: Some(toleration.key.clone()),
            operator: Some(if toleration.value.is_some() { "Equal" } else { "Exists" }.to_owned()),
            value: toleration.value.clone(),
            effect: toleration.effect.map(|effect| {
                let effect = match effect {
                    TolerationEffect::NoSchedule => "NoSchedule",
                    TolerationEffect::PreferNoSchedule => "PreferNoSchedule",
                    TolerationEffect::NoExecute => "NoExecute",
                };
                effect.to_owned()
            }),
            toleration_seconds: None,
        })
        .collect();
    if asked.gpu_count() > 0 {
        tolerations.push(Toleration {
            key: Some(GPU.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some("NoSchedule".to_owned()),
            ..Toleration::default()
        });
    }
    tolerations
}

/// The volumes that the containers mount, once each.
fn volumes<'a>(plan: &Plan<'_>, containers: impl Iterator<Item = &'a Container>) -> Vec<Volume> {
    let mut names: Vec<&str> = containers
        .flat_map(|container| container.volume_mounts.iter().flatten())
        .map(|mount| mount.name.as_str())
        .collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| volume(plan, name)).collect()
}

fn volume(plan: &Plan<'_>, name: &str) -> Volume {
    let mut volume = Volume { name: name.to_owned(), ..Volume::default() };
    let claim = plan.options.hub_cache_claim.as_ref().filter(|_| name == "models");
    match (name, claim) {
        (_, Some(claim)) => {
            let claim = PersistentVolumeClaimVolumeSource { claim_name: claim.clone(), read_only: None };
            volume.persistent_volume_claim = Some(claim);
        }
        ("secrets", _) => {
            volume.secret = Some(SecretVolumeSource {
                // Its owner and the pod's group read it.
                default_mode: Some(0o440),
                secret_name: Some(plan.name()),
                items: Some(files(plan).map(file).collect()),
                ..SecretVolumeSource::default()
            });
        }
        ("reward-token", _) => {
            volume.secret = Some(SecretVolumeSource {
                default_mode: Some(0o440),
                secret_name: Some(plan.reward_name()),
                ..SecretVolumeSource::default()
            });
        }
        ("spec", _) => {
            volume.config_map = Some(ConfigMapVolumeSource { name: plan.name(), ..ConfigMapVolumeSource::default() });
        }
        ("shm", _) => {
            let size = plan.request.resources.shared_memory.clone().unwrap_or_else(|| "1Gi".to_owned());
            volume.empty_dir =
                Some(EmptyDirVolumeSource { medium: Some("Memory".to_owned()), size_limit: Some(Quantity(size)) });
        }
        ("worker", _) => {
            let size_limit = Some(Quantity("64Mi".to_owned()));
            volume.empty_dir = Some(EmptyDirVolumeSource { medium: None, size_limit });
        }
        _ => volume.empty_dir = Some(EmptyDirVolumeSource::default()),
    }
    volume
}
