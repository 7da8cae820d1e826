//! The noise of a response: one uniform number a token, with no state to share or to lose.

use training_gym_core::splitmix::{GAMMA, mixed};

/// Numbers come in steps of 2⁻²³, so that a float32 product with one never rounds up to the whole.
const BITS: u32 = 23;

/// The uniform number in [0, 1) of one position of a response: a pure function of both.
pub(super) fn uniform(seed: u64, position: u64) -> f32 {
    let stream = mixed(seed.wrapping_add(GAMMA));
    let bits = mixed(stream.wrapping_add(position.wrapping_add(1).wrapping_mul(GAMMA)));
    (bits >> (64 - BITS)) as f32 / (1_u32 << BITS) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_over_seeds_and_over_positions() {
        for over_seeds in [true, false] {
            let mut buckets = [0_u32; 16];
            for i in 0..16_000 {
                let number = if over_seeds { uniform(i, 3) } else { uniform(3, i) };
                assert!((0.0..1.0).contains(&number));
                buckets[(number * 16.0) as usize] += 1;
            }
            // χ² of 15 degrees of freedom: 37.7 is its 0.1 % tail.
            let chi: f64 = buckets.iter().map(|&count| (f64::from(count) - 1000.0).powi(2) / 1000.0).sum();
            assert!(chi < 37.7, "{chi} with {buckets:?}");
        }
        assert_ne!(uniform(0, 1), uniform(1, 0));
    }
}
