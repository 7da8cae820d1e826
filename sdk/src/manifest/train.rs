//! A training run as a Job, and a question as one.

use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use training_gym_core::record::Cause;

use super::pod::{self, Mount, PROGRAM_FOLDER, SOCKETS, SPEC_FILE, Size};
use super::reward::TOKEN_FILE;
use super::{CHECKER, FETCHER, Plan, REWARD, TRAINER};
use crate::backend::Workload;

/// Exit codes behind which another try finds the same: the pod's failure is the Job's.
const FINAL: [Cause; 5] = [Cause::InvalidInput, Cause::Reward, Cause::Numerics, Cause::Superseded, Cause::OutOfMemory];
const DEFAULT_RETRIES: u32 = 3;
const DEFAULT_GRACE: i64 = 120;
/// A question is answered in seconds, once its image is there.
const QUESTION_DEADLINE: i64 = 900;
const QUESTION_TTL: i32 = 600;

/// The Job of a training run, suspended: its Secrets come first. `None` for another workload.
pub(crate) fn job(plan: &Plan<'_>) -> Option<Job> {
    let Workload::Train { run_id, .. } = &plan.request.workload else { return None };
    let apart = plan.has_reward_pod();
    let worker = plan.request.reward_worker && !apart;
    let reward_address = plan.reward_address();
    let mut fetch = vec!["fetch", "--store", plan.store, "--run", run_id.as_str()];
    let mut mounts = vec![Mount::Work, Mount::Models { read_only: false }];
    if worker {
        fetch.extend(["--program-folder", PROGRAM_FOLDER]);
        mounts.push(Mount::Program { read_only: false });
    }
    let mut fetcher = pod::container(plan, FETCHER, &fetch, &mounts, Size::Small);
    pod::open_store(plan, &mut fetcher);
    pod::open_hub(plan, &mut fetcher);

    let mut train = vec!["train", "--store", plan.store, "--run", run_id.as_str()];
    let mut mounts = vec![Mount::Work, Mount::Models { read_only: true }, Mount::Shm, Mount::Secrets];
    if worker {
        train.extend(["--reward-sockets", SOCKETS]);
        mounts.push(Mount::Sockets);
    }
    if apart {
        train.extend(["--reward-address", &reward_address, "--reward-token-file", TOKEN_FILE]);
        mounts.push(Mount::RewardToken);
    }
    let mut trainer = pod::container(plan, TRAINER, &train, &mounts, Size::Asked);
    pod::open_store(plan, &mut trainer);
    pod::add_variables(&mut trainer, pod::computing_variables(plan));

    let mut init = vec![fetcher];
    if worker {
        init.push(reward_worker(plan));
    }
    let template = pod::template(plan, init, trainer, "Never", DEFAULT_GRACE);
    let resources = &plan.request.resources;
    let seconds = |duration: std::time::Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    let keep = plan.options.keep_finished().as_secs();
    let retries = resources.max_retries.unwrap_or(DEFAULT_RETRIES);
    Some(Job {
        metadata: plan.owner_meta(),
        spec: Some(JobSpec {
            active_deadline_seconds: resources.deadline.map(seconds),
            backoff_limit: Some(i32::try_from(retries).unwrap_or(i32::MAX)),
            pod_failure_policy: Some(failure_policy()),
            // The old pod is gone before the next begins: two trainers never share a run.
            pod_replacement_policy: Some("Failed".to_owned()),
            suspend: Some(true),
            template,
            ttl_seconds_after_finished: Some(i32::try_from(keep).unwrap_or(i32::MAX)),
            ..JobSpec::default()
        }),
        status: None,
    })
}

/// It sees the program, the sockets and a folder of its own: no store, no secret, no variable.
fn reward_worker(plan: &Plan<'_>) -> Container {
    let arguments = ["reward-worker", "--program-folder", PROGRAM_FOLDER, "--sockets", SOCKETS];
    let mounts = [Mount::Program { read_only: true }, Mount::Sockets, Mount::WorkerScratch];
    let mut worker = pod::container(plan, REWARD, &arguments, &mounts, Size::Small);
    // A sidecar: it starts before the trainer and ends with it.
    worker.restart_policy = Some("Always".to_owned());
    worker
}

fn failure_policy() -> PodFailurePolicy {
    let disrupted = PodFailurePolicyRule {
        action: "Ignore".to_owned(),
        on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
        }]),
        on_exit_codes: None,
    };
    let finally = |container: &str| PodFailurePolicyRule {
        action: "FailJob".to_owned(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: Some(container.to_owned()),
            operator: "In".to_owned(),
            values: FINAL.iter().map(|cause| i32::from(cause.exit_code())).collect(),
        }),
        on_pod_conditions: None,
    };
    PodFailurePolicy { rules: vec![disrupted, finally(TRAINER), finally(FETCHER)] }
}

/// A Job that runs `gym-runtime check` on files that lie in the store. The plan's workload is a
/// deployment of those files as a model, which is never served.
pub(crate) fn question(plan: &Plan<'_>, arguments: &[&str]) -> Job {
    let fetch = ["fetch", "--store", plan.store, "--spec", SPEC_FILE];
    let mounts = [Mount::Work, Mount::Models { read_only: false }, Mount::Spec];
    let mut fetcher = pod::container(plan, FETCHER, &fetch, &mounts, Size::Small);
    pod::open_store(plan, &mut fetcher);
    let mounts = [Mount::Work, Mount::Models { read_only: true }];
    let mut checker = pod::container(plan, CHECKER, arguments, &mounts, Size::Small);
    pod::add_variables(&mut checker, [pod::variable("OMP_NUM_THREADS", "1")]);
    let template: PodTemplateSpec = pod::template(plan, vec![fetcher], checker, "Never", 5);
    Job {
        metadata: plan.owner_meta(),
        spec: Some(JobSpec {
            active_deadline_seconds: Some(QUESTION_DEADLINE),
            backoff_limit: Some(0),
            suspend: Some(true),
            template,
            ttl_seconds_after_finished: Some(QUESTION_TTL),
            ..JobSpec::default()
        }),
        status: None,
    }
}
