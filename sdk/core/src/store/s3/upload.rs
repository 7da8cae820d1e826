//! Content on its way up: in one request, or in parts where it is large.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;

use super::requests::{Ask, Bucket, Head, SHA256, WRITE, plain, quoted};
use crate::ids::ContentHash;
use crate::store::fault::{Fault, FaultKind};
use crate::store::{Error, file, local};

/// When a write is to happen.
#[derive(Clone, Debug)]
pub(super) enum Condition {
    Always,
    /// Only if there is no such object.
    Absent,
    /// Only over the version with this tag.
    Is(String),
}

impl Condition {
    /// `If-None-Match` and `If-Match`.
    pub(super) fn headers(&self) -> (Option<String>, Option<String>) {
        match self {
            Self::Always => (None, None),
            Self::Absent => (Some("*".to_owned()), None),
            Self::Is(etag) => (None, Some(quoted(etag))),
        }
    }
}

/// What is written.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Bytes(Bytes),
    File { path: PathBuf, file: Arc<File>, size: u64 },
}

impl Source {
    pub(super) fn of_bytes(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }

    /// A file and its hash. It is read once now and once as it goes up, and must be the same both times.
    pub(super) async fn of_file(path: &Path) -> Result<(Self, ContentHash), Error> {
        let path = path.to_owned();
        file::join(tokio::task::spawn_blocking(move || {
            let open = || {
                let file = File::open(&path)?;
                let size = file.metadata()?.len();
                Ok((file, size, ContentHash::of_file(&path)?))
            };
            let (file, size, hash) = open().map_err(|source| local("read", &path, source))?;
            Ok((Self::File { path, file: Arc::new(file), size }, hash))
        }))
        .await
    }

    fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { size, .. } => *size,
        }
    }

    /// The bytes from `offset` on, fed to `hasher` on the way.
    async fn read(&self, offset: u64, length: u64, mut hasher: Sha256) -> Result<(Bytes, Sha256), Error> {
        let source = self.clone();
        file::join(tokio::task::spawn_blocking(move || {
            let bytes = match source {
                Self::Bytes(bytes) => bytes.slice(offset as usize..(offset + length) as usize),
                Self::File { path, file, .. } => {
                    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
                    file.read_exact_at(&mut bytes, offset).map_err(|source| local("read", &path, source))?;
                    bytes.into()
                }
            };
            hasher.update(&bytes);
            Ok((bytes, hasher))
        }))
        .await
    }

    fn changed(&self) -> Error {
        let path = match self {
            Self::File { path, .. } => path.display().to_string(),
            Self::Bytes(_) => "the content".to_owned(),
        };
        let rule = "it changed while it was uploaded; upload a file that nobody writes to".to_owned();
        Error::Invalid { what: "file", given: path, rule }
    }
}

/// One write: what, under which conditions, and the number drawn for it.
#[derive(Debug)]
struct Writing {
    ask: Ask,
    hash: ContentHash,
    number: String,
    condition: Condition,
}

/// Writes an object and returns its tag.
///
/// # Errors
/// [`Error::AlreadyExists`] or [`Error::Changed`] where the condition does not hold; otherwise what failed,
/// and then no object of this write is there as far as the server can be asked.
pub(super) async fn write(
    bucket: &Arc<Bucket>,
    key: &str,
    source: Source,
    hash: ContentHash,
    condition: Condition,
) -> Result<String, Error> {
    let number = format!("{:032x}", rand::random::<u128>());
    let writing = Writing { ask: Ask::new("write", "s3:PutObject", key), hash, number, condition };
    if source.size() <= bucket.limits.part {
        let (bytes, hasher) = source.read(0, source.size(), Sha256::new()).await?;
        if ContentHash::finish(hasher) != writing.hash {
            return Err(source.changed());
        }
        return bucket.put(&writing, bytes).await;
    }
    bucket.look_before(&writing).await?;
    let upload = Upload::begin(bucket, writing).await?;
    let sent = match upload.send(&source).await {
        Ok(parts) => upload.complete(parts).await,
        Err(error) => Err(error),
    };
    upload.end(sent).await
}

/// Makes an object of the first `kept` bytes of the one that is there, with tag `etag`, and `bytes`, by the
/// server's own copying.
///
/// # Errors
/// [`Error::Changed`] where another is there by then; [`Error::Remote`] of kind
/// [`FaultKind::Unsupported`] or [`FaultKind::Other`] where the server does not copy.
pub(super) async fn extend(
    bucket: &Arc<Bucket>,
    key: &str,
    (etag, kept): (&str, u64),
    bytes: Bytes,
    hash: ContentHash,
) -> Result<String, Error> {
    let number = format!("{:032x}", rand::random::<u128>());
    let condition = Condition::Is(etag.to_owned());
    let writing = Writing { ask: Ask::new("write", "s3:PutObject", key), hash, number, condition };
    let upload = Upload::begin(bucket, writing).await?;
    let sent = async {
        let mut parts = vec![upload.copy(etag, kept).await?];
        if !bytes.is_empty() {
            let part = Upload::part(Arc::clone(bucket), upload.state.clone(), 2, bytes).await;
            parts.push(part.map_err(|fault| bucket.error(&upload.writing.ask, fault))?);
        }
        upload.complete(parts).await
    };
    let sent = sent.await;
    upload.end(sent).await
}

impl Bucket {
    async fn put(&self, writing: &Writing, bytes: Bytes) -> Result<String, Error> {
        let ask = writing.ask.carrying(bytes.len() as u64);
        let (if_none_match, if_match) = writing.condition.headers();
        let outcome = self
            .attempts(&ask, |client| {
                let request = client
                    .put_object()
                    .bucket(&self.profile.bucket)
                    .key(self.key(&ask.key))
                    .metadata(SHA256, writing.hash.as_str())
                    .metadata(WRITE, &writing.number)
                    .set_if_none_match(if_none_match.clone())
                    .set_if_match(if_match.clone())
                    .body(ByteStream::from(bytes.clone()));
                let ask = &ask;
                async move {
                    let answer = request.send().await.map_err(|error| self.sort(ask, &error))?;
                    answer.e_tag().map(plain).ok_or_else(|| untagged(self, ask))
                }
            })
            .await;
        match outcome {
            Ok(etag) => Ok(etag),
            Err(fault) => self.settle(writing, fault).await,
        }
    }

    /// What a write came to whose last answer was a fault: an earlier attempt may have landed.
    async fn settle(&self, writing: &Writing, fault: Fault) -> Result<String, Error> {
        let refused = matches!(fault.kind, FaultKind::Precondition | FaultKind::Conflict);
        let broken = fault.kind.is_transient() && fault.kind.may_have_landed();
        // Other: an upload that is gone may be a completed one.
        if (refused || broken || fault.kind == FaultKind::Other)
            && let Some(head) = self.peek(&writing.ask.key).await
            && head.write.as_deref() == Some(&writing.number)
        {
            return Ok(head.etag);
        }
        Err(self.unwritten(writing, fault))
    }

    fn unwritten(&self, writing: &Writing, fault: Fault) -> Error {
        let (key, store) = (writing.ask.key.clone(), self.url.clone());
        match (fault.kind, &writing.condition) {
            (FaultKind::Precondition, Condition::Absent) => Error::AlreadyExists { key, store },
            // Of a missing object no version is the expected one.
            (FaultKind::Precondition | FaultKind::NoObject, Condition::Is(_)) => Error::Changed { key, store },
            _ => self.error(&writing.ask, fault),
        }
    }

    /// Spares the upload of what would be refused at its end.
    async fn look_before(&self, writing: &Writing) -> Result<(), Error> {
        let there = match &writing.condition {
            Condition::Always => return Ok(()),
            Condition::Absent | Condition::Is(_) => self.peek(&writing.ask.key).await,
        };
        let holds = match (&writing.condition, &there) {
            (Condition::Absent, there) => there.is_none(),
            (Condition::Is(etag), Some(Head { etag: there, .. })) => plain(etag) == *there,
            // It is not there, or cannot be asked now: the end will tell.
            (Condition::Is(_), None) | (Condition::Always, _) => true,
        };
        if holds {
            return Ok(());
        }
        let fault = Fault::new(FaultKind::Precondition, "the object is another than expected", "read it again");
        Err(self.unwritten(writing, fault))
    }
}

fn untagged(bucket: &Bucket, ask: &Ask) -> Fault {
    let sentence = format!("{} gave no ETag", bucket.asked(ask).endpoint);
    Fault::new(FaultKind::Unsupported, sentence, "use a server that does: compare-and-swap needs it")
}

/// A running multipart upload. Dropped before its end, it is aborted in the background.
#[derive(Debug)]
struct Upload {
    bucket: Arc<Bucket>,
    writing: Writing,
    state: State,
    running: std::sync::atomic::AtomicBool,
}

#[derive(Clone, Debug)]
struct State {
    ask: Ask,
    id: String,
}

impl Upload {
    async fn begin(bucket: &Arc<Bucket>, writing: Writing) -> Result<Self, Error> {
        let ask = writing.ask.clone();
        let created = bucket
            .attempts(&ask, |client| {
                let request = client
                    .create_multipart_upload()
                    .bucket(&bucket.profile.bucket)
                    .key(bucket.key(&ask.key))
                    .set_checksum_algorithm(bucket.profile.checksum_of_parts())
                    .metadata(SHA256, writing.hash.as_str())
                    .metadata(WRITE, &writing.number);
                let ask = &ask;
                async move {
                    let answer = request.send().await.map_err(|error| bucket.sort(ask, &error))?;
                    answer.upload_id().map(str::to_owned).ok_or_else(|| untagged(bucket, ask))
                }
            })
            .await;
        let id = created.map_err(|fault| bucket.error(&ask, fault))?;
        let state = State { ask, id };
        Ok(Self { bucket: Arc::clone(bucket), writing, state, running: true.into() })
    }

    /// Sends all parts, a few at once, reading each when its turn comes.
    async fn send(&self, source: &Source) -> Result<Vec<CompletedPart>, Error> {
        let (size, ask) = (source.size(), &self.state.ask);
        let (part, parallel) = self.bucket.limits.parts(size);
        let mut hasher = Sha256::new();
        let mut sending: VecDeque<Task<Result<CompletedPart, Fault>>> = VecDeque::new();
        let mut sent = Vec::new();
        for (number, offset) in (1..).zip((0..size).step_by(usize::try_from(part).unwrap_or(usize::MAX))) {
            if sending.len() == parallel
                && let Some(first) = sending.pop_front()
            {
                sent.push(first.finish().await.map_err(|fault| self.bucket.error(ask, fault))?);
            }
            let (bytes, fed) = source.read(offset, part.min(size - offset), hasher).await?;
            hasher = fed;
            let (bucket, state) = (Arc::clone(&self.bucket), self.state.clone());
            sending.push_back(Task::spawn(Self::part(bucket, state, number, bytes)));
        }
        for task in sending {
            sent.push(task.finish().await.map_err(|fault| self.bucket.error(ask, fault))?);
        }
        if ContentHash::finish(hasher) == self.writing.hash { Ok(sent) } else { Err(source.changed()) }
    }

    async fn part(bucket: Arc<Bucket>, state: State, number: i32, bytes: Bytes) -> Result<CompletedPart, Fault> {
        let ask = state.ask.carrying(bytes.len() as u64);
        let sent = bucket.attempts(&ask, |client| {
            let request = client
                .upload_part()
                .bucket(&bucket.profile.bucket)
                .key(bucket.key(&ask.key))
                .upload_id(&state.id)
                .part_number(number)
                .set_checksum_algorithm(bucket.profile.checksum_of_parts())
                .body(ByteStream::from(bytes.clone()));
            let (bucket, ask) = (&bucket, &ask);
            async move {
                let answer = request.send().await.map_err(|error| bucket.sort(ask, &error))?;
                let part = CompletedPart::builder().part_number(number);
                let part = part
                    .e_tag(answer.e_tag().ok_or_else(|| untagged(bucket, ask))?)
                    .set_checksum_crc32(answer.checksum_crc32)
                    .set_checksum_crc32_c(answer.checksum_crc32_c)
                    .set_checksum_crc64_nvme(answer.checksum_crc64_nvme)
                    .set_checksum_sha1(answer.checksum_sha1)
                    .set_checksum_sha256(answer.checksum_sha256);
                Ok(part.build())
            }
        });
        sent.await
    }

    /// The first `kept` bytes of the object that is there, as part 1.
    async fn copy(&self, etag: &str, kept: u64) -> Result<CompletedPart, Error> {
        let (bucket, State { ask, id }) = (&self.bucket, &self.state);
        let key = bucket.key(&ask.key);
        let source = format!("{}/{key}", bucket.profile.bucket);
        let source = crate::store::url::encode(source.as_bytes(), b"/");
        let copied = bucket
            .attempts(ask, |client| {
                let request = client
                    .upload_part_copy()
                    .bucket(&bucket.profile.bucket)
                    .key(&key)
                    .upload_id(id)
                    .part_number(1)
                    .copy_source(&source)
                    .copy_source_range(format!("bytes=0-{}", kept - 1))
                    .copy_source_if_match(quoted(etag));
                async move {
                    let answer = request.send().await.map_err(|error| bucket.sort(ask, &error))?;
                    let result = answer.copy_part_result.ok_or_else(|| untagged(bucket, ask))?;
                    let part = CompletedPart::builder()
                        .part_number(1)
                        .e_tag(result.e_tag.ok_or_else(|| untagged(bucket, ask))?)
                        .set_checksum_crc32(result.checksum_crc32)
                        .set_checksum_crc32_c(result.checksum_crc32_c)
                        .set_checksum_crc64_nvme(result.checksum_crc64_nvme)
                        .set_checksum_sha1(result.checksum_sha1)
                        .set_checksum_sha256(result.checksum_sha256);
                    Ok(part.build())
                }
            })
            .await;
        copied.map_err(|fault| bucket.unwritten(&self.writing, fault))
    }

    async fn complete(&self, parts: Vec<CompletedPart>) -> Result<String, Error> {
        let (bucket, State { ask, id }) = (&self.bucket, &self.state);
        let (if_none_match, if_match) = self.writing.condition.headers();
        let parts = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
        let completed = bucket
            .attempts(ask, |client| {
                let request = client
                    .complete_multipart_upload()
                    .bucket(&bucket.profile.bucket)
                    .key(bucket.key(&ask.key))
                    .upload_id(id)
                    .set_if_none_match(if_none_match.clone())
                    .set_if_match(if_match.clone())
                    .multipart_upload(parts.clone());
                async move {
                    let answer = request.send().await.map_err(|error| bucket.sort(ask, &error))?;
                    answer.e_tag().map(plain).ok_or_else(|| untagged(bucket, ask))
                }
            })
            .await;
        match completed {
            Ok(etag) => Ok(etag),
            // An upload that is gone may be one that an earlier attempt completed.
            Err(fault) => bucket.settle(&self.writing, fault).await,
        }
    }

    /// Ends the upload, and removes its parts where it failed.
    async fn end<T>(self, outcome: Result<T, Error>) -> Result<T, Error> {
        self.running.store(false, std::sync::atomic::Ordering::Relaxed);
        if outcome.is_err() {
            abort(&self.bucket, &self.state).await;
        }
        outcome
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.running.load(std::sync::atomic::Ordering::Relaxed)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (bucket, state) = (Arc::clone(&self.bucket), self.state.clone());
            runtime.spawn(async move { abort(&bucket, &state).await });
        }
    }
}

/// Asks the server to forget an upload's parts; where it does not, a lifecycle rule of the bucket may.
async fn abort(bucket: &Arc<Bucket>, State { ask, id }: &State) {
    let ask = Ask::new("abort the upload of", "s3:AbortMultipartUpload", &ask.key);
    let aborted = bucket
        .attempts(&ask, |client| {
            let request = client.abort_multipart_upload().bucket(&bucket.profile.bucket);
            let request = request.key(bucket.key(&ask.key)).upload_id(id);
            let ask = &ask;
            async move { request.send().await.map_err(|error| bucket.sort(ask, &error)) }
        })
        .await;
    if let Err(fault) = aborted
        && fault.kind != FaultKind::NoObject
    {
        tracing::warn!("parts of `{}` stay in {}: {}", ask.key, bucket.url, fault.sentence);
    }
}

/// A task that ends with its handle.
#[derive(Debug)]
pub(super) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    pub(super) fn spawn(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }

    /// Its result; a panic in it goes on in the caller.
    pub(super) async fn finish(mut self) -> T {
        match (&mut self.0).await {
            Ok(value) => value,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Only its own drop cancels it, or a runtime that ends and polls nobody any more.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
