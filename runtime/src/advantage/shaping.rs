//! What is taken from a reward before it is compared: a penalty for length, and for drifting away.

use training_gym_core::spec::{KlLossType, OverlongSpec};

/// DAPO's soft overlong punishment (Yu et al., 2025, eq. 13), ≤ 0: nothing up to `max_len − cache_len`
/// tokens, then a line to `−penalty` at `max_len`.
pub fn overlong_penalty(length: usize, max_len: usize, spec: &OverlongSpec) -> f64 {
    let over = length as f64 - (max_len as f64 - spec.cache_len as f64);
    -spec.penalty * (over / spec.cache_len as f64).clamp(0.0, 1.0)
}

/// An estimate of KL(policy ‖ reference) at each sampled token, in float64: the formulas of
/// [`crate::advantage`]'s penalty in the reward, which no gradient flows through.
///
/// # Shapes
/// `policy`, `reference`: `[R]` log-probabilities → `[R]`.
///
/// # Panics
/// When the two differ in length.
pub fn kl_estimates(policy: &[f32], reference: &[f32], kind: KlLossType) -> Vec<f64> {
    assert_eq!(policy.len(), reference.len(), "one reference log-probability a token");
    let estimate = |(&policy, &reference): (&f32, &f32)| {
        let log_ratio = f64::from(reference) - f64::from(policy);
        match kind {
            KlLossType::K1 => -log_ratio,
            KlLossType::K2 => 0.5 * log_ratio * log_ratio,
            KlLossType::K3 => log_ratio.exp() - 1.0 - log_ratio,
            KlLossType::LowVarKl => (log_ratio.exp() - 1.0 - log_ratio).clamp(-10.0, 10.0),
        }
    };
    policy.iter().zip(reference).map(estimate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_penalty_begins_at_the_cache_and_ends_at_the_limit() {
        let spec = OverlongSpec { cache_len: 4, penalty: 2.0 };
        let penalties: Vec<f64> = [0, 6, 7, 8, 10, 12].iter().map(|&n| overlong_penalty(n, 10, &spec)).collect();
        assert_eq!(penalties, [0.0, 0.0, -0.5, -1.0, -2.0, -2.0]);
        // A cache that is longer than the response may be is a line from before its first token.
        assert_eq!(overlong_penalty(0, 10, &OverlongSpec { cache_len: 20, penalty: 1.0 }), -0.5);
    }
}
