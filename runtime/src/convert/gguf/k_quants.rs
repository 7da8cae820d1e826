//! The K-quants: super-blocks of 256 numbers whose sub-blocks have scales that are quantised too.
//!
//! The layouts are those of ggml's `block_q*_K`; `to` holds 256 numbers throughout.

use super::encoding::half_at;

/// 2 bits; 16 sub-blocks of 16, a scale and a minimum of 4 bits each.
///
/// `scales[16] levels[64] d dmin`
pub(super) fn q2(block: &[u8], to: &mut [f32]) {
    let (scales, levels) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (part, to) in to.chunks_exact_mut(16).enumerate() {
        let (byte, shift) = two_bit_place(part);
        let (scale, minimum) = (d * f32::from(scales[part] & 15), dmin * f32::from(scales[part] >> 4));
        for (to, &level) in to.iter_mut().zip(&levels[byte..]) {
            *to = scale * f32::from(level >> shift & 3) - minimum;
        }
    }
}

/// 3 bits; 16 sub-blocks of 16, a scale of 6 bits each.
///
/// `high[32] levels[64] scales[12] d`
pub(super) fn q3(block: &[u8], to: &mut [f32]) {
    let (high, levels, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half_at(block, 108);
    for (part, to) in to.chunks_exact_mut(16).enumerate() {
        // Low four bits in the first eight bytes, high two in the last four.
        let low = packed[part % 8] >> (4 * (part / 8)) & 15;
        let top = packed[8 + part % 4] >> (2 * (part / 4)) & 3;
        let scale = d * f32::from((low | top << 4) as i8 - 32);
        let (byte, shift) = two_bit_place(part);
        let (column, bit) = (byte % 32, part / 2);
        for (offset, to) in to.iter_mut().enumerate() {
            let level = (levels[byte + offset] >> shift & 3) as i8;
            let below = if high[column + offset] >> bit & 1 == 1 { 0 } else { 4 };
            *to = scale * f32::from(level - below);
        }
    }
}

/// Where the 2-bit levels of a sub-block lie: first byte, and shift within each.
fn two_bit_place(part: usize) -> (usize, usize) {
    (part / 8 * 32 + part % 2 * 16, part % 8 / 2 * 2)
}

/// 4 bits; 8 sub-blocks of 32, a scale and a minimum of 6 bits each.
///
/// `d dmin scales[12] levels[128]`
pub(super) fn q4(block: &[u8], to: &mut [f32]) {
    let levels = &block[16..144];
    for (part, to) in to.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(block, part);
        for (to, &pair) in to.iter_mut().zip(&levels[part / 2 * 32..]) {
            *to = scale * f32::from(pair >> (part % 2 * 4) & 15) - minimum;
        }
    }
}

/// 5 bits; as [`q4`], with the fifth bits before the others.
///
/// `d dmin scales[12] high[32] levels[128]`
pub(super) fn q5(block: &[u8], to: &mut [f32]) {
    let (high, levels) = (&block[16..48], &block[48..176]);
    for (part, to) in to.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(block, part);
        for ((to, &pair), &high) in to.iter_mut().zip(&levels[part / 2 * 32..]).zip(high) {
            let level = (pair >> (part % 2 * 4) & 15) + (high >> part & 1) * 16;
            *to = scale * f32::from(level) - minimum;
        }
    }
}

/// Scale and minimum of one of eight sub-blocks: the first four are the low six bits of a byte each;
/// the last four are put together from nibbles and the top bits of the first.
fn scale_and_minimum(block: &[u8], part: usize) -> (f32, f32) {
    let (d, dmin, packed) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
    let (scale, minimum) = match part {
        0..4 => (packed[part] & 63, packed[part + 4] & 63),
        _ => (packed[part + 4] & 15 | packed[part - 4] >> 6 << 4, packed[part + 4] >> 4 | packed[part] >> 6 << 4),
    };
    (d * f32::from(scale), dmin * f32::from(minimum))
}

/// 6 bits; 16 sub-blocks of 16, a scale of 8 bits each.
///
/// `low[128] high[64] scales[16] d`
pub(super) fn q6(block: &[u8], to: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half_at(block, 208);
    for (part, to) in to.chunks_exact_mut(32).enumerate() {
        // Halves of 128 numbers; in each, four rows of 32: two in the low nibbles, two in the high.
        let (half, row) = (part / 4, part % 4);
        for (offset, to) in to.iter_mut().enumerate() {
            let nibble = low[half * 64 + row % 2 * 32 + offset] >> (row / 2 * 4) & 15;
            let level = nibble | (high[half * 32 + offset] >> (2 * row) & 3) << 4;
            let scale = d * f32::from(scales[part * 2 + offset / 16] as i8);
            *to = scale * f32::from(level as i8 - 32);
        }
    }
}
