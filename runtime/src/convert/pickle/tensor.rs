//! What a pickle's values say: tensors over storages, and the placements of distributed ones.

use safetensors::Dtype;

use super::archive::Archive;
use super::globals::Global;
use super::machine::{Id, Node, Values};
use crate::convert::error::{Problem, damaged, unsupported};
use crate::convert::number;

/// Wrappers around a tensor (a parameter, a subclass), at most.
const DEEPEST: usize = 8;
const MOST_DIMENSIONS: usize = 8;
/// Ranks of a mesh, at most.
const MOST_RANKS: usize = 1 << 16;

/// Numbers of a storage, seen with a shape and strides.
#[derive(Clone, Debug)]
pub(crate) struct Dense<'a> {
    /// Its type.
    pub(crate) dtype: Dtype,
    /// Its shape.
    pub(crate) shape: Vec<usize>,
    strides: Vec<usize>,
    /// From its first number to the storage's end.
    bytes: &'a [u8],
}

/// Where a rank's part belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Split along this dimension as `torch.chunk` splits.
    Shard(usize),
    /// The same on all.
    Replicate,
}

/// How a tensor is distributed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Distribution {
    /// Of the whole.
    pub(crate) shape: Vec<usize>,
    /// Of the grid of ranks.
    pub(crate) mesh: Vec<usize>,
    /// The grid, in row-major order.
    pub(crate) ranks: Vec<usize>,
    /// One a dimension of the grid.
    pub(crate) placements: Vec<Placement>,
}

/// An entry of a rank's state dict.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    /// What the rank holds.
    pub(crate) local: Dense<'a>,
    /// Of which whole; `None` where it is the whole.
    pub(crate) of: Option<Distribution>,
}

impl<'a> Dense<'a> {
    /// How many numbers.
    pub(crate) fn numbers(&self) -> usize {
        self.shape.iter().product()
    }

    fn size(&self) -> usize {
        number::size_of(self.dtype).expect("storages hold whole bytes")
    }

    /// Its numbers in row-major order: borrowed where they lie so, else copied.
    pub(crate) fn row_major(&self) -> std::borrow::Cow<'a, [u8]> {
        let size = self.size();
        let mut expected = 1;
        let contiguous = self.shape.iter().zip(&self.strides).rev().all(|(&count, &stride)| {
            let fits = count <= 1 || stride == expected;
            expected *= count;
            fits
        });
        if contiguous || self.numbers() == 0 {
            return self.bytes[..self.numbers() * size].into();
        }
        let mut copied = Vec::with_capacity(self.numbers() * size);
        let mut place = vec![0; self.shape.len()];
        loop {
            let at: usize = place.iter().zip(&self.strides).map(|(place, stride)| place * stride).sum();
            copied.extend_from_slice(&self.bytes[at * size..(at + 1) * size]);
            let Some(turn) = (0..place.len()).rev().find(|&dimension| place[dimension] + 1 < self.shape[dimension])
            else {
                return copied.into();
            };
            place[turn] += 1;
            place[turn + 1..].fill(0);
        }
    }
}

/// Reads the state dict that a pickle stands for: names and parts, in order. `root` is what the names
/// of its entries begin with.
///
/// # Errors
/// For an entry that is no tensor, by name, and for storages and shapes that do not fit together.
pub(crate) fn state_dict<'a>(
    values: &Values<'a>,
    archive: &Archive<'a>,
    root: &str,
) -> Result<Vec<(&'a str, Part<'a>)>, Problem> {
    if archive.get(&format!("{root}byteorder")).is_some_and(|order| order != b"little") {
        return unsupported("its numbers are big-endian; supported are little-endian ones");
    }
    let reader = Reader { values, archive, root };
    let Node::Dict(entries) = values.get(values.top) else {
        return unsupported("it holds no state dict (names and tensors)");
    };
    entries
        .iter()
        .map(|&(name, value)| {
            let name = reader.text(name)?;
            let part = reader.part(value, DEEPEST).map_err(|problem| problem.within(name))?;
            Ok((name, part))
        })
        .collect()
}

struct Reader<'v, 'a> {
    values: &'v Values<'a>,
    archive: &'v Archive<'a>,
    root: &'v str,
}

impl<'v, 'a> Reader<'v, 'a> {
    fn text(&self, id: Id) -> Result<&'a str, Problem> {
        match self.values.get(id) {
            Node::Text(text) => Ok(text),
            _ => damaged("a name that is no text"),
        }
    }

    fn whole(&self, id: Id) -> Result<usize, Problem> {
        match self.values.get(id) {
            Node::Whole(number) => usize::try_from(*number).or_else(|_| damaged(format!("a size of {number}"))),
            _ => damaged("a size that is no number"),
        }
    }

    fn items(&self, id: Id) -> Result<&'v [Id], Problem> {
        match self.values.get(id) {
            Node::Tuple(items) => Ok(items),
            Node::List(items) => Ok(items),
            _ => damaged("what should be a tuple is none"),
        }
    }

    /// Sizes of a tuple or a `torch.Size`.
    fn sizes(&self, id: Id) -> Result<Vec<usize>, Problem> {
        let id = match self.values.get(id) {
            Node::Call { what: Global::Size, arguments, .. } => match self.items(*arguments)? {
                [sizes] => *sizes,
                _ => return damaged("a torch.Size of several arguments"),
            },
            _ => id,
        };
        let items = self.items(id)?;
        if items.len() > MOST_DIMENSIONS {
            return damaged(format!("a tensor of {} dimensions", items.len()));
        }
        items.iter().map(|&size| self.whole(size)).collect()
    }

    fn attribute(&self, state: Id, wanted: &str) -> Result<Option<Id>, Problem> {
        match self.values.get(state) {
            Node::Dict(pairs) => {
                let is = |id: Id| matches!(self.values.get(id), Node::Text(text) if *text == wanted);
                Ok(pairs.iter().rev().find(|pair| is(pair.0)).map(|pair| pair.1))
            }
            // Instance attributes, and those in slots.
            Node::Tuple(both) if both.len() == 2 => {
                let dicts = both.iter().filter(|id| matches!(self.values.get(**id), Node::Dict(_)));
                for &dict in dicts {
                    if let Some(found) = self.attribute(dict, wanted)? {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            }
            _ => damaged("a state that is no dict"),
        }
    }

    fn required(&self, state: Option<Id>, wanted: &str) -> Result<Id, Problem> {
        let found = state.map_or(Ok(None), |state| self.attribute(state, wanted))?;
        found.map_or_else(|| damaged(format!("`{wanted}` is missing")), Ok)
    }

    fn part(&self, id: Id, depth: usize) -> Result<Part<'a>, Problem> {
        let Node::Call { what, arguments, .. } = self.values.get(id) else {
            return unsupported("it is no tensor");
        };
        if depth == 0 {
            return damaged("a tensor within tensors without end");
        }
        let arguments = self.items(*arguments)?;
        match (what, arguments) {
            (Global::RebuildTensor, &[storage, offset, size, stride, ..]) => {
                Ok(Part { local: self.dense([storage, offset, size, stride], None)?, of: None })
            }
            (Global::RebuildTensorTyped, &[storage, offset, size, stride, _, _, dtype, ..]) => {
                let Node::Global(Global::Type(dtype)) = self.values.get(dtype) else {
                    return unsupported("a number type that is not known");
                };
                Ok(Part { local: self.dense([storage, offset, size, stride], Some(*dtype))?, of: None })
            }
            (Global::RebuildParameter, &[data, ..]) => self.part(data, depth - 1),
            (Global::RebuildFromType, &[_, class, _, state]) => {
                if !matches!(self.values.get(class), Node::Global(Global::DTensor)) {
                    return unsupported("a tensor subclass other than DTensor");
                }
                let local = self.part(self.required(Some(state), "_local_tensor")?, depth - 1)?;
                if local.of.is_some() {
                    return unsupported("a distributed tensor of distributed tensors");
                }
                let of = self.distribution(self.required(Some(state), "_spec")?)?;
                Ok(Part { local: local.local, of: Some(of) })
            }
            _ => unsupported("it is no tensor"),
        }
    }

    fn dense(&self, [storage, offset, size, stride]: [Id; 4], dtype: Option<Dtype>) -> Result<Dense<'a>, Problem> {
        let (stored, bytes) = self.storage(storage)?;
        let Some(dtype) = dtype.or(stored) else { return damaged("a storage without a number type") };
        let Some(bytes_each) = number::size_of(dtype) else { return unsupported(format!("numbers of type {dtype:?}")) };
        let (offset, shape, strides) = (self.whole(offset)?, self.sizes(size)?, self.sizes(stride)?);
        if shape.len() != strides.len() {
            return damaged(format!("shape {shape:?} with strides {strides:?}"));
        }
        let held = bytes.len() / bytes_each;
        let beyond =
            || Problem::Damaged(format!("shape {shape:?} with strides {strides:?} from {offset} of {held} numbers"));
        // Not more numbers than are stored, so that no small file makes a large tensor.
        let numbers = shape.iter().try_fold(1_usize, |product, &count| product.checked_mul(count));
        let numbers = numbers.filter(|numbers| *numbers <= held).ok_or_else(beyond)?;
        let last = shape
            .iter()
            .zip(&strides)
            .try_fold(offset, |sum, (&count, &stride)| sum.checked_add(count.saturating_sub(1).checked_mul(stride)?));
        if last.is_none_or(|last| numbers > 0 && last >= held) || offset > held {
            return Err(beyond());
        }
        Ok(Dense { dtype, shape, strides, bytes: &bytes[offset * bytes_each..] })
    }

    /// Type and bytes of the storage that a persistent id names.
    fn storage(&self, id: Id) -> Result<(Option<Dtype>, &'a [u8]), Problem> {
        let Node::Persistent(reference) = self.values.get(id) else { return damaged("a tensor without a storage") };
        let &[word, class, key, _, count] = self.items(*reference)? else {
            return damaged("a storage of other than five parts");
        };
        if self.text(word)? != "storage" {
            return unsupported("a persistent id that is no storage");
        }
        let dtype = match self.values.get(class) {
            Node::Global(Global::Storage(dtype)) => Some(*dtype),
            Node::Global(Global::UntypedStorage) => None,
            _ => return unsupported("a storage of unknown type"),
        };
        let name = format!("{}data/{}", self.root, self.text(key)?);
        let Some(bytes) = self.archive.get(&name) else { return damaged(format!("entry `{name}` is missing")) };
        let size = dtype.and_then(number::size_of).unwrap_or(1);
        match self.whole(count)?.checked_mul(size) {
            Some(needed) if needed <= bytes.len() => Ok((dtype, &bytes[..needed])),
            _ => damaged(format!("entry `{name}` has {} bytes, too few for its numbers", bytes.len())),
        }
    }

    fn state_of(&self, id: Id, wanted: Global) -> Result<Option<Id>, Problem> {
        match self.values.get(id) {
            Node::Call { what, state, .. } if *what == wanted => Ok(*state),
            _ => damaged(format!("what should be a {wanted:?} is none")),
        }
    }

    fn distribution(&self, spec: Id) -> Result<Distribution, Problem> {
        let state = self.state_of(spec, Global::DTensorSpec)?;
        let meta = self.required(state, "tensor_meta")?;
        let Node::Call { what: Global::TensorMeta, arguments, .. } = self.values.get(meta) else {
            return damaged("`tensor_meta` is none");
        };
        let Some(&shape) = self.items(*arguments)?.first() else { return damaged("`tensor_meta` has no shape") };
        let shape = self.sizes(shape)?;
        let placements = self.items(self.required(state, "placements")?)?;
        let placements = placements
            .iter()
            .map(|&placement| self.placement(placement, shape.len()))
            .collect::<Result<Vec<_>, _>>()?;
        let (mesh, ranks) = self.mesh(self.required(state, "mesh")?)?;
        if mesh.len() != placements.len() {
            return damaged(format!("{} placements on a mesh of {} dimensions", placements.len(), mesh.len()));
        }
        let shards =
            |dimension: usize| placements.iter().filter(|found| **found == Placement::Shard(dimension)).count();
        if (0..shape.len()).any(|dimension| shards(dimension) > 1) {
            return unsupported("a dimension sharded along two dimensions of the mesh");
        }
        Ok(Distribution { shape, mesh, ranks, placements })
    }

    fn placement(&self, id: Id, dimensions: usize) -> Result<Placement, Problem> {
        match self.values.get(id) {
            Node::Call { what: Global::Replicate, .. } => Ok(Placement::Replicate),
            Node::Call { what: Global::Shard, arguments, state } => {
                let dimension = match (state, self.items(*arguments)?) {
                    (Some(state), _) => self.required(Some(*state), "dim")?,
                    (None, &[dimension]) => dimension,
                    (None, _) => return damaged("a Shard without a dimension"),
                };
                let found = match self.values.get(dimension) {
                    Node::Whole(number) if *number < 0 => *number + dimensions as i128,
                    Node::Whole(number) => *number,
                    _ => return damaged("a Shard's dimension that is no number"),
                };
                let valid = usize::try_from(found).ok().filter(|dimension| *dimension < dimensions);
                valid.map_or_else(
                    || damaged(format!("sharded along dimension {found} of {dimensions}")),
                    |dimension| Ok(Placement::Shard(dimension)),
                )
            }
            _ => unsupported("a placement other than Shard and Replicate (Partial and strided shards are not merged)"),
        }
    }

    /// Shape and ranks of a mesh: as a tensor (until PyTorch 2.8), or as a layout over a list.
    fn mesh(&self, id: Id) -> Result<(Vec<usize>, Vec<usize>), Problem> {
        let state = self.state_of(id, Global::DeviceMesh)?;
        let Some(state) = state else { return damaged("a mesh without ranks") };
        if let Some(mesh) = self.attribute(state, "mesh")? {
            let mesh = self.part(mesh, DEEPEST)?.local;
            if mesh.numbers() > MOST_RANKS {
                return damaged(format!("a mesh of {} ranks", mesh.numbers()));
            }
            return Ok((mesh.shape.clone(), ranks(&mesh)?));
        }
        let (layout, map) = (self.required(Some(state), "_layout")?, self.required(Some(state), "_rank_map")?);
        let map = ranks(&self.part(map, DEEPEST)?.local)?;
        let axes = self.axes(layout)?;
        let mut places = vec![0_usize];
        for axis in &axes {
            if places.len().checked_mul(axis.len()).is_none_or(|count| count > MOST_RANKS) {
                return damaged("a mesh of too many ranks");
            }
            places = places.iter().flat_map(|place| axis.iter().map(move |step| place.saturating_add(*step))).collect();
        }
        let at = |place: usize| map.get(place).copied();
        let Some(ranks) = places.into_iter().map(at).collect::<Option<Vec<usize>>>() else {
            return damaged("a mesh with ranks beyond its list");
        };
        Ok((axes.iter().map(Vec::len).collect(), ranks))
    }

    /// For each dimension of the mesh, where its steps lie in the list of ranks.
    fn axes(&self, layout: Id) -> Result<Vec<Vec<usize>>, Problem> {
        let state = self.state_of(layout, Global::MeshLayout)?;
        if let Some(axes) = state.map_or(Ok(None), |state| self.attribute(state, "axes"))? {
            let axis = |&axis: &Id| {
                let state = self.state_of(axis, Global::MeshLayout)?;
                self.steps(self.required(state, "shape")?, self.required(state, "stride")?)
            };
            return self.items(axes)?.iter().map(axis).collect();
        }
        let (shape, stride) = (self.required(state, "shape")?, self.required(state, "stride")?);
        if matches!(self.values.get(shape), Node::Whole(_)) {
            return Ok(vec![self.steps(shape, stride)?]);
        }
        let (shape, stride) = (self.items(shape)?, self.items(stride)?);
        if shape.len() != stride.len() {
            return damaged("a mesh's shape and strides differ in length");
        }
        shape.iter().zip(stride).map(|(&shape, &stride)| self.steps(shape, stride)).collect()
    }

    /// Steps of one axis, which may itself be a small grid.
    fn steps(&self, shape: Id, stride: Id) -> Result<Vec<usize>, Problem> {
        let single = |id: Id| {
            if matches!(self.values.get(id), Node::Whole(_)) { Ok(vec![self.whole(id)?]) } else { self.sizes(id) }
        };
        let (shape, stride) = (single(shape)?, single(stride)?);
        if shape.len() != stride.len() {
            return damaged("a mesh's shape and strides differ in length");
        }
        let mut steps = vec![0_usize];
        for (&count, &stride) in shape.iter().zip(&stride) {
            if count > MOST_RANKS || steps.len() * count > MOST_RANKS {
                return damaged("a mesh of too many ranks");
            }
            steps = steps
                .iter()
                .flat_map(|step| (0..count).map(move |index| step.saturating_add(index.saturating_mul(stride))))
                .collect();
        }
        Ok(steps)
    }
}

fn ranks(tensor: &Dense<'_>) -> Result<Vec<usize>, Problem> {
    if tensor.numbers() > MOST_RANKS {
        return damaged(format!("a mesh of {} ranks", tensor.numbers()));
    }
    let bytes = tensor.row_major();
    let read: Option<Vec<usize>> = match tensor.dtype {
        Dtype::I32 => {
            bytes.chunks_exact(4).map(|four| i32::from_le_bytes(four.try_into().ok()?).try_into().ok()).collect()
        }
        Dtype::I64 => {
            bytes.chunks_exact(8).map(|eight| i64::from_le_bytes(eight.try_into().ok()?).try_into().ok()).collect()
        }
        _ => None,
    };
    read.map_or_else(|| damaged("a mesh's ranks must be whole numbers"), Ok)
}
