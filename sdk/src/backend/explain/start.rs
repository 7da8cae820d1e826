//! Containers that cannot be made or started: missing references, commands, processors, drivers.

use std::sync::LazyLock;

use regex::Regex;

use super::evidence::{Case, Container, container_of, message, reason};
use super::text::{bytes, pattern, quote};
use super::{Cause, Explanation};

/// A container that waits because it cannot be made.
pub(super) fn of_container(case: &Case, container: &Container) -> Option<Explanation> {
    let (reason, said) = container.waiting()?;
    let said = if said.is_empty() { detail(case, container).unwrap_or_default() } else { said };
    let called = container.called();
    match reason {
        "CreateContainerConfigError" => Some(reference(&called, said).unwrap_or_else(|| config(&called, said))),
        "RunContainerError"
        | "CreateContainerError"
        | "StartError"
        | "ContainerCannotRun"
        | "PostStartHookError"
        | "PreStartHookError"
        | "PreCreateHookError" => Some(of_words(container, reason, said)),
        _ => None,
    }
}

/// A pod whose events say more than its statuses: a container that was never made.
pub(super) fn of_events(case: &Case) -> Option<Explanation> {
    let event = case.events.iter().rev().find(|event| {
        let said = message(event);
        reason(event) == "Failed" && !said.is_empty() && !said.contains("ImagePull") && !said.contains("pull image")
    })?;
    let containers = case.containers();
    let named = container_of(event).and_then(|name| containers.iter().find(|one| one.name == name));
    let container = named.or_else(|| containers.iter().find(|one| !one.has_started()))?;
    if container.has_started() {
        return None;
    }
    let said = message(event).trim_start_matches("Error: ");
    Some(of_words(container, reason(event), said))
}

/// The newest failure of this container in the events.
fn detail<'a>(case: &Case<'a>, container: &Container) -> Option<&'a str> {
    let of_it = case.events.iter().rev().filter(|event| container_of(event).is_none_or(|name| name == container.name));
    of_it
        .filter(|event| matches!(reason(event), "Failed" | "FailedPostStartHook" | "FailedPreStopHook"))
        .map(|event| message(event))
        .next()
}

/// A Secret, a ConfigMap or a key that is not there, in the words of the kubelet, of a volume or of an
/// environment.
pub(super) fn reference(of: &str, said: &str) -> Option<Explanation> {
    static KEY: LazyLock<Regex> =
        LazyLock::new(|| pattern(r"(?i)couldn't find key (\S+) in (Secret|ConfigMap) ([\w./-]+)"));
    static OBJECT: LazyLock<Regex> = LazyLock::new(|| pattern(r#"(?i)\b(secret|configmap)s? "([^"]+)" not found"#));
    static VOLUME_KEY: LazyLock<Regex> =
        LazyLock::new(|| pattern(r"(?i)references non-existent (secret|config|configmap) key:? ?([\w./-]+)"));
    static QUOTED: LazyLock<Regex> = LazyLock::new(|| pattern(r#"volume "([^"]+)""#));
    let kind = |text: &str| if text.to_lowercase().starts_with("secret") { "Secret" } else { "ConfigMap" };
    let make = |kind: &str, name: &str| {
        let bare = name.rsplit('/').next().unwrap_or(name);
        let what = if kind == "Secret" { "secret generic" } else { "configmap" };
        format!(
            "`kubectl create {what} {bare} --from-literal=KEY=…` in the job's namespace, or correct the name in the job's settings (`TRAINING_GYM_STORE_SECRET` for the store's)"
        )
    };
    if let Some(found) = KEY.captures(said) {
        let (key, kind, name) = (&found[1], kind(&found[2]), &found[3]);
        return Some(Explanation::new(
            Cause::BadReference,
            format!("{of} needs the key `{key}` of the {kind} `{name}`, which has no such key"),
            format!("add the key `{key}` to the {kind} `{name}`, or name another one"),
        ));
    }
    if let Some(found) = OBJECT.captures(said) {
        let (kind, name) = (kind(&found[1]), &found[2]);
        return Some(Explanation::new(
            Cause::BadReference,
            format!("{of} needs the {kind} `{name}`, which does not exist in the namespace"),
            make(kind, name),
        ));
    }
    if let Some(found) = VOLUME_KEY.captures(said) {
        let volume = QUOTED.captures(said).map_or_else(String::new, |found| format!(" of the volume `{}`", &found[1]));
        let (kind, key) = (kind(&found[1]), found[2].trim_end_matches('.'));
        return Some(Explanation::new(
            Cause::BadReference,
            format!("{of} needs the key `{key}` of the {kind}{volume}, which has no such key"),
            format!("add the key `{key}` to the {kind}, or name another one"),
        ));
    }
    let passing = said.contains("failed to sync secret cache")
        || said.contains("failed to sync configmap cache")
        || said.contains("services have not yet been read");
    passing.then(|| {
        Explanation::new(
            Cause::BadReference,
            format!("the kubelet has not yet read what {of} needs: {}", quote(said)),
            "wait: the kubelet tries again; if it stays so, the node has lost the API server".to_owned(),
        )
        .retryable(true)
        .waiting()
    })
}

fn config(called: &str, said: &str) -> Explanation {
    let root = said.contains("runAsNonRoot") || said.contains("non-root");
    let next_step = match root {
        true => "build the image with a numeric user (`USER 65532`), as `cargo xtask image` does",
        false => "correct what is named; `kubectl describe pod` shows the events",
    };
    let cause = if root { Cause::AdmissionDenied } else { Cause::CreateContainer };
    Explanation::new(cause, format!("{called} cannot be made: {}", quote(said)), next_step.to_owned())
}

/// What a container runtime says when it cannot start a program.
pub(super) fn of_words(container: &Container, reason: &str, said: &str) -> Explanation {
    let called = container.called();
    if let Some(explanation) = exec_format(&called, said).or_else(|| reference(&called, said)) {
        return explanation;
    }
    let lower = said.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let quoted = if said.is_empty() { format!("{reason}; nothing says why") } else { quote(said) };
    if has(&["oom-killed", "oom killed", "memory limit too low", "minimum memory limit allowed"]) {
        let limit = container.limit("memory").map_or_else(String::new, |limit| format!(" of {}", bytes(limit)));
        return Explanation::new(
            Cause::OutOfMemory,
            format!("the memory limit{limit} of {called} is too small to start it at all: {quoted}"),
            "raise the memory in `.resources(…)`".to_owned(),
        );
    }
    if has(&[
        "nvidia-container-cli",
        "libnvidia",
        "nvidia-container-runtime",
        "unresolvable cdi devices",
        "cdi device injection failed",
        "failed to inject cdi",
        "could not select device driver",
        "nvml",
    ]) {
        return Explanation::new(
            Cause::GpuUnhealthy,
            format!("{called} cannot be given its GPU: {quoted}"),
            "the node's NVIDIA driver and container toolkit do not fit together: look at `nvidia-smi` on the node, or let the job run on another".to_owned(),
        );
    }
    // `exec: "x": …` and `exec /x: …` are about the program; a mount says `no such file` as well.
    let about_program = (has(&[
        "exec:",
        "exec /",
        "exec \"",
        "unable to start container process",
        "starting container process",
        "stat /",
    ]) && !has(&["error mounting", "mountpoint", "mount_setattr"]))
        || has(&["executable file", "open executable", "no command specified", "command that was not found"]);
    if about_program
        && has(&[
            "executable file not found",
            "no such file or directory",
            "no command specified",
            "not found in $path",
        ])
    {
        let program = program(said).map_or_else(|| "its program".to_owned(), |name| format!("the program `{name}`"));
        return Explanation::new(
            Cause::BadCommand,
            format!("{called} cannot start: {program} is not in the image `{}` ({quoted})", container.image()),
            "use the image that `cargo xtask image` builds; for a program of your own build for `x86_64-unknown-linux-musl`, since one \
             whose loader is not in the image is also reported as not found"
                .to_owned(),
        );
    }
    if about_program && has(&["permission denied", "operation not permitted", "is a directory"]) {
        let program = program(said).map_or_else(|| "its program".to_owned(), |name| format!("`{name}`"));
        return Explanation::new(
            Cause::BadCommand,
            format!("{called} cannot start: {program} may not be executed ({quoted})"),
            "make it executable in the image (mode 0555), and see that its volume is not mounted `noexec`".to_owned(),
        );
    }
    let passing = has(&[
        "context deadline exceeded",
        "is reserved for",
        "context canceled",
        "resource temporarily unavailable",
        "transport is closing",
        "connection refused",
    ]);
    let explanation = Explanation::new(
        Cause::CreateContainer,
        format!("{called} cannot be started: {quoted}"),
        if passing {
            "the node's container runtime is overloaded or restarts: the kubelet tries again, and another node may help"
                .to_owned()
        } else {
            "correct what is named; `kubectl describe pod` shows the events".to_owned()
        },
    );
    if passing { explanation.retryable(true).waiting() } else { explanation }
}

/// A program for another processor, said by the runtime or, as often, in the log.
pub(super) fn exec_format(called: &str, said: &str) -> Option<Explanation> {
    said.to_lowercase().contains("exec format error").then(|| {
        let line = said.lines().find(|line| line.to_lowercase().contains("exec format error")).unwrap_or(said);
        Explanation::new(
            Cause::ExecFormat,
            format!("the program of {called} is for another kind of processor than the node's, or is no program: {}", quote(line)),
            "build the image (and your own program) for the nodes' architecture, or choose nodes with `kubernetes.io/arch` in the node selector"
                .to_owned(),
        )
    })
}

fn program(said: &str) -> Option<String> {
    static NAMED: LazyLock<Regex> =
        LazyLock::new(|| pattern(r#"(?:exec:? \\?"?|stat |executable file `)(/?[\w./+-]+)(?:\\?"?:|`)"#));
    Some(NAMED.captures(said)?.get(1)?.as_str().to_owned())
}
