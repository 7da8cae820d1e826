//! What others wrote, made fit to be quoted: one line, of bounded length, without secrets.

use std::sync::LazyLock;

use regex::{Captures, Regex};

/// Characters of a foreign message that are quoted.
const QUOTED: usize = 360;

/// Compiles a pattern of ours.
pub(super) fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a constant pattern, compiled by the tests")
}

/// One line, with the noise of RPC layers taken off the front, cut to a bounded length.
pub(super) fn quote(message: &str) -> String {
    static NOISE: LazyLock<Regex> = LazyLock::new(|| pattern(r"rpc error: code = \w+ desc = "));
    let message = NOISE.replace_all(message, "");
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.trim_end_matches(['.', ';', ',']);
    match line.char_indices().nth(QUOTED) {
        None => line.to_owned(),
        // The end says most: wrapped errors put the root cause last.
        Some(_) => {
            let tail: Vec<char> = line.chars().rev().take(QUOTED / 2).collect();
            let head: String = line.chars().take(QUOTED / 2).collect();
            format!("{head} … {}", tail.into_iter().rev().collect::<String>())
        }
    }
}

/// `names` as a person lists them.
pub(super) fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

/// Seconds as a person says them.
pub(super) fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// `text` without anything that looks like a credential. Kubelets and registries quote URLs, headers
/// and whole requests.
pub fn redact(text: &str) -> String {
    static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        [
            // user:password@host, token@host
            (r"(?P<keep>[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@]+@", "${keep}…@"),
            // Query parameters of signed URLs and token endpoints.
            (
                r"(?ix) (?P<keep>[?&;] (?: x-amz-(?:signature|credential|security-token) | x-goog-(?:signature|credential)
                  | awsaccesskeyid | signature | sig | se | (?:access|auth|id|refresh)?[_-]?token | api[_-]?key | key
                  | secret | password | passwd | pwd | auth | code ) =) [^&\s\x22'<>)]+",
                "${keep}…",
            ),
            (r"(?i)(?P<keep>\b(?:bearer|basic)\s+)[a-z0-9._~+/=-]{6,}", "${keep}…"),
            (r"(?i)(?P<keep>\b(?:proxy-)?authorization:\s*(?:\w+\s+)?)[a-z0-9._~+/=-]{6,}", "${keep}…"),
            // name=value and "name": "value", where the name says what it is.
            (
                r#"(?i)(?P<keep>\b[\w.-]*(?:password|passwd|secret[_-]?(?:access[_-]?)?key|secret|token|api[_-]?key|access[_-]?key[_-]?id|private[_-]?key|credentials?)(?:"|\b)\s*[=:]\s*"?)[^\s"',;&)]{6,}"#,
                "${keep}…",
            ),
            (r#"(?i)(?P<keep>"(?:auth|identitytoken|registrytoken)"\s*:\s*")[^"]+"#, "${keep}…"),
            // What well-known tokens look like: hub, GitHub, GitLab, AWS, Slack, OpenAI, Google, JWT, ours.
            (
                r"\b(?:hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|xox[abprs]-[\w-]{8,}|sk-[\w-]{16,}|AIza[\w-]{20,}|ya29\.[\w.-]{10,}|dckr_pat_[\w-]{8,}|gym-[0-9a-f]{32,})",
                "…",
            ),
            (r"\beyJ[\w-]{6,}(?:\.[\w-]+)*={0,2}", "…"),
        ]
        .map(|(text, to)| (pattern(text), to))
        .into()
    });
    RULES.iter().fold(text.to_owned(), |text, (rule, to)| {
        rule.replace_all(&text, |found: &Captures<'_>| {
            to.replace("${keep}", found.name("keep").map_or("", |m| m.as_str()))
        })
        .into_owned()
    })
}

/// A quantity of Kubernetes (`500m`, `16Gi`, `1e9`) as a number of units or bytes.
pub(crate) fn quantity(text: &str) -> Option<f64> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let scale = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0f64.powi(3),
        "Ti" => 1024.0f64.powi(4),
        "Pi" => 1024.0f64.powi(5),
        _ => return text.parse().ok(),
    };
    Some(number.parse::<f64>().ok()? * scale)
}

/// Bytes as a person says them.
pub(super) fn bytes(count: f64) -> String {
    let units = [("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)];
    let fits = units.into_iter().find(|(_, power)| count >= 1024f64.powi(*power));
    match fits {
        Some((unit, power)) => {
            let text = format!("{:.1}", count / 1024f64.powi(power));
            format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
        }
        None => format!("{count:.0} bytes"),
    }
}

/// An amount of a resource: bytes for memory and storage, a number otherwise.
pub(super) fn amount(resource: &str, count: f64) -> String {
    let size = resource.contains("memory") || resource.contains("storage") || resource.starts_with("hugepages");
    if size {
        return bytes(count);
    }
    let text = format!("{count:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_credential_survives_and_the_rest_does() {
        let secrets = [
            ("Get \"https://user:hunter2pw@registry.io/v2/\": denied", "hunter2pw"),
            ("GET https://auth.io/token?service=x&token=abcdef123456&scope=pull: 403", "abcdef123456"),
            ("https://b.s3.amazonaws.com/k?X-Amz-Signature=0badcafe99&X-Amz-Credential=AKIDEXAMPLE%2F1", "0badcafe99"),
            ("https://b.s3.amazonaws.com/k?X-Amz-Signature=0badcafe99&X-Amz-Credential=AKIDEXAMPLE%2F1", "AKIDEXAMPLE"),
            ("Authorization: Bearer abc.def-ghi", "abc.def-ghi"),
            ("header Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
            ("HF_TOKEN=hf_AbCdEfGhIjKlMn", "hf_AbCdEfGhIjKlMn"),
            ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI"),
            ("AWS_ACCESS_KEY_ID: AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
            (r#"{"auths":{"r.io":{"username":"u","password":"s3cr3tpass","auth":"dTpzM2NyM3Q="}}}"#, "s3cr3tpass"),
            (r#"{"auths":{"r.io":{"username":"u","password":"s3cr3tpass","auth":"dTpzM2NyM3Q="}}}"#, "dTpzM2NyM3Q"),
            ("docker config eyJhdXRocyI6eyJyLmlvIjp7fX19", "eyJhdXRocyI6"),
            ("ghp_0123456789abcdef0123", "ghp_0123456789abcdef0123"),
        ];
        for (text, secret) in secrets {
            let redacted = redact(text);
            assert!(!redacted.contains(secret), "{redacted}");
        }
        let plain = "failed to resolve reference \"registry.io/team/app@sha256:0123456789abcdef\": not found; secret \"gym-store\" not found, key AWS_SECRET_ACCESS_KEY in Secret ns/gym";
        assert_eq!(redact(plain), plain);
    }

    #[test]
    fn quantities_are_read_and_said() {
        assert_eq!(quantity("500m"), Some(0.5));
        assert_eq!(quantity("16Gi").map(bytes), Some("16 GiB".to_owned()));
        assert_eq!(quantity("10057513974").map(bytes), Some("9.4 GiB".to_owned()));
        assert_eq!(quantity("1e3"), Some(1000.0));
        assert_eq!(quantity("much"), None);
        assert_eq!(amount("nvidia.com/gpu", 8.0), "8");
        assert_eq!(amount("cpu", 0.5), "0.5");
        assert_eq!(amount("memory", 1024.0), "1 KiB");
    }

    #[test]
    fn a_quote_is_one_bounded_line_with_both_ends() {
        let text = format!("rpc error: code = Unknown desc = start {} the root cause.\n", "x ".repeat(2000));
        let quoted = quote(&text);
        assert!(quoted.starts_with("start") && quoted.ends_with("the root cause"), "{quoted}");
        assert!(quoted.chars().count() <= QUOTED + 3);
    }
}
