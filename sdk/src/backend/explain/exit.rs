//! Containers that ran and ended: by memory, by a signal, with a code of ours or another.

use k8s_openapi::api::core::v1::ContainerStateTerminated;
use training_gym_core::record::{self, RunState};

use super::evidence::{Case, Container, Role, message, reason, seconds};
use super::text::{bytes, quote};
use super::{Cause, Explanation, start};

/// Lines of the log that a sentence quotes.
const LINES: usize = 5;
/// How long after the reward worker's death a trainer may take to say that it lost it, in seconds.
const AFTERMATH: f64 = 900.0;

/// A container that was killed for memory, in its present state or, where it waits to be restarted, in
/// its last. The trainer before its helpers.
pub(super) fn out_of_memory(case: &Case) -> Option<Explanation> {
    let mut containers = case.containers();
    containers.sort_by_key(|container| match container.role {
        Role::Main => 0,
        Role::Init => 1,
        Role::Sidecar => 2,
    });
    let killed = containers.into_iter().find(|container| {
        let last = container.last_terminated().filter(|_| container.waiting().is_some());
        container.terminated().or(last).is_some_and(is_oom)
    })?;
    let ended = killed.terminated().or(killed.last_terminated())?;
    let explanation = oom(case, &killed, Some(ended));
    Some(if killed.waiting().is_some() { explanation } else { explanation.ended() })
}

/// When that happened.
pub(super) fn oom_at(case: &Case) -> Option<f64> {
    let ended = case.containers().into_iter().filter_map(|one| one.terminated().filter(|ended| is_oom(ended)));
    ended.filter_map(|ended| seconds(ended.finished_at.as_ref())).reduce(f64::max)
}

fn is_oom(ended: &ContainerStateTerminated) -> bool {
    ended.reason.as_deref() == Some("OOMKilled")
}

pub(super) fn oom(case: &Case, container: &Container, ended: Option<&ContainerStateTerminated>) -> Explanation {
    let limit = container.limit("memory");
    let peak = case.all.status.as_ref().and_then(|status| status.peak_memory).filter(|_| container.role == Role::Main);
    let facts = match (limit, peak) {
        (Some(limit), Some(peak)) => format!(" (limit {}; it was seen to use {})", bytes(limit), bytes(peak as f64)),
        (Some(limit), None) => format!(" (limit {})", bytes(limit)),
        (None, Some(peak)) => {
            format!(" (no limit is set, so the node ran out; it was seen to use {})", bytes(peak as f64))
        }
        (None, None) => " (no limit is set, so the node ran out)".to_owned(),
    };
    let again = match container.restarts() {
        0 => String::new(),
        1 => ", after 1 restart".to_owned(),
        times => format!(", after {times} restarts"),
    };
    let code = ended
        .filter(|ended| ended.exit_code != 137)
        .map_or_else(String::new, |ended| format!(" (exit code {})", ended.exit_code));
    let advice = match (container.role, container.name) {
        (Role::Main, _) => {
            "raise the memory in `.resources(…)`, or lower `max_tokens_per_gpu`, `rollout_batch_size` or `rollout_max_response_len`"
        }
        (_, "reward") => "raise the reward worker's memory in `.resources(…)`, or let the reward function hold less",
        (_, "fetch") => "raise the memory in `.resources(…)`: the fetch of model and program needs more",
        _ => "raise its memory in `.resources(…)`",
    };
    Explanation::new(
        Cause::OutOfMemory,
        format!("{} ran out of memory and was killed{facts}{again}{code}", container.called()),
        advice.to_owned(),
    )
}

/// The run's own word, where it is the true cause.
pub(super) fn own_word(case: &Case, ended: Option<&ContainerStateTerminated>) -> Option<Explanation> {
    let status = case.all.status.as_ref()?;
    let failure = status.failure.as_ref().filter(|_| status.state == RunState::Failed)?;
    // An older attempt's word says nothing of this one.
    let begun = ended.and_then(|ended| seconds(ended.started_at.as_ref()));
    let made = case.pod.and_then(|pod| seconds(pod.metadata.creation_timestamp.as_ref()));
    let job = case.all.job.as_ref().and_then(|job| seconds(job.status.as_ref()?.start_time.as_ref()));
    if begun.or(made).or(job).is_some_and(|begun| status.updated_at > 0.0 && status.updated_at + 2.0 < begun) {
        return None;
    }
    let code = ended.map(|ended| ended.exit_code);
    let expected = i32::from(failure.cause.exit_code());
    // A code of ours that is another than the word's: the word is of something else.
    if code.is_some_and(|code| code != expected && code != 0 && code < 126) {
        return None;
    }
    Some(
        Explanation::new(Cause::Run(failure.cause), failure.sentence.clone(), failure.next_step.clone())
            .retryable(failure.retryable)
            .ended(),
    )
}

/// Whether the run says that it lost its reward worker, and that worker was killed for memory just before.
pub(super) fn lost_reward_worker(case: &Case) -> Option<Explanation> {
    let status = case.all.status.as_ref()?;
    status.failure.as_ref().filter(|failure| failure.cause == record::Cause::Reward)?;
    let containers = case.containers();
    let worker = containers.iter().find(|one| one.role == Role::Sidecar)?;
    let killed = [worker.terminated(), worker.last_terminated()].into_iter().flatten().find(|ended| is_oom(ended))?;
    let at = seconds(killed.finished_at.as_ref());
    at.is_none_or(|at| at <= status.updated_at + 2.0 && status.updated_at - at < AFTERMATH)
        .then(|| oom(case, worker, Some(killed)))
}

/// A container that ended with an error and is not started again.
pub(super) fn of_container(case: &Case, container: &Container, ended: &ContainerStateTerminated) -> Explanation {
    let (called, code) = (container.called(), ended.exit_code);
    let said = ended.message.as_deref().unwrap_or_default();
    let reason = ended.reason.as_deref().unwrap_or_default();
    if is_oom(ended) {
        return oom(case, container, Some(ended));
    }
    if matches!(reason, "StartError" | "ContainerCannotRun") || (code == 128 && !said.is_empty()) {
        return start::of_words(container, reason, said).ended();
    }
    if reason == "ContainerStatusUnknown" {
        return Explanation::new(
            Cause::NodeLost,
            format!("{} lost track of {called}: {}", case.node_called(), quote(said)),
            "launch again with the run id: it goes on from its last published state".to_owned(),
        )
        .ended();
    }
    let log = case.all.log.join("\n");
    if let Some(explanation) = start::exec_format(&called, said).or_else(|| start::exec_format(&called, &log)) {
        return explanation.ended();
    }
    if let Some(explanation) = probe_kill(case, container, code) {
        return explanation;
    }
    let what = meaning(code, ended.signal);
    let words = last_words(case, container, said);
    let sentence = format!("{called} ended with {what}{words}");
    let (cause, next_step, retryable) = advice(case, container, code);
    Explanation::new(cause, sentence, next_step).retryable(retryable).ended()
}

/// A container that the kubelet starts again and again.
pub(super) fn crash_loop(case: &Case, container: &Container) -> Option<Explanation> {
    let (reason, said) = container.waiting()?;
    if reason != "CrashLoopBackOff" {
        return None;
    }
    let called = container.called();
    let Some(ended) = container.last_terminated() else {
        return Some(Explanation::new(
            Cause::CrashLoop,
            format!("{called} ends and is started again and again: {}", quote(said)),
            "read its log: `kubectl logs --previous`".to_owned(),
        ));
    };
    let once = of_container(case, container, ended);
    if !matches!(once.cause, Cause::Exited | Cause::Killed | Cause::Stopped | Cause::Run(_)) {
        return Some(Explanation { outlook: super::Outlook::Stuck, ..once });
    }
    let times = match container.restarts() {
        0 => String::new(),
        1 => " (1 restart so far)".to_owned(),
        restarts => format!(" ({restarts} restarts so far)"),
    };
    let words = last_words(case, container, ended.message.as_deref().unwrap_or_default());
    if ended.exit_code == 0 {
        return Some(Explanation::new(
            Cause::CrashLoop,
            format!(
                "{called} ends without an error and is started again and again{times}: it is to run for good{words}"
            ),
            "see that its command is a server (`gym-runtime serve …`)".to_owned(),
        ));
    }
    let sentence = format!(
        "{called} ends and is started again and again{times}: last with {}{words}",
        meaning(ended.exit_code, ended.signal)
    );
    Some(Explanation::new(Cause::CrashLoop, sentence, once.next_step).retryable(once.retryable))
}

/// Killed by the kubelet because a probe failed.
fn probe_kill(case: &Case, container: &Container, code: i32) -> Option<Explanation> {
    if !matches!(code, 137 | 143) {
        return None;
    }
    let kill = case.events.iter().rev().find(|event| {
        let said = message(event);
        reason(event) == "Killing"
            && said.contains(container.name)
            && (said.contains("failed liveness probe") || said.contains("failed startup probe"))
    })?;
    let failed = case.events.iter().rev().find(|event| reason(event) == "Unhealthy");
    let why = failed.map_or_else(String::new, |event| format!(" ({})", quote(message(event))));
    let probe = if message(kill).contains("startup") { "startup" } else { "liveness" };
    Some(Explanation::new(
        Cause::Probe,
        format!("the kubelet killed {} because its {probe} probe failed{why}", container.called()),
        "look at its log for what kept it busy; where loading takes longer than the probe allows, raise the start time-out".to_owned(),
    ))
}

/// What an exit code says.
fn meaning(code: i32, signal: Option<i32>) -> String {
    let said = match code {
        1 => Some("an internal fault, or a start that failed"),
        2 => Some("`invalid-input`: spec, model, template or rows do not fit"),
        3 => Some("`teacher`: it could not be reached, or answered wrongly"),
        4 => Some("`reward`: the reward function or its worker"),
        5 => Some("`numerics`: a loss was not finite, or no weight changed"),
        6 => Some("`store`: it refused or lost something"),
        7 => Some("`superseded`: another attempt of the run is the owner now"),
        8 => Some("`out-of-memory`: libtorch could not allocate"),
        126 => Some("its program may not be executed"),
        127 => Some("its program was not found"),
        132 => Some("SIGILL: an instruction that this processor does not have"),
        134 => Some("SIGABRT: it gave up"),
        135 => Some("SIGBUS: mostly a full /dev/shm"),
        136 => Some("SIGFPE"),
        137 => Some("SIGKILL"),
        139 => Some("SIGSEGV: it crashed"),
        143 => Some("SIGTERM: it was asked to stop"),
        _ => None,
    };
    match (said, signal) {
        (Some(said), _) => format!("exit code {code} ({said})"),
        (None, Some(signal)) if signal > 0 => format!("signal {signal}"),
        (None, _) => format!("exit code {code}"),
    }
}

fn advice(case: &Case, container: &Container, code: i32) -> (Cause, String, bool) {
    let run = |cause: record::Cause| Cause::Run(cause);
    let of_ours = container.role != Role::Sidecar;
    let log = "read its log (`gym logs`, or `kubectl logs`)";
    match code {
        2 if of_ours => {
            (run(record::Cause::InvalidInput), format!("{log}, correct what it names, and launch a new run"), false)
        }
        3 if of_ours => (
            run(record::Cause::Teacher),
            "check that the teacher answers, its URL and token; launch again with the run id".to_owned(),
            true,
        ),
        4 if of_ours => {
            (run(record::Cause::Reward), "run the reward function on the sample in a unit test".to_owned(), false)
        }
        5 if of_ours => {
            (run(record::Cause::Numerics), "lower `lr`, or look at the last lines of `metrics.jsonl`".to_owned(), false)
        }
        6 if of_ours => (
            run(record::Cause::Store),
            "check the store with `gym doctor`; launch again with the run id".to_owned(),
            true,
        ),
        7 if of_ours => (run(record::Cause::Superseded), "follow the newer attempt: `gym runs show`".to_owned(), false),
        8 if of_ours => (
            run(record::Cause::OutOfMemory),
            "lower `max_tokens_per_gpu` or `rollout_max_response_len`".to_owned(),
            false,
        ),
        126 | 127 => (Cause::BadCommand, "use the image that `cargo xtask image` builds".to_owned(), false),
        132 => (Cause::Exited, "choose nodes with a newer processor in the node selector".to_owned(), false),
        135 => (Cause::Exited, "raise the size of /dev/shm in `.resources(…)`".to_owned(), false),
        137 => {
            let since = case.events.iter().rev().any(|event| matches!(reason(event), "Killing"));
            let kernel =
                case.node_events.iter().rev().find(|event| matches!(reason(event), "SystemOOM" | "OOMKilling"));
            match kernel {
                Some(event) => (
                    Cause::OutOfMemory,
                    format!(
                        "the node itself ran out of memory ({}): ask for as much memory as the job needs in `.resources(…)`",
                        quote(message(event))
                    ),
                    true,
                ),
                None if since => (
                    Cause::Killed,
                    "it did not end within its grace period after it was asked to; launch again with the run id"
                        .to_owned(),
                    true,
                ),
                None => (Cause::Killed, unexplained(case, container), true),
            }
        }
        139 | 134 | 136 => (Cause::Exited, format!("{log} and report it; launch again with the run id"), true),
        143 => {
            (Cause::Stopped, "launch again with the run id: it goes on from its last published state".to_owned(), true)
        }
        _ => (Cause::Exited, log.to_owned(), false),
    }
}

/// What may have killed a container that the kernel did not own up to.
fn unexplained(case: &Case, container: &Container) -> String {
    let peak = case.all.status.as_ref().and_then(|status| status.peak_memory).filter(|_| container.role == Role::Main);
    let seen = match (peak, container.limit("memory")) {
        (Some(peak), Some(limit)) => format!(", it was seen to use {} of its {}", bytes(peak as f64), bytes(limit)),
        _ => String::new(),
    };
    format!(
        "nothing says who killed it: possibly memory{seen} (raise it in `.resources(…)`), possibly a person; launch again with the run id"
    )
}

/// The container's last message or the log's last lines.
fn last_words(case: &Case, container: &Container, said: &str) -> String {
    let log = &case.all.log;
    let from: Vec<&str> = match said.trim() {
        "" if container.role == Role::Main || log.is_empty() => log.iter().map(String::as_str).collect(),
        "" => Vec::new(),
        said => said.lines().collect(),
    };
    let lines: Vec<String> =
        from.iter().rev().filter(|line| !line.trim().is_empty()).take(LINES).map(|line| quote(line)).collect();
    if lines.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = lines.into_iter().rev().collect();
    format!("; its last words: {}", lines.join(" | "))
}
