//! Safetensors written tensor by tensor, in shards with an index; each file appears whole or not at
//! all, the index last.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::error::Error;
use super::load::{INDEX, SINGLE};

/// Bytes of a header are a multiple of this: readers map the numbers after it.
const HEADER_ALIGNMENT: usize = 8;
const BUFFER: usize = 1 << 20;

/// Takes a tensor's bytes, a piece at a time.
pub(crate) type Put<'p> = dyn FnMut(&[u8]) -> Result<(), Error> + 'p;

/// A tensor to write: described before its numbers are made.
pub(crate) trait Writable {
    /// Why its numbers cannot be made, or written.
    type Error: From<Error>;

    /// Its name in the file.
    fn name(&self) -> &str;

    /// Its type there.
    fn dtype(&self) -> Dtype;

    /// Its shape.
    fn shape(&self) -> Vec<usize>;

    /// Hands over its numbers, little-endian, in row-major order: as many as type and shape say.
    fn emit(&self, put: &mut Put<'_>) -> Result<(), Self::Error>;

    /// Bytes it takes.
    fn bytes(&self) -> u64 {
        self.shape().iter().map(|&size| size as u64).product::<u64>() * self.dtype().bitsize() as u64 / 8
    }
}

/// Writes `tensors` into `folder`, at most `shard_bytes` a file (a larger tensor is one by itself),
/// one tensor at a time; `done` is told of each. Returns the number of files.
pub(crate) fn write<T: Writable>(
    tensors: &[T],
    folder: &Path,
    shard_bytes: u64,
    done: &mut dyn FnMut(&T),
) -> Result<usize, T::Error> {
    let shards = split(tensors, shard_bytes);
    let count = shards.len();
    let mut weight_map = BTreeMap::new();
    for (index, mut shard) in shards.into_iter().enumerate() {
        let file = match count {
            1 => SINGLE.to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        // The widest numbers first: each then begins at a multiple of its size, as readers that
        // view the bytes in place ask for.
        shard.sort_by_key(|tensor| Reverse(tensor.dtype().bitsize()));
        write_shard(&shard, &folder.join(&file), done)?;
        weight_map.extend(shard.iter().map(|tensor| (tensor.name().to_owned(), file.clone())));
    }
    if count > 1 {
        let total: u64 = tensors.iter().map(T::bytes).sum();
        let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
        let text = serde_json::to_vec_pretty(&index).expect("names and numbers are JSON");
        let path = folder.join(INDEX);
        whole_file(&path, |mut file| file.write_all(&text).map_err(failing(&path)))?;
    }
    Ok(count)
}

fn failing(path: &Path) -> impl Fn(std::io::Error) -> Error {
    |source| Error::Write { path: path.to_owned(), source }
}

/// Consecutive tensors, each group within the limit.
fn split<T: Writable>(tensors: &[T], limit: u64) -> Vec<Vec<&T>> {
    let mut shards = vec![Vec::new()];
    let mut filled = 0;
    for tensor in tensors {
        let bytes = tensor.bytes();
        if filled > 0 && filled + bytes > limit {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        shards.last_mut().expect("there is always a last shard").push(tensor);
    }
    shards
}

fn write_shard<T: Writable>(shard: &[&T], path: &Path, done: &mut dyn FnMut(&T)) -> Result<(), T::Error> {
    whole_file(path, |file| {
        let failed = failing(path);
        let mut to = BufWriter::with_capacity(BUFFER, file);
        to.write_all(&header(shard)).map_err(&failed)?;
        for tensor in shard {
            let mut written = 0;
            tensor.emit(&mut |bytes| {
                written += bytes.len() as u64;
                to.write_all(bytes).map_err(&failed)
            })?;
            assert_eq!(written, tensor.bytes(), "`{}` is written whole", tensor.name());
            done(tensor);
        }
        to.flush().map_err(failed)?;
        Ok(())
    })
}

fn header<T: Writable>(shard: &[&T]) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut at = 0;
    for tensor in shard {
        let end = at + tensor.bytes();
        let entry = json!({"dtype": tensor.dtype(), "shape": tensor.shape(), "data_offsets": [at, end]});
        entries.insert(tensor.name().to_owned(), entry);
        at = end;
    }
    let mut text = serde_json::to_vec(&Value::Object(entries)).expect("names and numbers are JSON");
    text.resize(text.len().next_multiple_of(HEADER_ALIGNMENT), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    bytes
}

/// Fills a file beside `path`, flushes it to disk, then renames.
fn whole_file<E: From<Error>>(path: &Path, fill: impl FnOnce(&File) -> Result<(), E>) -> Result<(), E> {
    let failed = failing(path);
    let folder = path.parent().unwrap_or(Path::new("."));
    let readable = Permissions::from_mode(0o644);
    let temporary = tempfile::Builder::new().prefix(".weights-").permissions(readable).tempfile_in(folder);
    let temporary = temporary.map_err(&failed)?;
    fill(temporary.as_file())?;
    temporary.as_file().sync_all().map_err(&failed)?;
    temporary.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::load::Checkpoint;
    use super::*;

    struct Bytes(&'static str, Dtype, usize);

    impl Writable for Bytes {
        type Error = Error;

        fn name(&self) -> &str {
            self.0
        }

        fn dtype(&self) -> Dtype {
            self.1
        }

        fn shape(&self) -> Vec<usize> {
            vec![self.2]
        }

        fn emit(&self, put: &mut Put<'_>) -> Result<(), Error> {
            if self.0 == "gone" {
                let source = std::io::Error::other("cut");
                return Err(Error::Read { path: "source".into(), source });
            }
            (0..self.bytes()).try_for_each(|byte| put(&[byte as u8]))
        }
    }

    fn written(tensors: &[Bytes], limit: u64) -> (tempfile::TempDir, Result<usize, Error>) {
        let folder = tempfile::tempdir().unwrap();
        let files = write(tensors, folder.path(), limit, &mut |_| {});
        (folder, files)
    }

    #[test]
    fn every_tensor_begins_at_a_multiple_of_its_size() {
        let tensors = [
            Bytes("flags", Dtype::BOOL, 3),
            Bytes("wide", Dtype::F64, 1),
            Bytes("half", Dtype::BF16, 3),
            Bytes("float", Dtype::F32, 1),
        ];
        let (folder, files) = written(&tensors, 100);
        assert_eq!(files.unwrap(), 1);
        let bytes = std::fs::read(folder.path().join(SINGLE)).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for tensor in &tensors {
            let view = file.tensor(tensor.name()).unwrap();
            let at = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            assert!(at.is_multiple_of(tensor.dtype().bitsize() / 8), "{} at {at}", tensor.name());
            let expected: Vec<u8> = (0..tensor.bytes() as u8).collect();
            assert_eq!((view.dtype(), view.shape(), view.data()), (tensor.1, &[tensor.2][..], &expected[..]));
        }
    }

    #[test]
    fn shards_hold_no_more_than_the_limit_unless_one_tensor_does() {
        let tensors = ["a", "b", "c", "d"].map(|name| Bytes(name, Dtype::U8, if name == "c" { 50 } else { 10 }));
        let (folder, files) = written(&tensors, 20);
        assert_eq!(files.unwrap(), 3, "a and b, c, d");
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let names: Vec<String> = checkpoint.tensors().into_iter().map(|tensor| tensor.name).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
    }

    #[test]
    fn a_failure_leaves_no_half_file() {
        let (folder, files) = written(&[Bytes("a", Dtype::U8, 10), Bytes("gone", Dtype::U8, 10)], 100);
        assert!(matches!(files, Err(Error::Read { .. })));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
