//! How a tensor's numbers are stored: plain, or as blocks of small integers with a scale.
//!
//! Formulas as ggml's `dequantize_row_*`, in float32 and in the same order of operations, so that
//! the results are the same bits.

use half::f16;

use super::k_quants;
use crate::convert::error::{Problem, damaged, unsupported};
use crate::convert::number::widen;
use safetensors::Dtype;

/// Numbers of a block of the plain quantisations.
const BLOCK: usize = 32;
/// Numbers of a block of the K-quants.
pub(super) const SUPER_BLOCK: usize = 256;

/// A tensor type of the format that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(non_camel_case_types, reason = "the format's own names")]
pub(crate) enum Encoding {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}

const SUPPORTED: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K";

impl Encoding {
    /// The encoding of the format's number for it.
    ///
    /// # Errors
    /// By name, for those not read.
    pub(crate) fn of(id: u32) -> Result<Self, Problem> {
        Ok(match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2_K,
            11 => Self::Q3_K,
            12 => Self::Q4_K,
            13 => Self::Q5_K,
            14 => Self::Q6_K,
            30 => Self::BF16,
            other => {
                let name = match other {
                    9 => "Q8_1",
                    15 => "Q8_K",
                    16..=23 | 29 => "an IQ quantisation",
                    24..=27 => "integers",
                    28 => "F64",
                    34 | 35 => "a ternary quantisation",
                    39 => "MXFP4",
                    _ => "unknown",
                };
                return unsupported(format!("tensor type {other} ({name}); supported: {SUPPORTED}"));
            }
        })
    }

    /// Numbers of a block.
    pub(crate) fn block_numbers(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => BLOCK,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K => SUPER_BLOCK,
        }
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// As safetensors call it; `None` where quantised.
    pub(crate) fn plain(self) -> Option<Dtype> {
        match self {
            Self::F32 => Some(Dtype::F32),
            Self::F16 => Some(Dtype::F16),
            Self::BF16 => Some(Dtype::BF16),
            _ => None,
        }
    }

    /// Bytes of a tensor.
    ///
    /// # Errors
    /// When its rows are no whole blocks, or its size overflows.
    pub(crate) fn bytes_of(self, shape: &[usize]) -> Result<usize, Problem> {
        let row = shape.last().copied().unwrap_or(1);
        let block = self.block_numbers();
        if !row.is_multiple_of(block) {
            return damaged(format!("rows of {row} numbers are no whole blocks of {block} ({self:?})"));
        }
        shape
            .iter()
            .try_fold(1_usize, |product, &size| product.checked_mul(size))
            .and_then(|numbers| (numbers / block).checked_mul(self.block_bytes()))
            .map_or_else(|| damaged(format!("its size {shape:?} is beyond any memory")), Ok)
    }

    /// Appends the numbers of whole blocks.
    ///
    /// # Panics
    /// When `bytes` ends inside a block.
    pub(crate) fn decode(self, bytes: &[u8], to: &mut Vec<f32>) {
        if let Some(dtype) = self.plain() {
            return widen(dtype, bytes, to);
        }
        assert!(bytes.len().is_multiple_of(self.block_bytes()), "whole blocks");
        for block in bytes.chunks_exact(self.block_bytes()) {
            let start = to.len();
            to.resize(start + self.block_numbers(), 0.0);
            let to = &mut to[start..];
            match self {
                Self::Q4_0 => q4(half_at(block, 0), None, &block[2..], to),
                Self::Q4_1 => q4(half_at(block, 0), Some(half_at(block, 2)), &block[4..], to),
                Self::Q5_0 => q5(half_at(block, 0), None, &block[2..], to),
                Self::Q5_1 => q5(half_at(block, 0), Some(half_at(block, 2)), &block[4..], to),
                Self::Q8_0 => {
                    let scale = half_at(block, 0);
                    to.iter_mut().zip(&block[2..]).for_each(|(to, &level)| *to = f32::from(level as i8) * scale);
                }
                Self::Q2_K => k_quants::q2(block, to),
                Self::Q3_K => k_quants::q3(block, to),
                Self::Q4_K => k_quants::q4(block, to),
                Self::Q5_K => k_quants::q5(block, to),
                Self::Q6_K => k_quants::q6(block, to),
                Self::F32 | Self::F16 | Self::BF16 => unreachable!("read above"),
            }
        }
    }
}

/// The float16 at byte `at`.
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Four bits a number, low halves first; about a minimum, or about 8.
fn q4(scale: f32, minimum: Option<f32>, levels: &[u8], to: &mut [f32]) {
    for (index, &pair) in levels.iter().enumerate() {
        for (place, level) in [(index, pair & 15), (index + BLOCK / 2, pair >> 4)] {
            to[place] = scaled(scale, minimum, level, 8);
        }
    }
}

/// As four bits, with the fifth of all numbers in a word before them; about a minimum, or about 16.
fn q5(scale: f32, minimum: Option<f32>, bytes: &[u8], to: &mut [f32]) {
    let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (index, &pair) in bytes[4..].iter().enumerate() {
        for (place, low) in [(index, pair & 15), (index + BLOCK / 2, pair >> 4)] {
            let fifth = (high >> place & 1) as u8;
            to[place] = scaled(scale, minimum, low | fifth << 4, 16);
        }
    }
}

fn scaled(scale: f32, minimum: Option<f32>, level: u8, middle: u8) -> f32 {
    match minimum {
        Some(minimum) => f32::from(level) * scale + minimum,
        None => f32::from(level as i8 - middle as i8) * scale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums and ends of two blocks of a pattern, as ggml's own Python (gguf 0.19, `dequantize`) has
    /// them: the sum is over (place + 1) · bits, so every bit of every number counts.
    #[test]
    fn blocks_decode_to_the_bits_of_the_reference() {
        let cases: [(Encoding, &[usize], u64, f32, f32); 10] = [
            (Encoding::Q4_0, &[0], 0x0000_03cc_596e_4000, -0.206_176_76, 1.050_781_3),
            (Encoding::Q4_1, &[0, 2], 0x0000_04a6_0fa8_4c00, 0.859_741_2, -0.215_332_03),
            (Encoding::Q5_0, &[0], 0x0000_0442_dc06_5000, 0.618_530_3, -0.656_738_3),
            (Encoding::Q5_1, &[0, 2], 0x0000_04c2_5a43_6e00, 2.234_253, -2.842_285_2),
            (Encoding::Q8_0, &[0], 0x0000_0430_ee18_eb00, -6.254_028_3, -6.041_992),
            (Encoding::Q2_K, &[80, 82], 0x0001_7561_551a_e600, 0.239_868_16, -4.392_578),
            (Encoding::Q3_K, &[108], 0x0000_ece2_5150_f400, 3.917_358_4, 7.618_164),
            (Encoding::Q4_K, &[0, 2], 0x0001_6511_9d01_7900, 1.115_844_7, -22.320_313),
            (Encoding::Q5_K, &[0, 2], 0x0001_5814_79aa_8bb0, 61.594_36, -65.759_766),
            (Encoding::Q6_K, &[208], 0x0001_0072_7f32_31e0, -58.760_376, -7.355_468_8),
        ];
        for (encoding, scales, sum, first, last) in cases {
            let size = encoding.block_bytes();
            let mut bytes: Vec<u8> = (0..2 * size).map(|index| (index * 73 + 19) as u8).collect();
            for block in 0..2 {
                for (place, &at) in scales.iter().enumerate() {
                    let scale = f16::from_f64(0.0687 + 0.31 * place as f64 - 0.2 * block as f64);
                    bytes[block * size + at..block * size + at + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
            let mut values = Vec::new();
            encoding.decode(&bytes, &mut values);
            assert_eq!(values.len(), 2 * encoding.block_numbers());
            let ends = (values[0], values[values.len() - 1]);
            assert_eq!(ends, (first, last), "{encoding:?}");
            let found = values.iter().zip(1_u64..).fold(0_u64, |total, (value, place)| {
                total.wrapping_add(u64::from(value.to_bits()).wrapping_mul(place))
            });
            assert_eq!(found, sum, "{encoding:?}: {found:#018x}");
        }
    }

    #[test]
    fn plain_types_are_read_as_they_are() {
        let mut values = Vec::new();
        Encoding::BF16.decode(&[0xc0, 0x3f], &mut values);
        Encoding::F16.decode(&[0x00, 0xbe], &mut values);
        Encoding::F32.decode(&0.1_f32.to_le_bytes(), &mut values);
        assert_eq!(values, [1.5, -1.5, 0.1]);
        for id in [9, 15, 19, 24, 28, 34, 39, 255] {
            assert!(Encoding::of(id).unwrap_err().to_string().contains("supported: F32"), "{id}");
        }
    }
}
