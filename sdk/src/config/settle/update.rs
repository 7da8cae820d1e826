//! How advantages become weights.

use training_gym_core::spec::{
    KlLossSpec, KlLossType, LossAggregation, LrDecayStyle, OptimizerSpec, PolicyLoss, UpdateSpec,
};

use super::source::is_supervised;
use super::{AT_LEAST_1, Sizes, at_least_1, number};
use crate::config::ledger::{Ledger, Shown, field};

pub(super) fn update(ledger: &mut Ledger<'_>, sizes: Sizes) -> UpdateSpec {
    let samples = sizes.samples();
    let global_batch_size =
        ledger.derived(field!(global_batch_size), samples, "rollout_batch_size · n_samples_per_prompt");
    at_least_1(ledger, "global_batch_size", global_batch_size, "leave it unset for one optimizer step a rollout");
    if global_batch_size >= 1 && samples >= 1 && !samples.is_multiple_of(global_batch_size) {
        let Sizes { rollout_batch_size, n_samples_per_prompt, .. } = sizes;
        ledger.refuse("global_batch_size", global_batch_size.to_string(), (
            &format!("must divide rollout_batch_size · n_samples_per_prompt = {rollout_batch_size} · {n_samples_per_prompt} = {samples}"),
            &format!("set {}, or leave it unset for one optimizer step a rollout", nearest_divisor(samples, global_batch_size)),
        ));
    }
    let steps = (samples / global_batch_size.max(1)).max(1) as u64;
    let max_tokens_per_gpu = ledger.value(field!(max_tokens_per_gpu), 8192);
    at_least_1(
        ledger,
        "max_tokens_per_gpu",
        max_tokens_per_gpu,
        "set the tokens of a packed micro-batch, such as 8192",
    );
    let logits_chunk_size = ledger.value(field!(logits_chunk_size), 512);
    at_least_1(ledger, "logits_chunk_size", logits_chunk_size, "set the rows projected at once, such as 512");
    let policy_loss = if is_supervised(ledger.recipe()) {
        ledger.derived(field!(policy_loss), PolicyLoss::Likelihood, "the responses are demonstrations")
    } else {
        ledger.value(field!(policy_loss), PolicyLoss::TokenRatio)
    };
    let (eps_clip, eps_clip_high, eps_clip_c) = clips(ledger, policy_loss);
    let kl_loss = kl_loss(ledger);
    let entropy_coef = ledger.value(field!(entropy_coef), 0.0);
    number(
        ledger,
        "entropy_coef",
        entropy_coef,
        |coef| coef >= 0.0,
        ("must be a number ≥ 0", "leave it unset for none"),
    );
    UpdateSpec {
        global_batch_size,
        max_tokens_per_gpu,
        eps_clip,
        eps_clip_high,
        eps_clip_c,
        policy_loss,
        kl_loss,
        entropy_coef,
        loss_aggregation: loss_aggregation(ledger),
        logits_chunk_size,
        optimizer: optimizer(ledger, sizes.num_rollout.saturating_mul(steps), sizes.uncounted),
    }
}

/// A divisor of `samples` near `wanted`: the nearest, unless it is far off.
fn nearest_divisor(samples: usize, wanted: usize) -> usize {
    const LOOKED_AT: usize = 1 << 16;
    let divides = |size: &usize| samples.is_multiple_of(*size);
    let below = (1..=wanted.min(samples)).rev().take(LOOKED_AT).find(divides).unwrap_or(1);
    let above = (wanted..=samples).take(LOOKED_AT).find(divides).unwrap_or(samples);
    if wanted.abs_diff(above) < wanted.abs_diff(below) { above } else { below }
}

fn loss_aggregation(ledger: &mut Ledger<'_>) -> LossAggregation {
    let aggregation = ledger.value(field!(loss_aggregation), LossAggregation::TokenMean);
    if aggregation == (LossAggregation::ConstantLength { length: 0 }) {
        let rule = ("its length must be ≥ 1", "set the tokens a response may have, as Dr.GRPO does");
        ledger.refuse("loss_aggregation", aggregation.shown(), rule);
    }
    aggregation
}

fn clips(ledger: &mut Ledger<'_>, policy_loss: PolicyLoss) -> (f64, f64, Option<f64>) {
    let low = ledger.value(field!(eps_clip), 0.2);
    // At 1 nothing is clipped below, which is CISPO's own setting.
    if !(policy_loss == PolicyLoss::Cispo && low == 1.0) {
        number(
            ledger,
            "eps_clip",
            low,
            |eps| eps > 0.0 && eps < 1.0,
            ("must be in (0, 1): a ratio below 1 − eps_clip is clipped", "leave it unset for 0.2"),
        );
    }
    if policy_loss == PolicyLoss::SequenceRatio && ledger.recipe().eps_clip.is_none() {
        ledger.note(
            "policy_loss = sequence-ratio with eps_clip = 0.2: the mean of a sequence's log-ratios moves far less than a \
             token's, and GSPO's own clips are 3e-4 and 4e-4",
        );
    }
    let high = ledger.value(field!(eps_clip_high), 0.28);
    number(
        ledger,
        "eps_clip_high",
        high,
        |eps| eps > 0.0,
        ("must be a number > 0: a ratio above 1 + eps_clip_high is clipped", "leave it unset for 0.28"),
    );
    let dual = ledger.optional(field!(eps_clip_c), "off");
    if let Some(dual) = dual {
        number(
            ledger,
            "eps_clip_c",
            dual,
            |eps| eps > 1.0,
            ("must be a number > 1", "leave it unset for no dual clip, or set 3.0"),
        );
        if policy_loss == PolicyLoss::Cispo {
            let rule = ("policy_loss = cispo has no dual clip, so it would be ignored", "leave it unset");
            ledger.refuse("eps_clip_c", dual.shown(), rule);
        }
    }
    (low, high, dual)
}

fn kl_loss(ledger: &mut Ledger<'_>) -> Option<KlLossSpec> {
    let wanted = ledger.value(field!(use_kl_loss), false);
    if !wanted {
        let coef = ledger.optional(field!(kl_loss_coef), "off").map(|coef| ("kl_loss_coef", coef.shown()));
        let kind = ledger.optional(field!(kl_loss_type), "off").map(|kind| ("kl_loss_type", kind.shown()));
        let unbiased = ledger.optional(field!(use_unbiased_kl), "off").map(|on| ("use_unbiased_kl", on.shown()));
        for (name, value) in coef.into_iter().chain(kind).chain(unbiased) {
            ledger.refuse(
                name,
                value,
                ("use_kl_loss is not on, so it would be ignored", "set use_kl_loss: Some(true), or leave it unset"),
            );
        }
        return None;
    }
    let coef = ledger.optional(field!(kl_loss_coef), "unset");
    let kl_loss_type = ledger.value(field!(kl_loss_type), KlLossType::LowVarKl);
    let unbiased = ledger.value(field!(use_unbiased_kl), false);
    match coef {
        Some(coef) => number(
            ledger,
            "kl_loss_coef",
            coef,
            |coef| coef > 0.0,
            ("must be a number > 0", "set its weight, such as 0.001, or turn use_kl_loss off"),
        ),
        None => ledger.refuse(
            "kl_loss_coef",
            None,
            ("use_kl_loss is on, and its weight is unset", "set kl_loss_coef, such as Some(0.001)"),
        ),
    }
    Some(KlLossSpec { kl_loss_coef: coef.unwrap_or(0.0), kl_loss_type, unbiased })
}

/// `steps` is how many optimizer steps the run has, unless its rows are `uncounted`.
fn optimizer(ledger: &mut Ledger<'_>, steps: u64, uncounted: bool) -> OptimizerSpec {
    let lr = ledger.value(field!(lr), 1e-6);
    number(
        ledger,
        "lr",
        lr,
        |lr| lr > 0.0,
        ("must be a number > 0: weights that do not move are no training", "leave it unset for 1e-6"),
    );
    let min_lr = ledger.value(field!(min_lr), 0.0);
    let min_ok = min_lr.is_finite() && (0.0..=lr).contains(&min_lr);
    ledger.need(
        "min_lr",
        &min_lr,
        min_ok || !lr.is_finite(),
        (&format!("must be in [0, lr = {lr:?}]"), "leave it unset for 0"),
    );
    let lr_warmup_iters = ledger.value(field!(lr_warmup_iters), 0);
    let lr_decay_style = ledger.value(field!(lr_decay_style), LrDecayStyle::Constant);
    let lr_decay_iters =
        ledger.derived(field!(lr_decay_iters), steps.max(lr_warmup_iters).max(1), "the optimizer steps of the run");
    if uncounted && ledger.recipe().lr_decay_iters.is_none() {
        ledger.show_last_as("all");
    }
    ledger.need(
        "lr_decay_iters",
        &lr_decay_iters,
        lr_decay_iters >= 1,
        (AT_LEAST_1, "leave it unset for the whole run"),
    );
    if lr_decay_style != LrDecayStyle::Constant && lr_decay_iters < lr_warmup_iters {
        ledger.refuse(
            "lr_decay_iters",
            lr_decay_iters.to_string(),
            (
                &format!("the decay would end before the warm-up (lr_warmup_iters = {lr_warmup_iters}) has"),
                "raise it, or leave it unset for the whole run",
            ),
        );
    }
    let weight_decay = ledger.value(field!(weight_decay), 0.1);
    number(ledger, "weight_decay", weight_decay, |decay| decay >= 0.0, ("must be a number ≥ 0", "set 0.0 for none"));
    let adam_beta1 = ledger.value(field!(adam_beta1), 0.9);
    number(
        ledger,
        "adam_beta1",
        adam_beta1,
        |beta| (0.0..1.0).contains(&beta),
        ("must be in [0, 1)", "leave it unset for 0.9"),
    );
    let adam_beta2 = ledger.value(field!(adam_beta2), 0.98);
    number(
        ledger,
        "adam_beta2",
        adam_beta2,
        |beta| (0.0..1.0).contains(&beta),
        ("must be in [0, 1)", "leave it unset for 0.98"),
    );
    let adam_eps = ledger.value(field!(adam_eps), 1e-8);
    number(ledger, "adam_eps", adam_eps, |eps| eps > 0.0, ("must be a number > 0", "leave it unset for 1e-8"));
    let clip_grad = ledger.value(field!(clip_grad), 1.0);
    number(
        ledger,
        "clip_grad",
        clip_grad,
        |norm| norm >= 0.0,
        ("must be a number ≥ 0", "leave it unset for 1.0, or set 0.0 to turn it off"),
    );
    OptimizerSpec {
        lr,
        min_lr,
        lr_warmup_iters,
        lr_decay_iters,
        lr_decay_style,
        weight_decay,
        adam_beta1,
        adam_beta2,
        adam_eps,
        clip_grad: (clip_grad != 0.0).then_some(clip_grad),
    }
}
