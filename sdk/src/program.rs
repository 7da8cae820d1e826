//! The person's own executable: what a run with a custom reward ships.
//!
//! Rust closures cannot be sent to another process, so the whole program is: its file is stored by
//! content, and the job starts that copy as the reward worker. `#[training_gym::main]` makes a
//! program that knows this role.

pub mod abi;
pub(crate) mod entry;
pub(crate) mod interrupt;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use training_gym_core::ids::ContentHash;
use training_gym_core::record::keys;
use training_gym_core::spec::ProgramRef;
use training_gym_core::store::{self, Store};

/// The running executable, also when its file was replaced since it started.
const SELF: &str = "/proc/self/exe";

/// Set once, by `#[training_gym::main]`. It says what this process *is*, so it is process-wide.
static STARTED_BY_MAIN: AtomicBool = AtomicBool::new(false);

/// Why a program cannot be shipped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Started as a reward worker, this process would run something else than one.
    #[error(
        "a custom reward cannot be launched from this process, which `#[training_gym::main]` did not start: the job runs \
         this executable again as its reward worker, and only such a main knows that role; launch from a program whose \
         `main` has the attribute (not from a test harness), or leave `custom_rm_function` unset"
    )]
    NotStartedByMain,
    /// Its file cannot be read.
    #[error("cannot read this program's own file, {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It does not run on the image of the jobs.
    #[error(transparent)]
    Abi(#[from] abi::Error),
    /// The store failed.
    #[error("cannot store this program")]
    Store(#[source] store::Error),
}

/// This program, as one that can be shipped.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
}

/// This program.
///
/// # Errors
/// [`Error::NotStartedByMain`] unless `#[training_gym::main]` started this process.
pub fn current() -> Result<Program, Error> {
    if STARTED_BY_MAIN.load(Ordering::Relaxed) {
        Ok(Program { path: PathBuf::from(SELF) })
    } else {
        Err(Error::NotStartedByMain)
    }
}

impl Program {
    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the program into the store under its content, unless it is there already.
    ///
    /// # Errors
    /// When its file cannot be read or the store fails.
    pub async fn upload(&self, store: &dyn Store) -> Result<ProgramRef, Error> {
        let path = self.path.clone();
        let hashed =
            tokio::task::spawn_blocking(move || Ok((ContentHash::of_file(&path)?, path.metadata()?.len()))).await;
        let (sha256, size) = hashed
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|source| Error::Unreadable { path: self.path.clone(), source })?;
        let key = keys::input("program", &sha256);
        // Two that write here at once write the same bytes, so a plain put is create-only in effect.
        let there = store.list(&key).await.map_err(Error::Store)?;
        if !there.iter().any(|object| object.key == key && object.size == size) {
            store.put_file(&key, &self.path).await.map_err(Error::Store)?;
        }
        Ok(ProgramRef { key, sha256 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use training_gym_core::store::MemoryStore;

    #[test]
    fn a_test_harness_is_told_why_it_cannot_ship_itself() {
        let error = current().unwrap_err();
        assert!(error.to_string().contains("#[training_gym::main]"), "{error}");
    }

    #[tokio::test]
    async fn a_program_is_stored_once_by_content() {
        let folder = tempfile::tempdir().unwrap();
        let program = Program { path: folder.path().join("program") };
        std::fs::write(&program.path, b"abc").unwrap();
        let store = MemoryStore::new();
        let first = program.upload(&store).await.unwrap();
        assert_eq!(first.sha256, ContentHash::of(b"abc"));
        assert_eq!(first.key, format!("inputs/program/{}", first.sha256));
        assert_eq!(program.upload(&store).await.unwrap(), first);
        assert_eq!(store.list("").await.unwrap().len(), 1);
        std::fs::remove_file(&program.path).unwrap();
        assert!(matches!(program.upload(&store).await, Err(Error::Unreadable { .. })));
    }
}
