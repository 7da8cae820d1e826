//! Bytes of a file: mapped, and read in little-endian order without ever passing their end.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use super::error::{Error, Problem, damaged, reading};

/// Maps a file into memory.
///
/// # Errors
/// [`Error::Read`], and [`Error::Damaged`] for an empty file or a folder.
pub(crate) fn map(path: &Path) -> Result<Mmap, Error> {
    let file = File::open(path).map_err(reading(path))?;
    let about = file.metadata().map_err(reading(path))?;
    if !about.is_file() || about.len() == 0 {
        let problem = if about.is_file() { "it is empty" } else { "it is not a file" };
        return Err(Problem::Damaged(problem.to_owned()).of(path));
    }
    #[expect(unsafe_code, reason = "weights larger than memory are read in place")]
    // SAFETY: the mapping is read-only. A file that is truncated meanwhile would fault; checkpoints
    // are written once.
    unsafe { Mmap::map(&file) }.map_err(reading(path))
}

/// Reads forward through bytes.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// From the first byte.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// From byte `at`; one past the end has nothing left.
    pub(crate) fn from(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at: at.min(bytes.len()) }
    }

    /// Where the next byte lies.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Bytes not read yet.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `count` bytes; `what` is what an error calls them.
    pub(crate) fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8], Problem> {
        match usize::try_from(count) {
            Ok(count) if count <= self.left() => {
                let taken = &self.bytes[self.at..self.at + count];
                self.at += count;
                Ok(taken)
            }
            _ => damaged(format!("{what} at byte {} needs {count} bytes, {} are left", self.at, self.left())),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Problem> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    /// One byte.
    pub(crate) fn u8(&mut self, what: &str) -> Result<u8, Problem> {
        Ok(self.array::<1>(what)?[0])
    }

    /// Two bytes.
    pub(crate) fn u16(&mut self, what: &str) -> Result<u16, Problem> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    /// Four bytes.
    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, Problem> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// Eight bytes.
    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, Problem> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }
}
