//! What the job itself says: its deadline, its retries, its queue.

use k8s_openapi::api::batch::v1::JobCondition;
use serde_json::Value;

use super::evidence::{Case, message, reason, time};
use super::text::{duration, quote};
use super::{Cause, Explanation};

/// The condition that the job has failed, or is about to.
pub(super) fn failed<'a>(case: &Case<'a>) -> Option<&'a JobCondition> {
    let conditions = case.all.job.as_ref()?.status.as_ref()?.conditions.as_ref()?;
    let of = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind && condition.status == "True");
    of("Failed").or_else(|| of("FailureTarget"))
}

/// Whether the job has completed.
pub(super) fn is_complete(case: &Case) -> bool {
    let conditions = case.all.job.as_ref().and_then(|job| job.status.as_ref()?.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "SuccessCriteriaMet") && condition.status == "True"
    })
}

/// `activeDeadlineSeconds` of the pod or the job has passed.
pub(super) fn deadline(case: &Case, during: Option<Explanation>) -> Option<Explanation> {
    let of_job = failed(case).is_some_and(|condition| condition.reason.as_deref() == Some("DeadlineExceeded"));
    let status = case.pod.and_then(|pod| pod.status.as_ref());
    let of_pod = status.is_some_and(|status| status.reason.as_deref() == Some("DeadlineExceeded"));
    let told = case.owner_events.iter().chain(&case.events).rev().find(|event| reason(event) == "DeadlineExceeded");
    if !of_job && !of_pod && told.is_none() {
        return None;
    }
    let limit = |of_job: bool| {
        let job = || case.all.job.as_ref()?.spec.as_ref()?.active_deadline_seconds;
        let pod = || case.pod?.spec.as_ref()?.active_deadline_seconds;
        if of_job { job().or_else(pod) } else { pod().or_else(job) }
    };
    let limit = limit(of_job).map_or_else(String::new, |limit| format!(" of {}", duration(limit as f64)));
    let meanwhile = during.map_or_else(String::new, |during| format!("; until then: {}", during.sentence));
    Some(
        Explanation::new(
            Cause::Deadline,
            format!("it did not end within its deadline{limit} (`activeDeadlineSeconds`) and was stopped{meanwhile}"),
            "raise the deadline, or do without one; launching again with the run id goes on from its last published state".to_owned(),
        )
        .ended(),
    )
}

/// The job has failed, and nothing more particular is known.
pub(super) fn gave_up(case: &Case) -> Option<Explanation> {
    let condition = failed(case)?;
    let said = condition.message.as_deref().unwrap_or_default();
    let log = "read the log of its last pod (`gym logs`), if it is still there; launch again with the run id once the cause is gone";
    let explanation = match condition.reason.as_deref().unwrap_or_default() {
        "BackoffLimitExceeded" => {
            let sentence = format!("the job has used up its retries{}, and no pod is left to say why", retries(case));
            Explanation::new(Cause::BackoffLimit, sentence, log.to_owned())
        }
        "PodFailurePolicy" => policy(said),
        "MaxFailedIndexesExceeded" | "FailedIndexes" => Explanation::new(
            Cause::BackoffLimit,
            format!("too many of the job's indexes failed: {}", quote(said)),
            log.to_owned(),
        ),
        other => Explanation::new(Cause::Unknown, format!("the job failed ({other}): {}", quote(said)), log.to_owned()),
    };
    Some(explanation.ended())
}

/// How often it was tried, where the job says so.
fn retries(case: &Case) -> String {
    let job = case.all.job.as_ref();
    let failed = job.and_then(|job| job.status.as_ref()?.failed).filter(|failed| *failed > 0);
    let limit = job.and_then(|job| job.spec.as_ref()?.backoff_limit);
    match (failed, limit) {
        (Some(failed), Some(limit)) => format!(" ({failed} failed pods; `backoffLimit` is {limit})"),
        (Some(failed), None) => format!(" ({failed} failed pods)"),
        (None, Some(limit)) => format!(" (`backoffLimit` is {limit})"),
        (None, None) => String::new(),
    }
}

/// The same, added to the cause of the last try.
pub(super) fn after_retries(case: &Case, explanation: Explanation) -> Explanation {
    let spent = failed(case).is_some_and(|condition| condition.reason.as_deref() == Some("BackoffLimitExceeded"));
    if !spent {
        return explanation;
    }
    let sentence = format!("{}; the job has used up its retries{}", explanation.sentence, retries(case));
    Explanation { sentence, ..explanation }.ended()
}

/// `Container trainer for pod ns/x failed with exit code 2 matching FailJob rule at index 0`.
fn policy(said: &str) -> Explanation {
    let code = said.split("exit code ").nth(1).and_then(|rest| rest.split_whitespace().next()?.parse::<i32>().ok());
    let disrupted = said.contains("DisruptionTarget");
    let (cause, retryable) = match code {
        _ if disrupted => (Cause::Drained, true),
        Some(_) => (Cause::Exited, false),
        None => (Cause::BackoffLimit, false),
    };
    Explanation::new(
        cause,
        format!("the job ended without a retry, as its failure policy says: {}", quote(said)),
        "read the log (`gym logs`): the exit code is in the table of `docs/guides/failures.md`".to_owned(),
    )
    .retryable(retryable)
}

/// A job that a queue holds back.
pub(super) fn queued(case: &Case) -> Option<Explanation> {
    let job = case.all.job.as_ref();
    let suspended = job.is_some_and(|job| job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true));
    let workload = case.all.workload.as_ref();
    let waits = workload.is_some_and(|workload| !holds(workload, "Admitted") && !holds(workload, "Finished"));
    let live = case.pod.is_some() && !case.is_deleting() && !suspended;
    if !(suspended || waits) || live {
        return None;
    }
    let labels = job.and_then(|job| job.metadata.labels.as_ref());
    let name = labels.and_then(|labels| labels.get("kueue.x-k8s.io/queue-name").cloned());
    let name = name.or_else(|| Some(workload?.pointer("/spec/queueName")?.as_str()?.to_owned()));
    let queue = name.as_ref().map_or_else(|| "a queue".to_owned(), |name| format!("the queue `{name}`"));
    let said = workload.and_then(why).or_else(|| {
        let told = case.owner_events.iter().rev().filter(|event| {
            matches!(
                reason(event),
                "Pending"
                    | "Inadmissible"
                    | "Stopped"
                    | "Preempted"
                    | "EvictedDueToPreempted"
                    | "QuotaReserved"
                    | "Evicted"
            )
        });
        let newest = told.map(|event| message(event)).find(|said| !said.is_empty());
        newest.map(str::to_owned)
    });
    if name.is_none() && workload.is_none() && said.is_none() {
        return Some(
            Explanation::new(
                Cause::Queued,
                "the job is suspended (`spec.suspend`), and no queue says that it holds it".to_owned(),
                "resume it (`kubectl patch job … -p '{\"spec\":{\"suspend\":false}}'`), or launch again".to_owned(),
            )
            .waiting(),
        );
    }
    Some(of_queue(&queue, said.as_deref().unwrap_or_default(), since(case)))
}

fn of_queue(queue: &str, said: &str, since: Option<f64>) -> Explanation {
    let lower = said.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let never = has(&[
        "maximum capacity",
        "doesn't exist",
        "does not exist",
        "not found",
        "inactive",
        "unavailable in clusterqueue",
        "is stopped",
        "limitrange",
    ]);
    let why = if said.is_empty() { String::new() } else { format!(": {}", quote(said)) };
    let waited = since.map_or_else(String::new, |seconds| format!(" for {}", duration(seconds)));
    let (sentence, next_step) = if has(&["preempted"]) {
        (
            format!("{queue} took the job's place back for another{why}"),
            "wait: it is admitted again when there is room, and goes on from its last published state",
        )
    } else if has(&["maximum capacity", "unavailable in clusterqueue"]) {
        (
            format!("{queue} can never admit the job{why}"),
            "ask for less, or for a resource that the queue offers (`kubectl get clusterqueue -o yaml`)",
        )
    } else if never {
        (
            format!("{queue} admits nothing{why}"),
            "correct the queue's name in `.resources(…)`, or make the queue (`kubectl get localqueue`)",
        )
    } else {
        (
            format!("{queue} has not admitted the job yet{waited}{why}"),
            "wait, ask for less, or see who holds the quota (`kubectl get workloads`)",
        )
    };
    Explanation::new(Cause::Queued, sentence, next_step.to_owned()).retryable(!never).waiting()
}

fn since(case: &Case) -> Option<f64> {
    let first = case
        .owner_events
        .iter()
        .find(|event| matches!(reason(event), "Suspended" | "CreatedWorkload"))
        .and_then(|event| time(event));
    let made = case.all.job.as_ref().and_then(|job| super::evidence::seconds(job.metadata.creation_timestamp.as_ref()));
    first.or(made).map(|at| case.all.now - at).filter(|waited| *waited > 0.0 && case.all.now > 0.0)
}

fn conditions(workload: &Value) -> impl Iterator<Item = &Value> {
    workload.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten()
}

fn holds(workload: &Value, kind: &str) -> bool {
    conditions(workload).any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// Why the workload is not admitted.
fn why(workload: &Value) -> Option<String> {
    let evicted =
        conditions(workload).find(|condition| condition["type"] == "Preempted" && condition["status"] == "True");
    let waits =
        conditions(workload).find(|condition| condition["type"] == "QuotaReserved" && condition["status"] == "False");
    let checks =
        conditions(workload).find(|condition| condition["type"] == "Admitted" && condition["status"] == "False");
    [waits, evicted, checks].into_iter().flatten().find_map(|condition| Some(condition["message"].as_str()?.to_owned()))
}
