//! The learning rate of each optimizer step.

use training_gym_core::spec::{LrDecayStyle, OptimizerSpec};

/// The learning rate of optimizer step `step`, from 1: a line that reaches `lr` at step
/// `lr_warmup_iters`, then the decay, which reaches `min_lr` at step `lr_decay_iters`.
pub fn learning_rate(spec: &OptimizerSpec, step: u64) -> f64 {
    if step < spec.lr_warmup_iters {
        return spec.lr * step as f64 / spec.lr_warmup_iters as f64;
    }
    let progress = match spec.lr_decay_iters.checked_sub(spec.lr_warmup_iters) {
        Some(length) if length > 0 => ((step - spec.lr_warmup_iters) as f64 / length as f64).min(1.0),
        _ => 1.0,
    };
    let share = match spec.lr_decay_style {
        LrDecayStyle::Constant => return spec.lr,
        LrDecayStyle::Linear => 1.0 - progress,
        LrDecayStyle::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
    };
    spec.min_lr + (spec.lr - spec.min_lr) * share
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(lr_decay_style: LrDecayStyle) -> OptimizerSpec {
        OptimizerSpec {
            lr: 1.0,
            min_lr: 0.1,
            lr_warmup_iters: 4,
            lr_decay_iters: 14,
            lr_decay_style,
            weight_decay: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_eps: 1e-8,
            clip_grad: None,
        }
    }

    #[test]
    fn warmup_then_decay_then_the_floor() {
        let linear = spec(LrDecayStyle::Linear);
        let rates: Vec<f64> = [1, 2, 4, 9, 14, 99].iter().map(|&step| learning_rate(&linear, step)).collect();
        let expected = [0.25, 0.5, 1.0, 0.55, 0.1, 0.1];
        assert!(rates.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{rates:?}");
        assert!((learning_rate(&spec(LrDecayStyle::Cosine), 9) - 0.55).abs() < 1e-12);
        assert_eq!(learning_rate(&spec(LrDecayStyle::Constant), 99), 1.0);
    }

    #[test]
    fn no_warmup_and_no_decay_length_are_not_divisions_by_zero() {
        let mut at_once = spec(LrDecayStyle::Cosine);
        (at_once.lr_warmup_iters, at_once.lr_decay_iters) = (0, 0);
        assert!((learning_rate(&at_once, 1) - 0.1).abs() < 1e-12);
        at_once.lr_decay_style = LrDecayStyle::Constant;
        assert_eq!(learning_rate(&at_once, 1), 1.0);
    }
}
