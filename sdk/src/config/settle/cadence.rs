//! When checkpoints are published and the student is evaluated.

use training_gym_core::spec::{RolloutSpec, SamplingSpec, SaveSpec};

use super::rollout::TOP_P;
use super::{AT_LEAST_1, at_least_1, number};
use crate::config::Facts;
use crate::config::ledger::{Ledger, field};

pub(super) fn save(ledger: &mut Ledger<'_>) -> SaveSpec {
    let save_interval = ledger.optional(field!(save_interval), "the last step only");
    if let Some(steps) = save_interval {
        ledger.need("save_interval", &steps, steps >= 1, (AT_LEAST_1, "leave it unset to publish the last step only"));
    }
    let keep_resume_states = ledger.value(field!(keep_resume_states), 1);
    at_least_1(
        ledger,
        "keep_resume_states",
        keep_resume_states,
        "a run that cannot be continued is no run; leave it unset for 1",
    );
    SaveSpec { save_interval, keep_resume_states }
}

/// Evaluation inside a run, but for its rows.
pub(in crate::config) struct Evaluation {
    /// Whether there are rows, or an interval that asks for them.
    pub(in crate::config) wanted: bool,
    pub(in crate::config) eval_interval: u64,
    pub(in crate::config) n_samples_per_eval_prompt: usize,
    pub(in crate::config) sampling: SamplingSpec,
    pub(in crate::config) eval_max_response_len: usize,
}

/// `run`: the tokens a response may have, the steps of the run.
pub(super) fn evaluation(
    ledger: &mut Ledger<'_>,
    facts: &Facts,
    rollout: &RolloutSpec,
    run: (usize, u64),
) -> Evaluation {
    let (response_len, num_rollout) = run;
    let interval = ledger.given(&field!(eval_interval)).map(|(steps, _)| steps);
    let wanted = facts.eval.unwrap_or(interval.is_some());
    if let Some(steps) = interval {
        ledger.need(
            "eval_interval",
            &steps,
            steps >= 1,
            (AT_LEAST_1, "leave it unset to evaluate with every checkpoint"),
        );
        if facts.eval == Some(false) {
            ledger.refuse(
                "eval_interval",
                steps.to_string(),
                (
                    "the launch has no rows to evaluate on",
                    "give it some with .eval(dataset), or leave eval_interval unset",
                ),
            );
        }
    }
    let eval_interval = if wanted {
        let with_checkpoints = ledger.recipe().save_interval.unwrap_or(num_rollout).max(1);
        ledger.derived(field!(eval_interval), with_checkpoints, "with every checkpoint")
    } else {
        ledger.optional(field!(eval_interval), "no evaluation").unwrap_or(1)
    };
    let n_samples_per_eval_prompt = ledger.value(field!(n_samples_per_eval_prompt), 1);
    at_least_1(ledger, "n_samples_per_eval_prompt", n_samples_per_eval_prompt, "leave it unset for 1");
    let eval_max_response_len = ledger.derived(field!(eval_max_response_len), response_len, "rollout_max_response_len");
    at_least_1(ledger, "eval_max_response_len", eval_max_response_len, "leave it unset for rollout_max_response_len");
    let temperature = ledger.derived(field!(eval_temperature), rollout.sampling.temperature, "rollout_temperature");
    number(ledger, "eval_temperature", temperature, |t| t >= 0.0, ("must be a number ≥ 0", "set 0.0 for greedy"));
    let top_p = ledger.derived(field!(eval_top_p), rollout.sampling.top_p, "rollout_top_p");
    number(ledger, "eval_top_p", top_p, |p| p > 0.0 && p <= 1.0, TOP_P);
    Evaluation {
        wanted,
        eval_interval,
        n_samples_per_eval_prompt,
        sampling: SamplingSpec { temperature, top_p, ..rollout.sampling.clone() },
        eval_max_response_len,
    }
}
