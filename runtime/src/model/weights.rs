//! Weights handed out by name while a decoder is put together.

use tch::Tensor;

use super::config::ModelConfig;
use super::layout;
use super::norm::Norm;
use super::projection::{Named, Projection};

/// Gives a tensor by its checkpoint name.
pub(super) type Source<'a, E> = &'a mut dyn FnMut(&str) -> Result<Tensor, E>;

/// The weights of one layer, under its part of the names.
pub(super) struct Weights<'a, E> {
    pub(super) config: &'a ModelConfig,
    prefix: String,
    source: Source<'a, E>,
}

impl<'a, E> Weights<'a, E> {
    pub(super) fn of_layer(config: &'a ModelConfig, index: usize, source: Source<'a, E>) -> Self {
        Self { config, prefix: layout::layer(config, index), source }
    }

    /// `PREFIX.part`.
    pub(super) fn named(&mut self, part: &str) -> Result<Named, E> {
        let name = format!("{}.{part}", self.prefix);
        (self.source)(&name).map(|tensor| (name, tensor))
    }

    /// A norm in the family's way.
    pub(super) fn norm(&mut self, part: &str) -> Result<Norm, E> {
        let (eps, offset) = (self.config.rms_norm_eps, self.config.norm_offset);
        Ok(Norm::new(self.named(&format!("{part}.weight"))?, eps, offset))
    }

    /// Linear maps of one input, side by side.
    pub(super) fn projection(&mut self, parts: &[&str], bias: bool) -> Result<Projection, E> {
        let mut all = |kind: &str, parts: &[&str]| -> Result<Vec<Named>, E> {
            parts.iter().map(|part| self.named(&format!("{part}.{kind}"))).collect()
        };
        let weights = all("weight", parts)?;
        Ok(Projection::new(weights, all("bias", if bias { parts } else { &[] })?))
    }
}
