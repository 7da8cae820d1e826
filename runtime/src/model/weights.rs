//! Weights made by name while a decoder is put together, each where it stays.

use std::collections::HashMap;

use tch::{Kind, Tensor};

use super::LoadOptions;
use super::config::ModelConfig;
use super::layout::{self, Wanted};
use super::norm::Norm;
use super::projection::{Named, Projection};

/// Gives a tensor its values.
pub(super) type Fill<'a, E> = &'a mut dyn FnMut(&Wanted, &Tensor) -> Result<(), E>;

/// The weights whose names begin alike: all, or those of one layer.
pub(super) struct Weights<'a, E> {
    pub(super) config: &'a ModelConfig,
    options: LoadOptions,
    wanted: &'a HashMap<String, Wanted>,
    prefix: String,
    fill: Fill<'a, E>,
}

impl<'a, E> Weights<'a, E> {
    /// All that `layout` lists, by name.
    pub(super) fn new(
        config: &'a ModelConfig,
        options: LoadOptions,
        wanted: &'a HashMap<String, Wanted>,
        fill: Fill<'a, E>,
    ) -> Self {
        Self { config, options, wanted, prefix: String::new(), fill }
    }

    /// Those of one layer.
    pub(super) fn layer(&mut self, index: usize) -> Weights<'_, E> {
        let prefix = format!("{}.", layout::layer(self.config, index));
        Weights { config: self.config, options: self.options, wanted: self.wanted, prefix, fill: &mut *self.fill }
    }

    fn wanted(&self, part: &str) -> &'a Wanted {
        let name = format!("{}{part}", self.prefix);
        self.wanted.get(&name).expect("the decoder asks for what the layout lists")
    }

    fn empty(&self, shape: &[i64], float32: bool) -> Tensor {
        let kind = if float32 { Kind::Float } else { self.options.dtype };
        Tensor::empty(shape, (kind, self.options.device))
    }

    /// One tensor.
    pub(super) fn named(&mut self, part: &str) -> Result<Named, E> {
        let wanted = self.wanted(part);
        let tensor = self.empty(&wanted.shape, wanted.float32);
        (self.fill)(wanted, &tensor)?;
        Ok((wanted.name.clone(), tensor))
    }

    /// A norm in the family's way.
    pub(super) fn norm(&mut self, part: &str) -> Result<Norm, E> {
        let (eps, offset) = (self.config.rms_norm_eps, self.config.norm_offset);
        Ok(Norm::new(self.named(&format!("{part}.weight"))?, eps, offset))
    }

    /// Linear maps of one input, side by side.
    pub(super) fn projection(&mut self, parts: &[&str], bias: bool) -> Result<Projection, E> {
        let weights = self.side_by_side(parts, "weight")?;
        let biases = if bias { Some(self.side_by_side(parts, "bias")?) } else { None };
        Ok(Projection::new(weights, biases))
    }

    /// Tensors that are rows of one, which is made first: no part is held twice.
    fn side_by_side(&mut self, parts: &[&str], kind: &str) -> Result<(Tensor, Vec<Named>), E> {
        let wanted: Vec<_> = parts.iter().map(|part| self.wanted(&format!("{part}.{kind}"))).collect();
        let mut shape = wanted[0].shape.clone();
        shape[0] = wanted.iter().map(|wanted| wanted.shape[0]).sum();
        let whole = self.empty(&shape, false);
        let mut start = 0;
        let mut named = Vec::with_capacity(parts.len());
        for wanted in wanted {
            let part = whole.narrow(0, start, wanted.shape[0]).detach();
            (self.fill)(wanted, &part)?;
            start += wanted.shape[0];
            named.push((wanted.name.clone(), part));
        }
        Ok((whole, named))
    }
}
