//! Safetensors written tensor by tensor, in shards with an index.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::error::{Error, Problem, writing};
use super::plan::{self, Planned};

/// Bytes of a header are a multiple of this: readers map the numbers after it.
const HEADER_ALIGNMENT: usize = 8;
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Files of weights.
    pub(crate) files: usize,
    /// Bytes of all tensors.
    pub(crate) bytes: u64,
    /// Numbers of all tensors.
    pub(crate) parameters: u64,
    /// Tensors of which a number was rounded.
    pub(crate) rounded: usize,
}

/// Writes `tensors` into `folder`, at most `shard_bytes` a file (a larger tensor is one by itself),
/// one tensor at a time. `source` is the file that errors of the content are about.
///
/// # Errors
/// [`Error::Write`], and what the content finds wrong with its source.
pub(crate) fn write(tensors: &[Planned<'_>], folder: &Path, shard_bytes: u64, source: &Path) -> Result<Written, Error> {
    let shards = split(tensors, shard_bytes);
    let mut progress = Progress::new(tensors.len());
    let mut written = Written { files: shards.len(), ..Written::default() };
    let mut weight_map = BTreeMap::new();
    for (index, shard) in shards.iter().enumerate() {
        let file = match shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        let path = folder.join(&file);
        let mut to = BufWriter::with_capacity(1 << 20, File::create(&path).map_err(writing(&path))?);
        to.write_all(&header(shard)).map_err(writing(&path))?;
        for tensor in *shard {
            let refused = |problem: Problem| problem.of(source);
            written.rounded += usize::from(plan::write(tensor, &mut to, writing(&path), refused)?);
            written.bytes += tensor.bytes();
            written.parameters += tensor.numbers();
            progress.tensor(written.bytes);
            weight_map.insert(tensor.name.clone(), file.clone());
        }
        let to = to.into_inner().map_err(|error| writing(&path)(error.into_error()))?;
        to.sync_all().map_err(writing(&path))?;
    }
    if shards.len() > 1 {
        let index = json!({"metadata": {"total_size": written.bytes}, "weight_map": weight_map});
        let path = folder.join("model.safetensors.index.json");
        let text = serde_json::to_vec_pretty(&index).expect("names and numbers are JSON");
        std::fs::write(&path, text).map_err(writing(&path))?;
    }
    Ok(written)
}

/// Consecutive tensors, each group within the limit.
fn split<'p, 'a>(tensors: &'p [Planned<'a>], limit: u64) -> Vec<&'p [Planned<'a>]> {
    let (mut shards, mut first, mut filled) = (Vec::new(), 0, 0);
    for (index, tensor) in tensors.iter().enumerate() {
        if filled > 0 && filled + tensor.bytes() > limit {
            shards.push(&tensors[first..index]);
            (first, filled) = (index, 0);
        }
        filled += tensor.bytes();
    }
    shards.push(&tensors[first..]);
    shards
}

fn header(tensors: &[Planned<'_>]) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut at = 0;
    for tensor in tensors {
        let end = at + tensor.bytes();
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, end]});
        entries.insert(tensor.name.clone(), entry);
        at = end;
    }
    let mut text = serde_json::to_vec(&Value::Object(entries)).expect("names and numbers are JSON");
    text.resize(text.len().next_multiple_of(HEADER_ALIGNMENT), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    bytes
}

/// A line now and then.
struct Progress {
    count: usize,
    done: usize,
    said: Instant,
}

impl Progress {
    fn new(count: usize) -> Self {
        Self { count, done: 0, said: Instant::now() }
    }

    fn tensor(&mut self, bytes: u64) {
        self.done += 1;
        if self.said.elapsed() >= PROGRESS_EVERY {
            self.said = Instant::now();
            eprintln!("convert: {} of {} tensors, {} MB", self.done, self.count, bytes / 1_000_000);
        }
    }
}
