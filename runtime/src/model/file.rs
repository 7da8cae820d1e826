//! Files of a model folder, opened so that none of them can hang the reader or fill its memory.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::Error;

/// No `config.json` or index comes near.
const TEXT_LIMIT: u64 = 100 << 20;

/// Opens a regular file (a pipe would wait for its writer).
pub(super) fn open(path: &Path) -> Result<(File, u64), Error> {
    let attempt = || {
        let found = std::fs::metadata(path)?;
        if !found.is_file() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a file"));
        }
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        Ok((file, size))
    };
    attempt().map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// Reads a JSON file of a sane size.
///
/// # Errors
/// [`Error::Read`], also for what is no file and for a longer one.
pub(crate) fn read_text(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let (file, size) = open(path)?;
    let mut bytes = Vec::with_capacity(size.min(TEXT_LIMIT) as usize);
    file.take(TEXT_LIMIT + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > TEXT_LIMIT {
        let problem = format!("it has more than {TEXT_LIMIT} bytes");
        return Err(failed(std::io::Error::new(std::io::ErrorKind::InvalidData, problem)));
    }
    Ok(bytes)
}
