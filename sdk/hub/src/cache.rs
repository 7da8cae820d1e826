//! The cache on disk, laid out as `huggingface_hub` lays it out.
//!
//! ```text
//! models--org--name/blobs/<etag>                       a file's content, once
//!                  /blobs/<etag>.incomplete            as far as it has come
//!                  /refs/<revision>                    the commit a branch or tag was last seen at
//!                  /snapshots/<commit>/<path>          link to ../../blobs/<etag>
//! .locks/models--org--name/<etag>.lock                 held while a blob is being written
//! ```

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::{Error, Repo};

/// One repository's folder in the cache.
#[derive(Clone, Debug)]
pub(super) struct RepoCache {
    folder: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    pub(super) fn new(cache: &Path, repo: &Repo) -> Self {
        let name = repo.folder_name();
        Self { folder: cache.join(&name), locks: cache.join(".locks").join(name) }
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    pub(super) fn incomplete(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// The commit `revision` was last seen at, or `revision` itself if it is a commit we hold.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        if self.snapshot(revision).is_dir() {
            return Some(revision.to_owned());
        }
        let text = std::fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        let commit = text.trim().to_owned();
        is_plain_name(&commit).then_some(commit)
    }

    /// Remembers which commit `revision` is.
    pub(super) fn set_commit(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if revision == commit || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        let folder = parent(&path);
        std::fs::create_dir_all(folder).map_err(Error::cache("create", folder))?;
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(Error::cache("write in", folder))?;
        file.write_all(commit.as_bytes()).map_err(Error::cache("write", &path))?;
        file.persist(&path).map_err(|error| error.error).map_err(Error::cache("write", &path))?;
        Ok(())
    }

    /// Whether the snapshot has the file, of that size where the size is known.
    pub(super) fn holds(&self, commit: &str, file: &str, size: Option<u64>) -> bool {
        let found = std::fs::metadata(self.snapshot(commit).join(file));
        found.is_ok_and(|meta| meta.is_file() && size.is_none_or(|size| size == meta.len()))
    }

    /// Paths of all files of a snapshot, sorted.
    pub(super) fn files(&self, commit: &str) -> Vec<String> {
        walk(&self.snapshot(commit))
    }

    /// Makes the snapshot's entry for a blob.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<(), Error> {
        let entry = self.snapshot(commit).join(file);
        let folder = parent(&entry);
        std::fs::create_dir_all(folder).map_err(Error::cache("create", folder))?;
        let up = "../".repeat(2 + file.matches('/').count());
        // A link made beside and renamed over: a reader sees the old entry or the new one.
        let beside = folder.join(format!(".{:016x}.link", rand::random::<u64>()));
        let made = std::os::unix::fs::symlink(format!("{up}blobs/{etag}"), &beside)
            .or_else(|_| std::fs::copy(self.blob(etag), &beside).map(|_| ()));
        made.and_then(|()| std::fs::rename(&beside, &entry)).map_err(|source| {
            // What could not be moved must not stay; the first error is the one to tell.
            let _ = std::fs::remove_file(&beside);
            Error::Cache { action: "link", path: entry.clone(), source }
        })
    }

    /// Waits until no other process or task writes this blob. The lock ends with the value.
    pub(super) async fn lock(&self, etag: &str) -> Result<File, Error> {
        let path = self.locks.join(format!("{etag}.lock"));
        std::fs::create_dir_all(&self.locks).map_err(Error::cache("create", &self.locks))?;
        let file = File::options().create(true).append(true).open(&path).map_err(Error::cache("open", &path))?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if !told => {
                    told = true;
                    tracing::info!(lock = %path.display(), "another download of this file is under way; waiting for it");
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => return Err(Error::Cache { action: "lock", path, source }),
            }
            // Asked for again and again, and not in a blocking call, so that dropping the future ends it.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Paths of all files under `folder`, relative and sorted; links count as what they point to.
pub fn walk(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(&at).into_iter().flatten().flatten() {
            let path = entry.path();
            let link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if path.is_dir() && !link {
                folders.push(path);
            } else if let (true, Ok(relative)) = (path.is_file(), path.strip_prefix(folder)) {
                found.extend(relative.to_str().map(str::to_owned));
            }
        }
    }
    found.sort();
    found
}

/// Whether a path from a hub stays inside the folder it is put in.
pub(super) fn is_inside(path: &str) -> bool {
    let plain = |part| matches!(part, Component::Normal(_));
    !path.is_empty() && !path.contains(['\0', '\\']) && !path.contains("//") && Path::new(path).components().all(plain)
}

/// Whether a name from a hub can be a file's name.
pub(super) fn is_plain_name(name: &str) -> bool {
    !name.contains('/') && name.len() <= 200 && is_inside(name)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_from_outside_stay_inside() {
        for good in ["a", "a/b.json", "data/train-00000-of-00001.parquet", ".gitattributes"] {
            assert!(is_inside(good), "{good}");
        }
        for bad in ["", "/a", "../a", "a/../../b", "a//b", "./a", "a\\b"] {
            assert!(!is_inside(bad), "{bad:?}");
        }
        assert!(is_plain_name("abc123") && !is_plain_name("a/b") && !is_plain_name(".."));
    }

    #[tokio::test]
    async fn a_lock_is_held_by_one_at_a_time() {
        let cache = tempfile::tempdir().unwrap();
        let repo = RepoCache::new(cache.path(), &Repo::model("a/b").unwrap());
        let held = repo.lock("x").await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(150), repo.lock("x")).await.is_err());
        repo.lock("y").await.unwrap();
        drop(held);
        tokio::time::timeout(Duration::from_secs(5), repo.lock("x")).await.unwrap().unwrap();
    }
}
