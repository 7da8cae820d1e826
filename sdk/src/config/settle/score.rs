//! The reward and the teacher.

use std::path::PathBuf;
use std::time::Duration;

use training_gym_core::spec::{Egress, SecretRef, TeacherSpec};

use super::job::is_variable_name;
use super::{at_least_1, number};
use crate::config::ledger::{Field, Ledger, Shown, field};
use crate::config::{Opd, Origin, Recipe, Teacher};

/// A reward, but for the program it is in.
pub(in crate::config) struct Reward {
    pub(in crate::config) function: String,
    pub(in crate::config) post_process: Option<String>,
    pub(in crate::config) timeout_secs: f64,
    pub(in crate::config) max_concurrency: usize,
    pub(in crate::config) max_ungraded_fraction: f64,
    pub(in crate::config) grade_truncated: bool,
    pub(in crate::config) egress: Egress,
    pub(in crate::config) files: Vec<PathBuf>,
}

pub(super) fn reward(ledger: &mut Ledger<'_>) -> Option<Reward> {
    let function = Field {
        name: "custom_rm_function",
        of: |recipe: &Recipe| recipe.custom_rm_function.as_ref().map(|function| function.name().to_owned()),
    };
    let post_process = Field {
        name: "custom_reward_post_process_function",
        of: |recipe: &Recipe| {
            recipe.custom_reward_post_process_function.as_ref().map(|function| function.name().to_owned())
        },
    };
    let function = ledger.optional(function, "none");
    let post_process = ledger.optional(post_process, "none");
    if let (None, Some(name)) = (&function, &post_process) {
        ledger.refuse(
            "custom_reward_post_process_function",
            name.clone(),
            ("it post-processes the rewards of custom_rm_function, which is unset", "set custom_rm_function too"),
        );
    }
    let timeout = ledger.value(field!(reward_timeout), Duration::from_secs(60));
    ledger.need(
        "reward_timeout",
        &timeout,
        !timeout.is_zero(),
        ("must be longer than 0", "set what one call may take"),
    );
    let max_concurrency = ledger.value(field!(reward_max_concurrency), 32);
    at_least_1(ledger, "reward_max_concurrency", max_concurrency, "set the calls in flight at once, such as 32");
    let max_ungraded_fraction = ledger.value(field!(max_ungraded_fraction), 0.5);
    number(
        ledger,
        "max_ungraded_fraction",
        max_ungraded_fraction,
        |share| (0.0..=1.0).contains(&share),
        ("must be in [0, 1]", "set the share of a step's samples that may be ungraded, such as 0.5"),
    );
    let grade_truncated = ledger.value(field!(grade_truncated), false);
    let egress = egress(ledger);
    let files = files(ledger);
    Some(Reward {
        function: function?,
        post_process,
        timeout_secs: timeout.as_secs_f64(),
        max_concurrency,
        max_ungraded_fraction,
        grade_truncated,
        egress,
        files,
    })
}

/// Which network the reward may use; what it says of hosts is checked, as a policy is made of them.
fn egress(ledger: &mut Ledger<'_>) -> Egress {
    const RULE: (&str, &str) = (
        "a host is a name or an address, with `:port` where one is meant",
        "write it like `judge.example.org:443`, without a scheme or a path",
    );
    let shown = Field {
        name: "reward_egress",
        of: |recipe: &Recipe| match recipe.reward_egress.as_ref()? {
            Egress::None => Some("none".to_owned()),
            Egress::Declared(hosts) => Some(hosts.join(" ")),
        },
    };
    ledger.optional(shown, "none");
    let egress = ledger.recipe().reward_egress.clone().unwrap_or_default();
    if let Egress::Declared(hosts) = &egress {
        if hosts.is_empty() {
            let rule = ("declares no host", "name the hosts, or leave it unset for none");
            ledger.refuse("reward_egress", "no hosts".to_owned(), rule);
        }
        for host in hosts.iter().filter(|host| !is_host(host)) {
            ledger.refuse("reward_egress", host.clone(), RULE);
        }
    }
    egress
}

/// Whether a text is `name`, `name:port`, an IPv4 address with or without a port, or an IPv6 one.
fn is_host(text: &str) -> bool {
    if text.parse::<std::net::IpAddr>().is_ok() || text.parse::<std::net::SocketAddr>().is_ok() {
        return true;
    }
    let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
    let label = |label: &str| {
        let inner = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
        (1..=63).contains(&label.len()) && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253
        && name.split('.').all(label)
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// What the reward may read of the machine.
fn files(ledger: &mut Ledger<'_>) -> Vec<PathBuf> {
    let shown = Field {
        name: "reward_files",
        of: |recipe: &Recipe| {
            let files = recipe.reward_files.as_ref()?;
            Some(files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" "))
        },
    };
    ledger.optional(shown, "none");
    let files = ledger.recipe().reward_files.clone().unwrap_or_default();
    for path in files.iter().filter(|path| !path.is_absolute()) {
        let rule = ("must be an absolute path", "the worker runs in a folder of its own; write the path from /");
        ledger.refuse("reward_files", path.display().to_string(), rule);
    }
    files
}

pub(super) fn teacher(ledger: &mut Ledger<'_>, has_reward: bool) -> Option<TeacherSpec> {
    let Some(opd) = &ledger.recipe().opd else {
        ledger.optional(Field { name: "opd", of: |_| None::<String> }, "none");
        if !has_reward {
            ledger.refuse(
                "opd",
                None,
                (
                    "there is neither a teacher nor a reward, so nothing to learn from",
                    "set opd, custom_rm_function, or both",
                ),
            );
        }
        return None;
    };
    let plain = shown(&Opd::from(Teacher::new("")));
    for ((name, value), (_, default)) in shown(opd).into_iter().zip(plain) {
        let origin = if value == default { Origin::Default } else { Origin::Yours };
        ledger.enter(name, value, origin);
    }
    if let Err((bound, remedy)) = check_url(&opd.teacher.url) {
        ledger.refuse("opd.teacher.url", shown_url(&opd.teacher), (bound, &remedy));
    }
    if let Some(SecretRef::Env(variable)) = &opd.teacher.token
        && !is_variable_name(variable)
    {
        // Not shown: it may be the token itself.
        let rule = ("must be the name of a variable", "name the variable that holds the token, not the token");
        ledger.refuse("opd.teacher.token_env", None, rule);
    }
    number(
        ledger,
        "opd.opd_kl_coef",
        opd.opd_kl_coef,
        |coef| coef >= 0.0,
        (
            "must be a number ≥ 0; a negative one would drive the student away from the teacher",
            "set the teacher's weight, such as 1.0",
        ),
    );
    if opd.opd_kl_coef == 0.0 && !has_reward {
        ledger.refuse(
            "opd.opd_kl_coef",
            "0.0".to_owned(),
            ("without a reward the teacher is all there is to learn from", "set a weight > 0, or custom_rm_function"),
        );
    }
    if let Some(clamp) = opd.log_ratio_clamp {
        number(
            ledger,
            "opd.log_ratio_clamp",
            clamp,
            |clamp| clamp > 0.0,
            ("must be a number > 0", "set None to leave it unclamped"),
        );
    }
    at_least_1(ledger, "opd.max_concurrency", opd.max_concurrency, "set the requests in flight at once, such as 4");
    at_least_1(ledger, "opd.batch_size", opd.batch_size, "set the sequences of one request, such as 16");
    ledger.need(
        "opd.timeout",
        &opd.timeout,
        !opd.timeout.is_zero(),
        ("must be longer than 0", "set what one request may take"),
    );
    Some(opd.spec())
}

/// The fields of an `Opd`, as they may be shown.
fn shown(opd: &Opd) -> [(&'static str, String); 8] {
    [
        ("opd.teacher.url", shown_url(&opd.teacher)),
        ("opd.teacher.token", shown_token(&opd.teacher)),
        ("opd.teacher.dialect", opd.teacher.dialect.shown()),
        ("opd.opd_kl_coef", opd.opd_kl_coef.shown()),
        ("opd.log_ratio_clamp", opd.log_ratio_clamp.map_or("off".to_owned(), |clamp| clamp.shown())),
        ("opd.max_concurrency", opd.max_concurrency.shown()),
        ("opd.batch_size", opd.batch_size.shown()),
        ("opd.timeout", opd.timeout.shown()),
    ]
}

/// The scheme of a deployment that has no address yet: the launch waits for it and fills it in.
pub(in crate::config) const BY_NAME: &str = "deployment";

/// The URL as it may be shown: a credential in it is left out.
fn shown_url(teacher: &Teacher) -> String {
    match (teacher.url.find("://"), teacher.url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}…{}", &teacher.url[..scheme + 3], &teacher.url[at..]),
        _ => teacher.url.clone(),
    }
}

/// Where the token is; what is no variable's name may be the token itself and is not shown.
fn shown_token(teacher: &Teacher) -> String {
    match &teacher.token {
        None => "none".to_owned(),
        Some(SecretRef::File(path)) => format!("in the file {}", path.display()),
        Some(SecretRef::Env(variable)) if is_variable_name(variable) => format!("in the variable {variable}"),
        Some(SecretRef::Env(_)) => "…".to_owned(),
    }
}

fn check_url(text: &str) -> Result<(), (&'static str, String)> {
    let Ok(url) = reqwest::Url::parse(text) else {
        return Err(("it is not a URL", "give the whole URL, such as http://127.0.0.1:8000/generate".to_owned()));
    };
    if url.scheme() == BY_NAME && url.has_host() {
        return Ok(());
    }
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err((
            "must begin with http:// or https://",
            "give the whole URL, such as http://127.0.0.1:8000/generate".to_owned(),
        ));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err((
            "it holds a credential, and the spec is stored as plain text",
            "name the variable that holds the token with Opd::token_env".to_owned(),
        ));
    }
    if url.path() == "/" {
        return Err(("it names a server but no path to ask", format!("did you mean {}generate?", url)));
    }
    Ok(())
}
