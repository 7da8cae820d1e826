//! One safetensors file: its header checked as a whole, its tensors read by position.
//!
//! Nothing is mapped: a file that is cut while it is read is an error, not a fault, and no more
//! than a piece of a tensor is held beside the tensors made of it.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use tch::{Kind, Tensor};

use super::error::Error;
use super::file;

/// The format's own bound on its header.
const HEADER_LIMIT: u64 = 100 << 20;
/// Bytes read at once: few enough that the allocator puts each in the hole of the one before,
/// instead of growing the heap between tensors that stay.
pub(super) const PIECE: usize = 64 << 10;

/// An opened file and what it holds.
#[derive(Debug)]
pub(super) struct Shard {
    path: PathBuf,
    file: File,
    tensors: HashMap<String, Info>,
}

/// One tensor of a file.
#[derive(Clone, Debug)]
pub(super) struct Info {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Place in the file.
    from: u64,
    pub(super) bytes: usize,
}

#[derive(serde::Deserialize)]
struct Entry {
    dtype: Value,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

impl Shard {
    /// Reads and checks the header: names once, sizes that fit types and shapes, tensors that fill
    /// the rest of the file without holes or overlaps.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let (file, size) = file::open(path)?;
        let damaged = |problem: String| Error::Damaged { path: path.to_owned(), problem };
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let mut length = [0; 8];
        if size < 8 {
            return Err(damaged(format!("it has {size} bytes, too few for a header")));
        }
        file.read_exact_at(&mut length, 0).map_err(failed)?;
        let length = u64::from_le_bytes(length);
        if length > HEADER_LIMIT || length > size - 8 {
            return Err(damaged(format!("its header claims {length} bytes, the file has {size}")));
        }
        let mut text = vec![0; length as usize];
        file.read_exact_at(&mut text, 8).map_err(failed)?;
        let entries: UniqueMap<Value> =
            serde_json::from_slice(&text).map_err(|error| damaged(format!("its header is not sound: {error}")))?;
        let mut found = Vec::with_capacity(entries.0.len());
        for (name, value) in entries.0 {
            if name != "__metadata__" {
                let info = info(value, 8 + length).map_err(|problem| damaged(format!("tensor `{name}` {problem}")))?;
                found.push((name, info));
            }
        }
        fill(&mut found, 8 + length, size).map_err(damaged)?;
        Ok(Self { path: path.to_owned(), file, tensors: found.into_iter().collect() })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    /// Every tensor, in the order of places.
    pub(super) fn in_order(&self) -> Vec<(&String, &Info)> {
        let mut tensors: Vec<_> = self.tensors.iter().collect();
        tensors.sort_by_key(|(name, info)| (info.from, info.bytes, *name));
        tensors
    }

    pub(super) fn info(&self, name: &str) -> Option<&Info> {
        self.tensors.get(name)
    }

    /// The bytes of a tensor from its `from`th on, as many as `into` holds.
    pub(super) fn read(&self, info: &Info, from: usize, into: &mut [u8]) -> Result<(), Error> {
        let place = info.from + from as u64;
        self.file.read_exact_at(into, place).map_err(|source| Error::Read { path: self.path.clone(), source })
    }

    /// Copies a tensor into a contiguous one of its shape, converted piece by piece.
    pub(super) fn fill(&self, name: &str, info: &Info, into: &Tensor) -> Result<(), Error> {
        let stored = stored_kind(name, info.dtype)?;
        let (flat, size) = (into.view([-1]), stored.elt_size_in_bytes());
        let mut buffer = vec![0; info.bytes.min(PIECE)];
        for from in (0..info.bytes).step_by(PIECE) {
            let piece = &mut buffer[..PIECE.min(info.bytes - from)];
            self.read(info, from, piece)?;
            let count = (piece.len() / size) as i64;
            let values = Tensor::from_data_size(piece, &[count], stored);
            tch::no_grad(|| flat.narrow(0, (from / size) as i64, count).copy_(&values));
        }
        Ok(())
    }
}

/// The type of a tensor that is computed with.
pub(super) fn stored_kind(name: &str, dtype: Dtype) -> Result<Kind, Error> {
    match dtype {
        Dtype::F32 => Ok(Kind::Float),
        Dtype::F16 => Ok(Kind::Half),
        Dtype::BF16 => Ok(Kind::BFloat16),
        other => Err(Error::StoredType { name: name.to_owned(), found: format!("{other:?}") }),
    }
}

fn info(value: Value, data: u64) -> Result<Info, String> {
    let Entry { dtype, shape, data_offsets: (start, end) } =
        serde_json::from_value(value).map_err(|error| format!("is not described: {error}"))?;
    let dtype: Dtype = serde_json::from_value(dtype.clone())
        .map_err(|_| format!("has type {dtype}, which is not one of the format's"))?;
    let bits = shape.iter().try_fold(dtype.bitsize(), |product, &size| product.checked_mul(size));
    let bytes = end.checked_sub(start).and_then(|bytes| usize::try_from(bytes).ok());
    match (bits, bytes) {
        (Some(bits), Some(bytes)) if bits.is_multiple_of(8) && bits / 8 == bytes => {
            let from = data.checked_add(start).ok_or("lies beyond any file")?;
            Ok(Info { dtype, shape, from, bytes })
        }
        _ => Err(format!("has type {dtype:?} and shape {shape:?}, which do not fit bytes {start} to {end}")),
    }
}

/// Sorts tensors by place and checks that they fill the file from `data` to `size`.
fn fill(tensors: &mut [(String, Info)], data: u64, size: u64) -> Result<(), String> {
    tensors.sort_by_key(|(_, info)| (info.from, info.bytes));
    let mut end = data;
    let mut before: Option<&str> = None;
    for (name, info) in tensors.iter() {
        let last = info.from.saturating_add(info.bytes as u64);
        if last > size {
            return Err(format!("tensor `{name}` ends at byte {last}, the file has {size}"));
        }
        if info.from != end {
            let other = before.map_or_else(|| "the header".to_owned(), |other| format!("tensor `{other}`"));
            let problem = if info.from < end { "overlaps" } else { "leaves a hole after" };
            return Err(format!("tensor `{name}` {problem} {other}"));
        }
        (end, before) = (last, Some(name.as_str()));
    }
    if end == size { Ok(()) } else { Err(format!("{} bytes after the last tensor belong to none", size - end)) }
}

/// A JSON object none of whose keys may come twice.
pub(super) struct UniqueMap<V>(pub(super) Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Keys<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut seen = std::collections::HashSet::new();
                let mut entries = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, V>()? {
                    if !seen.insert(key.clone()) {
                        return Err(serde::de::Error::custom(format!("`{key}` is named twice")));
                    }
                    entries.push((key, value));
                }
                Ok(UniqueMap(entries))
            }
        }
        deserializer.deserialize_map(Keys(PhantomData))
    }
}
