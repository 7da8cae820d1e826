//! Limits of the rollout engine, from the recipe's `extra_config`.

use training_gym_core::spec::EngineSpec;

use crate::config::engine_key::EngineKey;
use crate::config::ledger::Ledger;
use crate::config::{Facts, Origin};

/// Keys of other trainers that are fields here.
const TYPED: [(&str, &str); 9] = [
    ("use_opd", "set recipe.opd = Some(Opd::from(&teacher)); a recipe with `opd` uses it"),
    ("opd_type", "name the teacher's server with Opd::dialect"),
    ("opd_kl_coef", "set Opd { opd_kl_coef, .. }"),
    ("rm_url", "name the teacher's URL with Opd::to_url, or Opd::from(&teacher)"),
    ("rm_type", "set recipe.custom_rm_function"),
    ("advantage_estimator", "set recipe.advantage"),
    ("gpu_memory_utilization", "set recipe.gpu_memory_utilization"),
    ("mem_fraction_static", "set recipe.gpu_memory_utilization"),
    ("free_cache_engine", "set recipe.free_cache_engine"),
];

/// `samples` is how many requests a step makes, `longest` the tokens of its longest sequence.
pub(super) fn engine(ledger: &mut Ledger<'_>, samples: usize, longest: usize, facts: &Facts) -> EngineSpec {
    refuse_unknown(ledger);
    let default = EngineSpec::default();
    let queued = default.max_queued_requests;
    let queue =
        if samples > queued { (samples, Origin::Derived("the samples of a step")) } else { (queued, Origin::Default) };
    let context_length =
        key(ledger, EngineKey::ContextLength, (longest, Origin::Derived("the longest prompt and response")));
    if context_length < longest {
        refuse(
            ledger,
            EngineKey::ContextLength.name(),
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
            EngineKey::ContextLength.name(),
            context_length.to_string(),
            (&format!("the model has {limit} positions"), "leave it unset"),
        );
    }
    EngineSpec {
        max_running_requests: key(
            ledger,
            EngineKey::MaxRunningRequests,
            (default.max_running_requests, Origin::Default),
        ),
        max_queued_requests: key(ledger, EngineKey::MaxQueuedRequests, queue),
        context_length: Some(context_length),
        max_prefill_tokens: key(ledger, EngineKey::MaxPrefillTokens, (default.max_prefill_tokens, Origin::Default)),
    }
}

/// One key's value, or what holds without it.
fn key(ledger: &mut Ledger<'_>, key: EngineKey, (unset, origin): (usize, Origin)) -> usize {
    let config = ledger.recipe().extra_config.as_ref();
    let given = config.and_then(|config| config.0.iter().find(|(name, _)| EngineKey::of(name) == Some(key)));
    let (value, origin) = match given {
        None => (unset, origin),
        Some((name, value)) => match key.read(value) {
            Ok(value) => (value, Origin::Yours),
            Err(rule) => {
                refuse(ledger, name, value.to_string(), (&rule, "leave it unset, or set such a number"));
                (unset, origin)
            }
        },
    };
    ledger.enter(&format!("extra_config.{}", key.name()), value.to_string(), origin);
    value
}

fn refuse_unknown(ledger: &mut Ledger<'_>) {
    let Some(config) = &ledger.recipe().extra_config else { return };
    let mut seen: Vec<EngineKey> = Vec::new();
    for (name, value) in &config.0 {
        if let Some(key) = EngineKey::of(name) {
            if seen.contains(&key) {
                refuse(ledger, name, value.to_string(), ("it is given twice, in two spellings", "give it once"));
            }
            seen.push(key);
            continue;
        }
        let remedy = match TYPED.iter().find(|(typed, _)| typed == name) {
            Some((_, remedy)) => (*remedy).to_owned(),
            None => {
                format!("did you mean `{}`? An engine reads {}", EngineKey::nearest(name), EngineKey::names())
            }
        };
        refuse(ledger, name, value.to_string(), ("no engine reads this key", &remedy));
    }
}

fn refuse(ledger: &mut Ledger<'_>, name: &str, value: String, rule: (&str, &str)) {
    ledger.refuse(&format!("extra_config.{name}"), value, rule);
}
