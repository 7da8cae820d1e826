//! Whether a store does what runs rely on, tried step by step on the store itself.
//!
//! A probe works under a fresh key of its own and removes what it wrote, also after a failure. It finds what
//! a server would otherwise show in the middle of a run: one that ignores conditions without a word, for
//! example, lets two trainers own the same run.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{Error, Store};
use crate::chain;

/// A tried promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was tried, such as `conditional put`.
    pub name: &'static str,
    /// What came of it.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

/// What came of a [`Step`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// As promised.
    Passed,
    /// Not as promised: what happened, and what it means for runs.
    Failed {
        /// What happened.
        sentence: String,
        /// What it means, or what to do.
        meaning: String,
    },
    /// Not tried, since an earlier step failed.
    Skipped,
}

impl Step {
    /// Whether it is as promised.
    pub fn passed(&self) -> bool {
        self.outcome == Outcome::Passed
    }
}

/// Bytes of the large file: two parts on S3.
const LARGE: usize = (8 << 20) + 1;

type Failure = (String, &'static str);

/// Tries everything that a run asks of a store, in about thirty requests and 20 MB. The steps after a failed
/// `write` are skipped; of the others each is tried whatever became of the former. `clean-up` is the last
/// step, always.
pub async fn probe(store: &dyn Store) -> Vec<Step> {
    let prefix = format!("probe-{:016x}", rand::random::<u64>());
    let mut steps = Vec::new();
    let began = Instant::now();
    let write = write(store, &prefix).await;
    let usable = write.is_ok();
    steps.push(step("write", began, write));
    macro_rules! try_step {
        ($name:literal, $tried:expr) => {
            if usable {
                let began = Instant::now();
                let tried = $tried.await;
                steps.push(step($name, began, tried));
            } else {
                steps.push(Step { name: $name, outcome: Outcome::Skipped, took: Duration::ZERO });
            }
        };
    }
    try_step!("read", read(store, &prefix));
    try_step!("conditional put", create(store, &prefix));
    try_step!("compare and swap", swap(store, &prefix));
    try_step!("multipart", multipart(store, &prefix));
    try_step!("content hash", kept_metadata(store, &prefix));
    try_step!("list", list(store, &prefix));
    try_step!("ranged read", ranged(store, &prefix));
    try_step!("append", append(store, &prefix));
    try_step!("delete", delete(store, &prefix));
    let began = Instant::now();
    let cleaned = clean_up(store, &prefix, usable).await;
    steps.push(step("clean-up", began, cleaned));
    steps
}

fn step(name: &'static str, began: Instant, tried: Result<(), Failure>) -> Step {
    let outcome = match tried {
        Ok(()) => Outcome::Passed,
        Err((sentence, meaning)) => Outcome::Failed { sentence, meaning: meaning.to_owned() },
    };
    Step { name, outcome, took: began.elapsed() }
}

/// An operation that failed outright: the error has its own remedy.
fn failed(meaning: &'static str) -> impl Fn(Error) -> Failure {
    move |error| (chain(&error), meaning)
}

fn unless(holds: bool, sentence: &str, meaning: &'static str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err((sentence.to_owned(), meaning)) }
}

const NOTHING: &str = "nothing can be kept here";
const UNSOUND: &str = "checkpoints could be damaged without notice: use another server";
const NO_LEASE: &str = "two trainers could own the same run and publish over each other, and a published checkpoint \
     could be replaced: use a server with conditional writes (`If-None-Match`)";
const NO_SWAP: &str = "the pointer to a run's newest checkpoint could be moved back by an old trainer: use a server with \
     conditional writes (`If-Match`)";
const NO_PARTS: &str = "files above 8 MiB, so every model's weights, cannot be kept here";
const NO_HASH: &str = "content cannot be verified when it is read, and a write whose answer was lost is not recognised: \
     use a server that keeps metadata";
const NO_LIST: &str = "checkpoints and attempts are not found: a run does not resume";
const NO_RANGE: &str = "logs and metrics cannot be followed, nor large files be read";
const NO_APPEND: &str = "metrics cannot be written";
const NO_DELETE: &str = "old resume states are never removed: the store grows by the optimizer's size at each save";

async fn write(store: &dyn Store, prefix: &str) -> Result<(), Failure> {
    store.put(&format!("{prefix}/small"), Bytes::from_static(b"small")).await.map(drop).map_err(failed(NOTHING))
}

async fn read(store: &dyn Store, prefix: &str) -> Result<(), Failure> {
    let there = store.get(&format!("{prefix}/small")).await.map_err(failed(NOTHING))?;
    unless(there.bytes == "small", "what is read is not what was written", UNSOUND)?;
    let odd = format!("{prefix}/ünï çødé+%20.txt");
    store
        .put(&odd, Bytes::from_static(b"odd"))
        .await
        .map_err(failed("keys with spaces or other letters do not work"))?;
    let there = store.get(&odd).await.map_err(failed("keys with spaces or other letters do not work"))?;
    unless(there.bytes == "odd", "what is read under an odd key is not what was written", UNSOUND)?;
    match store.get(&format!("{prefix}/absent")).await {
        Err(Error::NotFound { .. }) => Ok(()),
        Err(error) => {
            Err((format!("an object that is not there: {}", chain(&error)), "runs cannot tell new from resumed"))
        }
        Ok(_) => Err(("an object that was never written was read".to_owned(), UNSOUND)),
    }
}

async fn create(store: &dyn Store, prefix: &str) -> Result<(), Failure> {
    let key = format!("{prefix}/created");
    store.create(&key, Bytes::from_static(b"first")).await.map_err(failed(NO_LEASE))?;
    match store.create(&key, Bytes::from_static(b"second")).await {
        Err(Error::AlreadyExists { .. }) => {}
        Err(error) => return Err((chain(&error), NO_LEASE)),
        Ok(_) => {
            let sentence = "the server ignores `If-None-Match: *`: an object was written over another that it should \
                 have been refused for";
            return Err((sentence.to_owned(), NO_LEASE));
        }
    }
    let there = store.get(&key).await.map_err(failed(NO_LEASE))?;
    unless(there.bytes == "first", "a refused write replaced the object all the same", NO_LEASE)
}

async fn swap(store: &dyn Store, prefix: &str) -> Result<(), Failure> {
    let key = format!("{prefix}/swapped");
    let first = store.put(&key, Bytes::from_static(b"first")).await.map_err(failed(NO_SWAP))?;
    let second = store.swap(&key, Bytes::from_static(b"second"), &first).await.map_err(failed(NO_SWAP))?;
    match store.swap(&key, Bytes::from_static(b"third"), &first).await {
        Err(Error::Changed { .. }) => {}
        Err(error) => return Err((chain(&error), NO_SWAP)),
        Ok(_) => {
            let sentence = "the server ignores `If-Match`: a version that was not the expected one was replaced";
            return Err((sentence.to_owned(), NO_SWAP));
        }
    }
    let there = store.get(&key).await.map_err(failed(NO_SWAP))?;
    unless(there.bytes == "second" && there.etag == second, "a refused swap replaced the object", NO_SWAP)
}

async fn multipart(store: &dyn Store, prefix: &str) -> Result<(), Failure> {
    let here = |error: std::io::Error| (format!("no temporary file: {error}"), "set TMPDIR to a folder with 20 MB");
    let content: Vec<u8> = (0..LARGE).map(|i| (i % 251) as u8).collect();
    let folder = tempfile::tempdir().map_err(here)?;
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    std::fs::write(&source, &content).map_err(here)?;
    let key = format!("{prefix}/large");
    store.put_file(&key, &source).await.map_err(failed(NO_PARTS))?;
    store.get_file(&key, &target).await.map_err(failed(NO_PARTS))?;
    unless(same(&target, &content), "a large file does not come back as it was", UNSOUND)
}

fn same(path: &Path, content: &[u8]) -> bool {
    std::fs::read(path).is_ok_and(|read| read == content)
}

async fn kept_metadata(store: &dyn Store, prefix: &str) -> Result<(), Failure> {
    for name in ["small", "large"] {
        let kept = store.is_verified(&format!("{prefix}/{name}")).await.map_err(failed(NO_HASH))?;
        unless(kept, &format!("the server did not keep the metadata of `{name}`"), NO_HASH)?;
    }
    Ok(())
}

async fn list(store: &dyn Store, prefix: &str) -> Result<(), Failure> {
    let found = store.list(&format!("{prefix}/")).await.map_err(failed(NO_LIST))?;
    let size =
        |name: &str| found.iter().find(|object| object.key == format!("{prefix}/{name}")).map(|object| object.size);
    unless(size("small") == Some(5), "a written object is not in the listing", NO_LIST)?;
    unless(size("ünï çødé+%20.txt") == Some(3), "an object with an odd key is not in the listing", NO_LIST)
}

async fn ranged(store: &dyn Store, prefix: &str) -> Result<(), Failure> {
    let key = format!("{prefix}/small");
    for (offset, expected) in [(2, Some("all")), (5, Some("")), (6, None)] {
        let read = store.get_from(&key, offset).await.map_err(failed(NO_RANGE))?;
        unless(read.as_deref() == expected.map(str::as_bytes), "a range is not the one asked for", NO_RANGE)?;
    }
    Ok(())
}

async fn append(store: &dyn Store, prefix: &str) -> Result<(), Failure> {
    let key = format!("{prefix}/log");
    for (offset, line) in [(0, "one\n"), (4, "two\n"), (4, "2\n")] {
        store.write_at(&key, offset, Bytes::from_static(line.as_bytes())).await.map_err(failed(NO_APPEND))?;
    }
    let there = store.get(&key).await.map_err(failed(NO_APPEND))?;
    unless(there.bytes == "one\n2\n", "a log that was written and cut is not what it should be", NO_APPEND)
}

async fn delete(store: &dyn Store, prefix: &str) -> Result<(), Failure> {
    let key = format!("{prefix}/small");
    store.delete(&key).await.map_err(failed(NO_DELETE))?;
    store.delete(&key).await.map_err(failed(NO_DELETE))?;
    match store.get(&key).await {
        Err(Error::NotFound { .. }) => Ok(()),
        Err(error) => Err((chain(&error), NO_DELETE)),
        Ok(_) => Err(("a deleted object is still there".to_owned(), NO_DELETE)),
    }
}

/// Removes the probe's objects. `listed`: nothing was written where the first write was refused, and a
/// second refusal would say nothing new.
async fn clean_up(store: &dyn Store, prefix: &str, listed: bool) -> Result<(), Failure> {
    const STAYS: &str = "remove the keys that begin with `probe-` by hand";
    match store.list(&format!("{prefix}/")).await {
        Ok(found) => {
            for object in found {
                store.delete(&object.key).await.map_err(failed(STAYS))?;
            }
            Ok(())
        }
        Err(error) if listed => Err((chain(&error), STAYS)),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{ETag, FileStore, MemoryStore, Object, ObjectMeta};
    use async_trait::async_trait;

    fn failures(steps: &[Step]) -> Vec<&'static str> {
        steps.iter().filter(|step| !step.passed()).map(|step| step.name).collect()
    }

    #[tokio::test]
    async fn sound_stores_pass_and_are_left_empty() {
        let folder = tempfile::tempdir().unwrap();
        let file = FileStore::open(folder.path()).unwrap();
        let memory = MemoryStore::new();
        for store in [&file as &dyn Store, &memory] {
            let steps = probe(store).await;
            assert_eq!(steps.len(), 11);
            assert_eq!(failures(&steps), [""; 0], "{steps:#?}");
            assert!(store.list("").await.unwrap().is_empty());
        }
    }

    /// A store that is as unsound as some servers are.
    #[derive(Debug)]
    struct Careless {
        inner: MemoryStore,
        read_only: bool,
    }

    #[async_trait]
    impl Store for Careless {
        fn url(&self) -> String {
            "careless://".to_owned()
        }
        async fn put(&self, key: &str, bytes: Bytes) -> Result<ETag, Error> {
            if self.read_only {
                return Err(Error::NotFound { key: key.to_owned(), store: self.url() });
            }
            self.inner.put(key, bytes).await
        }
        async fn put_file(&self, key: &str, path: &Path) -> Result<ETag, Error> {
            self.inner.put_file(key, path).await
        }
        async fn create(&self, key: &str, bytes: Bytes) -> Result<ETag, Error> {
            self.inner.put(key, bytes).await
        }
        async fn swap(&self, key: &str, bytes: Bytes, _: &ETag) -> Result<ETag, Error> {
            self.inner.put(key, bytes).await
        }
        async fn write_at(&self, key: &str, offset: u64, bytes: Bytes) -> Result<(), Error> {
            self.inner.write_at(key, offset, bytes).await
        }
        async fn get(&self, key: &str) -> Result<Object, Error> {
            self.inner.get(key).await
        }
        async fn get_file(&self, key: &str, path: &Path) -> Result<(), Error> {
            self.inner.get_file(key, path).await
        }
        async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, Error> {
            self.inner.list(prefix).await
        }
        async fn delete(&self, key: &str) -> Result<(), Error> {
            self.inner.delete(key).await
        }
        async fn is_verified(&self, key: &str) -> Result<bool, Error> {
            Ok(!key.ends_with("large"))
        }
    }

    #[tokio::test]
    async fn conditions_that_are_ignored_are_found() {
        let store = Careless { inner: MemoryStore::new(), read_only: false };
        let steps = probe(&store).await;
        assert_eq!(failures(&steps), ["conditional put", "compare and swap", "content hash"], "{steps:#?}");
        let Outcome::Failed { sentence, meaning } = &steps[2].outcome else { panic!("{steps:?}") };
        assert!(sentence.contains("ignores `If-None-Match: *`") && meaning.contains("two trainers"), "{sentence}");
        assert!(store.list("").await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn nothing_is_tried_where_nothing_can_be_written() {
        let store = Careless { inner: MemoryStore::new(), read_only: true };
        let steps = probe(&store).await;
        let skipped = steps.iter().filter(|step| step.outcome == Outcome::Skipped).count();
        assert_eq!((steps.len(), skipped, steps[10].passed()), (11, 9, true), "{steps:#?}");
    }
}
