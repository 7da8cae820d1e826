//! The gated feed-forward (SwiGLU; Shazeer, 2020).

use tch::Tensor;

use super::cpu;
use super::projection::{Named, Projection};

/// `down(silu(gate(x)) · up(x))`.
#[derive(Debug)]
pub(super) struct FeedForward {
    pub(super) gate_up: Projection,
    pub(super) down: Projection,
}

impl FeedForward {
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

    /// For inference: `residual + forward(x)`.
    pub(super) fn add_to(&self, residual: &Tensor, x: &Tensor) -> Tensor {
        let gate_up = self.gate_up.all(x);
        let width = gate_up.size()[1] / 2;
        let gated = if cpu::applies(gate_up.kind(), gate_up.device(), width as usize) {
            cpu::silu_mul(&gate_up)
        } else {
            gate_up.narrow(1, 0, width).silu() * gate_up.narrow(1, width, width)
        };
        self.down.add_to(residual, &gated)
    }
}
