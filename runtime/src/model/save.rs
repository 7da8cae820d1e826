//! Weights to safetensors, in files that appear whole or not at all.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use safetensors::tensor::{Dtype, View};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::error::Error;
use super::load::{Carried, INDEX, SINGLE};

/// Bytes of a shard, at most (a larger tensor is one by itself).
pub(super) const SHARD_BYTES: usize = 5_000_000_000;

/// A tensor to write; its bytes are held only meanwhile.
#[derive(Debug)]
pub(super) enum Stored {
    /// A weight of the model.
    Weight(String, Tensor),
    /// As it lies in the checkpoint the model came from.
    Carried(Carried),
}

impl Stored {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Weight(name, _) => name,
            Self::Carried(carried) => &carried.name,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Weight(_, tensor) => tensor.numel() * tensor.kind().elt_size_in_bytes(),
            Self::Carried(carried) => carried.info.bytes,
        }
    }
}

/// What the format's writer asks of a tensor. It cannot be told of a failure: that is kept here.
struct Written<'a> {
    stored: &'a Stored,
    shape: Vec<usize>,
    failure: &'a RefCell<Option<Error>>,
}

impl<'a> Written<'a> {
    fn new(stored: &'a Stored, failure: &'a RefCell<Option<Error>>) -> Self {
        let shape = match stored {
            Stored::Weight(_, tensor) => tensor.size().iter().map(|&size| size as usize).collect(),
            Stored::Carried(carried) => carried.info.shape.clone(),
        };
        Self { stored, shape, failure }
    }
}

impl View for Written<'_> {
    fn dtype(&self) -> Dtype {
        match self.stored {
            Stored::Carried(carried) => carried.info.dtype,
            Stored::Weight(_, tensor) => match tensor.kind() {
                Kind::Half => Dtype::F16,
                Kind::BFloat16 => Dtype::BF16,
                _ => Dtype::F32,
            },
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.stored {
            Stored::Weight(_, tensor) => {
                let tensor = tensor.to_device(Device::Cpu).contiguous();
                let mut bytes = vec![0; self.data_len()];
                tensor.copy_data_u8(&mut bytes, tensor.numel());
                Cow::Owned(bytes)
            }
            Stored::Carried(carried) => Cow::Owned(carried.bytes().unwrap_or_else(|error| {
                self.failure.borrow_mut().get_or_insert(error);
                vec![0; self.data_len()]
            })),
        }
    }

    fn data_len(&self) -> usize {
        self.stored.bytes()
    }
}

/// Writes `tensors` in shards of at most `shard_bytes`.
pub(super) fn save(tensors: &[Stored], folder: &Path, shard_bytes: usize) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.to_owned(), source })?;
    let mut shards: Vec<Vec<&Stored>> = vec![Vec::new()];
    let mut filled = 0;
    for stored in tensors {
        let bytes = stored.bytes();
        if filled > 0 && filled + bytes > shard_bytes {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        shards.last_mut().expect("there is always a last shard").push(stored);
    }
    if let [only] = shards.as_slice() {
        return write_shard(only, &folder.join(SINGLE));
    }
    let count = shards.len();
    let mut weight_map = BTreeMap::new();
    for (index, shard) in shards.iter().enumerate() {
        let file = format!("model-{:05}-of-{count:05}.safetensors", index + 1);
        write_shard(shard, &folder.join(&file))?;
        weight_map.extend(shard.iter().map(|stored| (stored.name().to_owned(), file.clone())));
    }
    let total: usize = tensors.iter().map(Stored::bytes).sum();
    let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
    let text = serde_json::to_vec_pretty(&index).expect("names and numbers are JSON");
    whole_file(&folder.join(INDEX), |path| std::fs::write(path, &text))
}

fn write_shard(shard: &[&Stored], path: &Path) -> Result<(), Error> {
    let failure = RefCell::new(None);
    let views = shard.iter().map(|stored| (stored.name(), Written::new(stored, &failure)));
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let written = whole_file(path, |temporary| {
        safetensors::serialize_to_file(views, Some(metadata), temporary).map_err(std::io::Error::other)?;
        let failed = failure.borrow().is_some();
        if failed { Err(std::io::Error::other("a tensor to copy could not be read")) } else { Ok(()) }
    });
    failure.into_inner().map_or(written, Err)
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
