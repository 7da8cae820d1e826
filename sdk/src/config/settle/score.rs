//! The reward.

use std::time::Duration;

use super::{at_least_1, number};
use crate::config::Recipe;
use crate::config::ledger::{Field, Ledger, field};

/// A reward, but for the program it is in.
pub(in crate::config) struct Reward {
    pub(in crate::config) function: String,
    pub(in crate::config) post_process: Option<String>,
    pub(in crate::config) timeout_secs: f64,
    pub(in crate::config) max_concurrency: usize,
    pub(in crate::config) max_ungraded_fraction: f64,
    pub(in crate::config) grade_truncated: bool,
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
    Some(Reward {
        function: function?,
        post_process,
        timeout_secs: timeout.as_secs_f64(),
        max_concurrency,
        max_ungraded_fraction,
        grade_truncated,
    })
}
