//! Images that cannot be pulled.

use std::sync::LazyLock;

use regex::Regex;

use super::evidence::{Case, Container, container_of, message, reason};
use super::text::{pattern, quote};
use super::{Cause, Explanation};

/// Whether a container that waits for this reason waits for its image.
pub(super) fn is_reason(reason: &str) -> bool {
    matches!(
        reason,
        "ErrImagePull"
            | "ImagePullBackOff"
            | "ErrImageNeverPull"
            | "InvalidImageName"
            | "ImageInspectError"
            | "RegistryUnavailable"
            | "SignatureValidationFailed"
            | "ErrImagePullBackOff"
    )
}

/// A container that waits for its image, by its status.
pub(super) fn of_container(case: &Case, container: &Container) -> Option<Explanation> {
    let (reason, said) = container.waiting()?;
    if !is_reason(reason) {
        return None;
    }
    let detail = detail(case, Some(container));
    // A back-off alone says nothing; since 1.32 it quotes the error, as `ErrImagePull` always did.
    let said = if says_why(said) { said } else { detail.unwrap_or(said) };
    Some(explain(case, Some(container), reason, said))
}

/// A pod whose containers have no status yet, by its events.
pub(super) fn of_events(case: &Case) -> Option<Explanation> {
    let mut newest = case.events.iter().rev().filter(|event| {
        matches!(
            self::reason(event),
            "Failed" | "BackOff" | "InspectFailed" | "ErrImageNeverPull" | "Pulled" | "Started"
        )
    });
    let event = newest.find(|event| is_about_image(self::reason(event), message(event)))?;
    if matches!(self::reason(event), "Pulled" | "Started") {
        return None;
    }
    let containers = case.containers();
    let container = container_of(event).and_then(|name| containers.iter().find(|one| one.name == name));
    if container.is_some_and(Container::has_started) {
        return None;
    }
    let said = detail(case, container).unwrap_or(message(event));
    Some(explain(case, container, self::reason(event), said))
}

fn is_about_image(reason: &str, said: &str) -> bool {
    matches!(reason, "Pulled" | "Started" | "InspectFailed" | "ErrImageNeverPull")
        || said.contains("pull image")
        || said.contains("pulling image")
        || said.contains("image name")
        || said.contains("default image tag")
        || said.contains("ImagePull")
        || said.contains("InvalidImageName")
        || said.contains("pull policy of Never")
}

/// The newest event that says why a pull failed.
fn detail<'a>(case: &Case<'a>, container: Option<&Container>) -> Option<&'a str> {
    let of_it = |event: &&&'a k8s_openapi::api::core::v1::Event| {
        let Some(container) = container else { return true };
        match container_of(event) {
            Some(name) => name == container.name,
            None => {
                container.image().is_empty()
                    || message(event).contains(container.image())
                    || case.containers().len() == 1
            }
        }
    };
    let failed = case
        .events
        .iter()
        .rev()
        .filter(|event| matches!(reason(event), "Failed" | "InspectFailed" | "ErrImageNeverPull"));
    failed.filter(of_it).map(|event| message(event)).find(|said| says_why(said) && is_about_image("", said))
}

fn says_why(said: &str) -> bool {
    let bare = said.is_empty()
        || said.starts_with("Error: ")
        || (said.starts_with("Back-off pulling image") && !said.contains("\": "));
    !bare
}

/// What is said of an image, and the words that say it, in the order in which they are looked for.
const WORDS: [(Cause, &[&str]); 7] = [
    (
        Cause::RegistryThrottled,
        &[
            "toomanyrequests",
            "too many requests",
            "pull rate limit",
            "rate limit exceeded",
            "rate exceeded",
            "qps exceeded",
        ],
    ),
    (
        Cause::RegistryCertificate,
        &[
            "x509:",
            "certificate signed by unknown",
            "certificate has expired",
            "failed to verify certificate",
            "gave http response to https client",
            "first record does not look like a tls handshake",
            "certificate is not trusted",
            "bad certificate",
            "certificate required",
            "remote error: tls",
        ],
    ),
    (
        Cause::ImageArchitecture,
        &[
            "no match for platform",
            "no matching manifest for",
            "no image found in manifest list for architecture",
            "no image found in image index for architecture",
            "does not match the specified platform",
            "does not match the expected platform",
            "no child with platform",
        ],
    ),
    (
        Cause::RegistryUnreachable,
        &[
            "no such host",
            "i/o timeout",
            "connection refused",
            "connection reset",
            "tls handshake timeout",
            "deadline exceeded",
            "deadlineexceeded",
            "context canceled",
            "network is unreachable",
            "no route to host",
            "request canceled",
            "client.timeout",
            "server misbehaving",
            "name resolution",
            "proxyconnect",
            "unexpected eof",
            "broken pipe",
            "registry is unavailable",
            "registryunavailable",
            "timed out",
        ],
    ),
    (
        Cause::ImageUnauthorized,
        &[
            "unauthorized",
            "authentication required",
            "requires authentication",
            "access denied",
            "access to the resource is denied",
            "denied:",
            "permission denied",
            "insufficient_scope",
            "no basic auth credentials",
            "authorization failed",
            "authorization token",
            "invalid username/password",
            "incorrect username or password",
            "require authorization",
            "require 'docker login'",
            "forbidden",
            "not authorized",
            "invalid credentials",
            "no credentials",
        ],
    ),
    (
        Cause::ImageName,
        &[
            "invalid reference format",
            "couldn't parse image",
            "invalid image name",
            "must be lowercase",
            "short name",
            "short-name",
        ],
    ),
    (
        Cause::ImageNotFound,
        &[
            "manifest unknown",
            "name unknown",
            "name_unknown",
            "manifest_unknown",
            "repository name not known",
            "not found",
            "does not exist",
            "no such image",
            "code = notfound",
            "404",
        ],
    ),
];

/// The kind of a failed pull, from what the kubelet says about it.
pub(super) fn classify(reason: &str, said: &str, image: &str) -> Cause {
    static STATUS: LazyLock<Regex> = LazyLock::new(|| {
        pattern(r"\b5\d\d (?:internal|bad gateway|service|gateway)|(?:status|code)[^:]*:? 5\d\d\b|\beof\b|\b(?:429)\b")
    });
    match reason {
        "InvalidImageName" => return Cause::ImageName,
        "ErrImageNeverPull" => return Cause::ImageNotPresent,
        _ => {}
    }
    // The name of an image says nothing about why it cannot be had.
    let bare = if image.is_empty() { said.to_owned() } else { said.replace(image, "IMAGE") };
    let bare = bare.to_lowercase();
    if bare.contains("pull policy of never") {
        return Cause::ImageNotPresent;
    }
    // What a node's own store lost, or has no place for, is no word of the registry's.
    let local = ["content digest", "content store", "no space left on device", "failed to extract layer", "signature"];
    if reason == "SignatureValidationFailed" || local.iter().any(|word| bare.contains(word)) {
        return Cause::ImagePull;
    }
    let word = WORDS.iter().take(3).find(|(_, words)| words.iter().any(|word| bare.contains(word)));
    if let Some((cause, _)) = word {
        return *cause;
    }
    if let Some(status) = STATUS.find(&bare) {
        return if status.as_str() == "429" { Cause::RegistryThrottled } else { Cause::RegistryUnreachable };
    }
    let word = WORDS.iter().skip(3).find(|(_, words)| words.iter().any(|word| bare.contains(word)));
    match word {
        Some((cause, _)) => *cause,
        None if reason == "RegistryUnavailable" => Cause::RegistryUnreachable,
        None => Cause::ImagePull,
    }
}

fn explain(case: &Case, container: Option<&Container>, reason: &str, said: &str) -> Explanation {
    let image = container.map(Container::image).filter(|image| !image.is_empty()).map(str::to_owned);
    let image = image.or_else(|| image_in(said)).unwrap_or_default();
    let cause = classify(reason, said, &image);
    let of = container.map_or_else(String::new, |container| format!(" of {}", container.called()));
    let named = if image.is_empty() { "the image".to_owned() } else { format!("the image `{image}`") };
    let what = match cause {
        Cause::ImageNotFound => "the registry has no such image, tag or digest",
        Cause::ImageUnauthorized if said.contains("does not exist or may require") => {
            "the registry refuses it: it does not exist, or is private and needs credentials"
        }
        Cause::ImageUnauthorized => "the registry refuses the credentials, or wants some",
        Cause::ImageName => "this is no image name",
        Cause::RegistryUnreachable => "the registry cannot be reached from the node, or does not answer as it should",
        Cause::RegistryCertificate => {
            "the node does not trust the registry's certificate, or the registry speaks no TLS"
        }
        Cause::RegistryThrottled => "the registry allows no more pulls for now",
        Cause::ImageNotPresent => "the pull policy is `Never`, and the node does not hold it",
        Cause::ImageArchitecture => "it is not built for the node's processor",
        _ => "the pull fails",
    };
    let quoted = match quote(said) {
        text if says_why(&text) => format!(" ({text})"),
        _ => format!(" ({reason}; no event says why)"),
    };
    let sentence = format!("{named}{of} cannot be had: {what}{quoted}");
    let missing = missing_pull_secret(case);
    let disk = said.contains("no space left on device");
    let next_step = match cause {
        Cause::ImageNotFound => {
            "correct `TRAINING_GYM_IMAGE`, or push the image under that name and tag (`cargo xtask image` builds it)".to_owned()
        }
        Cause::ImageUnauthorized => match &missing {
            Some(name) => format!(
                "make the pull secret `{name}` in the job's namespace (`kubectl create secret docker-registry {name} …`); the pod names it, and it is not there"
            ),
            None => "make a pull secret (`kubectl create secret docker-registry …`) and name it in \
                     `TRAINING_GYM_IMAGE_PULL_SECRETS`, or give the nodes' role the right to read the registry; check the name, too"
                .to_owned(),
        },
        Cause::ImageName => "correct `TRAINING_GYM_IMAGE`: lower-case `registry/repository:tag`, without `https://`".to_owned(),
        Cause::RegistryUnreachable => "check that the nodes reach the registry (name resolution, proxy, firewall); the kubelet \
             goes on trying, and launching again later can help"
            .to_owned(),
        Cause::RegistryCertificate => "give the nodes' container runtime the registry's certificate authority, or use a \
             registry whose certificate they trust"
            .to_owned(),
        Cause::RegistryThrottled => "wait, pull with an account (a pull secret), or copy the image to a registry of your own".to_owned(),
        Cause::ImageNotPresent => {
            "import the image on every node, or set `TRAINING_GYM_IMAGE_PULL_POLICY=IfNotPresent` so that it is pulled".to_owned()
        }
        Cause::ImageArchitecture => {
            "build the image for the nodes' processor, or choose nodes with `kubernetes.io/arch` in the node selector".to_owned()
        }
        _ if disk => "the node's disk is full: free it, or let the pod run on another node".to_owned(),
        _ => format!("read the events: `kubectl describe {}`", case.pod_called().replace('`', "")),
    };
    let explanation = Explanation::new(cause, sentence, next_step);
    let explanation = if disk { explanation.retryable(true) } else { explanation };
    match cause {
        Cause::RegistryUnreachable | Cause::RegistryThrottled => explanation.waiting(),
        _ => explanation,
    }
}

fn image_in(said: &str) -> Option<String> {
    static NAMED: LazyLock<Regex> = LazyLock::new(|| pattern(r#"(?i)image (?:name |tag )?"([^"]+)""#));
    Some(NAMED.captures(said)?.get(1)?.as_str().to_owned())
}

/// The pull secret that the kubelet did not find.
fn missing_pull_secret(case: &Case) -> Option<String> {
    static NAMED: LazyLock<Regex> = LazyLock::new(|| pattern(r"pull secrets \(([^)]+)\)"));
    let event = case.newest(&["FailedToRetrieveImagePullSecret"])?;
    Some(NAMED.captures(message(event))?.get(1)?.as_str().to_owned())
}
