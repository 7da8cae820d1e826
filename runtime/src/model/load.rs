//! Weights from safetensors, single or sharded, by name.

use std::collections::{BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use tch::Tensor;

use super::config::ModelConfig;
use super::error::Error;
use super::shard::{Info, PIECE, Shard, UniqueMap, stored_kind};
use super::{file, layout};

pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// Missing names are looked for up to this many: a config may ask for any number.
const MISSING_LISTED: usize = 1000;

/// An opened checkpoint, headers checked.
#[derive(Debug)]
pub(super) struct Checkpoint {
    shards: Vec<Arc<Shard>>,
    /// Which shard holds a tensor.
    places: HashMap<String, usize>,
}

/// What a checkpoint holds beside the weights that are computed with.
#[derive(Debug)]
pub(super) struct Beside {
    /// A copy of the tied output projection is stored.
    pub(super) tied_head: bool,
    /// Tensors that are written back as they are, by name.
    pub(super) carried: Vec<Carried>,
}

/// A tensor of a checkpoint that is not computed. It stays in its file, which is held open.
#[derive(Clone, Debug)]
pub(super) struct Carried {
    pub(super) name: String,
    pub(super) info: Info,
    shard: Arc<Shard>,
}

impl Carried {
    pub(super) fn bytes(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; self.info.bytes];
        self.shard.read(&self.info, 0, &mut bytes)?;
        Ok(bytes)
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap<String>,
}

impl Checkpoint {
    pub(super) fn open(folder: &Path) -> Result<Self, Error> {
        let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
        if single.exists() {
            let shard = Shard::open(&single)?;
            let places = shard.names().map(|name| (name.clone(), 0)).collect();
            Ok(Self { shards: vec![Arc::new(shard)], places })
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
            None => Ok(Self { shards, places }),
        }
    }

    /// Compares names and shapes with the architecture's.
    pub(super) fn check(&self, config: &ModelConfig) -> Result<Beside, Error> {
        let mut missing = Vec::new();
        let mut expected = HashMap::new();
        for wanted in layout::tensors(config) {
            if self.places.contains_key(&wanted.name) {
                expected.insert(wanted.name, wanted.shape);
            } else if missing.len() < MISSING_LISTED {
                missing.push(wanted.name);
            } else {
                break;
            }
        }
        if !missing.is_empty() {
            missing.sort();
            return Err(Error::Missing { names: missing });
        }
        let tied_head = config.tie_word_embeddings && self.places.contains_key(layout::HEAD);
        let (mut surplus, mut carried) = (Vec::new(), Vec::new());
        for name in self.places.keys().filter(|name| !expected.contains_key(*name)) {
            let (shard, info) = self.find(name)?;
            if config.architecture.carried().iter().any(|beginning| name.starts_with(beginning)) {
                carried.push(Carried { name: name.clone(), info: info.clone(), shard: Arc::clone(shard) });
            } else if !(layout::is_ignored(name) || (tied_head && name == layout::HEAD)) {
                surplus.push(name.clone());
            }
        }
        if !surplus.is_empty() {
            surplus.sort();
            return Err(Error::Surplus { names: surplus });
        }
        for (name, shape) in expected {
            let (_, info) = self.find(&name)?;
            stored_kind(&name, info.dtype)?;
            let found: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
            if found != shape {
                return Err(Error::Shape { name, found, expected: shape });
            }
        }
        if tied_head && !self.same(layout::HEAD, &layout::embedding(config))? {
            return Err(Error::TiedHeadDiffers { name: layout::HEAD.to_owned() });
        }
        carried.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Beside { tied_head, carried })
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
