//! A model's weights to safetensors, with the tensors that only travel along.

use std::path::Path;

use safetensors::Dtype;
use tch::{Device, Kind, Tensor};

use super::error::Error;
use super::load::FileTensor;
use super::write::{Put, Writable, write};

/// Bytes of a shard, at most (a larger tensor is one by itself).
pub(super) const SHARD_BYTES: usize = 5_000_000_000;
/// Numbers brought from their device at once.
const PIECE: usize = 1 << 20;

/// A tensor to write; its bytes are held only meanwhile.
#[derive(Debug)]
pub(super) enum Stored {
    /// A weight of the model.
    Weight(String, Tensor),
    /// As it lies in the checkpoint the model came from.
    Carried(FileTensor),
}

impl Writable for Stored {
    type Error = Error;

    fn name(&self) -> &str {
        match self {
            Self::Weight(name, _) => name,
            Self::Carried(carried) => &carried.name,
        }
    }

    fn dtype(&self) -> Dtype {
        match self {
            Self::Carried(carried) => carried.dtype(),
            Self::Weight(_, tensor) => match tensor.kind() {
                Kind::Half => Dtype::F16,
                Kind::BFloat16 => Dtype::BF16,
                _ => Dtype::F32,
            },
        }
    }

    fn shape(&self) -> Vec<usize> {
        match self {
            Self::Weight(_, tensor) => tensor.size().iter().map(|&size| size as usize).collect(),
            Self::Carried(carried) => carried.shape().to_vec(),
        }
    }

    fn emit(&self, put: &mut Put<'_>) -> Result<(), Error> {
        match self {
            Self::Carried(carried) => carried.pieces(PIECE, put),
            Self::Weight(_, tensor) => {
                let flat = tensor.contiguous().view([-1]);
                let mut bytes = Vec::new();
                for first in (0..flat.numel()).step_by(PIECE) {
                    let count = PIECE.min(flat.numel() - first);
                    let piece = flat.narrow(0, first as i64, count as i64).to_device(Device::Cpu);
                    bytes.resize(count * piece.kind().elt_size_in_bytes(), 0);
                    piece.copy_data_u8(&mut bytes, count);
                    put(&bytes)?;
                }
                Ok(())
            }
        }
    }
}

/// Writes `tensors` in shards of at most `shard_bytes`.
pub(super) fn save(tensors: &[Stored], folder: &Path, shard_bytes: usize) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.to_owned(), source })?;
    write(tensors, folder, shard_bytes as u64, &mut |_| {}).map(drop)
}
