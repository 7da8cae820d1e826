//! Files, tensors and types.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::convert::Error;
use crate::convert::actor;
use crate::convert::folder::Folder;
use crate::convert::gguf::Gguf;

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

/// Of a folder of safetensors, with what is odd about it.
pub(super) fn of_folder(path: &Path) -> Result<(Weights, Vec<String>), Error> {
    let folder = Folder::open(path)?;
    let mut weights = Weights { files: folder.files(), ..Weights::default() };
    for tensor in folder.plan(None) {
        weights.add(format!("{:?}", tensor.dtype), tensor.numbers(), tensor.bytes());
    }
    let notes = folder.notes.clone();
    Ok((weights, notes))
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

/// Of the shards of an actor.
pub(super) fn of_actor(layout: &actor::Layout) -> Result<Weights, Error> {
    let mapped = actor::Mapped::open(layout)?;
    let merged = mapped.merge()?;
    let mut weights = Weights { files: layout.shards.len(), ..Weights::default() };
    for tensor in merged.plan(None, &[], false).map_err(|problem| problem.of(&layout.shards[0]))? {
        weights.add(format!("{:?}", tensor.dtype), tensor.numbers(), tensor.bytes());
    }
    Ok(weights)
}
