//! Files, tensors and types.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::convert::gguf::Gguf;
use crate::convert::plan::Planned;
use crate::model::{self, Checkpoint, ModelConfig};

/// What the files of weights hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Weights {
    /// Numbers of all tensors.
    pub(super) parameters: u64,
    /// Tensors.
    pub(super) tensors: usize,
    /// Files.
    pub(super) files: usize,
    /// Bytes of all tensors.
    pub(super) bytes: u64,
    /// Numbers of each type.
    pub(super) dtypes: BTreeMap<String, u64>,
}

impl Weights {
    fn add(&mut self, dtype: String, numbers: u64, bytes: u64) {
        self.parameters += numbers;
        self.tensors += 1;
        self.bytes += bytes;
        *self.dtypes.entry(dtype).or_default() += numbers;
    }
}

/// Of a folder of safetensors.
pub(super) fn of_folder(checkpoint: &Checkpoint) -> Weights {
    let mut weights = Weights { files: checkpoint.files(), ..Weights::default() };
    for tensor in checkpoint.tensors() {
        let numbers = tensor.shape().iter().map(|&size| size as u64).product();
        weights.add(format!("{:?}", tensor.dtype()), numbers, tensor.bytes() as u64);
    }
    weights
}

/// Of a GGUF file.
pub(super) fn of_gguf(file: &Gguf<'_>, bytes: u64) -> Weights {
    let mut weights = Weights { files: 1, ..Weights::default() };
    for tensor in file.tensors.values() {
        let numbers = tensor.shape.iter().map(|&size| size as u64).product();
        weights.add(format!("{:?}", tensor.encoding), numbers, tensor.bytes.len() as u64);
    }
    weights.bytes = weights.bytes.min(bytes);
    weights
}

/// Of tensors as a conversion would write them, from so many files.
pub(super) fn of_planned(tensors: &[Planned<'_>], files: usize) -> Weights {
    let mut weights = Weights { files, ..Weights::default() };
    for tensor in tensors {
        let bytes = tensor.numbers() * tensor.dtype.bitsize() as u64 / 8;
        weights.add(format!("{:?}", tensor.dtype), tensor.numbers(), bytes);
    }
    weights
}

/// Whether tensors that a conversion would write are those of the architecture.
pub(super) fn check(tensors: &[Planned<'_>], config: &ModelConfig) -> Result<(), model::Error> {
    let found = tensors.iter().map(|tensor| (tensor.name.as_str(), (tensor.dtype, tensor.shape.as_slice())));
    model::fit(config, &found.collect()).map(drop)
}
