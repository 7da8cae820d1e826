//! The kinds of failure a cluster has, each with a name, a meaning and what to do in general.

use std::fmt;

use serde::{Serialize, Serializer};
use training_gym_core::record;

/// What went wrong with a job on a cluster, in kinds a program can act on.
///
/// `docs/reference/failures.md` has a row for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The registry has no such repository, tag or digest.
    ImageNotFound,
    /// The registry wants other credentials, or any.
    ImageUnauthorized,
    /// The image's name cannot be read as one.
    ImageName,
    /// The registry did not answer, or answered 5xx.
    RegistryUnreachable,
    /// The registry's certificate is not trusted, or it does not speak TLS.
    RegistryCertificate,
    /// The registry limits how often one may pull.
    RegistryThrottled,
    /// The pull policy is `Never` and the node does not hold the image.
    ImageNotPresent,
    /// The image is not built for the node's processor.
    ImageArchitecture,
    /// The image cannot be pulled for a reason that is quoted.
    ImagePull,
    /// No node fits the pod.
    Unschedulable,
    /// GPUs are asked for and no node offers any: the device plugin is missing.
    GpuPluginMissing,
    /// The node's GPUs or their driver do not work.
    GpuUnhealthy,
    /// A volume claim is missing or not bound, or lies in another zone.
    VolumeClaim,
    /// A volume cannot be attached or mounted.
    Mount,
    /// The namespace's quota is used up.
    Quota,
    /// The namespace's limit range does not allow the container's size.
    LimitRange,
    /// A queue (Kueue) has not admitted the job.
    Queued,
    /// A container needed more memory than its limit or the node has.
    OutOfMemory,
    /// The kubelet removed the pod to save the node, or because it wrote too much.
    Evicted,
    /// The pod had to make room for one of higher priority, or its spot machine was taken back.
    Preempted,
    /// The node stopped answering or is gone.
    NodeLost,
    /// The node was shut down.
    NodeShutdown,
    /// The pod was moved off its node: a drain, a scale-down, a `kubectl delete`.
    Drained,
    /// A container ends and is restarted again and again.
    CrashLoop,
    /// A Secret, a ConfigMap or a key of one that the pod names is not there.
    BadReference,
    /// The container cannot be made for a reason that is quoted.
    CreateContainer,
    /// The container's program is not in the image, or must not be executed.
    BadCommand,
    /// The container's program is for another kind of processor.
    ExecFormat,
    /// The API server refused the pod: Pod Security, a webhook, a policy.
    AdmissionDenied,
    /// A webhook that has to allow the pod did not answer.
    WebhookDown,
    /// Something of the cluster that the pod names is missing: service account, priority or runtime class.
    MissingObject,
    /// We may not do what the job needs.
    Forbidden,
    /// `activeDeadlineSeconds` has passed.
    Deadline,
    /// The job has used up its retries.
    BackoffLimit,
    /// It did not start within the time a launch gives it.
    StartTimeout,
    /// The pod's network or sandbox cannot be set up.
    Sandbox,
    /// A liveness, readiness or startup probe fails.
    Probe,
    /// A container was killed from outside (SIGKILL) and nothing says by whom.
    Killed,
    /// It was asked to stop.
    Stopped,
    /// A container ended by itself with an error.
    Exited,
    /// What the run says of itself in `status.json`.
    Run(record::Cause),
    /// A reason this version does not know; the sentence quotes it.
    Unknown,
}

impl Cause {
    /// Its name in JSON, tables and the reference.
    pub fn name(self) -> &'static str {
        match self {
            Self::ImageNotFound => "image-not-found",
            Self::ImageUnauthorized => "image-unauthorized",
            Self::ImageName => "image-name",
            Self::RegistryUnreachable => "registry-unreachable",
            Self::RegistryCertificate => "registry-certificate",
            Self::RegistryThrottled => "registry-throttled",
            Self::ImageNotPresent => "image-not-present",
            Self::ImageArchitecture => "image-architecture",
            Self::ImagePull => "image-pull",
            Self::Unschedulable => "unschedulable",
            Self::GpuPluginMissing => "gpu-plugin-missing",
            Self::GpuUnhealthy => "gpu-unhealthy",
            Self::VolumeClaim => "volume-claim",
            Self::Mount => "mount",
            Self::Quota => "quota",
            Self::LimitRange => "limit-range",
            Self::Queued => "queued",
            Self::OutOfMemory => "out-of-memory",
            Self::Evicted => "evicted",
            Self::Preempted => "preempted",
            Self::NodeLost => "node-lost",
            Self::NodeShutdown => "node-shutdown",
            Self::Drained => "drained",
            Self::CrashLoop => "crash-loop",
            Self::BadReference => "bad-reference",
            Self::CreateContainer => "create-container",
            Self::BadCommand => "bad-command",
            Self::ExecFormat => "exec-format",
            Self::AdmissionDenied => "admission-denied",
            Self::WebhookDown => "webhook-down",
            Self::MissingObject => "missing-object",
            Self::Forbidden => "forbidden",
            Self::Deadline => "deadline",
            Self::BackoffLimit => "backoff-limit",
            Self::StartTimeout => "start-timeout",
            Self::Sandbox => "sandbox",
            Self::Probe => "probe",
            Self::Killed => "killed",
            Self::Stopped => "stopped",
            Self::Exited => "exited",
            Self::Run(cause) => run_name(cause),
            Self::Unknown => "unknown",
        }
    }

    /// Whether launching again unchanged can help by itself, where nothing more particular is known.
    pub(super) fn usually_retryable(self) -> bool {
        matches!(
            self,
            Self::RegistryUnreachable
                | Self::RegistryThrottled
                | Self::Queued
                | Self::Evicted
                | Self::Preempted
                | Self::NodeLost
                | Self::NodeShutdown
                | Self::Drained
                | Self::WebhookDown
                | Self::StartTimeout
                | Self::Sandbox
                | Self::Probe
                | Self::Killed
                | Self::Stopped
                | Self::GpuUnhealthy
        )
    }

    /// The kind as a run's record has it, which is coarser.
    pub fn of_run(self) -> record::Cause {
        match self {
            Self::Run(cause) => cause,
            Self::OutOfMemory => record::Cause::OutOfMemory,
            _ => record::Cause::Cluster,
        }
    }
}

/// The names `status.json` uses.
fn run_name(cause: record::Cause) -> &'static str {
    match cause {
        record::Cause::InvalidInput => "invalid-input",
        record::Cause::Teacher => "teacher",
        record::Cause::Reward => "reward",
        record::Cause::Numerics => "numerics",
        record::Cause::Store => "store",
        record::Cause::Superseded => "superseded",
        record::Cause::OutOfMemory => "out-of-memory",
        record::Cause::Cluster => "cluster",
        record::Cause::Died => "died",
        record::Cause::Internal => "internal",
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
