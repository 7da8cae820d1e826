//! Weights from safetensors, single or sharded, by name.

use std::collections::{BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use safetensors::Dtype;
use serde::Deserialize;
use tch::Tensor;

use super::config::ModelConfig;
use super::error::Error;
use super::fit::fit;
use super::shard::{Info, PIECE, Shard, UniqueMap};
use super::{file, layout};

pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// An opened checkpoint, headers checked.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    shards: Vec<Arc<Shard>>,
    /// Which shard holds a tensor.
    places: HashMap<String, usize>,
    /// An index beside a single file is not read.
    unread_index: bool,
}

/// What a checkpoint holds beside the weights that are computed with.
#[derive(Debug)]
pub(crate) struct Beside {
    /// A copy of the tied output projection is stored.
    pub(super) tied_head: bool,
    /// Tensors that are written back as they are, by name.
    pub(super) carried: Vec<FileTensor>,
}

/// A tensor where it lies: in its file, which is held open.
#[derive(Clone, Debug)]
pub(crate) struct FileTensor {
    /// Its name.
    pub(crate) name: String,
    info: Info,
    shard: Arc<Shard>,
}

impl FileTensor {
    /// Its type.
    pub(crate) fn dtype(&self) -> Dtype {
        self.info.dtype
    }

    /// Its shape.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.info.shape
    }

    /// Its bytes, as many as it has.
    pub(crate) fn bytes(&self) -> usize {
        self.info.bytes
    }

    /// Reads it `length` bytes at a time.
    ///
    /// # Errors
    /// [`Error::Read`], and what `each` says.
    pub(crate) fn pieces<E: From<Error>>(
        &self,
        length: usize,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut buffer = vec![0; self.info.bytes.min(length)];
        for from in (0..self.info.bytes).step_by(length) {
            let piece = &mut buffer[..length.min(self.info.bytes - from)];
            self.shard.read(&self.info, from, piece)?;
            each(piece)?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap<String>,
}

impl Checkpoint {
    /// Opens `model.safetensors`, or the files that its index names.
    ///
    /// # Errors
    /// [`Error::NoWeights`]; [`Error::Read`] and [`Error::Damaged`] for a file; [`Error::Json`] and
    /// [`Error::Index`] for an index that names what is not there, leaves out what is, or leads out
    /// of the folder.
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
        if single.exists() {
            let shard = Shard::open(&single)?;
            let places = shard.names().map(|name| (name.clone(), 0)).collect();
            Ok(Self { shards: vec![Arc::new(shard)], places, unread_index: index.exists() })
        } else if index.exists() {
            Self::open_index(folder, index)
        } else {
            Err(Error::NoWeights { folder: folder.to_owned() })
        }
    }

    fn open_index(folder: &Path, path: PathBuf) -> Result<Self, Error> {
        let bytes = file::read_text(&path)?;
        let index: Index =
            serde_json::from_slice(&bytes).map_err(|source| Error::Json { path: path.clone(), source })?;
        let wrong = |problem: String| Error::Index { path: path.clone(), problem };
        let owners: HashMap<&str, &str> =
            index.weight_map.0.iter().map(|(name, file)| (name.as_str(), file.as_str())).collect();
        let (mut shards, mut places) = (Vec::new(), HashMap::new());
        for file in owners.values().copied().collect::<BTreeSet<_>>() {
            let place = inside(folder, file).map_err(|problem| wrong(format!("shard `{file}` {problem}")))?;
            let shard = Shard::open(&place)?;
            for name in shard.names() {
                match owners.get(name.as_str()) {
                    Some(&owner) if owner == file => drop(places.insert(name.clone(), shards.len())),
                    Some(owner) => return Err(wrong(format!("tensor `{name}` is in `{file}`, not only in `{owner}`"))),
                    None => return Err(wrong(format!("tensor `{name}` of `{file}` is not listed"))),
                }
            }
            shards.push(Arc::new(shard));
        }
        match index.weight_map.0.iter().find(|(name, _)| !places.contains_key(name)) {
            Some((name, file)) => Err(wrong(format!("tensor `{name}` is not in `{file}`"))),
            None => Ok(Self { shards, places, unread_index: false }),
        }
    }

    /// Files of weights.
    pub(crate) fn files(&self) -> usize {
        self.shards.len()
    }

    /// Every tensor, in the order of files, then of places.
    pub(crate) fn tensors(&self) -> Vec<FileTensor> {
        let tensors = |shard: &Arc<Shard>| {
            let tensor = |(name, info): (&String, &Info)| FileTensor {
                name: name.clone(),
                info: info.clone(),
                shard: shard.clone(),
            };
            shard.in_order().into_iter().map(tensor).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(tensors).collect()
    }

    /// What is odd about it, but stops nobody.
    pub(crate) fn note(&self) -> Option<String> {
        self.unread_index.then(|| format!("`{INDEX}` stands beside `{SINGLE}` and is not read"))
    }

    /// Compares names, types and shapes with the architecture's; and a stored copy of a tied output
    /// projection, to the bit, with the embedding.
    ///
    /// # Errors
    /// As [`fit`]; [`Error::TiedHeadDiffers`].
    pub(crate) fn check(&self, config: &ModelConfig) -> Result<Beside, Error> {
        let mut found = HashMap::with_capacity(self.places.len());
        for name in self.places.keys() {
            let (_, info) = self.find(name)?;
            found.insert(name.as_str(), (info.dtype, info.shape.as_slice()));
        }
        let fit = fit(config, &found)?;
        if fit.tied_head && !self.same(layout::HEAD, &layout::embedding(config))? {
            return Err(Error::TiedHeadDiffers { name: layout::HEAD.to_owned() });
        }
        let carried = fit.carried.into_iter().map(|name| {
            let (shard, info) = self.find(name)?;
            Ok(FileTensor { name: name.to_owned(), info: info.clone(), shard: Arc::clone(shard) })
        });
        Ok(Beside { tied_head: fit.tied_head, carried: carried.collect::<Result<_, Error>>()? })
    }

    /// Copies one tensor to where it stays, on its device and in its type.
    pub(super) fn fill(&self, name: &str, tensor: &Tensor) -> Result<(), Error> {
        let (shard, info) = self.find(name)?;
        shard.fill(name, info, tensor)
    }

    fn find(&self, name: &str) -> Result<(&Arc<Shard>, &Info), Error> {
        let shard = self.places.get(name).map(|&place| &self.shards[place]);
        let found = shard.and_then(|shard| Some((shard, shard.info(name)?)));
        found.ok_or_else(|| Error::Missing { names: vec![name.to_owned()] })
    }

    /// Whether two tensors are equal to the bit.
    fn same(&self, one: &str, other: &str) -> Result<bool, Error> {
        let ((shard, info), (other_shard, other_info)) = (self.find(one)?, self.find(other)?);
        if info.dtype != other_info.dtype || info.shape != other_info.shape {
            return Ok(false);
        }
        let mut pieces = [vec![0; info.bytes.min(PIECE)], vec![0; info.bytes.min(PIECE)]];
        for from in (0..info.bytes).step_by(PIECE) {
            let count = PIECE.min(info.bytes - from);
            let [mine, theirs] = &mut pieces;
            shard.read(info, from, &mut mine[..count])?;
            other_shard.read(other_info, from, &mut theirs[..count])?;
            if mine[..count] != theirs[..count] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The place of a shard that an index names: a file of the folder itself. A link may lead to
/// another file of the folder, or from a hub's `snapshots/REVISION` to the `blobs` beside it.
fn inside(folder: &Path, file: &str) -> Result<PathBuf, String> {
    let mut components = Path::new(file).components();
    let plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    if !plain || file.contains(['/', '\\']) {
        return Err("must be a file of the same folder".to_owned());
    }
    let place = folder.join(file);
    if !place.is_symlink() {
        return Ok(place);
    }
    // A link to nothing is told when it is opened.
    let (Ok(target), Ok(folder)) = (place.canonicalize(), folder.canonicalize()) else { return Ok(place) };
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots")).and_then(Path::parent);
    let blobs = snapshots.map(|repository| repository.join("blobs"));
    let holder = target.parent();
    if holder == Some(folder.as_path()) || (blobs.is_some() && holder == blobs.as_deref()) {
        Ok(place)
    } else {
        Err(format!("is a link to `{}`, outside the folder; put the file itself there", target.display()))
    }
}
