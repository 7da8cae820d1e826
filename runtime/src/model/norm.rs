//! Root-mean-square norms (Zhang and Sennrich, 2019).

use tch::{Kind, Tensor};

use super::cpu;
use super::projection::Named;

/// A norm's scale.
#[derive(Debug)]
pub(super) struct Norm {
    weight: Named,
    eps: f64,
    /// Scales by `1 + w`, all in float32, instead of by `w`.
    offset: bool,
}

impl Norm {
    pub(super) fn new(weight: Named, eps: f64, offset: bool) -> Self {
        Self { weight, eps, offset }
    }

    pub(super) fn share(&self) -> Self {
        Self { weight: (self.weight.0.clone(), self.weight.1.detach()), ..*self }
    }

    /// Over the last dimension; differentiable.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        let size = self.weight.1.size();
        if !self.offset {
            return x.rms_norm(size, Some(&self.weight.1), self.eps);
        }
        x.to_kind(Kind::Float).rms_norm(size, Some(&self.scale()), self.eps).to_kind(x.kind())
    }

    /// As [`Norm::forward`], for inference. # Shapes: `[n, H]` → `[n, H]`.
    pub(super) fn infer(&self, x: &Tensor) -> Tensor {
        if cpu::applies(x.kind(), x.device(), self.weight.1.numel()) {
            return cpu::rms_norm(x, &self.scale(), self.eps);
        }
        self.forward(x)
    }

    /// What it multiplies by.
    pub(super) fn scale(&self) -> Tensor {
        match self.offset {
            true => self.weight.1.to_kind(Kind::Float) + 1.0,
            false => self.weight.1.shallow_clone(),
        }
    }

    pub(super) fn eps(&self) -> f64 {
        self.eps
    }

    pub(super) fn collect(&self, into: &mut Vec<Named>) {
        into.push((self.weight.0.clone(), self.weight.1.shallow_clone()));
    }
}
