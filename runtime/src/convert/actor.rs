//! A sharded actor checkpoint as the field's trainers write it: one PyTorch file a rank, merged by the
//! placements recorded in them.
//!
//! ```text
//! global_step_N/actor/model_world_size_W_rank_R.pt      R of 0..W
//!                     huggingface/                      config, tokenizer, template
//! ```

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use memmap2::Mmap;
use safetensors::Dtype;
use serde_json::Value;

use super::bytes::map;
use super::error::{Error, Problem, damaged, reading, unsupported};
use super::number;
use super::pickle::archive::Archive;
use super::pickle::machine;
use super::pickle::tensor::{self, Part, Placement};
use super::plan::{self, Failure, Planned, Sink};
use crate::model::Architecture;
use crate::settings::Number;

const MOST_RANKS: usize = 1 << 12;
/// Below the folder of the shards.
const COMPANIONS: &str = "huggingface";
const HEAD: &str = "lm_head.weight";
/// The embedding of families that are not computed here.
const EMBEDDING: &str = "model.embed_tokens.weight";

/// The files of a checkpoint.
#[derive(Debug)]
pub(crate) struct Layout {
    /// By rank.
    pub(crate) shards: Vec<PathBuf>,
    /// With config and tokenizer.
    pub(crate) companions: PathBuf,
}

impl Layout {
    /// Finds the shards in `folder` or its `actor/`; `None` where it has none.
    ///
    /// # Errors
    /// When shards are missing, or of several world sizes.
    pub(crate) fn find(folder: &Path) -> Result<Option<Self>, Error> {
        for place in [folder.to_owned(), folder.join("actor")] {
            if place.is_dir()
                && let Some(shards) = shards(&place)?
            {
                let companions = place.join(COMPANIONS);
                let companions = if companions.is_dir() { companions } else { place };
                return Ok(Some(Self { shards, companions }));
            }
        }
        Ok(None)
    }
}

/// World size and rank in the name of a shard.
fn world_and_rank(name: &str) -> Option<(usize, usize)> {
    let (world, rank) = name.strip_prefix("model_world_size_")?.strip_suffix(".pt")?.split_once("_rank_")?;
    Some((world.parse().ok()?, rank.parse().ok()?))
}

fn shards(folder: &Path) -> Result<Option<Vec<PathBuf>>, Error> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(reading(folder))? {
        let path = entry.map_err(reading(folder))?.path();
        if let Some(at) = path.file_name().and_then(|name| name.to_str()).and_then(world_and_rank) {
            found.insert(at, path);
        }
    }
    let Some((&(world, _), _)) = found.first_key_value() else { return Ok(None) };
    let refuse = |problem: String| Err(Error::Unsupported { path: folder.to_owned(), problem });
    if let Some((other, _)) = found.keys().find(|(other, _)| *other != world) {
        return refuse(format!("it holds shards of world sizes {world} and {other}; move those of one away"));
    }
    if world == 0 || world > MOST_RANKS {
        return refuse(format!("a world size of {world}; 1 to {MOST_RANKS} are possible"));
    }
    if let Some(missing) = (0..world).find(|&rank| !found.contains_key(&(world, rank))) {
        return refuse(format!("`model_world_size_{world}_rank_{missing}.pt` is missing"));
    }
    if found.len() > world {
        return refuse(format!("it holds {} shards of a world of {world}", found.len()));
    }
    Ok(Some(found.into_values().collect()))
}

/// The shards, mapped.
#[derive(Debug)]
pub(crate) struct Mapped {
    files: Vec<(PathBuf, Mmap)>,
}

impl Mapped {
    /// Maps every shard.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Damaged`].
    pub(crate) fn open(layout: &Layout) -> Result<Self, Error> {
        let mapped = layout.shards.iter().map(|path| Ok((path.clone(), map(path)?)));
        Ok(Self { files: mapped.collect::<Result<_, Error>>()? })
    }

    /// Reads every shard's pickle.
    ///
    /// # Errors
    /// For a shard that is damaged, mentions what rebuilds no tensor, or holds other tensors than
    /// the first.
    pub(crate) fn merge(&self) -> Result<Merged<'_>, Error> {
        let mut order = Vec::new();
        let mut parts: HashMap<&str, Vec<Part<'_>>> = HashMap::new();
        for (rank, (path, bytes)) in self.files.iter().enumerate() {
            let entries = read(bytes).map_err(|problem| problem.of(path))?;
            let refuse = |problem: String| Error::Damaged { path: path.clone(), problem };
            for (name, part) in entries {
                if rank == 0 {
                    order.push(name);
                }
                let known = parts.entry(name).or_default();
                if known.len() != rank {
                    return Err(refuse(format!("`{name}` is there twice, or not on every rank")));
                }
                known.push(part);
            }
        }
        let world = self.files.len();
        let incomplete = order.iter().find(|name| parts[*name].len() != world);
        if let Some(name) = incomplete {
            let path = self.files.last().map(|file| file.0.clone()).unwrap_or_default();
            return Err(Error::Damaged { path, problem: format!("`{name}` is not on every rank") });
        }
        Ok(Merged { order, parts })
    }
}

fn read(bytes: &[u8]) -> Result<Vec<(&str, Part<'_>)>, Problem> {
    let archive = Archive::read(bytes)?;
    let pickle = archive.pickle()?;
    tensor::state_dict(&machine::read(pickle.bytes)?, &archive, pickle.root)
}

/// Parts of every tensor, by rank.
#[derive(Debug)]
pub(crate) struct Merged<'a> {
    /// Names as the first rank has them.
    order: Vec<&'a str>,
    parts: HashMap<&'a str, Vec<Part<'a>>>,
}

impl<'a> Merged<'a> {
    /// Every tensor as the folder of a model with this `config.json` has it: what a module's state
    /// dict names beside the embedding it is tied to is left out, and the experts that transformers 5
    /// fuses in memory come one by one.
    ///
    /// # Errors
    /// As [`Merged::plan`]; for a tied projection that holds other numbers than the embedding.
    pub(crate) fn folder(&self, config: &Value, number: Option<Number>) -> Result<Vec<Planned<'_>>, Problem> {
        let architecture = Architecture::of(config);
        let tied = |config: &Value| config.get("tie_word_embeddings").and_then(Value::as_bool);
        let tied = tied(config).or_else(|| config.get("text_config").and_then(tied)).unwrap_or(false);
        let embedding = architecture.map_or_else(|| EMBEDDING.to_owned(), Architecture::embedding);
        let mut without = Vec::new();
        if tied {
            match self.same(HEAD, &embedding) {
                Some(true) => without.push(HEAD),
                Some(false) => {
                    return damaged(format!(
                        "config.json ties `{HEAD}` to the embedding `{embedding}`, yet it holds other numbers"
                    ));
                }
                None => {}
            }
        }
        self.plan(number, &without, architecture == Some(Architecture::Qwen3Moe))
    }

    /// Whether `first` and `second` hold the same numbers, rank by rank.
    fn same(&self, first: &str, second: &str) -> Option<bool> {
        let (first, second) = (self.parts.get(first)?, self.parts.get(second)?);
        let same = |(a, b): (&Part<'_>, &Part<'_>)| {
            a.of == b.of && a.local.dtype == b.local.dtype && a.local.row_major() == b.local.row_major()
        };
        Some(first.iter().zip(second).all(same))
    }

    /// Every tensor whole, in its own type or the one asked for, those of `without` left out; experts
    /// that one tensor holds one by one where `split_experts`.
    ///
    /// # Errors
    /// For placements that do not make a whole, and for an adapter's tensors.
    fn plan(&self, number: Option<Number>, without: &[&str], split_experts: bool) -> Result<Vec<Planned<'_>>, Problem> {
        let mut planned = Vec::new();
        for &name in self.order.iter().filter(|name| !without.contains(*name)) {
            if name.contains(".lora_A.") || name.contains(".lora_B.") {
                return unsupported(format!("`{name}` is part of a LoRA adapter; merge it into the model first"));
            }
            let within = |problem: Problem| problem.within(name);
            let whole = self.whole(name).map_err(within)?;
            let fused = name.rsplit_once('.').filter(|(stem, _)| split_experts && stem.ends_with(".mlp.experts"));
            let parts: &[&str] = match fused {
                Some((_, "gate_up_proj")) => &["gate_proj", "up_proj"],
                Some((_, "down_proj")) => &["down_proj"],
                _ => {
                    planned.push(whole.planned(name, number));
                    continue;
                }
            };
            let stem = fused.map_or("", |(stem, _)| stem);
            planned.extend(whole.experts(stem, parts, number).map_err(within)?);
        }
        Ok(planned)
    }

    fn whole(&self, name: &str) -> Result<Whole<'_, 'a>, Problem> {
        let parts = &self.parts[name];
        let first = &parts[0];
        let shape = first.of.as_ref().map_or_else(|| first.local.shape.clone(), |of| of.shape.clone());
        let mut boxes: BTreeMap<Vec<usize>, (Slab, Vec<usize>)> = BTreeMap::new();
        for (rank, part) in parts.iter().enumerate() {
            if part.local.dtype != first.local.dtype {
                return damaged(format!("{:?} on one rank, {:?} on another", first.local.dtype, part.local.dtype));
            }
            let slab = Slab::of(part, rank)?;
            let comparable =
                |part: &Part<'_>| part.of.as_ref().map(|of| (of.shape.clone(), of.mesh.clone(), of.placements.clone()));
            let alike = comparable(part) == comparable(first);
            if !alike || slab.size != part.local.shape || (part.of.is_none() && part.local.shape != shape) {
                return damaged(format!(
                    "rank {rank} holds {:?}, its placement asks for {:?} of {shape:?}",
                    part.local.shape, slab.size
                ));
            }
            // Ranks without any number say nothing about the whole.
            if part.local.numbers() > 0 || parts.len() == 1 {
                boxes.entry(slab.start.clone()).or_insert_with(|| (slab, Vec::new())).1.push(rank);
            }
        }
        let whole = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
        let covered: usize = boxes.values().map(|(slab, _)| slab.size.iter().product::<usize>()).sum();
        if whole != Some(covered) {
            return damaged(format!("the ranks hold {covered} numbers of shape {shape:?}"));
        }
        Ok(Whole { parts, boxes: boxes.into_values().collect(), shape, from: first.local.dtype })
    }
}

/// A tensor as the ranks hold it: every part once, with the ranks that have a copy.
#[derive(Debug)]
struct Whole<'s, 'a> {
    parts: &'s [Part<'a>],
    boxes: Vec<(Slab, Vec<usize>)>,
    shape: Vec<usize>,
    from: Dtype,
}

impl<'s> Whole<'s, '_> {
    fn planned(self, name: &str, number: Option<Number>) -> Planned<'s> {
        let (shape, dtype) = (self.shape.clone(), plan::target(self.from, number));
        let range = 0..shape.iter().product();
        Planned { name: name.to_owned(), shape, dtype, content: Box::new(move |sink| self.emit(&range, sink)) }
    }

    /// The experts of a module that holds them as one tensor, each under its own name, as the
    /// family's folders have them. `parts` of an expert follow each other in its rows.
    fn experts(self, stem: &str, parts: &[&str], number: Option<Number>) -> Result<Vec<Planned<'s>>, Problem> {
        let &[count, rows, columns] = self.shape.as_slice() else {
            return damaged(format!("shape {:?}: fused experts have three dimensions", self.shape));
        };
        if !rows.is_multiple_of(parts.len()) {
            return damaged(format!("shape {:?}: {rows} rows are not {} equal parts", self.shape, parts.len()));
        }
        if !self.along_rows() {
            return unsupported("fused experts that are sharded along another dimension than the first");
        }
        let (whole, shape) = (Rc::new(self), vec![rows / parts.len(), columns]);
        let numbers = shape[0] * columns;
        let dtype = plan::target(whole.from, number);
        let one = |index: usize| {
            let (whole, range) = (Rc::clone(&whole), index * numbers..(index + 1) * numbers);
            let name = format!("{stem}.{}.{}.weight", index / parts.len(), parts[index % parts.len()]);
            let content: plan::Content<'s> = Box::new(move |sink| whole.emit(&range, sink));
            Planned { name, shape: shape.clone(), dtype, content }
        };
        Ok((0..count * parts.len()).map(one).collect())
    }

    /// Whether the parts one after the other are the whole.
    fn along_rows(&self) -> bool {
        self.boxes.len() == 1 || self.boxes.iter().all(|(slab, _)| slab.size[1..] == self.shape[1..])
    }

    /// Hands over the numbers of `range`; all of them where the parts do not follow each other.
    fn emit(&self, range: &Range<usize>, sink: &mut Sink<'_>) -> Result<(), Failure> {
        let size = number::size_of(self.from).expect("storages hold whole bytes");
        let along_rows = self.along_rows();
        let mut whole = Vec::new();
        if !along_rows {
            whole.resize(self.shape.iter().product::<usize>() * size, 0);
        }
        let mut first = 0;
        for (slab, ranks) in &self.boxes {
            let numbers = slab.size.iter().product::<usize>();
            let here =
                range.start.clamp(first, first + numbers) - first..range.end.clamp(first, first + numbers) - first;
            first += numbers;
            if along_rows && here.is_empty() {
                continue;
            }
            let bytes = self.parts[ranks[0]].local.row_major();
            if let Some(other) = ranks[1..].iter().find(|rank| self.parts[**rank].local.row_major() != bytes) {
                damaged(format!("ranks {} and {other} hold different copies", ranks[0]))?;
            }
            if along_rows {
                plan::stored(&bytes[here.start * size..here.end * size], self.from)(sink)?;
            } else {
                slab.place(&bytes, &mut whole, (&self.shape, size));
            }
        }
        if along_rows { Ok(()) } else { plan::stored(&whole, self.from)(sink) }
    }
}

/// A rank's part of a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slab {
    start: Vec<usize>,
    size: Vec<usize>,
}

impl Slab {
    fn of(part: &Part<'_>, rank: usize) -> Result<Self, Problem> {
        let Some(of) = &part.of else {
            return Ok(Self { start: vec![0; part.local.shape.len()], size: part.local.shape.clone() });
        };
        let Some(mut place) = of.ranks.iter().position(|&found| found == rank) else {
            return damaged(format!("rank {rank} is not in the tensor's mesh {:?}", of.ranks));
        };
        let mut slab = Self { start: vec![0; of.shape.len()], size: of.shape.clone() };
        for (&count, placement) in of.mesh.iter().zip(&of.placements).rev() {
            let coordinate = place % count;
            place /= count;
            if let Placement::Shard(dimension) = *placement {
                // As torch.chunk: equal parts rounded up, the last shorter, those beyond empty.
                let whole = of.shape[dimension];
                let chunk = whole.div_ceil(count);
                slab.start[dimension] = chunk.saturating_mul(coordinate).min(whole);
                slab.size[dimension] = chunk.min(whole - slab.start[dimension]);
            }
        }
        Ok(slab)
    }

    /// Copies the part's numbers to their place in the whole of `shape`, `size` bytes each.
    fn place(&self, bytes: &[u8], whole: &mut [u8], (shape, size): (&[usize], usize)) {
        let last = shape.len() - 1;
        let run = self.size[last] * size;
        let mut strides = vec![size; shape.len()];
        for dimension in (0..last).rev() {
            strides[dimension] = strides[dimension + 1] * shape[dimension + 1];
        }
        for (index, bytes) in bytes.chunks_exact(run).enumerate() {
            let mut row = index;
            let mut at = self.start[last] * size;
            for dimension in (0..last).rev() {
                at += (self.start[dimension] + row % self.size[dimension]) * strides[dimension];
                row /= self.size[dimension];
            }
            whole[at..at + run].copy_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_shards() {
        assert_eq!(world_and_rank("model_world_size_8_rank_3.pt"), Some((8, 3)));
        assert_eq!(world_and_rank("optim_world_size_8_rank_3.pt"), None);
        assert_eq!(world_and_rank("model_world_size_8_rank_x.pt"), None);
    }

    #[test]
    fn missing_and_mixed_shards_are_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Layout::find(folder.path()).unwrap().is_none());
        let actor = folder.path().join("actor");
        std::fs::create_dir(&actor).unwrap();
        std::fs::write(actor.join("model_world_size_2_rank_1.pt"), "x").unwrap();
        let error = Layout::find(folder.path()).unwrap_err().to_string();
        assert!(error.contains("rank_0.pt` is missing"), "{error}");
        std::fs::write(actor.join("model_world_size_1_rank_0.pt"), "x").unwrap();
        let error = Layout::find(folder.path()).unwrap_err().to_string();
        assert!(error.contains("world sizes 1 and 2"), "{error}");
    }
}
