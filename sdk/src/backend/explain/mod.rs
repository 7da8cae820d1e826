//! Why a job on a cluster does not run: from what the API server knows to one sentence and a next step.
//!
//! [`explain`] is pure: [`Evidence`] in, [`Explanation`] out. It asks, in this order, and takes the
//! first answer:
//!
//! 1. a queue that holds the job back; a deadline that has passed;
//! 2. how it ended: the pod's own reason (evicted, node lost), a container killed for memory, a
//!    disruption, the run's own word in `status.json`, exit codes, the job's retries;
//! 3. what keeps it from starting: a refusal of the API server, no node, the sandbox, volumes, images,
//!    containers that cannot be made, crash loops, probes;
//! 4. the time it has waited.
//!
//! Events only count while the state they tell of can still hold: a pod that was placed is not
//! unschedulable, whatever an older event says. A reason that is not known here is quoted.

mod admission;
mod cause;
mod disruption;
mod evidence;
mod exit;
mod image;
mod job;
mod predicates;
mod schedule;
mod setup;
mod start;
mod text;

use serde::Serialize;
use training_gym_core::record::{Failure, RunState};

pub use cause::Cause;
pub use evidence::Evidence;
pub use text::redact;

use evidence::{Case, Role, message, reason};
pub(crate) use schedule::allocatable;
pub(crate) use text::quantity;
use text::{duration, quote};

/// Whether something can still become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outlook {
    /// It may pass by itself: the cluster goes on trying.
    Waiting,
    /// It stays so until somebody changes something.
    Stuck,
    /// It is over.
    Ended,
}

/// Why a job does not run or has ended, for a person and for a program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The kind.
    pub cause: Cause,
    /// One sentence: what happened. Free of credentials.
    pub sentence: String,
    /// What to do about it.
    pub next_step: String,
    /// Whether launching again unchanged can help by itself.
    pub retryable: bool,
    /// Whether something can still become of it.
    pub outlook: Outlook,
}

impl Explanation {
    fn new(cause: Cause, sentence: String, next_step: String) -> Self {
        Self { cause, sentence, next_step, retryable: cause.usually_retryable(), outlook: Outlook::Stuck }
    }

    fn retryable(self, retryable: bool) -> Self {
        Self { retryable, ..self }
    }

    fn waiting(self) -> Self {
        Self { outlook: Outlook::Waiting, ..self }
    }

    fn ended(self) -> Self {
        Self { outlook: Outlook::Ended, ..self }
    }

    fn redacted(self) -> Self {
        Self { sentence: redact(&self.sentence), next_step: redact(&self.next_step), ..self }
    }

    /// The same as a run's record has it.
    pub fn failure(&self) -> Failure {
        Failure {
            cause: self.cause.of_run(),
            sentence: self.sentence.clone(),
            next_step: self.next_step.clone(),
            retryable: self.retryable,
        }
    }
}

/// What is wrong; `None` where nothing is, or nothing is known of it.
pub fn explain(evidence: &Evidence) -> Option<Explanation> {
    let case = Case::new(evidence);
    if job::is_complete(&case) || case.phase() == "Succeeded" {
        return None;
    }
    let failed = job::failed(&case).is_some();
    let found = if failed { None } else { job::queued(&case) };
    let found = found.or_else(|| {
        let during = if case.is_scheduled() { None } else { schedule_of(&case) };
        job::deadline(&case, during)
    });
    // A pod that is over and cannot be made anew: what refuses the new one is what holds it up now.
    let found = found.or_else(|| if failed { None } else { admission::explain(&case) });
    let found = found.or_else(|| ended(&case)).or_else(|| standing(&case)).or_else(|| overdue(&case));
    found.map(|found| patience(&case, found).redacted())
}

/// How it ended.
fn ended(case: &Case) -> Option<Explanation> {
    let over = case.phase() == "Failed" || job::failed(case).is_some();
    let found = disruption::of_status(case)
        .or_else(|| exit::lost_reward_worker(case))
        .or_else(|| by_memory_or_disruption(case))
        .or_else(|| by_itself(case))
        .or_else(|| if over || case.pod.is_none() || case.is_deleting() { taken(case) } else { None });
    let found = found.or_else(|| if over { unknown(case) } else { None });
    found.map(|found| job::after_retries(case, found)).or_else(|| job::gave_up(case))
}

/// A container that was killed for memory goes before a disruption only if it came first.
fn by_memory_or_disruption(case: &Case) -> Option<Explanation> {
    let memory = exit::out_of_memory(case);
    let disruption = disruption::of_condition(case);
    let (Some(killed), Some(_)) = (&memory, &disruption) else { return memory.or(disruption) };
    let taken =
        case.condition("DisruptionTarget").and_then(|found| evidence::seconds(found.last_transition_time.as_ref()));
    let first = exit::oom_at(case).zip(taken).is_none_or(|(killed, taken)| killed <= taken);
    if first { Some(killed.clone()) } else { disruption }
}

/// A container that ended with an error, the trainer before its helpers, with the run's own word first.
fn by_itself(case: &Case) -> Option<Explanation> {
    let containers = case.containers();
    let failed = |role: Role| {
        let of_role = containers.iter().filter(move |one| one.role == role);
        let mut ended = of_role.filter_map(|one| Some((one, one.terminated()?)));
        ended.find(|(_, ended)| ended.exit_code != 0)
    };
    let main = failed(Role::Main);
    let asked_to_stop = case.all.status.as_ref().is_some_and(|status| status.state == RunState::Cancelled);
    if let Some((_, ended)) = main.filter(|(_, ended)| !(asked_to_stop && matches!(ended.exit_code, 137 | 143))) {
        let disrupted = if matches!(ended.exit_code, 137 | 143) { disruption::of_events(case) } else { None };
        if let Some(word) = exit::own_word(case, Some(ended)) {
            return Some(word);
        }
        if disrupted.is_some() {
            return disrupted;
        }
    } else if main.is_none() && (case.phase() == "Failed" || job::failed(case).is_some()) {
        let started = containers.iter().any(|one| one.role == Role::Main && one.has_started());
        let word = if started || case.pod.is_none() { exit::own_word(case, None) } else { None };
        if word.is_some() {
            return word;
        }
    }
    let over = case.phase() == "Failed";
    let main = main.filter(|(_, ended)| !(asked_to_stop && matches!(ended.exit_code, 137 | 143)));
    let init = failed(Role::Init).filter(|_| over || main.is_none());
    let sidecar = failed(Role::Sidecar).filter(|_| over && main.is_none());
    // An init container that failed is why the others never started.
    let (container, ended) = init.filter(|_| main.is_none()).or(main).or(sidecar)?;
    Some(exit::of_container(case, container, ended))
}

/// A pod that was taken away, by its events.
fn taken(case: &Case) -> Option<Explanation> {
    disruption::of_events(case)
}

/// A pod that failed in a way this version does not know.
fn unknown(case: &Case) -> Option<Explanation> {
    let status = case.pod?.status.as_ref()?;
    let reason = status.reason.as_deref().unwrap_or_default();
    let said = status.message.as_deref().unwrap_or_default();
    if reason.is_empty() && said.is_empty() {
        return None;
    }
    let sentence = format!(
        "{} failed ({}): {}",
        case.pod_called(),
        if reason.is_empty() { "no reason" } else { reason },
        quote(said)
    );
    Some(Explanation::new(Cause::Unknown, sentence, "`kubectl describe pod` shows all there is".to_owned()).ended())
}

/// What keeps it from running.
fn standing(case: &Case) -> Option<Explanation> {
    if matches!(case.phase(), "Failed") {
        return None;
    }
    let held = if case.is_scheduled() { None } else { schedule_of(case) };
    let held = held.or_else(|| disruption::of_node(case)).or_else(|| containers(case)).or_else(|| setup::explain(case));
    let held = held.or_else(|| image::of_events(case)).or_else(|| start::of_events(case));
    if held.is_some() || case.is_ready() {
        return held;
    }
    setup::probe(case).or_else(|| restarted(case)).or_else(|| disruption::of_events(case)).or_else(|| rollout(case))
}

fn schedule_of(case: &Case) -> Option<Explanation> {
    // Without a pod the events alone have to say that it was never placed.
    if case.pod.is_none() && schedule::is_over(case) { None } else { schedule::explain(case) }
}

/// Containers that wait for something, in the order in which they start.
fn containers(case: &Case) -> Option<Explanation> {
    let containers = case.containers();
    let known = containers.iter().find_map(|container| {
        image::of_container(case, container)
            .or_else(|| start::of_container(case, container))
            .or_else(|| exit::crash_loop(case, container))
    });
    known.or_else(|| {
        containers.iter().find_map(|container| {
            let (reason, said) = container.waiting()?;
            let usual = matches!(reason, "" | "ContainerCreating" | "PodInitializing");
            (!usual).then(|| {
                let said = if said.is_empty() { "no more is said".to_owned() } else { quote(said) };
                let sentence = format!("{} does not start ({reason}): {said}", container.called());
                Explanation::new(Cause::Unknown, sentence, "`kubectl describe pod` shows all there is".to_owned())
            })
        })
    })
}

/// A container that runs again after a failure and is not ready yet.
fn restarted(case: &Case) -> Option<Explanation> {
    let containers = case.containers();
    let (container, ended) = containers.iter().find_map(|one| {
        let unready = one.is_running() && one.status.is_some_and(|status| !status.ready);
        Some((one, one.last_terminated().filter(|ended| unready && ended.exit_code != 0)?))
    })?;
    Some(exit::of_container(case, container, ended).waiting())
}

/// A deployment that makes no progress for a reason that is not known.
fn rollout(case: &Case) -> Option<Explanation> {
    let conditions = case.all.deployment.as_ref()?.status.as_ref()?.conditions.as_ref()?;
    let stopped =
        conditions.iter().find(|condition| condition.reason.as_deref() == Some("ProgressDeadlineExceeded"))?;
    let said = stopped.message.as_deref().unwrap_or_default();
    Some(Explanation::new(
        Cause::StartTimeout,
        format!("the deployment is not ready within its progress deadline: {}", quote(said)),
        "read its log (`gym logs`); a large model may need a longer start time-out".to_owned(),
    ))
}

/// It has waited longer than a launch lets it, and nothing is wrong that is known.
fn overdue(case: &Case) -> Option<Explanation> {
    let (limit, age) = (case.all.start_timeout?, case.age()?);
    let started = case.containers().iter().any(|container| container.role == Role::Main && container.has_started());
    if age <= limit || started || matches!(case.phase(), "Failed" | "Succeeded") {
        return None;
    }
    let containers = case.containers();
    let busy = containers.iter().find(|one| one.role == Role::Init && one.is_running());
    let doing = match busy {
        Some(container) => format!("{} still runs", container.called()),
        None if !case.is_scheduled() => "the scheduler has not placed it and does not say why".to_owned(),
        None => match case.events.last() {
            Some(event) => format!("the last event is `{}`: {}", reason(event), quote(message(event))),
            None => "there are no events".to_owned(),
        },
    };
    Some(Explanation::new(
        Cause::StartTimeout,
        format!("the pod has not started within {} ({} now): {doing}", duration(limit), duration(age)),
        "`kubectl describe pod` shows what it waits for; a large image or model may need a longer start time-out"
            .to_owned(),
    ))
}

/// What may pass by itself is over with the time that a launch gives it.
fn patience(case: &Case, found: Explanation) -> Explanation {
    let late = case.all.start_timeout.zip(case.age()).filter(|(limit, age)| age > limit);
    match late {
        Some((limit, age)) if found.outlook == Outlook::Waiting && found.cause != Cause::StartTimeout => {
            let sentence = format!(
                "{}; it has been so for {}, longer than the {} it may take",
                found.sentence,
                duration(age),
                duration(limit)
            );
            Explanation { sentence, outlook: Outlook::Stuck, ..found }
        }
        _ => found,
    }
}
