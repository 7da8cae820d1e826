//! Objects in memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::{ETag, Error, Object, ObjectMeta, Store, check_key, check_offset, check_prefix, nested};
use crate::ids::ContentHash;

/// A map as a store: for tests and for runs that leave nothing behind. It is as strict as a folder.
#[derive(Debug, Default)]
pub struct MemoryStore {
    objects: Mutex<BTreeMap<String, Bytes>>,
}

type Objects = BTreeMap<String, Bytes>;

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        // No operation panics half way through a change, so a poisoned map is still whole.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The map, once `key` is known to be one that can be written.
    fn writable(&self, key: &str) -> Result<MutexGuard<'_, Objects>, Error> {
        check_key(key)?;
        let objects = self.objects();
        let folder = format!("{key}/");
        if let Some((below, _)) = objects.range(folder.clone()..).next().filter(|(below, _)| below.starts_with(&folder))
        {
            return Err(nested(key, below));
        }
        for (end, _) in key.match_indices('/') {
            if objects.contains_key(&key[..end]) {
                return Err(nested(&key[..end], key));
            }
        }
        Ok(objects)
    }

    fn not_found(&self, key: &str) -> Error {
        Error::NotFound { key: key.to_owned(), store: self.url() }
    }
}

fn tag(bytes: &[u8]) -> ETag {
    ETag(ContentHash::of(bytes).as_str().to_owned())
}

#[async_trait]
impl Store for MemoryStore {
    fn url(&self) -> String {
        "memory://".to_owned()
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<ETag, Error> {
        let etag = tag(&bytes);
        self.writable(key)?.insert(key.to_owned(), bytes);
        Ok(etag)
    }

    async fn put_file(&self, key: &str, path: &Path) -> Result<ETag, Error> {
        check_key(key)?;
        let bytes = tokio::fs::read(path).await.map_err(|source| super::local("read", path, source))?;
        self.put(key, bytes.into()).await
    }

    async fn create(&self, key: &str, bytes: Bytes) -> Result<ETag, Error> {
        let etag = tag(&bytes);
        let mut objects = self.writable(key)?;
        if objects.contains_key(key) {
            return Err(Error::AlreadyExists { key: key.to_owned(), store: self.url() });
        }
        objects.insert(key.to_owned(), bytes);
        Ok(etag)
    }

    async fn swap(&self, key: &str, bytes: Bytes, expected: &ETag) -> Result<ETag, Error> {
        let etag = tag(&bytes);
        let mut objects = self.writable(key)?;
        if objects.get(key).map(|current| tag(current)).as_ref() != Some(expected) {
            return Err(Error::Changed { key: key.to_owned(), store: self.url() });
        }
        objects.insert(key.to_owned(), bytes);
        Ok(etag)
    }

    async fn write_at(&self, key: &str, offset: u64, bytes: Bytes) -> Result<(), Error> {
        let mut objects = self.writable(key)?;
        let current = objects.get(key).cloned().unwrap_or_default();
        check_offset(key, offset, current.len() as u64)?;
        // At most the object's length, which is a `usize`.
        let kept = &current[..offset as usize];
        objects.insert(key.to_owned(), [kept, &bytes].concat().into());
        Ok(())
    }

    async fn get(&self, key: &str) -> Result<Object, Error> {
        check_key(key)?;
        let bytes = self.objects().get(key).cloned().ok_or_else(|| self.not_found(key))?;
        Ok(Object { etag: tag(&bytes), bytes })
    }

    async fn get_file(&self, key: &str, path: &Path) -> Result<(), Error> {
        let object = self.get(key).await?;
        let target = path.to_owned();
        let write = move || {
            super::file::place_file(&target, |file| std::io::Write::write_all(file, &object.bytes))
                .map_err(|source| super::local("write", &target, source))
        };
        super::file::join(tokio::task::spawn_blocking(write)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, Error> {
        check_prefix(prefix)?;
        let objects = self.objects();
        let found = objects.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        let meta = |key: &String, bytes: &Bytes| ObjectMeta {
            key: key.clone(),
            size: bytes.len() as u64,
            version: Some(tag(bytes)),
        };
        Ok(found.map(|(key, bytes)| meta(key, bytes)).collect())
    }

    async fn delete(&self, key: &str) -> Result<(), Error> {
        check_key(key)?;
        self.objects().remove(key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn passes_the_suite() {
        let store = MemoryStore::new();
        conformance::all(&store).await;
        conformance::keys_do_not_nest(&store).await;
    }
}
