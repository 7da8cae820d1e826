//! How rewards become advantages.

use training_gym_core::spec::{
    AdvantageEstimator, AdvantageSpec, KlLossType, KlRewardSpec, OverlongSpec, SampleWeighting,
};

use super::source::is_supervised;
use super::{Reward, Sizes, number};
use crate::config::ledger::{Ledger, Shown, field};

/// What there is to learn from.
pub(super) struct Signals<'a> {
    pub(super) reward: Option<&'a Reward>,
    pub(super) teacher: bool,
    pub(super) max_response_len: usize,
}

/// What a field of the reward is refused with where there is none.
const NO_REWARD: (&str, &str) =
    ("there is no reward, so it would be ignored", "set custom_rm_function, or leave it unset");

pub(super) fn advantage(ledger: &mut Ledger<'_>, sizes: Sizes, signals: &Signals<'_>) -> AdvantageSpec {
    let estimator = if is_supervised(ledger.recipe()) {
        ledger.derived(field!(advantage), AdvantageEstimator::Demonstrated, "the responses are demonstrations")
    } else {
        ledger.value(field!(advantage), AdvantageEstimator::GroupRelative { normalize_std: true })
    };
    let normalize_advantages = ledger.value(field!(normalize_advantages), false);
    let has_reward = signals.reward.is_some();
    if has_reward && estimator.compares() && sizes.n_samples_per_prompt == 1 {
        ledger.refuse("n_samples_per_prompt", "1".to_owned(), (
            "must be ≥ 2 with a reward and a group-relative advantage: the only reward of a group is its mean, so the advantage is always 0",
            "raise it, such as to 4, or set advantage: Some(AdvantageEstimator::Raw)",
        ));
    }
    if has_reward && signals.teacher && estimator == AdvantageEstimator::Raw {
        ledger.note(
            "advantage = raw with a teacher: a reward of ±1 on every token is some twenty times the teacher's term, \
             which is a few hundredths of a nat",
        );
    }
    if estimator == AdvantageEstimator::Ignored && !has_reward {
        ledger.refuse("advantage", estimator.shown(), NO_REWARD);
    } else if estimator == AdvantageEstimator::Ignored && !signals.teacher {
        let rule = ("then rewards teach nothing, and there must be a teacher that does", "set opd, or leave it unset");
        ledger.refuse("advantage", estimator.shown(), rule);
    }
    if let AdvantageEstimator::ReinforcePlusPlus { gamma } = estimator
        && !(gamma > 0.0 && gamma <= 1.0)
    {
        let rule = ("its gamma must be in (0, 1]", "set 1.0: every token has the whole reward");
        ledger.refuse("advantage", estimator.shown(), rule);
    }
    if has_reward && estimator.penalises_tokens() && !normalize_advantages {
        ledger.note(format!(
            "advantage = {} without normalize_advantages: REINFORCE++ whitens its advantages over the step",
            estimator.shown()
        ));
    }
    AdvantageSpec {
        estimator,
        normalize_advantages,
        kl_reward: kl_reward(ledger, has_reward),
        overlong: overlong(ledger, signals),
        dynamic_sampling: dynamic_sampling(ledger, signals),
        weighting: weighting(ledger, sizes, signals),
    }
}

fn weighting(ledger: &mut Ledger<'_>, sizes: Sizes, signals: &Signals<'_>) -> Option<SampleWeighting> {
    let weighting = ledger.optional(field!(weighting), "all alike")?;
    let refused = match weighting {
        _ if signals.reward.is_none() => Some(NO_REWARD),
        _ if !signals.teacher => {
            Some(("it weighs what a teacher says, and there is none", "set opd, or leave it unset"))
        }
        SampleWeighting::Paced { alpha, beta, .. }
            if !(alpha.is_finite() && beta.is_finite() && alpha >= 0.0 && beta >= 0.0) =>
        {
            Some(("its alpha and beta must be numbers ≥ 0", "set both to 1.0, as the paper does"))
        }
        SampleWeighting::HardFilter { low, high, .. } if !(0.0 <= low && low < high && high <= 1.0) => {
            Some(("it must be 0 ≤ low < high ≤ 1", "set 0.2 and 0.8, as the paper does"))
        }
        SampleWeighting::Reward { beta } if !(beta.is_finite() && beta > 0.0) => {
            Some(("its beta must be a number > 0", "set 1.0"))
        }
        _ => None,
    };
    if let Some(rule) = refused {
        ledger.refuse("weighting", weighting.shown(), rule);
    }
    let (SampleWeighting::Paced { pass_rate, .. } | SampleWeighting::HardFilter { pass_rate, .. }) = weighting else {
        return Some(weighting);
    };
    if !pass_rate.pass_above.is_finite() {
        ledger.refuse(
            "weighting",
            weighting.shown(),
            ("its pass_above must be a number", "set 0.0: any reward above is a pass"),
        );
    }
    if sizes.n_samples_per_prompt < 4 {
        ledger.note(format!(
            "weighting = {} with n_samples_per_prompt = {}: so few rollouts hardly tell a pass rate; the paper draws 8",
            weighting.shown(),
            sizes.n_samples_per_prompt
        ));
    }
    Some(weighting)
}

fn kl_reward(ledger: &mut Ledger<'_>, has_reward: bool) -> Option<KlRewardSpec> {
    let coef = ledger.optional(field!(kl_reward_coef), "off");
    let Some(kl_coef) = coef else {
        if let Some(kind) = ledger.optional(field!(kl_reward_type), "off") {
            let rule = ("kl_reward_coef is unset, so it would be ignored", "set kl_reward_coef, or leave it unset");
            ledger.refuse("kl_reward_type", kind.shown(), rule);
        }
        return None;
    };
    let kl_type = ledger.value(field!(kl_reward_type), KlLossType::K1);
    let rule = ("must be a number > 0", "set its weight, such as 0.001, or leave it unset for none");
    number(ledger, "kl_reward_coef", kl_coef, |coef| coef > 0.0, rule);
    if !has_reward {
        ledger.refuse("kl_reward_coef", kl_coef.shown(), NO_REWARD);
    }
    Some(KlRewardSpec { kl_coef, kl_type })
}

fn overlong(ledger: &mut Ledger<'_>, signals: &Signals<'_>) -> Option<OverlongSpec> {
    let Some(cache_len) = ledger.optional(field!(overlong_cache_len), "off") else {
        if let Some(penalty) = ledger.optional(field!(overlong_penalty), "off") {
            let rule =
                ("overlong_cache_len is unset, so it would be ignored", "set overlong_cache_len, or leave it unset");
            ledger.refuse("overlong_penalty", penalty.shown(), rule);
        }
        return None;
    };
    let penalty = ledger.value(field!(overlong_penalty), 1.0);
    let limit = signals.max_response_len;
    ledger.need(
        "overlong_cache_len",
        &cache_len,
        (1..=limit).contains(&cache_len),
        (
            &format!("must be from 1 to rollout_max_response_len = {limit}"),
            "set the tokens before the limit over which the reward falls",
        ),
    );
    number(
        ledger,
        "overlong_penalty",
        penalty,
        |penalty| penalty > 0.0,
        ("must be a number > 0", "leave it unset for 1"),
    );
    match signals.reward {
        None => ledger.refuse("overlong_cache_len", cache_len.shown(), NO_REWARD),
        Some(reward) if !reward.grade_truncated => ledger.note(
            "overlong_cache_len without grade_truncated: a response that reaches the limit is ungraded, and only those \
             just below it lose reward",
        ),
        Some(_) => {}
    }
    Some(OverlongSpec { cache_len, penalty })
}

fn dynamic_sampling(ledger: &mut Ledger<'_>, signals: &Signals<'_>) -> bool {
    let wanted = ledger.value(field!(dynamic_sampling), false);
    if wanted && signals.reward.is_none() {
        ledger.refuse("dynamic_sampling", "true".to_owned(), NO_REWARD);
    } else if wanted && signals.teacher {
        ledger.refuse(
            "dynamic_sampling",
            "true".to_owned(),
            (
                "with a teacher, a group of equal rewards still has the teacher to learn from",
                "leave it unset, or leave opd out",
            ),
        );
    }
    wanted
}
