//! The gated delta net of Qwen3.5: linear attention with a state of fixed size.
//!
//! Queries, keys and values of a token pass a short causal convolution, then the delta rule, then a
//! norm and a gate.

use tch::{Kind, Tensor};

use super::config::DeltaNetConfig;
use super::delta_rule::{self, Inputs};
use super::packing::Packing;
use super::projection::{Named, Projection};
use super::recurrent::{Copies, Recurrent};
use super::weights::Weights;

/// ε of the lengths that queries and keys are divided by.
const LENGTH_EPS: f64 = 1e-6;

/// The delta net of one layer.
#[derive(Debug)]
pub(super) struct DeltaNet {
    /// Queries, keys and values together; gates; β; what is forgotten.
    input: Projection,
    pub(super) output: Projection,
    /// `[channels, 1, kernel]`.
    convolution: Named,
    forget_bias: Named,
    /// ln of how fast each head forgets, float32.
    forget_log: Named,
    /// Scale of the norm of each head's output, float32.
    norm: Named,
    sizes: DeltaNetConfig,
    eps: f64,
}

/// The projections of some tokens.
struct Projected {
    qkv: Tensor,
    gate: Tensor,
    beta: Tensor,
    forget: Tensor,
}

impl DeltaNet {
    pub(super) fn new<E>(weights: &mut Weights<'_, E>) -> Result<Self, E> {
        let parts =
            ["linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b", "linear_attn.in_proj_a"];
        Ok(Self {
            input: weights.projection(&parts, false)?,
            output: weights.projection(&["linear_attn.out_proj"], false)?,
            convolution: weights.named("linear_attn.conv1d.weight")?,
            forget_bias: weights.named("linear_attn.dt_bias")?,
            forget_log: weights.named("linear_attn.A_log")?,
            norm: weights.named("linear_attn.norm.weight")?,
            sizes: weights.config.delta_net.expect("a layer that has one has its sizes"),
            eps: weights.config.rms_norm_eps,
        })
    }

    fn own(&self) -> [&Named; 4] {
        [&self.convolution, &self.forget_bias, &self.forget_log, &self.norm]
    }

    pub(super) fn share(&self) -> Self {
        let [convolution, forget_bias, forget_log, norm] =
            self.own().map(|(name, tensor)| (name.clone(), tensor.detach()));
        Self {
            input: self.input.share(),
            output: self.output.share(),
            convolution,
            forget_bias,
            forget_log,
            norm,
            sizes: self.sizes,
            eps: self.eps,
        }
    }

    pub(super) fn collect(&self, into: &mut Vec<Named>) {
        self.input.collect(into);
        self.output.collect(into);
        into.extend(self.own().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())));
    }

    /// Differentiable; the output projection is left to the caller.
    ///
    /// # Shapes
    /// `x [U, H]` → `[U, value heads · value dim]`.
    pub(super) fn mix(&self, x: &Tensor, packing: &Packing) -> Tensor {
        let part = |index| self.input.part(index, x);
        let projected = Projected { qkv: part(0), gate: part(1), beta: part(2), forget: part(3) };
        self.packed(&projected, packing, None)
    }

    /// As [`DeltaNet::mix`], for inference; keeps each sequence's end where `cache` says.
    pub(super) fn prefill(&self, x: &Tensor, packing: &Packing, cache: Option<(&mut Recurrent, &Copies)>) -> Tensor {
        self.packed(&self.project(x), packing, cache)
    }

    /// For inference: one token a sequence, from what the cache holds of the first slots.
    ///
    /// # Shapes
    /// `x [B, H]` → `[B, value heads · value dim]`.
    pub(super) fn decode(&self, x: &Tensor, cache: &mut Recurrent) -> Tensor {
        let projected = self.project(x);
        let (mut inputs, states) = cache.first(x.size()[0]);
        let seen = Tensor::cat(&[&inputs, &projected.qkv.unsqueeze(1)], 1);
        inputs.copy_(&seen.narrow(1, 1, inputs.size()[1]));
        let kernel = self.convolution.1.squeeze_dim(1).tr().to_kind(Kind::Float);
        let mixed = (seen.to_kind(Kind::Float) * kernel).sum_dim_intlist([1_i64].as_slice(), false, None).silu();
        let out = delta_rule::recurrent(&self.rule(&mixed, &projected), &states);
        self.gated(&out, &projected.gate)
    }

    fn project(&self, x: &Tensor) -> Projected {
        let heads = self.sizes.value_heads as i64;
        let sizes = [self.sizes.channels() as i64, self.sizes.value_dim() as i64, heads, heads];
        let mut parts = self.input.all(x).split_with_sizes(sizes, 1).into_iter();
        let mut next = || parts.next().expect("as many parts as sizes");
        Projected { qkv: next(), gate: next(), beta: next(), forget: next() }
    }

    fn packed(&self, projected: &Projected, packing: &Packing, cache: Option<(&mut Recurrent, &Copies)>) -> Tensor {
        let mixed = self.convolve(&projected.qkv, packing);
        let rule = self.rule(&mixed, projected);
        let (out, states) = delta_rule::chunked(&rule, packing.chunks(), cache.is_some());
        if let (Some((cache, copies)), Some(states)) = (cache, states) {
            let endings = packing.endings(self.sizes.kernel - 1);
            let last = after_nothing(&projected.qkv).index_select(0, &endings.flatten(0, -1));
            cache.write(&last.unflatten(0, [-1, self.sizes.kernel as i64 - 1]), &states, copies);
        }
        self.gated(&out, &projected.gate)
    }

    /// Each channel's sum over the last tokens of its sequence, then SiLU, in float32.
    ///
    /// # Shapes
    /// `[U, channels]` → `[U, channels]`.
    fn convolve(&self, qkv: &Tensor, packing: &Packing) -> Tensor {
        let qkv = qkv.to_kind(Kind::Float);
        let weight = self.convolution.1.squeeze_dim(1).to_kind(Kind::Float);
        let furthest = self.sizes.kernel - 1;
        let padded = after_nothing(&qkv);
        let mut sum = &qkv * weight.select(1, furthest as i64);
        for (index, rows) in packing.earlier(furthest).iter().enumerate() {
            sum = sum.addcmul(&padded.index_select(0, rows), &weight.select(1, (furthest - 1 - index) as i64));
        }
        sum.silu()
    }

    /// # Shapes
    /// `mixed [n, channels]`, float32.
    fn rule(&self, mixed: &Tensor, projected: &Projected) -> Inputs {
        let sizes = &self.sizes;
        let (key_dim, value_dim) = (sizes.key_dim() as i64, sizes.value_dim() as i64);
        let heads = |from, width, dimension: usize| mixed.narrow(1, from, width).unflatten(1, [-1, dimension as i64]);
        let unit = |x: Tensor| {
            let squares = x.square().sum_dim_intlist([-1_i64].as_slice(), true, None);
            x * (squares + LENGTH_EPS).rsqrt()
        };
        let float = |x: &Tensor| x.to_kind(Kind::Float);
        let step = (float(&projected.forget) + float(&self.forget_bias.1)).softplus();
        Inputs {
            q: unit(heads(0, key_dim, sizes.key_head_dim)) * (sizes.key_head_dim as f64).powf(-0.5),
            k: unit(heads(key_dim, key_dim, sizes.key_head_dim)),
            v: heads(2 * key_dim, value_dim, sizes.value_head_dim),
            forget: -float(&self.forget_log.1).exp() * step,
            beta: float(&projected.beta).sigmoid(),
        }
    }

    /// Normalised by head, then gated. # Shapes: `out [n, value heads, value dim]`, float32, `gate
    /// [n, value heads · value dim]` → as `gate`.
    fn gated(&self, out: &Tensor, gate: &Tensor) -> Tensor {
        let scale = self.norm.1.to_kind(Kind::Float);
        let normal = out.rms_norm(scale.size(), Some(&scale), self.eps).flatten(1, 2);
        (normal * gate.to_kind(Kind::Float).silu()).to_kind(gate.kind())
    }
}

/// A row of zeros before the rows, for tokens with nothing before them.
fn after_nothing(x: &Tensor) -> Tensor {
    Tensor::cat(&[x.new_zeros([1, x.size()[1]], (x.kind(), x.device())), x.shallow_clone()], 0)
}
