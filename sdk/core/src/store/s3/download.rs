//! Content on its way down: in order, in parts that come a few at once, and verified.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use bytes::{Bytes, BytesMut};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::limits::Attempts;
use super::requests::{Ask, Bucket, Head, SHA256, WRITE, plain, quoted};
use super::sorting;
use super::upload::Task;
use crate::ids::ContentHash;
use crate::store::fault::{Fault, FaultKind};
use crate::store::{ETag, Error, Object, file, local};

/// No object is larger (S3 allows 50 TB): an offset beyond is beyond every end.
const LARGEST: u64 = 1 << 46;
/// How much memory an object's announced size may take before its bytes are there.
const TRUSTED: u64 = 64 << 20;

/// Bytes of an object, and what its metadata says.
struct Piece {
    head: Head,
    bytes: Bytes,
}

/// Reads an object whole.
pub(super) async fn whole(bucket: &Arc<Bucket>, key: &str) -> Result<Object, Error> {
    let ask = Ask::new("read", "s3:GetObject", key);
    let mut attempts = Attempts::new(&bucket.limits);
    loop {
        let read = async {
            let Piece { head, bytes: first } = open(bucket, &ask).await?;
            if first.len() as u64 == head.size {
                check(bucket, &ask, &head, &ContentHash::of(&first))?;
                return Ok(Object { bytes: first, etag: ETag(head.etag) });
            }
            let mut bytes = BytesMut::with_capacity(usize::try_from(head.size.min(TRUSTED)).unwrap_or(0));
            bytes.extend_from_slice(&first);
            let mut rest = Rest::new(bucket, &ask, &head, first.len() as u64, head.size);
            while let Some(part) = rest.next().await? {
                bytes.extend_from_slice(&part);
            }
            let bytes = bytes.freeze();
            check(bucket, &ask, &head, &ContentHash::of(&bytes))?;
            Ok(Object { bytes, etag: ETag(head.etag) })
        };
        match read.await {
            Ok(object) => return Ok(object),
            Err(fault) => again(bucket, &ask, &mut attempts, fault).await?,
        }
    }
}

/// Copies an object to a file, which appears whole and verified or not at all.
pub(super) async fn to_file(bucket: &Arc<Bucket>, key: &str, path: &Path) -> Result<(), Error> {
    let ask = Ask::new("read", "s3:GetObject", key);
    let mut attempts = Attempts::new(&bucket.limits);
    loop {
        match to_temporary(bucket, &ask, path).await {
            Ok(file) => {
                let path = path.to_owned();
                let place = move || {
                    let folder = folder_of(&path).to_owned();
                    let placed = file.as_file().sync_all().and_then(|()| Ok(file.persist(&path)?));
                    placed.and_then(|_| File::open(folder)?.sync_all()).map_err(|source| local("write", &path, source))
                };
                return file::join(tokio::task::spawn_blocking(place)).await;
            }
            Err(Failed::Here(error)) => return Err(error),
            Err(Failed::There(fault)) => again(bucket, &ask, &mut attempts, fault).await?,
        }
    }
}

enum Failed {
    Here(Error),
    There(Fault),
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self::There(fault)
    }
}

/// One verified copy in a file beside `path` that nobody knows yet.
async fn to_temporary(bucket: &Arc<Bucket>, ask: &Ask, path: &Path) -> Result<NamedTempFile, Failed> {
    let Piece { head, bytes } = open(bucket, ask).await?;
    let target = path.to_owned();
    let make = move || {
        let folder = folder_of(&target);
        let made = std::fs::create_dir_all(folder).and_then(|()| file::temporary_in(folder));
        made.map_err(|source| local("write", &target, source))
    };
    let mut file = file::join(tokio::task::spawn_blocking(make)).await.map_err(Failed::Here)?;
    let (mut hasher, mut part) = (Sha256::new(), Some(bytes));
    let mut rest = None;
    while let Some(bytes) = part {
        let length = bytes.len() as u64;
        let write = move || -> io::Result<_> {
            file.write_all(&bytes)?;
            hasher.update(&bytes);
            Ok((file, hasher))
        };
        let written = file::join(tokio::task::spawn_blocking({
            let path = path.to_owned();
            move || write().map_err(|source| local("write", &path, source))
        }));
        (file, hasher) = written.await.map_err(Failed::Here)?;
        let rest = rest.get_or_insert_with(|| Rest::new(bucket, ask, &head, length, head.size));
        part = rest.next().await?;
    }
    check(bucket, ask, &head, &ContentHash::finish(hasher))?;
    Ok(file)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Reads an object from `offset` on; `None` where it is shorter.
pub(super) async fn from(bucket: &Arc<Bucket>, key: &str, offset: u64) -> Result<Option<Bytes>, Error> {
    if offset == 0 {
        return whole(bucket, key).await.map(|object| Some(object.bytes));
    }
    let ask = Ask::new("read", "s3:GetObject", key);
    let mut attempts = Attempts::new(&bucket.limits);
    loop {
        match rest_from(bucket, &ask, offset.min(LARGEST)).await {
            Ok(bytes) => return Ok(bytes),
            Err(fault) => again(bucket, &ask, &mut attempts, fault).await?,
        }
    }
}

async fn rest_from(bucket: &Arc<Bucket>, ask: &Ask, offset: u64) -> Result<Option<Bytes>, Fault> {
    // From a byte before: a range that begins at the end is refused as one beyond it is.
    let (start, end) = (offset - 1, offset - 1 + bucket.limits.part);
    let Some(Piece { head, bytes }) = range(bucket, ask, start, end, None).await? else { return Ok(None) };
    if head.size < offset {
        return Ok(None);
    }
    let mut all = BytesMut::from(bytes.slice(1.min(bytes.len())..).as_ref());
    let mut rest = Rest::new(bucket, ask, &head, start + bytes.len() as u64, head.size);
    while let Some(part) = rest.next().await? {
        all.extend_from_slice(&part);
    }
    Ok(Some(all.freeze()))
}

/// The sha256 of an object's first `length` bytes, as a hasher that goes on from there. The object's
/// content is verified with it.
pub(super) async fn hash_of_first(
    bucket: &Arc<Bucket>,
    ask: &Ask,
    head: &Head,
    first: &Bytes,
    length: u64,
) -> Result<Sha256, Fault> {
    let (mut all, mut until, mut seen) = (Sha256::new(), Sha256::new(), 0);
    let mut rest = Rest::new(bucket, ask, head, first.len() as u64, head.size);
    let mut part = Some(first.clone());
    while let Some(bytes) = part {
        let kept = usize::try_from(length.saturating_sub(seen)).unwrap_or(usize::MAX).min(bytes.len());
        until.update(&bytes[..kept]);
        all.update(&bytes);
        seen += bytes.len() as u64;
        part = rest.next().await?;
    }
    check(bucket, ask, head, &ContentHash::finish(all))?;
    Ok(until)
}

/// An object's first part (all of it, where it is small) and what its metadata says.
///
/// # Errors
/// The fault, after the attempts that the limits allow.
pub(super) async fn first(bucket: &Arc<Bucket>, ask: &Ask) -> Result<(Head, Bytes), Fault> {
    open(bucket, ask).await.map(|piece| (piece.head, piece.bytes))
}

async fn open(bucket: &Arc<Bucket>, ask: &Ask) -> Result<Piece, Fault> {
    if let Some(piece) = range(bucket, ask, 0, bucket.limits.part, None).await? {
        return Ok(piece);
    }
    // No byte to give a range of: an empty object, or one that was cut just now.
    let ask = ask.carrying(bucket.limits.part);
    bucket.attempts(&ask, |client| get(bucket, &ask, client, None, None)).await?.ok_or_else(|| {
        let sentence = format!("{} refuses to give the object", bucket.asked(&ask).endpoint);
        Fault::new(FaultKind::Server, sentence, "look at the server's log")
    })
}

/// Bytes `start..end` as far as they are there; `None` where the object ends before `start`.
async fn range(
    bucket: &Arc<Bucket>,
    ask: &Ask,
    start: u64,
    end: u64,
    etag: Option<&str>,
) -> Result<Option<Piece>, Fault> {
    let ask = ask.carrying(end - start);
    bucket.attempts(&ask, |client| get(bucket, &ask, client, Some((start, end)), etag.map(quoted))).await
}

async fn get(
    bucket: &Arc<Bucket>,
    ask: &Ask,
    client: Client,
    range: Option<(u64, u64)>,
    if_match: Option<String>,
) -> Result<Option<Piece>, Fault> {
    let request = client.get_object().bucket(&bucket.profile.bucket).key(bucket.key(&ask.key));
    let request = request.set_range(range.map(|(start, end)| format!("bytes={start}-{}", end - 1)));
    let answer = match request.set_if_match(if_match).send().await {
        Ok(answer) => answer,
        Err(error) if error.raw_response().is_some_and(|raw| raw.status().as_u16() == 416) => return Ok(None),
        Err(error) => return Err(bucket.sort(ask, &error)),
    };
    let length = answer.content_length().and_then(|length| u64::try_from(length).ok());
    let named = answer.content_range().and_then(parse_content_range);
    let metadata = answer.metadata();
    let of_metadata = |name| metadata.and_then(|all| all.get(name)).cloned();
    let wrong = |what: String| {
        let sentence = format!("{} gave an answer that does not fit: {what}", bucket.asked(ask).endpoint);
        Fault::new(FaultKind::Interrupted, sentence, "check the network between here and there, and the server")
    };
    let (from, until, size) = match (range, named, length) {
        (Some((start, _)), Some((from, until, size)), _) if from == start && until <= size => (from, until, size),
        (Some((start, _)), Some(_), _) => return Err(wrong(format!("not the bytes from {start} on"))),
        // Some servers give a small object whole whatever the range.
        (_, None, Some(size)) => (0, size, size),
        (None, Some((from, until, size)), _) => (from, until, size),
        (_, None, None) => return Err(wrong("without a length".to_owned())),
    };
    let head = Head {
        etag: plain(answer.e_tag().unwrap_or_default()),
        size,
        sha256: of_metadata(SHA256),
        write: of_metadata(WRITE),
    };
    let most = range.map_or(bucket.limits.part, |(start, end)| end - start);
    if until - from > most.saturating_add(range.map_or(0, |(start, _)| start)) {
        let sentence = format!("{} does not give ranges of objects", bucket.asked(ask).endpoint);
        return Err(Fault::new(FaultKind::Unsupported, sentence, "use a server that does"));
    }
    let bytes = collect(bucket, ask, answer.body, until - from).await?;
    // The part that was asked for, of an object that came whole.
    let bytes = match range {
        Some((start, _)) if named.is_none() => {
            let start = usize::try_from(start).unwrap_or(usize::MAX);
            if start >= bytes.len() && start > 0 {
                return Ok(None);
            }
            let end = bytes.len().min(start.saturating_add(usize::try_from(most).unwrap_or(usize::MAX)));
            bytes.slice(start..end)
        }
        _ => bytes,
    };
    Ok(Some(Piece { head, bytes }))
}

async fn collect(bucket: &Bucket, ask: &Ask, mut body: ByteStream, length: u64) -> Result<Bytes, Fault> {
    let endpoint = bucket.asked(ask).endpoint;
    let broken = |there: usize| {
        let sentence = format!("the answer of {endpoint} has {there} bytes instead of {length}");
        Fault::new(FaultKind::Interrupted, sentence, "check the network between here and there")
    };
    let mut bytes = BytesMut::with_capacity(usize::try_from(length.min(TRUSTED)).unwrap_or(0));
    while let Some(chunk) = body.next().await {
        bytes.extend_from_slice(&chunk.map_err(|error| sorting::of_body(&error, bucket.asked(ask)))?);
        if bytes.len() as u64 > length {
            return Err(broken(bytes.len()));
        }
    }
    if bytes.len() as u64 == length { Ok(bytes.freeze()) } else { Err(broken(bytes.len())) }
}

/// `bytes 0-4/10` as start, end (behind the last) and size of the object.
fn parse_content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, size) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last): (u64, u64) = (start.trim().parse().ok()?, last.trim().parse().ok()?);
    (start <= last).then_some((start, last.checked_add(1)?, size.trim().parse().ok()?))
}

/// The parts of an object behind the first ones, in order, a few asked for ahead.
struct Rest {
    bucket: Arc<Bucket>,
    ask: Ask,
    etag: String,
    asked: u64,
    end: u64,
    coming: VecDeque<Task<Result<Bytes, Fault>>>,
}

impl Rest {
    fn new(bucket: &Arc<Bucket>, ask: &Ask, head: &Head, start: u64, end: u64) -> Self {
        let (bucket, ask, etag) = (Arc::clone(bucket), ask.clone(), head.etag.clone());
        Self { bucket, ask, etag, asked: start, end, coming: VecDeque::new() }
    }

    /// The next part; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        while self.asked < self.end && self.coming.len() < self.bucket.limits.parallel {
            let (start, end) = (self.asked, self.end.min(self.asked + self.bucket.limits.part));
            let (bucket, ask, etag) = (Arc::clone(&self.bucket), self.ask.clone(), self.etag.clone());
            self.coming.push_back(Task::spawn(async move {
                let piece = range(&bucket, &ask, start, end, Some(&etag)).await?;
                // A part of the right length and place, of the very version that was begun with.
                let fits = |piece: &Piece| piece.bytes.len() as u64 == end - start && piece.head.etag == etag;
                piece.filter(fits).map(|piece| piece.bytes).ok_or_else(|| changed(&bucket, &ask))
            }));
            self.asked = end;
        }
        match self.coming.pop_front() {
            Some(task) => task.finish().await.map(Some),
            None => Ok(None),
        }
    }
}

fn changed(bucket: &Bucket, ask: &Ask) -> Fault {
    let sentence = format!("the object at {} changed while it was read", bucket.asked(ask).endpoint);
    Fault::new(FaultKind::Conflict, sentence, "read it again once nobody writes to it")
}

/// Whether what came is what was written.
fn check(bucket: &Bucket, ask: &Ask, head: &Head, came: &ContentHash) -> Result<(), Fault> {
    match &head.sha256 {
        Some(written) if written != came.as_str() => {
            let start = |hash: &str| hash.chars().take(12).collect::<String>();
            let (written, came) = (start(written), start(came.as_str()));
            Err(Fault::new(
                FaultKind::Checksum,
                format!(
                    "what {} gives is not what was written: sha256 {came}… instead of {written}…",
                    bucket.asked(ask).endpoint
                ),
                "if it stays, the object or something on the way to it is damaged: write it again, or use an earlier one",
            ))
        }
        _ => Ok(()),
    }
}

/// Waits before the whole is read again.
async fn again(bucket: &Bucket, ask: &Ask, attempts: &mut Attempts<'_>, fault: Fault) -> Result<(), Error> {
    let fault = match fault.kind {
        // Its parts were of different versions.
        FaultKind::Precondition => changed(bucket, ask),
        // Asked for as often as the limits allow already.
        kind if kind.is_transient() && !matches!(kind, FaultKind::Checksum | FaultKind::Conflict) => {
            return Err(bucket.error(ask, fault));
        }
        _ => fault,
    };
    bucket.pause(ask, attempts, fault).await.map_err(|fault| bucket.error(ask, fault))
}
