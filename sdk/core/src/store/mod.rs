//! Artefacts by key, behind one trait.
//!
//! Keys are `/`-separated, relative, of non-empty parts that are neither `.` nor `..`. A reader
//! never observes a partly written object. No key may be the folder of another (`a` beside `a/b`):
//! a store with folders refuses the second. [`open`] makes a store from its URL.

pub mod conformance;
mod fault;
mod file;
mod memory;
mod place;
mod probe;
#[cfg(feature = "s3")]
mod s3;
mod url;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub use fault::{Fault, FaultKind};
pub use file::FileStore;
pub use memory::MemoryStore;
pub use place::{key_of, last_part, url_of, url_of_folder};
pub use probe::{Outcome as ProbeOutcome, Step as ProbeStep, probe};
#[cfg(feature = "s3")]
pub use s3::{S3Limits, S3Store};

/// What can go wrong with a store, in kinds a caller can act on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No object has this key.
    #[error("no object `{key}` in {store}")]
    NotFound {
        /// The key asked for.
        key: String,
        /// The store's URL.
        store: String,
    },
    /// [`Store::create`] found the key taken.
    #[error("object `{key}` exists already in {store}")]
    AlreadyExists {
        /// The key.
        key: String,
        /// The store's URL.
        store: String,
    },
    /// [`Store::swap`] found another version than the expected one.
    #[error("object `{key}` in {store} was changed by someone else")]
    Changed {
        /// The key.
        key: String,
        /// The store's URL.
        store: String,
    },
    /// A key, a URL or a path that a store cannot take.
    #[error("{what} `{given}`: {rule}")]
    Invalid {
        /// Which thing.
        what: &'static str,
        /// As given.
        given: String,
        /// What is allowed.
        rule: String,
    },
    /// The folder of a `file://` store cannot be used.
    #[error("`{}` cannot be a store; {FOLDER_REMEDY}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The medium failed.
    #[error("cannot {action} `{key}` in {store}")]
    Io {
        /// `read`, `write`, `list`, …
        action: &'static str,
        /// The key.
        key: String,
        /// The store's URL.
        store: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A store on the network refused or failed.
    #[error("cannot {action} `{key}` in {store}: {fault}")]
    Remote {
        /// `read`, `write`, `list`, …
        action: &'static str,
        /// The key.
        key: String,
        /// The store's URL.
        store: String,
        /// In which way, in words, and what to do.
        fault: Box<Fault>,
    },
}

const FOLDER_REMEDY: &str = "name a folder that can be made and written";

/// Which version of an object: equal tags mean equal content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ETag(pub String);

/// An object and its version.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its content.
    pub bytes: Bytes,
    /// Its version.
    pub etag: ETag,
}

/// What a listing says of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Its key.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its version, where a listing says it: a folder's does not.
    pub version: Option<ETag>,
}

/// A place for artefacts.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// The URL [`open`] would take.
    fn url(&self) -> String;

    /// Writes an object, replacing any.
    async fn put(&self, key: &str, bytes: Bytes) -> Result<ETag, Error>;

    /// Writes an object from a file, without holding it in memory.
    async fn put_file(&self, key: &str, path: &Path) -> Result<ETag, Error>;

    /// Writes an object only if the key is free; otherwise [`Error::AlreadyExists`].
    async fn create(&self, key: &str, bytes: Bytes) -> Result<ETag, Error>;

    /// Writes an object only over the version `expected`; otherwise [`Error::Changed`].
    async fn swap(&self, key: &str, bytes: Bytes, expected: &ETag) -> Result<ETag, Error>;

    /// Makes the object its first `offset` bytes followed by `bytes`; a missing object counts as
    /// empty. One writer at a time. [`Error::Invalid`] if the object is shorter than `offset`.
    ///
    /// This is how a log grows and how a resumed run cuts what a lost attempt wrote. A reader may
    /// see any prefix of the new part, so a reader of lines takes whole lines only.
    async fn write_at(&self, key: &str, offset: u64, bytes: Bytes) -> Result<(), Error>;

    /// Reads an object whole.
    async fn get(&self, key: &str) -> Result<Object, Error>;

    /// Reads an object from byte `offset` on; `None` where it is shorter. It is how a log is followed.
    async fn get_from(&self, key: &str, offset: u64) -> Result<Option<Bytes>, Error> {
        let bytes = self.get(key).await?.bytes;
        Ok(usize::try_from(offset).ok().filter(|offset| *offset <= bytes.len()).map(|offset| bytes.slice(offset..)))
    }

    /// Copies an object to a file, atomically (the file appears whole or not at all).
    async fn get_file(&self, key: &str, path: &Path) -> Result<(), Error>;

    /// All objects whose key begins with `prefix`, in key order.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, Error>;

    /// Removes an object; one that is not there is no error.
    async fn delete(&self, key: &str) -> Result<(), Error>;

    /// Whether the object's content will be verified when it is read: false where the medium forgot what it
    /// was to remember about it, or somebody else wrote it.
    async fn is_verified(&self, key: &str) -> Result<bool, Error> {
        self.get(key).await.map(|_| true)
    }

    /// Where the object lies as a plain file or folder on this machine, if the store is such.
    fn local_path(&self, key: &str) -> Option<PathBuf> {
        let _ = key;
        None
    }
}

/// What [`open`] takes.
const SCHEMES: &str = "supported are `file:///absolute/path`, `s3://bucket/prefix` and `memory://`";

/// Opens the store at `url`: `file:///absolute/folder` (made where missing);
/// `s3://bucket/prefix?endpoint=http://host:port&region=us-east-1&path_style=true&checksums=when_required`
/// (every setting optional, see `S3Store`; nothing is sent before the store is used); or `memory://`,
/// which is a new and empty store each time.
///
/// # Errors
/// [`Error::Invalid`] for another scheme, a path that is not absolute, a setting that is not known,
/// or a URL that holds a credential; [`Error::Folder`] when the folder cannot be made or written.
pub fn open(url: &str) -> Result<Arc<dyn Store>, Error> {
    match url.split_once("://") {
        Some(("file", _)) => {
            let rule = "a folder is written `file:///absolute/path`, special characters as %XX";
            let path = local_folder(url).ok_or_else(|| unopened(url, rule))?;
            Ok(Arc::new(FileStore::open(path)?))
        }
        Some(("memory", "")) => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "s3")]
        Some(("s3", _)) => Ok(Arc::new(S3Store::open(url)?)),
        #[cfg(not(feature = "s3"))]
        Some(("s3", _)) => {
            Err(unopened(url, "this program was built without S3; build it with the cargo feature `s3`"))
        }
        _ => Err(unopened(url, SCHEMES)),
    }
}

/// Refuses a URL without repeating what in it could be a secret.
fn unopened(url: &str, rule: impl Into<String>) -> Error {
    Error::Invalid { what: "store URL", given: url::shown(url), rule: rule.into() }
}

/// The folder that a `file:///absolute/path` URL names; `None` where it is no such URL.
pub fn local_folder(url: &str) -> Option<PathBuf> {
    url::to_file(url.strip_prefix("file://")?)
}

/// Refuses a prefix whose folder part is no key.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), Error> {
    match prefix.rsplit_once('/') {
        Some((folder, _)) => check_key(folder),
        None if prefix.contains('\0') => check_key(prefix),
        None => Ok(()),
    }
}

fn check_offset(key: &str, offset: u64, length: u64) -> Result<(), Error> {
    if offset <= length {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "offset",
        given: offset.to_string(),
        rule: format!("object `{key}` has {length} bytes, and a write begins at its end or before"),
    })
}

fn nested(outer: &str, inner: &str) -> Error {
    Error::Invalid {
        what: "store key",
        given: outer.to_owned(),
        rule: format!("an object cannot be the folder of another, `{inner}`; choose another key"),
    }
}

/// The failure of a file outside the store.
fn local(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::Io { action, key: path.display().to_string(), store: "the local file system".to_owned(), source }
}

/// Refuses keys that are empty, absolute, or step outside the store.
pub(crate) fn check_key(key: &str) -> Result<(), Error> {
    let bad = key.is_empty() || key.contains('\0') || key.split('/').any(|part| matches!(part, "" | "." | ".."));
    if bad {
        return Err(Error::Invalid {
            what: "store key",
            given: key.to_owned(),
            rule: "use non-empty parts joined by `/`, none of them `.` or `..`".to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_choose_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file://{}/s", folder.path().display());
        assert_eq!(open(&url).unwrap().url(), url);
        assert_eq!(open("memory://").unwrap().url(), "memory://");
        for bad in ["s4://bucket/x", "/tmp/x", "file://relative", "memory://named", ""] {
            let error = open(bad).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{bad}: {error}");
            assert!(error.to_string().contains("file:///absolute/path"), "{error}");
        }
        let error = open("https://user:hidden@host/path?token=hidden").unwrap_err().to_string();
        assert!(!error.contains("hidden") && error.contains("`https://host/path?…`"), "{error}");
    }

    #[cfg(not(feature = "s3"))]
    #[test]
    fn without_the_feature_s3_is_refused_by_name() {
        let error = open("s3://bucket/x").unwrap_err().to_string();
        assert!(error.contains("cargo feature `s3`"), "{error}");
    }
}
