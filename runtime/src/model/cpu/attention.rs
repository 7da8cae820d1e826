//! Attention of one new token a sequence over its cached keys and values.

use super::vector::{LANES, Vector, eight, eight_mut};

/// Vectors of the output that are summed up side by side.
const SIDE_BY_SIDE: usize = 4;

/// One key-value head of one sequence, and the query heads that share it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'a> {
    /// `[G, D]`.
    pub(super) queries: &'a [f32],
    /// `[length, D]`.
    pub(super) keys: &'a [f32],
    /// `[length, D]`.
    pub(super) values: &'a [f32],
    /// `D`, a multiple of eight.
    pub(super) dimension: usize,
}

/// softmax(q·kᵀ/√D)·v of each query head, into `out` `[G, D]`. `scores` is scratch.
#[inline(always)]
pub(super) fn attend<V: Vector>(head: Head<'_>, scores: &mut Vec<f32>, out: &mut [f32]) {
    let Head { queries, keys, values, dimension } = head;
    let scale = 1.0 / (dimension as f32).sqrt();
    for (query, out) in queries.chunks_exact(dimension).zip(out.chunks_exact_mut(dimension)) {
        similarities::<V>(query, keys, scale, scores);
        let total = softmax::<V>(scores);
        mix::<V>(scores, values, 1.0 / total, out);
    }
}

/// `scores` becomes query·key·scale for each key, filled up to whole vectors with −∞.
#[inline(always)]
fn similarities<V: Vector>(query: &[f32], keys: &[f32], scale: f32, scores: &mut Vec<f32>) {
    let dimension = query.len();
    let length = keys.len() / dimension;
    scores.clear();
    scores.resize(length.next_multiple_of(LANES), f32::NEG_INFINITY);
    let mut blocks = keys.chunks_exact(LANES * dimension);
    let mut place = 0;
    for block in &mut blocks {
        let mut products = [V::splat(0.0); LANES];
        for at in (0..dimension).step_by(LANES) {
            let query = V::load(eight(query, at));
            for (row, product) in products.iter_mut().enumerate() {
                *product = query.fma(V::load(eight(block, row * dimension + at)), *product);
            }
        }
        V::sums(products).mul(V::splat(scale)).store(eight_mut(scores, place));
        place += LANES;
    }
    for key in blocks.remainder().chunks_exact(dimension) {
        let mut product = V::splat(0.0);
        for at in (0..dimension).step_by(LANES) {
            product = V::load(eight(query, at)).fma(V::load(eight(key, at)), product);
        }
        scores[place] = product.sum() * scale;
        place += 1;
    }
}

/// Scores become e^(score − largest); returns their sum.
#[inline(always)]
fn softmax<V: Vector>(scores: &mut [f32]) -> f32 {
    let mut largest = V::splat(f32::NEG_INFINITY);
    for at in (0..scores.len()).step_by(LANES) {
        largest = largest.max(V::load(eight(scores, at)));
    }
    let largest = V::splat(largest.lanes().into_iter().fold(f32::NEG_INFINITY, f32::max));
    let mut total = V::splat(0.0);
    for at in (0..scores.len()).step_by(LANES) {
        // What fills the last vector up comes out as e⁻⁸⁷, nothing beside the largest's 1, and is
        // given no value.
        let power = V::load(eight(scores, at)).sub(largest).exp();
        power.store(eight_mut(scores, at));
        total = total.add(power);
    }
    total.sum()
}

/// `out` becomes the sum of values, weighted by scores · scale.
#[inline(always)]
fn mix<V: Vector>(scores: &[f32], values: &[f32], scale: f32, out: &mut [f32]) {
    let dimension = out.len();
    for from in (0..dimension).step_by(SIDE_BY_SIDE * LANES) {
        let width = (dimension - from).min(SIDE_BY_SIDE * LANES);
        let mut sums = [[V::splat(0.0); SIDE_BY_SIDE]; 2];
        for (place, (row, &score)) in values.chunks_exact(dimension).zip(scores).enumerate() {
            let score = V::splat(score);
            let sums = &mut sums[place % 2];
            if width == SIDE_BY_SIDE * LANES {
                for (part, sum) in sums.iter_mut().enumerate() {
                    *sum = score.fma(V::load(eight(row, from + part * LANES)), *sum);
                }
            } else {
                for (part, sum) in sums.iter_mut().enumerate().take(width / LANES) {
                    *sum = score.fma(V::load(eight(row, from + part * LANES)), *sum);
                }
            }
        }
        let [even, odd] = sums;
        for (part, (even, odd)) in even.into_iter().zip(odd).enumerate().take(width / LANES) {
            even.add(odd).mul(V::splat(scale)).store(eight_mut(out, from + part * LANES));
        }
    }
}
