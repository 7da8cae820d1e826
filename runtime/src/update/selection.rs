//! Which response tokens are worth learning from (TIP: Xu et al., "Token Importance in On-Policy
//! Distillation", 2026, arXiv 2604.14084). Pure functions over numbers of one global batch.
//!
//! ```text
//! h_t = H(S)/ln V (eq. 2)    δ_t = KL(S ‖ T) (eq. 3)    x̂ = (x − min)/(max − min) over the batch
//! Soft-OR (eq. 5)   s_t = ĥ_t + δ̂_t − ĥ_t·δ̂_t = 1 − (1 − ĥ_t)(1 − δ̂_t)
//! ```
//!
//! Of each response the `floor(ratio · length)` best are kept; among equals, the earlier. A response
//! may keep none.
//!
//! Whether the entropy is cut at the batch's 98th percentile first is where sources disagree: one
//! reading of the paper's appendix has it, another says plain min–max. It is an option, on by
//! default. Overconfident tokens (the paper's third quadrant: sure of themselves and far from the
//! teacher) are ranked by `KL(T ‖ S)·(1 − ĥ_t)`, which one secondary source alone describes.

use training_gym_core::health;
use training_gym_core::spec::{SelectionRule, TokenSelection};
use training_gym_core::splitmix::{GAMMA, mixed};

/// What is known of a global batch's response tokens, responses end to end: `[N]` each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenStats {
    /// The student's entropy over ln V.
    pub entropy: Vec<f32>,
    /// KL(S ‖ T), in nats, ≥ 0.
    pub reverse_kl: Vec<f32>,
    /// KL(T ‖ S), in nats, ≥ 0.
    pub forward_kl: Vec<f32>,
    /// The symmetric Jensen–Shannon divergence over ln 2.
    pub jsd: Vec<f32>,
}

/// The kept tokens of each response, as ascending positions in it.
///
/// `lengths` are the responses' and sum to `N`; `seed` is what the drawn rules draw from.
///
/// # Panics
/// When `stats` and `lengths` disagree.
pub fn select(selection: &TokenSelection, stats: &TokenStats, lengths: &[usize], seed: u64) -> Vec<Vec<i64>> {
    assert_eq!(stats.entropy.len(), lengths.iter().sum::<usize>(), "statistics of each token");
    if let SelectionRule::Sampled { entropy_power, jsd_power } = selection.rule {
        return sampled((entropy_power, jsd_power), selection.ratio, stats, (lengths, seed));
    }
    let scores = scores(selection.rule, stats, seed);
    let mut start = 0;
    lengths
        .iter()
        .map(|&length| {
            let scores = &scores[start..start + length];
            start += length;
            best(scores, (selection.ratio * length as f64).floor() as usize)
        })
        .collect()
}

/// How much each token is wanted, `[N]`; higher is more.
pub fn scores(rule: SelectionRule, stats: &TokenStats, seed: u64) -> Vec<f64> {
    let wide = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect::<Vec<f64>>();
    let scaled_entropy = |quantile| min_max(&clipped(wide(&stats.entropy), quantile));
    match rule {
        SelectionRule::SoftOr { entropy_clip_quantile } => scaled_entropy(entropy_clip_quantile)
            .iter()
            .zip(min_max(&wide(&stats.reverse_kl)))
            .map(|(entropy, divergence)| entropy + divergence - entropy * divergence)
            .collect(),
        SelectionRule::Entropy => wide(&stats.entropy),
        SelectionRule::Overconfident { entropy_clip_quantile } => scaled_entropy(entropy_clip_quantile)
            .iter()
            .zip(wide(&stats.forward_kl))
            .map(|(entropy, divergence)| divergence * (1.0 - entropy))
            .collect(),
        SelectionRule::Random | SelectionRule::Sampled { .. } => {
            (0..stats.entropy.len() as u64).map(|token| uniform(seed, token)).collect()
        }
    }
}

/// The authors' public code (`entropy_weighted_sample`): of all tokens of the batch together,
/// `max(1, ⌊N · ratio⌋)` are drawn without replacement, each with weight
/// `max(h, 1e-8)^entropy_power · max(jsd, 1e-8)^jsd_power`. Where the reference asks torch's
/// `multinomial`, the earliest of exponential arrivals at these rates are taken: the same distribution.
fn sampled(
    (entropy_power, jsd_power): (f64, f64),
    ratio: f64,
    stats: &TokenStats,
    (lengths, seed): (&[usize], u64),
) -> Vec<Vec<i64>> {
    const FLOOR: f64 = 1e-8;
    let power = |value: f32, power: f64| f64::from(value).max(FLOOR).powf(power);
    let tokens = stats.entropy.len();
    let arrivals: Vec<f64> = (0..tokens)
        .map(|token| {
            let weight = power(stats.entropy[token], entropy_power) * power(stats.jsd[token], jsd_power);
            // Later is less wanted.
            uniform(seed, token as u64).ln() / weight
        })
        .collect();
    let count = if tokens == 0 { 0 } else { ((tokens as f64 * ratio).floor() as usize).max(1) };
    let mut kept = best(&arrivals, count).into_iter().peekable();
    let mut start = 0;
    lengths
        .iter()
        .map(|&length| {
            let (first, end) = (start, start + length as i64);
            start = end;
            std::iter::from_fn(|| kept.next_if(|&token| token < end)).map(|token| token - first).collect()
        })
        .collect()
}

/// The positions of the `count` highest, ascending; of equals, the earlier. What is no number is last.
fn best(scores: &[f64], count: usize) -> Vec<i64> {
    let rank = |score: f64| if score.is_nan() { f64::NEG_INFINITY } else { score };
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| rank(scores[b]).total_cmp(&rank(scores[a])));
    let mut kept: Vec<i64> = order.into_iter().take(count).map(|token| token as i64).collect();
    kept.sort_unstable();
    kept
}

/// `(x − min)/(max − min)`; all 0 where they are equal.
fn min_max(values: &[f64]) -> Vec<f64> {
    let (low, high) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
    if high <= low {
        return vec![0.0; values.len()];
    }
    values.iter().map(|value| (value - low) / (high - low)).collect()
}

/// Cut above at a quantile.
fn clipped(mut values: Vec<f64>, quantile: Option<f64>) -> Vec<f64> {
    if let Some(ceiling) = quantile.and_then(|quantile| health::quantile(&values, quantile)) {
        values.iter_mut().for_each(|value| *value = value.min(ceiling));
    }
    values
}

/// In (0, 1), of this seed and place.
fn uniform(seed: u64, place: u64) -> f64 {
    let bits = mixed(mixed(seed).wrapping_add(GAMMA.wrapping_mul(place + 1)));
    ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIP: Option<f64> = Some(0.98);

    fn stats(entropy: &[f32], reverse_kl: &[f32], forward_kl: &[f32]) -> TokenStats {
        let jsd = reverse_kl.iter().map(|kl| kl / (1.0 + kl)).collect();
        TokenStats { entropy: entropy.to_vec(), reverse_kl: reverse_kl.to_vec(), forward_kl: forward_kl.to_vec(), jsd }
    }

    fn rule(rule: SelectionRule, ratio: f64) -> TokenSelection {
        TokenSelection { rule, ratio }
    }

    #[test]
    fn soft_or_is_high_where_either_axis_is() {
        let stats = stats(&[0.0, 0.5, 0.25, 0.0], &[0.0, 0.0, 1.0, 2.0], &[0.0; 4]);
        let scores = scores(SelectionRule::SoftOr { entropy_clip_quantile: None }, &stats, 0);
        // ĥ = 0, 1, ½, 0 and δ̂ = 0, 0, ½, 1.
        assert_eq!(scores, [0.0, 1.0, 0.75, 1.0]);
        let flat = self::stats(&[0.3; 3], &[0.1; 3], &[0.0; 3]);
        assert_eq!(super::scores(SelectionRule::SoftOr { entropy_clip_quantile: CLIP }, &flat, 0), [0.0; 3]);
    }

    #[test]
    fn each_response_keeps_its_floor_of_the_ratio_and_the_earlier_of_equals() {
        let stats = stats(&[0.1, 0.9, 0.9, 0.9, 0.2, 0.9, 0.8, 0.7], &[0.0; 8], &[0.0; 8]);
        let kept = |ratio| select(&rule(SelectionRule::Entropy, ratio), &stats, &[5, 1, 2], 0);
        assert_eq!(kept(0.5), [vec![1, 2], vec![], vec![0]], "a response of one token keeps none");
        assert_eq!(kept(0.2), [vec![1], vec![], vec![]]);
        assert_eq!(kept(1.0), [vec![0, 1, 2, 3, 4], vec![0], vec![0, 1]]);
    }

    #[test]
    fn the_clip_keeps_one_outlier_from_hiding_the_rest() {
        let entropy: Vec<f32> = (0..100).map(|token| if token == 7 { 50.0 } else { token as f32 / 100.0 }).collect();
        let stats = stats(&entropy, &[0.0; 100], &[0.0; 100]);
        let at = |entropy_clip_quantile| scores(SelectionRule::SoftOr { entropy_clip_quantile }, &stats, 0)[90];
        assert!(at(None) < 0.02 && at(CLIP) > 0.9, "{} and {}", at(None), at(CLIP));
    }

    #[test]
    fn overconfidence_is_far_from_the_teacher_and_sure() {
        let stats = stats(&[0.0, 1.0, 0.5, 0.0], &[3.0; 4], &[2.0, 9.0, 3.0, 0.5]);
        let rule = SelectionRule::Overconfident { entropy_clip_quantile: None };
        assert_eq!(scores(rule, &stats, 0), [2.0, 0.0, 1.5, 0.5]);
        assert_eq!(select(&self::rule(rule, 0.5), &stats, &[4], 0), [[0, 2]]);
    }

    #[test]
    fn the_weighted_draw_follows_its_weights_and_its_seed() {
        // Weights 1 and 4, one of two: the second four times in five.
        let stats = stats(&[0.1, 0.4], &[1.0, 1.0], &[0.0; 2]);
        let selection = rule(SelectionRule::Sampled { entropy_power: 1.0, jsd_power: 0.0 }, 0.5);
        let draws: Vec<_> = (0..4000).map(|seed| select(&selection, &stats, &[1, 1], seed)).collect();
        let second = draws.iter().filter(|kept| kept[1] == [0] && kept[0].is_empty()).count() as f64 / 4000.0;
        assert!((second - 0.8).abs() < 0.02, "{second}");
        assert_eq!(select(&selection, &stats, &[2], 9), select(&selection, &stats, &[2], 9));
        // Never none, of the batch as a whole.
        let least = rule(SelectionRule::Sampled { entropy_power: 1.0, jsd_power: 1.0 }, 0.01);
        assert_eq!(select(&least, &stats, &[1, 1], 3).concat().len(), 1);
        assert_eq!(select(&least, &TokenStats::default(), &[], 3), Vec::<Vec<i64>>::new());
    }

    #[test]
    fn a_random_choice_is_even() {
        let stats = stats(&[0.5; 10], &[0.0; 10], &[0.0; 10]);
        let mut counts = [0; 10];
        for seed in 0..2000 {
            for kept in select(&rule(SelectionRule::Random, 0.3), &stats, &[10], seed).concat() {
                counts[kept as usize] += 1;
            }
        }
        assert!(counts.iter().all(|count| (500..=700).contains(count)), "{counts:?}");
    }
}
