//! The second half of a layer: what happens to each token by itself.

use tch::Tensor;

use super::config::FeedForwardKind;
use super::cpu;
use super::experts::Experts;
use super::projection::{Named, Projection};
use super::weights::Weights;

/// The feed-forward of one layer.
#[derive(Debug)]
pub(super) enum FeedForward {
    Dense(Dense),
    Experts(Experts),
}

impl FeedForward {
    pub(super) fn new<E>(kind: FeedForwardKind, weights: &mut Weights<'_, E>) -> Result<Self, E> {
        Ok(match kind {
            FeedForwardKind::Dense => Self::Dense(Dense::new("mlp", weights.config.mlp_bias, weights)?),
            FeedForwardKind::Experts => Self::Experts(Experts::new(weights)?),
        })
    }

    pub(super) fn share(&self) -> Self {
        match self {
            Self::Dense(dense) => Self::Dense(dense.share()),
            Self::Experts(experts) => Self::Experts(experts.share()),
        }
    }

    pub(super) fn collect(&self, into: &mut Vec<Named>) {
        match self {
            Self::Dense(dense) => dense.collect(into),
            Self::Experts(experts) => experts.collect(into),
        }
    }

    /// Differentiable. # Shapes: `[n, H]` → `[n, H]`.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        match self {
            Self::Dense(dense) => dense.forward(x),
            Self::Experts(experts) => experts.mix(x, Dense::forward),
        }
    }

    /// For inference: `residual + forward(x)`.
    pub(super) fn add_to(&self, residual: &Tensor, x: &Tensor) -> Tensor {
        match self {
            Self::Dense(dense) => dense.down.add_to(residual, &dense.gated(x)),
            Self::Experts(experts) => residual + experts.mix(x, Dense::infer),
        }
    }
}

/// The gated feed-forward (SwiGLU; Shazeer, 2020): `down(silu(gate(x)) · up(x))`.
#[derive(Debug)]
pub(super) struct Dense {
    gate_up: Projection,
    down: Projection,
}

impl Dense {
    /// The weights `part.gate_proj`, `part.up_proj` and `part.down_proj`.
    pub(super) fn new<E>(part: &str, bias: bool, weights: &mut Weights<'_, E>) -> Result<Self, E> {
        let name = |kind: &str| format!("{part}.{kind}");
        Ok(Self {
            gate_up: weights.projection(&[&name("gate_proj"), &name("up_proj")], bias)?,
            down: weights.projection(&[&name("down_proj")], bias)?,
        })
    }

    pub(super) fn share(&self) -> Self {
        Self { gate_up: self.gate_up.share(), down: self.down.share() }
    }

    pub(super) fn collect(&self, into: &mut Vec<Named>) {
        self.gate_up.collect(into);
        self.down.collect(into);
    }

    /// Differentiable. # Shapes: `[n, H]` → `[n, H]`.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        self.down.part(0, &(self.gate_up.part(0, x).silu() * self.gate_up.part(1, x)))
    }

    /// As [`Dense::forward`], for inference.
    pub(super) fn infer(&self, x: &Tensor) -> Tensor {
        self.down.all(&self.gated(x))
    }

    fn gated(&self, x: &Tensor) -> Tensor {
        let gate_up = self.gate_up.all(x);
        let width = gate_up.size()[1] / 2;
        if cpu::applies(gate_up.kind(), gate_up.device(), width as usize) {
            cpu::silu_mul(&gate_up)
        } else {
            gate_up.narrow(1, 0, width).silu() * gate_up.narrow(1, width, width)
        }
    }
}
