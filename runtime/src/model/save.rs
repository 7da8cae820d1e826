//! Weights to safetensors, in files that appear whole or not at all.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use safetensors::tensor::{Dtype, View};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::error::Error;
use super::load::{INDEX, SINGLE};

/// Bytes of a shard, at most (a larger tensor is one by itself).
pub(super) const SHARD_BYTES: usize = 5_000_000_000;

/// A tensor whose bytes are copied only while they are written.
struct Stored {
    tensor: Tensor,
    shape: Vec<usize>,
}

impl Stored {
    fn new(tensor: &Tensor) -> Self {
        let shape = tensor.size().iter().map(|&size| size as usize).collect();
        Self { tensor: tensor.shallow_clone(), shape }
    }
}

fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

impl View for Stored {
    fn dtype(&self) -> Dtype {
        match self.tensor.kind() {
            Kind::Half => Dtype::F16,
            Kind::BFloat16 => Dtype::BF16,
            _ => Dtype::F32,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let tensor = self.tensor.to_device(Device::Cpu).contiguous();
        let mut bytes = vec![0; self.data_len()];
        tensor.copy_data_u8(&mut bytes, tensor.numel());
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        bytes_of(&self.tensor)
    }
}

/// Writes `tensors` in shards of at most `shard_bytes`.
pub(super) fn save(tensors: &[(String, Tensor)], folder: &Path, shard_bytes: usize) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.to_owned(), source })?;
    let mut shards: Vec<Vec<&(String, Tensor)>> = vec![Vec::new()];
    let mut filled = 0;
    for named in tensors {
        let bytes = bytes_of(&named.1);
        if filled > 0 && filled + bytes > shard_bytes {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        shards.last_mut().expect("there is always a last shard").push(named);
    }
    if let [only] = shards.as_slice() {
        return write_shard(only, &folder.join(SINGLE));
    }
    let count = shards.len();
    let mut weight_map = BTreeMap::new();
    for (index, shard) in shards.iter().enumerate() {
        let file = format!("model-{:05}-of-{count:05}.safetensors", index + 1);
        write_shard(shard, &folder.join(&file))?;
        weight_map.extend(shard.iter().map(|(name, _)| (name.clone(), file.clone())));
    }
    let total: usize = tensors.iter().map(|(_, tensor)| bytes_of(tensor)).sum();
    let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
    let text = serde_json::to_vec_pretty(&index).expect("names and numbers are JSON");
    whole_file(&folder.join(INDEX), |path| std::fs::write(path, &text))
}

fn write_shard(shard: &[&(String, Tensor)], path: &Path) -> Result<(), Error> {
    let views = || shard.iter().map(|(name, tensor)| (name.as_str(), Stored::new(tensor)));
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    whole_file(path, |temporary| {
        safetensors::serialize_to_file(views(), Some(metadata.clone()), temporary).map_err(std::io::Error::other)
    })
}

/// Writes beside `path`, flushes to disk, then renames.
fn whole_file(path: &Path, write: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let attempt = || -> std::io::Result<()> {
        let readable = std::fs::Permissions::from_mode(0o644);
        let temporary = tempfile::Builder::new().prefix(".weights-").permissions(readable).tempfile_in(folder)?;
        write(temporary.path())?;
        temporary.as_file().sync_all()?;
        temporary.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    attempt().map_err(|source| Error::Write { path: path.to_owned(), source })
}
