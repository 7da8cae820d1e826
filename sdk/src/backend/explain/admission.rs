//! Pods the API server refuses: quota, limit range, Pod Security, webhooks, missing objects.

use std::sync::LazyLock;

use regex::Regex;

use super::evidence::{Case, message, reason, seconds, time};
use super::text::{amount, listed, pattern, quantity, quote};
use super::{Cause, Explanation};

/// The newest refusal to make the pod, where none was made since.
pub(super) fn explain(case: &Case) -> Option<Explanation> {
    let newest = |reason: &str| case.owner_events.iter().rev().copied().find(|event| self::reason(event) == reason);
    let refused = newest("FailedCreate").or_else(|| case.newest(&["FailedCreate"]));
    let at = refused.and_then(time);
    let made = newest("SuccessfulCreate").and_then(time);
    let pod_ended =
        case.containers().iter().filter_map(|one| seconds(one.terminated()?.finished_at.as_ref())).reduce(f64::max);
    let pod_made = case.pod.and_then(|pod| seconds(pod.metadata.creation_timestamp.as_ref()));
    let since = [made, pod_made, pod_ended].into_iter().flatten().reduce(f64::max);
    let live = case.pod.is_some() && !case.is_deleting() && !matches!(case.phase(), "Failed" | "Succeeded");
    let overtaken = at.zip(since).is_some_and(|(at, since)| since > at) || (live && at.is_none());
    if let Some(event) = refused.filter(|_| !overtaken && !live) {
        return Some(of_words(message(event)));
    }
    let conditions = case
        .all
        .deployment
        .iter()
        .flat_map(|deployment| deployment.status.iter().flat_map(|status| status.conditions.iter().flatten()));
    let failure = conditions.filter(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True");
    let said = failure.filter_map(|condition| condition.message.as_deref()).next();
    let of_set = case
        .all
        .replica_set
        .iter()
        .flat_map(|set| set.status.iter().flat_map(|status| status.conditions.iter().flatten()));
    let set = of_set.filter(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True");
    said.or_else(|| set.filter_map(|condition| condition.message.as_deref()).next()).filter(|_| !live).map(of_words)
}

/// What `Error creating: pods "x" is forbidden: …` means.
pub(super) fn of_words(said: &str) -> Explanation {
    let readers = [quota, limit_range, pod_security, webhook, policy, missing, forbidden];
    readers.into_iter().find_map(|read| read(said)).unwrap_or_else(|| {
        Explanation::new(
            Cause::Unknown,
            format!("the API server does not make the pod: {}", quote(said)),
            "correct what it names; `kubectl describe job` shows the events".to_owned(),
        )
    })
}

fn quota(said: &str) -> Option<Explanation> {
    static EXCEEDED: LazyLock<Regex> = LazyLock::new(|| {
        pattern(
            r"exceeded quota: ([^,\s]+), requested: (.+?), used: (.+?), (?:limited|hard): (.+?)(?:$|\.\s|;\s| \(|\s*$)",
        )
    });
    static UNSAID: LazyLock<Regex> = LazyLock::new(|| pattern(r"failed quota: ([^:\s]+): must specify (.+)$"));
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(found) = UNSAID.captures(&flat) {
        return Some(
            Explanation::new(
                Cause::Quota,
                format!("the quota `{}` of the namespace wants every container to say {}", &found[1], quote(&found[2])),
                "set what is missing in `.resources(…)`, or let a LimitRange give defaults".to_owned(),
            )
            .retryable(false),
        );
    }
    if let Some(found) = EXCEEDED.captures(&flat) {
        let (asked, used, hard) = (amounts(&found[2]), amounts(&found[3]), amounts(&found[4]));
        let mut never = false;
        let parts: Vec<String> = asked
            .iter()
            .map(|(name, asked)| {
                let of = |list: &[(String, String)]| {
                    list.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
                };
                let said = |value: &str| quantity(value).map_or_else(|| value.to_owned(), |count| amount(name, count));
                let (used, hard) = (of(&used), of(&hard));
                never |=
                    quantity(asked).zip(hard.as_deref().and_then(quantity)).is_some_and(|(asked, hard)| asked > hard);
                let facts = [
                    used.map(|used| format!("used {}", said(&used))),
                    hard.map(|hard| format!("allowed {}", said(&hard))),
                ];
                let facts: Vec<String> = facts.into_iter().flatten().collect();
                format!("`{name}`: asked {}, {}", said(asked), facts.join(" of "))
            })
            .collect();
        let next_step = match never {
            true => {
                "ask for less: it is more than the whole quota allows; or let the quota be raised (`kubectl describe quota`)"
            }
            false => {
                "wait until others of the namespace end, ask for less, or let the quota be raised (`kubectl describe quota`)"
            }
        };
        let sentence = format!("the quota `{}` of the namespace has no room: {}", &found[1], listed(&parts));
        return Some(Explanation::new(Cause::Quota, sentence, next_step.to_owned()).retryable(!never).waiting());
    }
    let lower = flat.to_lowercase();
    let about = lower.contains("exceeded quota")
        || lower.contains("insufficient quota to match")
        || lower.contains("quota exceeded")
        || lower.contains("status unknown for quota");
    about.then(|| {
        Explanation::new(
            Cause::Quota,
            format!("a quota of the namespace has no room: {}", quote(said)),
            "`kubectl describe quota` shows what is used; wait, ask for less, or let it be raised".to_owned(),
        )
        .retryable(!lower.contains("insufficient quota to match"))
        .waiting()
    })
}

/// `requests.nvidia.com/gpu=1,limits.cpu=2` as pairs, without the `requests.` in front.
fn amounts(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|pair| pair.trim().rsplit_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.trim_end_matches('.').to_owned())).collect()
}

fn limit_range(said: &str) -> Option<Explanation> {
    static RULE: LazyLock<Regex> = LazyLock::new(|| {
        pattern(
            r"(?:maximum|minimum) [\w./-]+ usage per (?:Container|Pod|PersistentVolumeClaim) is [^,\]]+(?:, but (?:limit|request) is [^,\].]+(?:\.\d+)?\w*|\. No (?:limit|request) is specified)?|[\w./-]+ max limit to request ratio per \w+ is [^,\]]+(?:, but [^,\]]+)?",
        )
    });
    let rules: Vec<String> = RULE.find_iter(said).map(|found| quote(found.as_str())).collect();
    if rules.is_empty() {
        return None;
    }
    Some(Explanation::new(
        Cause::LimitRange,
        format!("the namespace's limit range does not allow the pod's size: {}", listed(&rules)),
        "ask for an amount within these bounds in `.resources(…)`, or let the limit range be changed (`kubectl describe limitrange`)"
            .to_owned(),
    ))
}

fn pod_security(said: &str) -> Option<Explanation> {
    static LEVEL: LazyLock<Regex> = LazyLock::new(|| pattern(r#"violates PodSecurity "([^"]+)":?\s*(.*)"#));
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(found) = LEVEL.captures(&flat) {
        let controls = quote(&found[2]);
        return Some(Explanation::new(
            Cause::AdmissionDenied,
            format!("Pod Security `{}` of the namespace refuses the pod: {controls}", &found[1]),
            "the pods of training-gym satisfy `restricted`: something changes them on their way (a webhook, a template of your own). \
             Correct the fields that are named, or use a namespace with another level"
                .to_owned(),
        ));
    }
    let old = [
        "unable to validate against any security context constraint",
        "unable to validate against any pod security policy",
        "PodSecurityPolicy",
    ];
    old.iter().any(|word| flat.contains(word)).then(|| {
        Explanation::new(
            Cause::AdmissionDenied,
            format!("the cluster's security rules refuse the pod: {}", quote(said)),
            "let the job's service account use a security context constraint or policy that allows user id 65532 (OpenShift: `nonroot-v2`)".to_owned(),
        )
    })
}

fn webhook(said: &str) -> Option<Explanation> {
    static CALL: LazyLock<Regex> = LazyLock::new(|| pattern(r#"failed calling webhook "([^"]+)""#));
    static DENIED: LazyLock<Regex> = LazyLock::new(|| {
        pattern(r#"(?s)admission webhook "([^"]+)" denied the request(?: without explanation)?:?\s*(.*)"#)
    });
    if let Some(found) = CALL.captures(said) {
        return Some(
            Explanation::new(
                Cause::WebhookDown,
                format!("the admission webhook `{}` has to allow the pod and does not answer: {}", &found[1], quote(said)),
                "look at the webhook's pods; they belong to the cluster, not to this job. Launching again once it answers helps".to_owned(),
            )
            .waiting(),
        );
    }
    let found = DENIED.captures(said)?;
    let why = if found[2].trim().is_empty() { "it does not say why".to_owned() } else { quote(&found[2]) };
    Some(Explanation::new(
        Cause::AdmissionDenied,
        format!("the admission webhook `{}` refuses the pod: {why}", &found[1]),
        "change what it objects to, or ask who runs the cluster for an exception".to_owned(),
    ))
}

fn policy(said: &str) -> Option<Explanation> {
    static DENIED: LazyLock<Regex> = LazyLock::new(|| {
        pattern(r"(?s)ValidatingAdmissionPolicy '([^']+)'(?: with binding '[^']+')? denied request:?\s*(.*)")
    });
    let found = DENIED.captures(said)?;
    Some(Explanation::new(
        Cause::AdmissionDenied,
        format!("the admission policy `{}` refuses the pod: {}", &found[1], quote(&found[2])),
        "change what it objects to, or ask who runs the cluster for an exception".to_owned(),
    ))
}

fn missing(said: &str) -> Option<Explanation> {
    static NAMED: LazyLock<Regex> = LazyLock::new(|| {
        pattern(
            r#"(?i)(service ?account|RuntimeClass(?:\.node\.k8s\.io)?|PriorityClass(?: with name)?|namespaces?)[ :]+"?([\w.-]+)"? (?:was )?(?:not )?found"#,
        )
    });
    let found = NAMED.captures(said)?;
    let kind = match found[1].to_lowercase().as_str() {
        kind if kind.starts_with("service") => "service account",
        kind if kind.starts_with("runtime") => "runtime class",
        kind if kind.starts_with("priority") => "priority class",
        _ => "namespace",
    };
    let advice = match kind {
        "service account" => "make it (`images/` has the manifest), or correct `TRAINING_GYM_SERVICE_ACCOUNT`",
        "runtime class" => "make it, or leave it out: on GPU clusters the NVIDIA runtime is usually the default",
        "priority class" => "make it, or correct the priority in `.resources(…)`: `kubectl get priorityclass`",
        _ => "make it, or correct `TRAINING_GYM_NAMESPACE`",
    };
    Some(Explanation::new(
        Cause::MissingObject,
        format!("the pod names the {kind} `{}`, which does not exist", &found[2]),
        advice.to_owned(),
    ))
}

fn forbidden(said: &str) -> Option<Explanation> {
    static WHO: LazyLock<Regex> = LazyLock::new(|| pattern(r#"User "([^"]+)" cannot (\w+) resource "([^"]+)""#));
    if let Some(found) = WHO.captures(said) {
        return Some(Explanation::new(
            Cause::Forbidden,
            format!("`{}` may not {} {}", &found[1], &found[2], &found[3]),
            "apply the role that `images/` ships, or bind one that has this verb; `gym doctor` lists every verb that is needed".to_owned(),
        ));
    }
    if said.contains("because it is being terminated") {
        return Some(Explanation::new(
            Cause::AdmissionDenied,
            format!("the namespace is being deleted: {}", quote(said)),
            "use another namespace, or make it anew once it is gone".to_owned(),
        ));
    }
    said.contains(" is forbidden").then(|| {
        Explanation::new(
            Cause::AdmissionDenied,
            format!("the API server refuses the pod: {}", quote(said)),
            "correct what it names, or ask who runs the cluster".to_owned(),
        )
    })
}
