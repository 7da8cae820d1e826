//! A small seeded stream of numbers, so that the same seed makes the same assets everywhere.

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    /// The stream of a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True in this share of calls.
    pub(super) fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// A number in `low..=high`.
    ///
    /// # Panics
    /// When the range is empty.
    pub(super) fn between(&mut self, low: i64, high: i64) -> i64 {
        assert!(low <= high, "{low}..={high} holds a number");
        let width = (high - low + 1) as u64;
        // The high half of a 128-bit product: uniform but for 2^-57 at these widths.
        low + ((u128::from(self.next()) * u128::from(width)) >> 64) as i64
    }

    /// One of the items.
    ///
    /// # Panics
    /// When there is none.
    pub(super) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.between(0, items.len() as i64 - 1) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn numbers_stay_in_range_and_reach_both_ends() {
        let mut random = Random::new(7);
        let drawn: Vec<i64> = (0..200).map(|_| random.between(-2, 3)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&-2), Some(&3)));
        assert!((0..200).map(|_| random.unit()).all(|x| (0.0..1.0).contains(&x)));
    }

    #[test]
    fn a_seed_fixes_the_stream() {
        // The first value of SplitMix64 for seed 0 in its reference implementation.
        assert_eq!(Random::new(0).next(), 0xe220_a839_7b1d_cdaf);
    }
}
