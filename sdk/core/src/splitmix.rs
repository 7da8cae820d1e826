//! SplitMix64 (Steele, Lea and Flood: "Fast Splittable Pseudorandom Number Generators", 2014): how
//! every seed of SDK and runtime is spread.

/// The golden ratio's 64 bits: the step between two states.
pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser: a bijection that spreads every input bit.
pub fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_seed_0_is_the_published_one() {
        let stream: Vec<u64> = (1..=3_u64).map(|place| mixed(place.wrapping_mul(GAMMA))).collect();
        assert_eq!(stream, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }
}
