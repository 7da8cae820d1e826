//! Weights of a Hugging Face folder, whatever its architecture.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};

use super::bytes::{Cursor, map};
use super::error::{Error, Problem, damaged, reading};
use super::plan::{self, Planned};
use crate::settings::Number;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// An index of a million tensors has a tenth of this.
const LARGEST_INDEX: u64 = 1 << 30;

/// An opened folder: every file mapped, every header checked.
#[derive(Debug)]
pub(crate) struct Folder {
    files: Vec<(PathBuf, Mmap)>,
    /// In the order of files, then of their numbers.
    tensors: Vec<Tensor>,
    /// What is odd, but stops nobody.
    pub(crate) notes: Vec<String>,
}

/// A tensor of a folder.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    /// Its name.
    pub(crate) name: String,
    /// Its shape.
    pub(crate) shape: Vec<usize>,
    /// Its type.
    pub(crate) dtype: Dtype,
    file: usize,
    range: std::ops::Range<usize>,
}

impl Folder {
    /// Opens `model.safetensors`, or the files its index names.
    ///
    /// # Errors
    /// When there are none, a file is damaged or outside the folder, or the index names what is
    /// not there.
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
        let mut opened = Self { files: Vec::new(), tensors: Vec::new(), notes: Vec::new() };
        if single.is_file() {
            opened.add(single)?;
            if index.is_file() {
                opened.notes.push(format!("`{INDEX}` stands beside `{SINGLE}` and is not read"));
            }
            return Ok(opened);
        }
        if !index.is_file() {
            let problem = format!("it has neither `{SINGLE}` nor `{INDEX}`");
            return Err(Error::Unsupported { path: folder.to_owned(), problem });
        }
        let wrong = |problem: String| Error::Damaged { path: index.clone(), problem };
        let weight_map = weight_map(&index)?;
        let files: BTreeSet<&String> = weight_map.values().collect();
        for file in files {
            let mut parts = Path::new(file).components();
            if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
                return Err(wrong(format!("it names `{file}`, which is no file of the folder")));
            }
            opened.add(folder.join(file))?;
        }
        opened.check_index(&weight_map).map_err(wrong)?;
        Ok(opened)
    }

    fn check_index(&mut self, weight_map: &BTreeMap<String, String>) -> Result<(), String> {
        let mut present = BTreeMap::new();
        for tensor in &self.tensors {
            let file = self.files[tensor.file].0.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if weight_map.get(&tensor.name).is_some_and(|named| named == file) {
                present.insert(tensor.name.as_str(), file);
            }
        }
        if let Some((name, file)) = weight_map.iter().find(|(name, _)| !present.contains_key(name.as_str())) {
            return Err(format!("tensor `{name}` is not in `{file}`"));
        }
        let surplus = self.tensors.len() - weight_map.len();
        if surplus > 0 {
            self.notes.push(format!("{surplus} tensor(s) of the files are not in `{INDEX}` and are left out"));
            let files = &self.files;
            let file = |tensor: &Tensor| files[tensor.file].0.file_name().and_then(|name| name.to_str());
            self.tensors.retain(|tensor| weight_map.get(&tensor.name).map(String::as_str) == file(tensor));
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf) -> Result<(), Error> {
        let bytes = map(&path)?;
        let incomplete = |error: safetensors::SafeTensorError| Error::Damaged {
            path: path.clone(),
            problem: format!("it is no complete safetensors file ({error}); download or copy it again"),
        };
        check_end(&bytes).map_err(|problem| problem.of(&path))?;
        let (header, metadata) = SafeTensors::read_metadata(&bytes).map_err(incomplete)?;
        let start = header + size_of::<u64>();
        let file = self.files.len();
        let mut tensors: Vec<Tensor> = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| Tensor {
                name,
                shape: info.shape.clone(),
                dtype: info.dtype,
                file,
                range: start + info.data_offsets.0..start + info.data_offsets.1,
            })
            .collect();
        tensors.sort_by(|a, b| (a.range.start, &a.name).cmp(&(b.range.start, &b.name)));
        self.tensors.extend(tensors);
        self.files.push((path, bytes));
        Ok(())
    }

    /// Files of weights.
    pub(crate) fn files(&self) -> usize {
        self.files.len()
    }

    /// Everything, under its own name; floats in the type asked for, if one is.
    pub(crate) fn plan(&self, number: Option<Number>) -> Vec<Planned<'_>> {
        let planned = |tensor: &Tensor| {
            let dtype = plan::target(tensor.dtype, number);
            let bytes = &self.files[tensor.file].1[tensor.range.clone()];
            let content = plan::stored(bytes, tensor.dtype, dtype);
            Planned { name: tensor.name.clone(), shape: tensor.shape.clone(), dtype, content }
        };
        self.tensors.iter().map(planned).collect()
    }
}

/// Refuses offsets beyond the file, which the format's reader adds up without a check.
fn check_end(bytes: &[u8]) -> Result<(), Problem> {
    let mut cursor = Cursor::new(bytes);
    let length = cursor.u64("the header's length")?;
    let header: Map<String, Value> = serde_json::from_slice(cursor.take(length, "the header")?)
        .or_else(|error| damaged(format!("its header is not JSON: {error}")))?;
    let ends = header.values().filter_map(|entry| entry.pointer("/data_offsets/1").and_then(Value::as_u64));
    match ends.max() {
        Some(end) if end > cursor.left() as u64 => damaged(format!(
            "it has {} bytes of numbers, its header asks for {end}; download or copy it again",
            cursor.left()
        )),
        _ => Ok(()),
    }
}

fn weight_map(index: &Path) -> Result<BTreeMap<String, String>, Error> {
    let wrong = |problem: String| Problem::Damaged(problem).of(index);
    let size = index.metadata().map_err(reading(index))?.len();
    if size > LARGEST_INDEX {
        return Err(wrong(format!("it has {size} bytes, no index is that long")));
    }
    let text = std::fs::read(index).map_err(reading(index))?;
    let mut value: Value = serde_json::from_slice(&text).map_err(|error| wrong(format!("it is not JSON: {error}")))?;
    let map = value.get_mut("weight_map").map(Value::take).unwrap_or_default();
    let map: BTreeMap<String, String> = serde_json::from_value(map)
        .map_err(|_| wrong("`weight_map` must map names of tensors to names of files".to_owned()))?;
    if map.is_empty() { Err(wrong("`weight_map` is empty".to_owned())) } else { Ok(map) }
}
