//! How much each sample counts: by how hard its problem is, or by its reward.
//!
//! PACED (Xu et al., 2026, arXiv 2603.11178): with the student's pass rate `p` on a problem, its loss is
//! multiplied with `w(p) = p^α·(1 − p)^β`, α = β = 1 unless said otherwise: the signal-to-noise ratio of
//! a distillation gradient collapses where everything passes and where nothing does.
//!
//! The pass rate is of *graded* rollouts of the current group: truncated and ungraded ones are no
//! failures. The update scales the weights of a global batch to mean 1 over those that are not 0, since
//! `p·(1 − p)` alone, at most ¼, would be a smaller learning rate in disguise; the paper does not say
//! how it normalises.

use training_gym_core::spec::{PassRate, SampleWeighting};

/// Each sample's weight, ≥ 0, in sample order; they are relative to each other.
///
/// Of a problem without a graded rollout nothing is known, and it is left out (weight 0), unless its
/// pass rate is smoothed. By reward, ungraded samples have weight 1: as much as the graded on average.
///
/// # Shapes
/// `[groups · group_size]` to the same; a last shorter group is a group by itself.
///
/// # Panics
/// When `group_size` is 0.
pub fn weights(rewards: &[Option<f64>], group_size: usize, weighting: &SampleWeighting) -> Vec<f64> {
    let by_problem = |pass_rate: &PassRate, weight: &dyn Fn(f64) -> f64| {
        rewards
            .chunks(group_size)
            .flat_map(|group| vec![rate(group, pass_rate).map_or(0.0, weight); group.len()])
            .collect()
    };
    match weighting {
        SampleWeighting::Paced { alpha, beta, pass_rate } => {
            by_problem(pass_rate, &|p| p.powf(*alpha) * (1.0 - p).powf(*beta))
        }
        SampleWeighting::HardFilter { low, high, pass_rate } => {
            by_problem(pass_rate, &|p| f64::from(u8::from(p > *low && p < *high)))
        }
        SampleWeighting::Reward { beta } => by_reward(rewards, *beta),
    }
}

/// The share of a problem's graded rollouts that passed; `None` where nothing is known.
pub fn rate(group: &[Option<f64>], settings: &PassRate) -> Option<f64> {
    let graded = group.iter().flatten().count() as f64;
    let passed = group.iter().flatten().filter(|reward| **reward > settings.pass_above).count() as f64;
    if settings.laplace {
        return Some((passed + 1.0) / (graded + 2.0));
    }
    (graded > 0.0).then(|| passed / graded)
}

/// Reward-weighted distillation: `softmax(reward/β)·n` over the batch's graded samples
/// (`src/opd/opd_trainer.py` of HJSang/OPSD_OnPolicyDistillation).
fn by_reward(rewards: &[Option<f64>], beta: f64) -> Vec<f64> {
    let highest = rewards.iter().flatten().fold(f64::NEG_INFINITY, |highest, &reward| highest.max(reward));
    let power = |reward: f64| ((reward - highest) / beta).exp();
    let total: f64 = rewards.iter().flatten().map(|&reward| power(reward)).sum();
    let graded = rewards.iter().flatten().count() as f64;
    rewards.iter().map(|reward| reward.map_or(1.0, |reward| power(reward) / total * graded)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: PassRate = PassRate { pass_above: 0.0, laplace: false };

    fn close(ours: &[f64], expected: &[f64]) {
        assert_eq!(ours.len(), expected.len());
        assert!(ours.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{ours:?}, not {expected:?}");
    }

    #[test]
    fn the_frontier_counts_and_both_ends_do_not() {
        let rewards = [
            [Some(1.0), Some(-1.0), Some(-1.0), Some(-1.0)],
            [Some(1.0); 4],
            [Some(-1.0); 4],
            // One of two graded: truncated responses are no failures.
            [Some(1.0), None, Some(-1.0), None],
            [None; 4],
        ]
        .concat();
        let of = |weighting| weights(&rewards, 4, &weighting);
        let paced = of(SampleWeighting::Paced { alpha: 1.0, beta: 1.0, pass_rate: RATE });
        close(&paced, &[[0.1875; 4], [0.0; 4], [0.0; 4], [0.25; 4], [0.0; 4]].concat());
        let tilted = of(SampleWeighting::Paced { alpha: 2.0, beta: 1.0, pass_rate: RATE });
        close(&tilted[..4], &[0.0625 * 0.75; 4]);
        let smooth =
            of(SampleWeighting::Paced { alpha: 1.0, beta: 1.0, pass_rate: PassRate { laplace: true, ..RATE } });
        let p = 5.0 / 6.0;
        close(&smooth[4..8], &[p * (1.0 - p); 4]);
        close(&smooth[16..], &[0.25; 4]);
        let filter = of(SampleWeighting::HardFilter { low: 0.2, high: 0.8, pass_rate: RATE });
        close(&filter, &[[1.0; 4], [0.0; 4], [0.0; 4], [1.0; 4], [0.0; 4]].concat());
    }

    #[test]
    fn a_reward_weighs_by_softmax_and_the_ungraded_by_one() {
        let beta = 0.5;
        let ours = weights(&[Some(1.0), Some(0.0), None, Some(1.0)], 4, &SampleWeighting::Reward { beta });
        let (high, low) = (2f64.exp(), 1.0);
        let total = 2.0 * high + low;
        close(&ours, &[3.0 * high / total, 3.0 * low / total, 1.0, 3.0 * high / total]);
        // Large rewards and a small β overflow nothing.
        close(&weights(&[Some(1e6), Some(0.0)], 2, &SampleWeighting::Reward { beta: 1e-3 }), &[2.0, 0.0]);
        close(&weights(&[None, None], 2, &SampleWeighting::Reward { beta }), &[1.0, 1.0]);
    }
}
