//! Limits of the rollout engine, from the recipe's `extra_config`.

use serde_json::Value;
use training_gym_core::spec::EngineSpec;

use crate::config::distance::nearest;
use crate::config::ledger::Ledger;
use crate::config::{Facts, Origin};

const MAX_RUNNING_REQUESTS: &str = "max_running_requests";
const MAX_QUEUED_REQUESTS: &str = "max_queued_requests";
const CONTEXT_LENGTH: &str = "context_length";
const MAX_PREFILL_TOKENS: &str = "max_prefill_tokens";

/// The keys an engine reads.
const KNOWN: [&str; 4] = [MAX_RUNNING_REQUESTS, MAX_QUEUED_REQUESTS, CONTEXT_LENGTH, MAX_PREFILL_TOKENS];

/// Keys of other trainers that are fields here.
const TYPED: [(&str, &str); 6] = [
    ("use_opd", "set recipe.opd = Some(Opd::from(&teacher)); a recipe with `opd` uses it"),
    ("opd_type", "name the teacher's server with Opd::dialect"),
    ("opd_kl_coef", "set Opd { opd_kl_coef, .. }"),
    ("rm_url", "name the teacher's URL with Opd::to_url, or Opd::from(&teacher)"),
    ("rm_type", "set recipe.custom_rm_function"),
    ("advantage_estimator", "set recipe.advantage"),
];

/// `samples` is how many requests a step makes, `longest` the tokens of its longest sequence.
pub(super) fn engine(ledger: &mut Ledger<'_>, samples: usize, longest: usize, facts: &Facts) -> EngineSpec {
    refuse_unknown(ledger);
    let default = EngineSpec::default();
    let queued = default.max_queued_requests;
    let queue =
        if samples > queued { (samples, Origin::Derived("the samples of a step")) } else { (queued, Origin::Default) };
    let context_length = key(ledger, CONTEXT_LENGTH, (longest, Origin::Derived("the longest prompt and response")));
    if context_length < longest {
        refuse(
            ledger,
            CONTEXT_LENGTH,
            context_length.to_string(),
            (
                &format!("the longest prompt and response together have {longest} tokens"),
                "raise it, or lower rollout_max_response_len",
            ),
        );
    }
    if let Some(limit) = facts.context_length
        && context_length > limit
        && longest <= limit
    {
        refuse(
            ledger,
            CONTEXT_LENGTH,
            context_length.to_string(),
            (&format!("the model has {limit} positions"), "leave it unset"),
        );
    }
    EngineSpec {
        max_running_requests: key(ledger, MAX_RUNNING_REQUESTS, (default.max_running_requests, Origin::Default)),
        max_queued_requests: key(ledger, MAX_QUEUED_REQUESTS, queue),
        context_length: Some(context_length),
        max_prefill_tokens: key(ledger, MAX_PREFILL_TOKENS, (default.max_prefill_tokens, Origin::Default)),
    }
}

/// One key's value, or what holds without it.
fn key(ledger: &mut Ledger<'_>, name: &str, (unset, origin): (usize, Origin)) -> usize {
    let given = ledger.recipe().extra_config.as_ref().and_then(|config| config.0.get(name));
    let (value, origin) = match given {
        None => (unset, origin),
        Some(value) => match positive(value) {
            Some(value) => (value, Origin::Yours),
            None => {
                refuse(
                    ledger,
                    name,
                    value.to_string(),
                    ("must be a whole number ≥ 1", "leave it unset, or set such a number"),
                );
                (unset, origin)
            }
        },
    };
    ledger.enter(&format!("extra_config.{name}"), value.to_string(), origin);
    value
}

fn positive(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|value| usize::try_from(value).ok()).filter(|value| *value >= 1)
}

fn refuse_unknown(ledger: &mut Ledger<'_>) {
    let Some(config) = &ledger.recipe().extra_config else { return };
    for (name, value) in &config.0 {
        if KNOWN.contains(&name.as_str()) {
            continue;
        }
        let remedy = match TYPED.iter().find(|(typed, _)| typed == name) {
            Some((_, remedy)) => (*remedy).to_owned(),
            None => format!(
                "did you mean `{}`? An engine reads {}",
                nearest(name, &KNOWN).unwrap_or_default(),
                KNOWN.join(", ")
            ),
        };
        refuse(ledger, name, value.to_string(), ("no engine reads this key", &remedy));
    }
}

fn refuse(ledger: &mut Ledger<'_>, name: &str, value: String, rule: (&str, &str)) {
    ledger.refuse(&format!("extra_config.{name}"), value, rule);
}
