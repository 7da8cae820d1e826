//! Artefacts by key, behind one trait.
//!
//! Keys are `/`-separated, relative, of non-empty parts that are neither `.` nor `..`. A reader
//! never observes a partly written object. [`open`] makes a store from its URL.

pub mod conformance;
mod file;
mod memory;

use std::fmt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;

pub use file::FileStore;
pub use memory::MemoryStore;

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
}

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

    /// Copies an object to a file, atomically (the file appears whole or not at all).
    async fn get_file(&self, key: &str, path: &Path) -> Result<(), Error>;

    /// All objects whose key begins with `prefix`, in key order.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, Error>;

    /// Removes an object; one that is not there is no error.
    async fn delete(&self, key: &str) -> Result<(), Error>;

    /// Where the object lies as a plain file or folder on this machine, if the store is such.
    fn local_path(&self, key: &str) -> Option<PathBuf> {
        let _ = key;
        None
    }
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
