//! Which samples are computed together, and how much each token's loss counts.

use std::ops::Range;

use training_gym_core::spec::LossAggregation;

/// Cuts samples into micro-batches: in order, as many as fit into `max_tokens`; a longer sample is
/// one by itself. A function of the lengths alone, so that sums do not depend on timing.
///
/// `lengths`: tokens of each sample. Returns ranges into it.
pub fn micro_batches(lengths: &[usize], max_tokens: usize) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (index, &length) in lengths.iter().enumerate() {
        if index > start && tokens + length > max_tokens {
            out.push(start..index);
            (start, tokens) = (index, 0);
        }
        tokens += length;
    }
    if start < lengths.len() {
        out.push(start..lengths.len());
    }
    out
}

/// What one token of each sample weighs in the loss of the global batch, so that the weighted sum
/// over all micro-batches is exactly the asked mean.
///
/// `loss_tokens`: tokens that carry loss, of each sample of the global batch.
pub fn weights(loss_tokens: &[usize], aggregation: LossAggregation) -> Vec<f64> {
    match aggregation {
        LossAggregation::TokenMean => {
            let total = loss_tokens.iter().sum::<usize>().max(1) as f64;
            vec![1.0 / total; loss_tokens.len()]
        }
        LossAggregation::SampleMean => {
            let samples = loss_tokens.len() as f64;
            loss_tokens.iter().map(|&tokens| 1.0 / (tokens.max(1) as f64 * samples)).collect()
        }
        LossAggregation::ConstantLength { length } => {
            vec![1.0 / (length.max(1) as f64 * loss_tokens.len() as f64); loss_tokens.len()]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_filled_in_order() {
        assert_eq!(micro_batches(&[3, 3, 9, 1, 1, 4], 6), [0..2, 2..3, 3..6]);
        assert_eq!(micro_batches(&[7, 7], 6), [0..1, 1..2]);
        assert_eq!(micro_batches(&[], 6), Vec::<Range<usize>>::new());
    }

    #[test]
    fn weights_sum_to_one_either_way() {
        for aggregation in [LossAggregation::TokenMean, LossAggregation::SampleMean] {
            let tokens = [1, 4, 5];
            let total: f64 = weights(&tokens, aggregation).iter().zip(tokens).map(|(w, n)| w * n as f64).sum();
            assert!((total - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn a_constant_length_weighs_every_token_alike() {
        assert_eq!(weights(&[1, 4], LossAggregation::ConstantLength { length: 10 }), [0.05, 0.05]);
    }
}
