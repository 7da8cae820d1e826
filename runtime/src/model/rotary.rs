//! Rotary position embedding in its split-halves form (Su et al., "RoFormer", 2021, as `rotate_half`
//! in the Llama family).

use std::cell::RefCell;
use std::f64::consts::TAU;

use tch::{Device, Kind, Tensor};

use super::config::{ModelConfig, RopeScaling};

/// cos and sin of some positions, ready to be applied: each `[n, 1, R]`, for the first `R` of a
/// head's `D` dimensions.
#[derive(Debug)]
pub(super) struct Angles {
    rows: Tensor,
    cos: Tensor,
    /// The first half is negated: `rotate_half(x)·sin = roll(x, R/2)·signed_sin`.
    signed_sin: Tensor,
}

impl Angles {
    /// Rotates heads. # Shapes: `x [n, A, D]` → `[n, A, D]`.
    pub(super) fn rotate(&self, x: &Tensor) -> Tensor {
        let (rotated, dimension) = (self.cos.size()[2], x.size()[2]);
        if rotated == dimension {
            return self.turn(x);
        }
        let kept = x.narrow(2, rotated, dimension - rotated);
        Tensor::cat(&[self.turn(&x.narrow(2, 0, rotated)), kept], 2)
    }

    fn turn(&self, x: &Tensor) -> Tensor {
        (x * &self.cos).addcmul(&x.roll([self.half()], [-1]), &self.signed_sin)
    }

    /// As [`Angles::rotate`], written to `out`, which may be `x` itself.
    pub(super) fn rotate_to(&self, x: &Tensor, out: &Tensor) {
        let (rotated, dimension) = (self.cos.size()[2], x.size()[2]);
        let first = x.narrow(2, 0, rotated);
        let turned = out.narrow(2, 0, rotated);
        let _ = (&first * &self.cos).addcmul_out(&turned, &first.roll([self.half()], [-1]), &self.signed_sin);
        if rotated < dimension && x.data_ptr() != out.data_ptr() {
            let kept = |heads: &Tensor| heads.narrow(2, rotated, dimension - rotated);
            kept(out).copy_(&kept(x));
        }
    }

    /// `[n, 2, 1, R]`: cos, then sin with its first half negated.
    pub(super) fn rows(&self) -> &Tensor {
        &self.rows
    }

    fn half(&self) -> i64 {
        self.cos.size()[2] / 2
    }
}

/// Angles by position, computed once and as far as they were asked for.
#[derive(Debug)]
pub(super) struct Rotary {
    inverse_frequencies: Vec<f32>,
    /// `[positions, 2, 1, R]`: cos, signed sin.
    table: RefCell<Tensor>,
}

impl Rotary {
    pub(super) fn new(config: &ModelConfig, device: Device, dtype: Kind) -> Self {
        let dimension = config.rotary_dim;
        let inverse_frequencies = (0..dimension / 2)
            .map(|i| scaled(config.rope_theta.powf(-2.0 * i as f64 / dimension as f64), &config.rope_scaling) as f32)
            .collect();
        let table = RefCell::new(Tensor::empty([0, 2, 1, dimension as i64], (dtype, device)));
        Self { inverse_frequencies, table }
    }

    pub(super) fn share(&self) -> Self {
        let table = RefCell::new(self.table.borrow().shallow_clone());
        Self { inverse_frequencies: self.inverse_frequencies.clone(), table }
    }

    /// Angles of positions `[n]` (int64), all below `limit`.
    pub(super) fn angles(&self, positions: &Tensor, limit: usize) -> Angles {
        let known = self.table.borrow().size()[0] as usize;
        if known < limit {
            self.grow(limit.max(2 * known).max(64));
        }
        let rows = self.table.borrow().index_select(0, positions);
        Angles { cos: rows.select(1, 0), signed_sin: rows.select(1, 1), rows }
    }

    /// The product of position and frequency is rounded to float32, as the reference does.
    fn grow(&self, positions: usize) {
        let half = self.inverse_frequencies.len();
        let mut values = Vec::with_capacity(positions * half * 4);
        for position in 0..positions {
            let angles = self.inverse_frequencies.iter().map(|frequency| f64::from(position as f32 * frequency));
            let (sin, cos): (Vec<f32>, Vec<f32>) = angles.map(|a| (a.sin() as f32, a.cos() as f32)).unzip();
            values.extend_from_slice(&cos);
            values.extend_from_slice(&cos);
            values.extend(sin.iter().map(|value| -value));
            values.extend_from_slice(&sin);
        }
        let mut table = self.table.borrow_mut();
        let (kind, device) = (table.kind(), table.device());
        *table =
            Tensor::from_slice(&values).view([positions as i64, 2, 1, 2 * half as i64]).to_device(device).to_kind(kind);
    }
}

/// Llama 3.1's stretching of one inverse frequency (transformers `_compute_llama3_parameters`).
fn scaled(frequency: f64, scaling: &RopeScaling) -> f64 {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } = *scaling
    else {
        return frequency;
    };
    let turns = original_max_position_embeddings * frequency / TAU;
    if turns > high_freq_factor {
        frequency
    } else if turns < low_freq_factor {
        frequency / factor
    } else {
        let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
        (1.0 - kept) * frequency / factor + kept * frequency
    }
}
