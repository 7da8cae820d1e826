//! Fresh weights, the same for a seed on every machine and thread count.

use tch::{Device, Kind, Tensor};

use super::layout::{Fresh, Wanted};
use training_gym_core::splitmix::{GAMMA, mixed};

/// The fastest rate a fresh delta net forgets at (as transformers' `A_log`).
const FASTEST: f64 = 16.0;

/// One fresh tensor, float32 on the CPU.
pub(super) fn tensor(wanted: &Wanted, deviation: f64, normals: &mut Normals) -> Tensor {
    let options = (Kind::Float, Device::Cpu);
    match wanted.fresh {
        Fresh::Normal => normals.tensor(&wanted.shape, deviation),
        Fresh::Ones => Tensor::ones(wanted.shape.as_slice(), options),
        Fresh::Zeros => Tensor::zeros(wanted.shape.as_slice(), options),
        Fresh::Decay => {
            let count = wanted.shape[0];
            let rate = |index: i64| (FASTEST * (index + 1) as f64 / count as f64).ln() as f32;
            Tensor::from_slice(&(0..count).map(rate).collect::<Vec<_>>())
        }
    }
}

/// A stream of N(0, 1) numbers: SplitMix64 (Steele et al., 2014) and Box–Muller.
#[derive(Debug)]
pub(super) struct Normals {
    state: u64,
}

impl Normals {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        mixed(self.state)
    }

    /// In (0, 1].
    fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A float32 tensor of N(0, deviation²).
    pub(super) fn tensor(&mut self, shape: &[i64], deviation: f64) -> Tensor {
        let count = shape.iter().product::<i64>() as usize;
        let mut values = Vec::with_capacity(count + 1);
        while values.len() < count {
            let radius = deviation * (-2.0 * self.uniform().ln()).sqrt();
            let (sin, cos) = (std::f64::consts::TAU * self.uniform()).sin_cos();
            values.extend([(radius * cos) as f32, (radius * sin) as f32]);
        }
        Tensor::from_slice(&values[..count]).view(shape).to_kind(Kind::Float)
    }
}
