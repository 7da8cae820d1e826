//! Weights from safetensors, single or sharded, by name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Component, Path, PathBuf};

use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;
use tch::{Kind, Tensor};

use super::config::ModelConfig;
use super::error::Error;
use super::{LoadOptions, layout};

pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// An opened checkpoint: files mapped, headers checked.
#[derive(Debug)]
pub(super) struct Checkpoint {
    shards: Vec<Shard>,
    /// Which shard holds a tensor.
    places: HashMap<String, usize>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    bytes: Mmap,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    pub(super) fn open(folder: &Path) -> Result<Self, Error> {
        let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
        if single.exists() {
            let shard = Shard::open(single)?;
            let places = shard.parse()?.names().into_iter().map(|name| (name.to_owned(), 0)).collect();
            Ok(Self { shards: vec![shard], places })
        } else if index.exists() {
            Self::open_index(folder, index)
        } else {
            Err(Error::NoWeights { folder: folder.to_owned() })
        }
    }

    fn open_index(folder: &Path, path: PathBuf) -> Result<Self, Error> {
        let bytes = std::fs::read(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        let index: Index =
            serde_json::from_slice(&bytes).map_err(|source| Error::Json { path: path.clone(), source })?;
        let wrong = |problem: String| Error::Index { path: path.clone(), problem };
        let (mut shards, mut places) = (Vec::new(), HashMap::new());
        for file in index.weight_map.values().collect::<BTreeSet<_>>() {
            let mut components = Path::new(file).components();
            let plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
            if !plain || file.contains(['/', '\\']) {
                return Err(wrong(format!("shard `{file}` must be a file of the same folder")));
            }
            let shard = Shard::open(folder.join(file))?;
            for name in shard.parse()?.names() {
                match index.weight_map.get(name) {
                    Some(owner) if owner == file => drop(places.insert(name.to_owned(), shards.len())),
                    Some(owner) => return Err(wrong(format!("tensor `{name}` is in `{file}`, not only in `{owner}`"))),
                    None => return Err(wrong(format!("tensor `{name}` of `{file}` is not listed"))),
                }
            }
            shards.push(shard);
        }
        match index.weight_map.iter().find(|(name, _)| !places.contains_key(*name)) {
            Some((name, file)) => Err(wrong(format!("tensor `{name}` is not in `{file}`"))),
            None => Ok(Self { shards, places }),
        }
    }

    /// Compares names and shapes with the architecture's; true where the file holds a copy of a
    /// tied output projection.
    pub(super) fn check(&self, config: &ModelConfig) -> Result<bool, Error> {
        let expected: BTreeMap<_, _> = layout::tensors(config).into_iter().collect();
        let missing: Vec<_> = expected.keys().filter(|name| !self.places.contains_key(*name)).cloned().collect();
        if !missing.is_empty() {
            return Err(Error::Missing { names: missing });
        }
        let stores_tied_head = config.tie_word_embeddings && self.places.contains_key(layout::HEAD);
        let known = |name: &str| {
            expected.contains_key(name) || layout::is_ignored(name) || (stores_tied_head && name == layout::HEAD)
        };
        let mut surplus: Vec<_> = self.places.keys().filter(|name| !known(name)).cloned().collect();
        if !surplus.is_empty() {
            surplus.sort();
            return Err(Error::Surplus { names: surplus });
        }
        for (name, shape) in expected {
            self.with(&name, |view| {
                let found: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
                stored_kind(&name, view.dtype())?;
                if found == shape { Ok(()) } else { Err(Error::Shape { name: name.clone(), found, expected: shape }) }
            })?;
        }
        if stores_tied_head {
            let same = self.with(layout::HEAD, |head| {
                let same = |view: TensorView<'_>| {
                    Ok(view.dtype() == head.dtype() && view.shape() == head.shape() && view.data() == head.data())
                };
                self.with(layout::EMBEDDING, same)
            })?;
            if !same {
                return Err(Error::TiedHeadDiffers { name: layout::HEAD.to_owned() });
            }
        }
        Ok(stores_tied_head)
    }

    /// A copy of one tensor on the device and in the type asked for.
    pub(super) fn tensor(&self, name: &str, options: LoadOptions) -> Result<Tensor, Error> {
        self.with(name, |view| {
            let shape: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
            let kind = stored_kind(name, view.dtype())?;
            Ok(Tensor::from_data_size(view.data(), &shape, kind).to_device(options.device).to_kind(options.dtype))
        })
    }

    fn with<T>(&self, name: &str, read: impl FnOnce(TensorView<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let place = self.places.get(name).ok_or_else(|| Error::Missing { names: vec![name.to_owned()] })?;
        let shard = &self.shards[*place];
        let view = shard.parse()?.tensor(name).map_err(|source| shard.damaged(source))?;
        read(view)
    }
}

impl Shard {
    fn open(path: PathBuf) -> Result<Self, Error> {
        let failed = |source| Error::Read { path: path.clone(), source };
        let file = File::open(&path).map_err(failed)?;
        #[expect(unsafe_code, reason = "a mapping avoids a second copy of the weights")]
        // SAFETY: the mapping is read-only and dropped once the model is built. A file that is
        // truncated meanwhile would fault; published checkpoints are never rewritten.
        let bytes = unsafe { Mmap::map(&file) }.map_err(failed)?;
        Ok(Self { path, bytes })
    }

    fn parse(&self) -> Result<SafeTensors<'_>, Error> {
        SafeTensors::deserialize(&self.bytes).map_err(|source| self.damaged(source))
    }

    fn damaged(&self, source: safetensors::SafeTensorError) -> Error {
        Error::Damaged { path: self.path.clone(), source }
    }
}

fn stored_kind(name: &str, dtype: Dtype) -> Result<Kind, Error> {
    match dtype {
        Dtype::F32 => Ok(Kind::Float),
        Dtype::F16 => Ok(Kind::Half),
        Dtype::BF16 => Ok(Kind::BFloat16),
        other => Err(Error::StoredType { name: name.to_owned(), found: format!("{other:?}") }),
    }
}
