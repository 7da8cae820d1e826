//! Objects in a bucket of an S3 server.
//!
//! | file | what it does |
//! |---|---|
//! | `profile` | the URL, taken apart |
//! | `limits` | memory, time, attempts |
//! | `client` | a client for each tokio runtime |
//! | `requests` | one request and its attempts; single-request operations |
//! | `sorting` | what failed, sorted |
//! | `upload`, `download` | content, in parts where it is large |
//! | `tail` | logs that grow |
//!
//! **Content is verified end to end.** Each object carries the sha256 of its content as metadata
//! (`gym-sha256`), and a reader that got something else gets an error, never bytes or a file. Requests are
//! signed over their content, so a server that verifies signatures refuses what changed on the way up.
//!
//! **A write that landed is a success**, whatever came back: each carries a number drawn for it
//! (`gym-write`), and a conditional write that is answered with "the object is there" after its own answer
//! was lost recognises itself. What no client can exclude: a request that a proxy holds back longer than the
//! client waits may still be carried out later. Checkpoints are safe from it, since their objects are written
//! once and the manifest only if there is none.

mod client;
mod download;
mod limits;
mod profile;
mod requests;
mod sorting;
mod tail;
mod upload;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub use limits::S3Limits;
use profile::Profile;
use requests::{Ask, Bucket};
use upload::{Condition, Source};

use super::{ETag, Error, Object, ObjectMeta, Store, check_prefix};
use crate::ids::ContentHash;

/// A bucket, or the part of it below a prefix, as a store. Clones share their connections.
///
/// Credentials come from the AWS SDK's chain (variables, profile, SSO, web identity, roles); what the URL
/// does not set (`endpoint`, `region`) does, too. `path_style` is on where the endpoint is not AWS's own, and
/// additional checksums are off, unless the URL says otherwise.
#[derive(Clone)]
pub struct S3Store {
    bucket: Arc<Bucket>,
}

impl fmt::Debug for S3Store {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("S3Store").field("url", &self.bucket.url).finish_non_exhaustive()
    }
}

impl S3Store {
    /// The store at `url`, `s3://bucket/prefix?endpoint=…&region=…&path_style=…&checksums=…`, within the
    /// default [`S3Limits`]. Nothing is sent before it is used.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a URL that is none, or holds a credential.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::within(url, S3Limits::default())
    }

    /// As [`S3Store::open`], within limits of one's own.
    ///
    /// # Errors
    /// As [`S3Store::open`].
    pub fn within(url: &str, limits: S3Limits) -> Result<Self, Error> {
        Ok(Self { bucket: Arc::new(Bucket::new(Profile::parse(url)?, limits.sound())) })
    }

    async fn write(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<ETag, Error> {
        requests::check_key(key)?;
        let hash = ContentHash::of(&bytes);
        upload::write(&self.bucket, key, Source::of_bytes(bytes), hash, condition).await.map(ETag)
    }
}

#[async_trait]
impl Store for S3Store {
    fn url(&self) -> String {
        self.bucket.url.clone()
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<ETag, Error> {
        self.write(key, bytes, Condition::Always).await
    }

    async fn put_file(&self, key: &str, path: &Path) -> Result<ETag, Error> {
        requests::check_key(key)?;
        let (source, hash) = Source::of_file(path).await?;
        upload::write(&self.bucket, key, source, hash, Condition::Always).await.map(ETag)
    }

    async fn create(&self, key: &str, bytes: Bytes) -> Result<ETag, Error> {
        self.write(key, bytes, Condition::Absent).await
    }

    async fn swap(&self, key: &str, bytes: Bytes, expected: &ETag) -> Result<ETag, Error> {
        self.write(key, bytes, Condition::Is(expected.0.clone())).await
    }

    async fn write_at(&self, key: &str, offset: u64, bytes: Bytes) -> Result<(), Error> {
        requests::check_key(key)?;
        tail::write_at(&self.bucket, key, offset, bytes).await
    }

    async fn get(&self, key: &str) -> Result<Object, Error> {
        requests::check_key(key)?;
        download::whole(&self.bucket, key).await
    }

    async fn get_from(&self, key: &str, offset: u64) -> Result<Option<Bytes>, Error> {
        requests::check_key(key)?;
        download::from(&self.bucket, key, offset).await
    }

    async fn get_file(&self, key: &str, path: &Path) -> Result<(), Error> {
        requests::check_key(key)?;
        download::to_file(&self.bucket, key, path).await
    }

    async fn is_verified(&self, key: &str) -> Result<bool, Error> {
        requests::check_key(key)?;
        let ask = Ask::new("read", "s3:GetObject", key);
        let (head, _) = download::first(&self.bucket, &ask).await.map_err(|fault| self.bucket.error(&ask, fault))?;
        Ok(head.sha256.is_some() && head.write.is_some())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, Error> {
        check_prefix(prefix)?;
        self.bucket.list(prefix).await
    }

    async fn delete(&self, key: &str) -> Result<(), Error> {
        requests::check_key(key)?;
        self.bucket.delete(&Ask::new("delete", "s3:DeleteObject", key)).await
    }
}
