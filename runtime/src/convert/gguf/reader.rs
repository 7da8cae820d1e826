//! The container: metadata by key, tensors by name.

use std::collections::BTreeMap;

use super::encoding::Encoding;
use crate::convert::bytes::Cursor;
use crate::convert::error::{Problem, damaged, unsupported};

const MAGIC: &[u8] = b"GGUF";
/// Tensors have at most this many dimensions.
const MOST_DIMENSIONS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
/// A key and its type, or a tensor's entry, are longer than this many bytes.
const SHORTEST_ENTRY: usize = 12;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// Any unsigned type.
    Unsigned(u64),
    /// Any signed type.
    Signed(i64),
    /// Either float type, as the shortest decimal that reads back as the same number.
    Float(f64),
    /// A truth value.
    Flag(bool),
    /// A text.
    Text(&'a str),
    /// An array of texts.
    Texts(Vec<&'a str>),
    /// An array of numbers or truth values.
    Numbers(Numbers<'a>),
}

/// An array of numbers, as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Numbers<'a> {
    kind: Kind,
    bytes: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Problem> {
        const KINDS: [Kind; 13] = [
            Kind::U8,
            Kind::I8,
            Kind::U16,
            Kind::I16,
            Kind::U32,
            Kind::I32,
            Kind::F32,
            Kind::Bool,
            Kind::Text,
            Kind::Array,
            Kind::U64,
            Kind::I64,
            Kind::F64,
        ];
        let id = cursor.u32("a value's type")?;
        let known = KINDS.get(id as usize).copied();
        known.map_or_else(|| damaged(format!("a metadata value has type {id}; known are 0 to 12")), Ok)
    }

    /// Bytes of one; for a text, those of an empty one.
    fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Text | Self::Array => 8,
        }
    }
}

impl<'a> Numbers<'a> {
    /// Numbers in it.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / self.kind.size()
    }

    /// The number at `index`.
    pub(crate) fn get(&self, index: usize) -> Option<Value<'a>> {
        let size = self.kind.size();
        let bytes = self.bytes.get(index.checked_mul(size)?..)?;
        scalar(&mut Cursor::new(bytes), self.kind).ok()
    }

    /// All of them.
    pub(crate) fn iter(self) -> impl Iterator<Item = Value<'a>> {
        (0..self.len()).filter_map(move |index| self.get(index))
    }
}

/// A tensor of the file.
#[derive(Clone, Debug)]
pub(crate) struct Stored<'a> {
    /// Outermost dimension first, as in every other format (the file has it last).
    pub(crate) shape: Vec<usize>,
    /// How its numbers are stored.
    pub(crate) encoding: Encoding,
    /// Its blocks, row after row.
    pub(crate) bytes: &'a [u8],
}

impl Stored<'_> {
    /// Numbers of a row.
    pub(crate) fn row(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.row() / self.encoding.block_numbers() * self.encoding.block_bytes()
    }
}

/// An opened file.
#[derive(Debug)]
pub(crate) struct Gguf<'a> {
    /// Version of the format.
    pub(crate) version: u32,
    values: BTreeMap<&'a str, Value<'a>>,
    /// Every tensor, by name.
    pub(crate) tensors: BTreeMap<&'a str, Stored<'a>>,
}

impl<'a> Gguf<'a> {
    /// Reads the container. Nothing is allocated that the file is not large enough for.
    ///
    /// # Errors
    /// [`Problem`] with the place and what is wrong there.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, Problem> {
        let mut cursor = Cursor::new(bytes);
        if cursor.take(4, "the magic number")? != MAGIC {
            return damaged("it does not begin with `GGUF`");
        }
        let version = cursor.u32("the version")?;
        match version {
            2 | 3 => {}
            1 => return unsupported("GGUF version 1; supported are 2 and 3 (write it again with a newer llama.cpp)"),
            version if version.swap_bytes() <= 3 => {
                return unsupported("a big-endian GGUF; supported are little-endian ones");
            }
            version => return damaged(format!("GGUF version {version}; known are 1 to 3")),
        }
        let tensor_count = count(&mut cursor, "tensors")?;
        let value_count = count(&mut cursor, "metadata values")?;
        let mut values = BTreeMap::new();
        for _ in 0..value_count {
            let key = text(&mut cursor, "a metadata key")?;
            let kind = Kind::read(&mut cursor)?;
            let value = value(&mut cursor, kind).map_err(|problem| problem.within(key))?;
            if values.insert(key, value).is_some() {
                return damaged(format!("metadata `{key}` is there twice"));
            }
        }
        let mut entries = Vec::new();
        for _ in 0..tensor_count {
            entries.push(Entry::read(&mut cursor)?);
        }
        let mut file = Self { version, values, tensors: BTreeMap::new() };
        let alignment = file.count("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() || alignment > 1 << 20 {
            return damaged(format!("general.alignment = {alignment}: must be a power of two up to 2^20"));
        }
        let start = (cursor.position() as u64).next_multiple_of(alignment);
        let data = usize::try_from(start).ok().and_then(|start| bytes.get(start..)).unwrap_or_default();
        file.place(entries, data, alignment)?;
        Ok(file)
    }

    fn place(&mut self, entries: Vec<Entry<'a>>, data: &'a [u8], alignment: u64) -> Result<(), Problem> {
        let mut ranges = Vec::with_capacity(entries.len());
        for entry in entries {
            let Entry { name, shape, encoding, offset } = entry;
            let size = encoding.bytes_of(&shape).map_err(|problem| problem.within(name))?;
            if !offset.is_multiple_of(alignment) {
                return damaged(format!("tensor `{name}` begins at {offset}, no multiple of {alignment}"));
            }
            let bytes = usize::try_from(offset)
                .ok()
                .and_then(|offset| data.get(offset..offset.checked_add(size)?))
                .map_or_else(
                    || damaged(format!("tensor `{name}` needs bytes {offset} to {offset}+{size} of {}", data.len())),
                    Ok,
                )?;
            ranges.push((offset, size as u64, name));
            if self.tensors.insert(name, Stored { shape, encoding, bytes }).is_some() {
                return damaged(format!("tensor `{name}` is there twice"));
            }
        }
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            if pair[0].0 + pair[0].1 > pair[1].0 {
                return damaged(format!("tensors `{}` and `{}` overlap", pair[0].2, pair[1].2));
            }
        }
        Ok(())
    }

    /// Every metadata key.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.values.keys().copied()
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.values.get(key)
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, Problem> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => damaged(format!("metadata `{key}` must be a text")),
        }
    }

    /// A whole number ≥ 0; also an array that holds one number only, over and over.
    pub(crate) fn count(&self, key: &str) -> Result<Option<u64>, Problem> {
        let whole = |value: &Value<'_>| match value {
            Value::Unsigned(count) => Some(*count),
            Value::Signed(count) => u64::try_from(*count).ok(),
            _ => None,
        };
        let Some(value) = self.get(key) else { return Ok(None) };
        if let Value::Numbers(numbers) = value {
            let first = numbers.get(0);
            if first.is_none() || numbers.iter().any(|number| Some(number) != first) {
                return unsupported(format!("metadata `{key}` differs between layers; supported is one value for all"));
            }
            return first.as_ref().and_then(whole).map_or_else(
                || damaged(format!("metadata `{key}` must hold whole numbers ≥ 0")),
                |count| Ok(Some(count)),
            );
        }
        whole(value)
            .map_or_else(|| damaged(format!("metadata `{key}` must be a whole number ≥ 0")), |count| Ok(Some(count)))
    }

    /// A number.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, Problem> {
        match self.get(key) {
            Some(Value::Float(number)) if number.is_finite() => Ok(Some(*number)),
            Some(Value::Unsigned(number)) => Ok(Some(*number as f64)),
            Some(Value::Signed(number)) => Ok(Some(*number as f64)),
            None => Ok(None),
            Some(_) => damaged(format!("metadata `{key}` must be a finite number")),
        }
    }

    /// A truth value.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, Problem> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Flag(flag)) => Ok(Some(*flag)),
            Some(_) => damaged(format!("metadata `{key}` must be true or false")),
        }
    }

    /// An array of texts.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<&[&'a str]>, Problem> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Texts(texts)) => Ok(Some(texts)),
            Some(Value::Numbers(numbers)) if numbers.len() == 0 => Ok(Some(&[])),
            Some(_) => damaged(format!("metadata `{key}` must be an array of texts")),
        }
    }
}

struct Entry<'a> {
    name: &'a str,
    shape: Vec<usize>,
    encoding: Encoding,
    offset: u64,
}

impl<'a> Entry<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, Problem> {
        let name = text(cursor, "a tensor's name")?;
        let dimensions = cursor.u32("a tensor's dimensions")?;
        if dimensions == 0 || dimensions > MOST_DIMENSIONS {
            return damaged(format!(
                "tensor `{name}` has {dimensions} dimensions; 1 to {MOST_DIMENSIONS} are possible"
            ));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = cursor.u64("a tensor's size")?;
            match usize::try_from(size) {
                Ok(size) if size > 0 => shape.push(size),
                _ => return damaged(format!("tensor `{name}` has a dimension of size {size}")),
            }
        }
        shape.reverse();
        let encoding = Encoding::of(cursor.u32("a tensor's type")?).map_err(|problem| problem.within(name))?;
        Ok(Self { name, shape, encoding, offset: cursor.u64("a tensor's offset")? })
    }
}

/// A number of entries, each of which takes at least some bytes of what is left.
fn count(cursor: &mut Cursor<'_>, what: &str) -> Result<u64, Problem> {
    let count = cursor.u64("a count")?;
    if count > (cursor.left() / SHORTEST_ENTRY) as u64 {
        return damaged(format!("it claims {count} {what}, more than its {} remaining bytes can hold", cursor.left()));
    }
    Ok(count)
}

fn text<'a>(cursor: &mut Cursor<'a>, what: &str) -> Result<&'a str, Problem> {
    let length = cursor.u64(what)?;
    let bytes = cursor.take(length, what)?;
    std::str::from_utf8(bytes).or_else(|_| damaged(format!("{what} before byte {} is not UTF-8", cursor.position())))
}

fn value<'a>(cursor: &mut Cursor<'a>, kind: Kind) -> Result<Value<'a>, Problem> {
    match kind {
        Kind::Text => text(cursor, "a text").map(Value::Text),
        Kind::Array => array(cursor),
        _ => scalar(cursor, kind),
    }
}

fn array<'a>(cursor: &mut Cursor<'a>) -> Result<Value<'a>, Problem> {
    let kind = Kind::read(cursor)?;
    let count = cursor.u64("an array's length")?;
    if count > (cursor.left() / kind.size()) as u64 {
        return damaged(format!("an array of {count} values in {} remaining bytes", cursor.left()));
    }
    match kind {
        Kind::Array => unsupported("an array of arrays; no known key has one"),
        Kind::Text => {
            let texts: Result<Vec<&str>, Problem> = (0..count).map(|_| text(cursor, "a text of an array")).collect();
            texts.map(Value::Texts)
        }
        _ => {
            let bytes = cursor.take(count * kind.size() as u64, "an array")?;
            Ok(Value::Numbers(Numbers { kind, bytes }))
        }
    }
}

fn scalar<'a>(cursor: &mut Cursor<'_>, kind: Kind) -> Result<Value<'a>, Problem> {
    let what = "a value";
    Ok(match kind {
        Kind::U8 => Value::Unsigned(cursor.u8(what)?.into()),
        Kind::U16 => Value::Unsigned(cursor.u16(what)?.into()),
        Kind::U32 => Value::Unsigned(cursor.u32(what)?.into()),
        Kind::U64 => Value::Unsigned(cursor.u64(what)?),
        Kind::I8 => Value::Signed((cursor.u8(what)? as i8).into()),
        Kind::I16 => Value::Signed((cursor.u16(what)? as i16).into()),
        Kind::I32 => Value::Signed((cursor.u32(what)? as i32).into()),
        Kind::I64 => Value::Signed(cursor.u64(what)? as i64),
        Kind::F32 => Value::Float(shortest(f32::from_bits(cursor.u32(what)?))),
        Kind::F64 => Value::Float(f64::from_bits(cursor.u64(what)?)),
        Kind::Bool => match cursor.u8(what)? {
            0 => Value::Flag(false),
            1 => Value::Flag(true),
            other => return damaged(format!("a truth value of {other}")),
        },
        Kind::Text | Kind::Array => unreachable!("no scalar"),
    })
}

/// 1e-5 is stored as the nearest float32; a config says 1e-5, not 9.999999747378752e-06.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}

#[cfg(test)]
mod tests;
