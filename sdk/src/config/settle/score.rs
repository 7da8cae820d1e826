//! The reward.

use std::path::PathBuf;
use std::time::Duration;

use training_gym_core::spec::Egress;

use super::{at_least_1, environment, number};
use crate::config::ledger::{Field, Ledger, field};
use crate::config::{Destination, Recipe};

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
    let environment = ledger.given(&environment::NAME).map(|(name, _)| name);
    if let (Some(function), Some(environment)) = (&function, &environment) {
        let rule = (
            &*format!("the reward of rollout_environment = {environment} would take its place"),
            "leave one of the two unset; an environment can call the function in its own reward",
        );
        ledger.refuse("custom_rm_function", function.clone(), rule);
    }
    let function = function.or(environment);
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
        "a host is a name, an address or a network, with `:port` where one is meant",
        "write it like `judge.example.org:443` or `192.0.2.0/24:443`, without a scheme or a path",
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

/// Whether a text is `name`, `name:port`, or a network with or without a port.
fn is_host(text: &str) -> bool {
    if let Some(network) = Destination::parse(text) {
        return !network.is_metadata();
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
