//! How responses are made.

use training_gym_core::spec::{EngineSpec, RolloutSpec, SamplingSpec};

use super::{Sizes, at_least_1, number};
use crate::config::Facts;
use crate::config::ledger::{Ledger, field};

/// Most tokens of a prompt and of a response.
#[derive(Clone, Copy)]
pub(super) struct Lengths {
    pub(super) prompt: usize,
    pub(super) response: usize,
}

const PROMPT: usize = 1024;
const RESPONSE: usize = 2048;

/// Unset lengths shrink to what the model's positions leave; set ones are held to them.
pub(super) fn lengths(ledger: &mut Ledger<'_>, facts: &Facts) -> Lengths {
    const LEFT: &str = "what the model's positions leave";
    let limit = facts.context_length.unwrap_or(usize::MAX);
    let set_response = ledger.given(&field!(rollout_max_response_len)).map(|(length, _)| length);
    let left = set_response.map_or(limit / 2, |response| limit.saturating_sub(response));
    let prompt = match PROMPT.min(left).max(1) {
        PROMPT => ledger.value(field!(rollout_max_prompt_len), PROMPT),
        shorter => ledger.derived(field!(rollout_max_prompt_len), shorter, LEFT),
    };
    let response = match RESPONSE.min(limit.saturating_sub(prompt)).max(1) {
        RESPONSE => ledger.value(field!(rollout_max_response_len), RESPONSE),
        shorter => ledger.derived(field!(rollout_max_response_len), shorter, LEFT),
    };
    at_least_1(ledger, "rollout_max_prompt_len", prompt, "set the tokens a prompt may have, such as 1024");
    at_least_1(ledger, "rollout_max_response_len", response, "set the tokens a response may have, such as 2048");
    let both = prompt.saturating_add(response);
    if both > limit {
        ledger.refuse(
            "rollout_max_response_len",
            response.to_string(),
            (
                &format!(
                    "with rollout_max_prompt_len = {prompt} it makes {both} tokens; the model has {limit} positions"
                ),
                "lower one of the two",
            ),
        );
    }
    Lengths { prompt, response }
}

/// All but the response length and the engine, which depend on what comes later.
pub(super) fn rollout(ledger: &mut Ledger<'_>, facts: &Facts, sizes: Sizes) -> RolloutSpec {
    RolloutSpec {
        rollout_batch_size: sizes.rollout_batch_size,
        n_samples_per_prompt: sizes.n_samples_per_prompt,
        rollout_max_response_len: 0,
        sampling: sampling(ledger),
        stop: stop(ledger),
        stop_token_ids: stop_token_ids(ledger),
        rollout_num_gpus: rollout_num_gpus(ledger, facts),
        engine: EngineSpec::default(),
    }
}

fn sampling(ledger: &mut Ledger<'_>) -> SamplingSpec {
    let temperature = ledger.value(field!(rollout_temperature), 1.0);
    number(
        ledger,
        "rollout_temperature",
        temperature,
        |t| t > 0.0,
        (
            "must be a number > 0: a greedy response has no probability to learn from",
            "leave it unset for 1, the model's own distribution; eval_temperature may be 0",
        ),
    );
    let top_p = ledger.value(field!(rollout_top_p), 1.0);
    number(ledger, "rollout_top_p", top_p, |p| p > 0.0 && p <= 1.0, TOP_P);
    let top_k = ledger.value(field!(rollout_top_k), -1);
    ledger.need(
        "rollout_top_k",
        &top_k,
        top_k == -1 || top_k >= 1,
        ("must be −1 or ≥ 1", "leave it unset to keep every token"),
    );
    let min_p = ledger.value(field!(rollout_min_p), 0.0);
    number(
        ledger,
        "rollout_min_p",
        min_p,
        |p| (0.0..1.0).contains(&p),
        ("must be in [0, 1)", "leave it unset to keep every token"),
    );
    SamplingSpec { temperature, top_p, top_k, min_p }
}

pub(super) const TOP_P: (&str, &str) = ("must be in (0, 1]", "leave it unset to keep every token");

fn stop(ledger: &mut Ledger<'_>) -> Vec<String> {
    let stop = ledger.value(field!(rollout_stop), Vec::new());
    let empty = stop.iter().any(String::is_empty);
    ledger.need(
        "rollout_stop",
        &stop,
        !empty,
        ("an empty text ends every response at once", "leave the empty text out"),
    );
    stop
}

fn stop_token_ids(ledger: &mut Ledger<'_>) -> Vec<i64> {
    let ids = ledger.value(field!(rollout_stop_token_ids), Vec::new());
    let negative = ids.iter().any(|id| *id < 0);
    ledger.need("rollout_stop_token_ids", &ids, !negative, ("token ids are ≥ 0", "leave the negative ones out"));
    ids
}

fn rollout_num_gpus(ledger: &mut Ledger<'_>, facts: &Facts) -> usize {
    let wanted = ledger.value(field!(rollout_num_gpus), 1);
    at_least_1(ledger, "rollout_num_gpus", wanted, "set the number of engine replicas, one a device");
    match facts.gpus {
        Some(0) => {
            if wanted > 1 {
                ledger.note(format!("rollout_num_gpus = {wanted} on a CPU: one engine replica is used"));
            }
            1
        }
        Some(gpus) if wanted > gpus => {
            ledger.refuse(
                "rollout_num_gpus",
                wanted.to_string(),
                (
                    &format!("each replica needs its own device, and there are {gpus}"),
                    &format!("set it to at most {gpus}"),
                ),
            );
            wanted
        }
        _ => wanted,
    }
}
