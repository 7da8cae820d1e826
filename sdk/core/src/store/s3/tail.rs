//! Logs: objects that grow at their end, on servers that have no append.
//!
//! A small log (below 5 MiB) is written anew with each line, from a copy that the writer keeps, so a line
//! costs one request. A larger one is put together by the server, from a copy of what is there and the new
//! bytes (a multipart upload of two parts): four requests, and only the new bytes travel. Either way a write
//! goes over the version that the writer knows and no other.
//!
//! What that costs: a step's line of metrics is about 1 KB. Ten thousand steps are ten thousand requests and,
//! on average, 2.5 MB each until the log has 5 MiB (about 12 GB in all); afterwards four requests a step and
//! nothing else. At AWS's prices ($0.005 for 1,000 writes) that is below $0.25 for ten thousand steps.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use bytes::{Bytes, BytesMut};
use sha2::{Digest, Sha256};

use super::download;
use super::limits::SMALLEST_PART;
use super::requests::{Ask, Bucket};
use super::upload::{self, Condition, Source};
use crate::ids::ContentHash;
use crate::store::fault::FaultKind;
use crate::store::{Error, check_offset};

/// Logs that are remembered: a trainer writes one or two.
const REMEMBERED: usize = 8;
/// Looks at a log that others write, too.
const LOOKS: usize = 4;
/// S3 copies up to 5 GiB into a part.
const LARGEST_COPY: u64 = 5 << 30;

/// What this writer knows of a log.
#[derive(Clone, Debug)]
pub(super) struct Tail {
    etag: String,
    length: u64,
    /// Fed with all of it.
    hasher: Sha256,
    /// All of it, while it is small.
    content: Option<Bytes>,
}

/// The state of a log as a write finds it: what is kept of it.
struct Kept {
    condition: Condition,
    hasher: Sha256,
    /// The first bytes, where they are at hand.
    content: Option<Bytes>,
    length: u64,
}

/// As [`crate::store::Store::write_at`].
pub(super) async fn write_at(bucket: &Arc<Bucket>, key: &str, offset: u64, bytes: Bytes) -> Result<(), Error> {
    let known = recall(bucket, key).filter(|tail| tail.length == offset);
    let mut kept = known.map(|tail| Kept {
        condition: Condition::Is(tail.etag),
        hasher: tail.hasher,
        content: tail.content,
        length: tail.length,
    });
    for look in 1.. {
        let found = match kept.take() {
            Some(kept) => kept,
            None => look_at(bucket, key, offset).await?,
        };
        match write(bucket, key, found, bytes.clone()).await {
            Ok(tail) => {
                remember(bucket, key, tail);
                return Ok(());
            }
            // Somebody else wrote it since; one writer at a time is the caller's promise, so not for long.
            Err(Error::Changed { .. } | Error::AlreadyExists { .. }) if look < LOOKS => {}
            Err(error) => return Err(error),
        }
    }
    unreachable!("the last look returns")
}

/// Reads what a write at `offset` keeps.
async fn look_at(bucket: &Arc<Bucket>, key: &str, offset: u64) -> Result<Kept, Error> {
    let ask = Ask::new("write", "s3:GetObject", key);
    let (head, first) = match download::first(bucket, &ask).await {
        Ok(there) => there,
        Err(fault) if fault.kind == FaultKind::NoObject => {
            check_offset(key, offset, 0)?;
            return Ok(Kept {
                condition: Condition::Absent,
                hasher: Sha256::new(),
                content: Some(Bytes::new()),
                length: 0,
            });
        }
        Err(fault) => return Err(bucket.error(&ask, fault)),
    };
    check_offset(key, offset, head.size)?;
    let hasher = download::hash_of_first(bucket, &ask, &head, &first, offset).await;
    let hasher = hasher.map_err(|fault| bucket.error(&ask, fault))?;
    let at_hand = usize::try_from(offset).ok().filter(|offset| *offset <= first.len());
    let content = at_hand.map(|offset| first.slice(..offset));
    Ok(Kept { condition: Condition::Is(head.etag), hasher, content, length: offset })
}

async fn write(bucket: &Arc<Bucket>, key: &str, kept: Kept, bytes: Bytes) -> Result<Tail, Error> {
    let Kept { condition, mut hasher, content, length: kept } = kept;
    hasher.update(&bytes);
    let hash = ContentHash::finish(hasher.clone());
    let length = kept + bytes.len() as u64;
    let tail = |etag, content| Tail { etag, length, hasher, content };
    let copied = (SMALLEST_PART..=LARGEST_COPY).contains(&kept) && bucket.copies.load(Ordering::Relaxed);
    if let (true, Condition::Is(etag)) = (copied, &condition) {
        match upload::extend(bucket, key, (etag, kept), bytes.clone(), hash.clone()).await {
            Ok(etag) => return Ok(tail(etag, None)),
            Err(Error::Remote { fault, .. }) if matches!(fault.kind, FaultKind::Unsupported | FaultKind::Other) => {
                tracing::debug!("{} copies no parts, so logs are written whole: {}", bucket.url, fault.sentence);
                bucket.copies.store(false, Ordering::Relaxed);
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(content) = content {
        let mut whole = BytesMut::with_capacity(content.len() + bytes.len());
        whole.extend_from_slice(&content);
        whole.extend_from_slice(&bytes);
        let whole = whole.freeze();
        let etag = upload::write(bucket, key, Source::of_bytes(whole.clone()), hash, condition).await?;
        return Ok(tail(etag, Some(whole).filter(|whole| (whole.len() as u64) < SMALLEST_PART)));
    }
    let etag = through_a_file(bucket, key, (condition, kept), bytes).await?;
    Ok(tail(etag, None))
}

/// A large log on a server that copies no parts: down to a file, cut, longer, and up again.
async fn through_a_file(
    bucket: &Arc<Bucket>,
    key: &str,
    (condition, kept): (Condition, u64),
    bytes: Bytes,
) -> Result<String, Error> {
    let folder =
        tempfile::tempdir().map_err(|source| crate::store::local("make a folder in", &std::env::temp_dir(), source))?;
    let path = folder.path().join("log");
    download::to_file(bucket, key, &path).await?;
    let target = path.clone();
    let edit = move || {
        let edited = std::fs::OpenOptions::new().write(true).open(&target).and_then(|mut file| {
            file.set_len(kept)?;
            std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0))?;
            std::io::Write::write_all(&mut file, &bytes)
        });
        edited.map_err(|source| crate::store::local("write", &target, source))
    };
    crate::store::file::join(tokio::task::spawn_blocking(edit)).await?;
    let (source, hash) = Source::of_file(&path).await?;
    upload::write(bucket, key, source, hash, condition).await
}

/// Takes what is known of a log; a write that fails leaves nothing known.
fn recall(bucket: &Bucket, key: &str) -> Option<Tail> {
    bucket.tails.lock().unwrap_or_else(PoisonError::into_inner).remove(key)
}

fn remember(bucket: &Bucket, key: &str, tail: Tail) {
    let mut tails = bucket.tails.lock().unwrap_or_else(PoisonError::into_inner);
    if tails.len() >= REMEMBERED
        && let Some(other) = tails.keys().next().cloned()
    {
        tails.remove(&other);
    }
    tails.insert(key.to_owned(), tail);
}
