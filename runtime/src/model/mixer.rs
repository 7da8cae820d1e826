//! The first half of a layer: how a token sees those before it.

use tch::Tensor;

use super::attention::Attention;
use super::cache::{Kept, LayerCache};
use super::config::MixerKind;
use super::delta_net::DeltaNet;
use super::key_values::DecodeRows;
use super::packing::Packing;
use super::projection::{Named, Projection};
use super::rotary::Angles;
use super::weights::Weights;

/// The mixer of one layer. Its output projection is applied by the caller, who may want some rows
/// only.
#[derive(Debug)]
pub(super) enum Mixer {
    Attention(Attention),
    DeltaNet(DeltaNet),
}

impl Mixer {
    pub(super) fn new<E>(kind: MixerKind, weights: &mut Weights<'_, E>) -> Result<Self, E> {
        Ok(match kind {
            MixerKind::Attention => Self::Attention(Attention::new(weights)?),
            MixerKind::DeltaNet => Self::DeltaNet(DeltaNet::new(weights)?),
        })
    }

    pub(super) fn share(&self) -> Self {
        match self {
            Self::Attention(attention) => Self::Attention(attention.share()),
            Self::DeltaNet(net) => Self::DeltaNet(net.share()),
        }
    }

    pub(super) fn collect(&self, into: &mut Vec<Named>) {
        match self {
            Self::Attention(attention) => attention.collect(into),
            Self::DeltaNet(net) => net.collect(into),
        }
    }

    pub(super) fn output(&self) -> &Projection {
        match self {
            Self::Attention(attention) => &attention.output,
            Self::DeltaNet(net) => &net.output,
        }
    }

    /// Differentiable. # Shapes: `x [U, H]` → `[U, width of the output projection]`.
    pub(super) fn mix(&self, x: &Tensor, angles: &Angles, packing: &Packing) -> Tensor {
        match self {
            Self::Attention(attention) => attention.mix(x, angles, packing),
            Self::DeltaNet(net) => net.mix(x, packing),
        }
    }

    /// As [`Mixer::mix`], for inference; keeps in `cache` what the next tokens need.
    pub(super) fn prefill(
        &self,
        x: &Tensor,
        angles: &Angles,
        packing: &Packing,
        cache: Option<(&mut LayerCache, &Kept)>,
    ) -> Tensor {
        match (self, cache) {
            (Self::Attention(attention), None) => attention.prefill(x, angles, packing, None),
            (Self::Attention(attention), Some((LayerCache::Attention(cache), kept))) => {
                attention.prefill(x, angles, packing, Some((cache, &kept.rows)))
            }
            (Self::DeltaNet(net), None) => net.prefill(x, packing, None),
            (Self::DeltaNet(net), Some((LayerCache::DeltaNet(cache), kept))) => {
                net.prefill(x, packing, Some((cache, &kept.copies)))
            }
            _ => unreachable!("a cache has the layers of its model"),
        }
    }

    /// For inference: one token a sequence. # Shapes: `x [B, H]` → as [`Mixer::mix`].
    pub(super) fn decode(&self, x: &Tensor, angles: &Angles, cache: &mut LayerCache, rows: &DecodeRows) -> Tensor {
        match (self, cache) {
            (Self::Attention(attention), LayerCache::Attention(cache)) => attention.decode(x, angles, cache, rows),
            (Self::DeltaNet(net), LayerCache::DeltaNet(cache)) => net.decode(x, cache),
            _ => unreachable!("a cache has the layers of its model"),
        }
    }
}
