//! Objects as files below a folder.
//!
//! An object `a/b` is the file `ROOT/a/b`, so a folder of objects can be used in place. What the
//! store needs for itself lies under `ROOT/.store`: half-written files (an object appears by
//! `rename` or `link` only) and the lock files that make compare-and-swap work between processes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::{ETag, Error, Object, ObjectMeta, Store, check_key, url};
use crate::ids::ContentHash;

/// The store's own folder; no key begins with it.
const OWN: &str = ".store";
/// A half-written file nobody holds is swept once it is this old.
const STALE: Duration = Duration::from_secs(600);
const BLOCK: usize = 1 << 20;

/// A folder as a store. Clones share it; so do processes that open the same folder.
#[derive(Clone, Debug)]
pub struct FileStore {
    root: Arc<Root>,
}

#[derive(Debug)]
struct Root {
    path: PathBuf,
    url: String,
}

impl FileStore {
    /// Opens the store in the folder `root`, which is made where it is missing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `root` is not absolute; [`Error::Folder`] if it cannot be made or written.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, Error> {
        let path: PathBuf = root.into();
        if !path.is_absolute() {
            return Err(Error::Invalid {
                what: "store folder",
                given: path.display().to_string(),
                rule: "give an absolute path".to_owned(),
            });
        }
        let root = Root { url: url::of_file(&path), path };
        // The trial finds a disk that is full or read-only before anybody counts on the store.
        let usable = [root.temporary(), root.locks()].iter().try_for_each(fs::create_dir_all);
        usable
            .and_then(|()| temporary_in(&root.temporary()).map(drop))
            .map_err(|source| Error::Folder { path: root.path.clone(), source })?;
        root.sweep();
        Ok(Self { root: Arc::new(root) })
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root.path
    }

    /// Runs file work off the async threads.
    async fn blocking<T, F>(&self, key: &str, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Root, &str) -> Result<T, Error> + Send + 'static,
    {
        check_key(key)?;
        if key.split('/').next() == Some(OWN) {
            return Err(Error::Invalid {
                what: "store key",
                given: key.to_owned(),
                rule: format!("`{OWN}` is the store's own folder; choose another name"),
            });
        }
        let (root, key) = (Arc::clone(&self.root), key.to_owned());
        join(tokio::task::spawn_blocking(move || work(&root, &key))).await
    }
}

/// Awaits blocking work; a panic in it goes on in the caller.
pub(super) async fn join<T>(task: tokio::task::JoinHandle<Result<T, Error>>) -> Result<T, Error> {
    match task.await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down before the work began.
            Err(error) => Err(Error::Io {
                action: "reach",
                key: "an object".to_owned(),
                store: "file://".to_owned(),
                source: io::Error::new(ErrorKind::Interrupted, error),
            }),
        },
    }
}

impl Root {
    fn temporary(&self) -> PathBuf {
        self.path.join(OWN).join("tmp")
    }

    fn locks(&self) -> PathBuf {
        self.path.join(OWN).join("locks")
    }

    fn io(&self, action: &'static str, key: &str, source: io::Error) -> Error {
        Error::Io { action, key: key.to_owned(), store: self.url.clone(), source }
    }

    fn not_found(&self, key: &str) -> Error {
        Error::NotFound { key: key.to_owned(), store: self.url.clone() }
    }

    /// A reader's error: what is no plain file is no object.
    fn unreadable(&self, key: &str, source: io::Error) -> Error {
        match source.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory => self.not_found(key),
            _ => self.io("read", key, source),
        }
    }

    /// A writer's error: tells a key that is the folder of another from a failing disk.
    fn unwritable(&self, key: &str, source: io::Error) -> Error {
        if self.path.join(key).is_dir() {
            return super::nested(key, &format!("{key}/…"));
        }
        for (end, _) in key.match_indices('/') {
            if self.path.join(&key[..end]).is_file() {
                return super::nested(&key[..end], key);
            }
        }
        self.io("write", key, source)
    }

    /// Removes what killed writers left behind. A living writer holds a lock on its file; the age
    /// covers the moment between making the file and locking it. Failures wait for the next time.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(self.temporary()) else { return };
        for entry in entries.flatten() {
            let old = entry
                .metadata()
                .and_then(|meta| meta.modified())
                .is_ok_and(|at| at.elapsed().is_ok_and(|age| age > STALE));
            if old && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Holds the key's lock, shared with 1 in 256 other keys, until the file is dropped.
    fn lock(&self, key: &str) -> Result<File, Error> {
        let name = &ContentHash::of(key.as_bytes()).as_str()[..2].to_owned();
        let file = OpenOptions::new().create(true).write(true).truncate(false).open(self.locks().join(name));
        file.and_then(|file| file.lock().map(|()| file)).map_err(|source| self.io("lock", key, source))
    }

    /// Writes all of `from` to a file that nobody sees yet, down to the disk.
    fn stage(&self, key: &str, from: &mut dyn Read) -> Result<(NamedTempFile, ETag), Error> {
        let written = temporary_in(&self.temporary()).and_then(|file| {
            file.as_file().lock()?;
            let hash = copy_hashing(from, &mut file.as_file())?;
            file.as_file().sync_all()?;
            Ok((file, ETag(hash.as_str().to_owned())))
        });
        written.map_err(|source| self.io("write", key, source))
    }

    /// Makes the object's folder and calls `place`, again if a neighbour's [`Store::delete`] took
    /// the empty folder away in between.
    fn with_folder<T>(&self, key: &str, mut place: impl FnMut(&Path) -> io::Result<T>) -> io::Result<T> {
        let path = self.path.join(key);
        let folder = path.parent().unwrap_or(&self.path);
        let mut tries = 0;
        loop {
            let placed = fs::create_dir_all(folder).and_then(|()| place(&path));
            match placed {
                Err(error) if error.kind() == ErrorKind::NotFound && tries < 100 => tries += 1,
                Err(error) => return Err(error),
                Ok(value) => {
                    File::open(folder)?.sync_all()?;
                    return Ok(value);
                }
            }
        }
    }

    fn replace(&self, key: &str, staged: &NamedTempFile) -> Result<(), Error> {
        self.with_folder(key, |path| fs::rename(staged.path(), path)).map_err(|source| self.unwritable(key, source))
    }

    fn put(&self, key: &str, from: &mut dyn Read) -> Result<ETag, Error> {
        let (staged, etag) = self.stage(key, from)?;
        let _lock = self.lock(key)?;
        self.replace(key, &staged)?;
        Ok(etag)
    }

    fn create(&self, key: &str, bytes: &[u8]) -> Result<ETag, Error> {
        let (staged, etag) = self.stage(key, &mut &bytes[..])?;
        let _lock = self.lock(key)?;
        match self.with_folder(key, |path| fs::hard_link(staged.path(), path)) {
            Ok(()) => Ok(etag),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && self.path.join(key).is_file() => {
                Err(Error::AlreadyExists { key: key.to_owned(), store: self.url.clone() })
            }
            Err(error) => Err(self.unwritable(key, error)),
        }
    }

    fn swap(&self, key: &str, bytes: &[u8], expected: &ETag) -> Result<ETag, Error> {
        let (staged, etag) = self.stage(key, &mut &bytes[..])?;
        let _lock = self.lock(key)?;
        let current = match self.get(key) {
            Ok(object) => Some(object.etag),
            Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        if current.as_ref() != Some(expected) {
            return Err(Error::Changed { key: key.to_owned(), store: self.url.clone() });
        }
        self.replace(key, &staged)?;
        Ok(etag)
    }

    fn write_at(&self, key: &str, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let _lock = self.lock(key)?;
        let length = match fs::metadata(self.path.join(key)) {
            Ok(meta) if meta.is_file() => meta.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Ok(_) => return Err(super::nested(key, &format!("{key}/…"))),
            Err(error) => return Err(self.unwritable(key, error)),
        };
        super::check_offset(key, offset, length)?;
        let written = self.with_folder(key, |path| {
            let mut file = OpenOptions::new().create(true).write(true).truncate(false).open(path)?;
            file.set_len(offset)?;
            file.seek(SeekFrom::Start(offset))?;
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.map_err(|source| self.unwritable(key, source))
    }

    fn get(&self, key: &str) -> Result<Object, Error> {
        let bytes = fs::read(self.path.join(key)).map_err(|source| self.unreadable(key, source))?;
        let etag = ETag(ContentHash::of(&bytes).as_str().to_owned());
        Ok(Object { bytes: bytes.into(), etag })
    }

    fn get_from(&self, key: &str, offset: u64) -> Result<Option<Bytes>, Error> {
        let read = || {
            let mut file = File::open(self.path.join(key))?;
            if offset > file.metadata()?.len() {
                return Ok(None);
            }
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(offset))?;
            file.read_to_end(&mut bytes)?;
            Ok(Some(bytes.into()))
        };
        read().map_err(|source| self.unreadable(key, source))
    }

    fn get_file(&self, key: &str, path: &Path) -> Result<(), Error> {
        let mut file = File::open(self.path.join(key)).map_err(|source| self.unreadable(key, source))?;
        if file.metadata().is_ok_and(|meta| meta.is_dir()) {
            return Err(self.not_found(key));
        }
        place_file(path, |target| io::copy(&mut file, target).map(drop)).map_err(|source| self.io("copy", key, source))
    }

    fn delete(&self, key: &str) -> Result<(), Error> {
        let _lock = self.lock(key)?;
        let path = self.path.join(key);
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
            Err(_) if path.is_dir() => return Ok(()),
            Err(source) => return Err(self.io("delete", key, source)),
        }
        // An empty folder is no object, but would stand in the way of one: gone with its last child.
        let mut folder = path.parent();
        while let Some(empty) = folder.filter(|folder| *folder != self.path && fs::remove_dir(folder).is_ok()) {
            folder = empty.parent();
        }
        Ok(())
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, Error> {
        let folder = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut found = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(self.path.join(&folder)) {
                Ok(entries) => entries,
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
                Err(source) => return Err(self.io("list", prefix, source)),
            };
            for entry in entries {
                let entry = entry.map_err(|source| self.io("list", prefix, source))?;
                // Every object was written under a UTF-8 key, so another name is not ours.
                let Ok(name) = entry.file_name().into_string() else { continue };
                let key = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                let on_the_way = key.starts_with(prefix) || prefix.starts_with(&format!("{key}/"));
                if key == OWN || !on_the_way {
                    continue;
                }
                // What vanishes meanwhile was deleted.
                let Ok(meta) = entry.metadata() else { continue };
                if meta.is_dir() {
                    folders.push(key);
                } else if meta.is_file() {
                    found.push(ObjectMeta { key, size: meta.len(), version: None });
                }
            }
        }
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }
}

pub(super) fn temporary_in(folder: &Path) -> io::Result<NamedTempFile> {
    // As any file the process makes: 0666 less the umask, not the 0600 of a private temporary.
    tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o666)).tempfile_in(folder)
}

fn copy_hashing(from: &mut dyn Read, to: &mut dyn Write) -> io::Result<ContentHash> {
    let mut hasher = Sha256::new();
    let mut block = vec![0; BLOCK];
    loop {
        let count = match from.read(&mut block) {
            Ok(0) => return Ok(ContentHash::finish(hasher)),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&block[..count]);
        to.write_all(&block[..count])?;
    }
}

/// Makes the file `path` by `fill`, whole or not at all; missing folders are made.
pub(super) fn place_file(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = temporary_in(folder)?;
    fill(file.as_file_mut())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(folder)?.sync_all()
}

#[async_trait]
impl Store for FileStore {
    fn url(&self) -> String {
        self.root.url.clone()
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<ETag, Error> {
        self.blocking(key, move |root, key| root.put(key, &mut &bytes[..])).await
    }

    async fn put_file(&self, key: &str, path: &Path) -> Result<ETag, Error> {
        let path = path.to_owned();
        self.blocking(key, move |root, key| {
            let mut file = File::open(&path).map_err(|source| super::local("read", &path, source))?;
            root.put(key, &mut file)
        })
        .await
    }

    async fn create(&self, key: &str, bytes: Bytes) -> Result<ETag, Error> {
        self.blocking(key, move |root, key| root.create(key, &bytes)).await
    }

    async fn swap(&self, key: &str, bytes: Bytes, expected: &ETag) -> Result<ETag, Error> {
        let expected = expected.clone();
        self.blocking(key, move |root, key| root.swap(key, &bytes, &expected)).await
    }

    async fn write_at(&self, key: &str, offset: u64, bytes: Bytes) -> Result<(), Error> {
        self.blocking(key, move |root, key| root.write_at(key, offset, &bytes)).await
    }

    async fn get(&self, key: &str) -> Result<Object, Error> {
        self.blocking(key, Root::get).await
    }

    async fn get_from(&self, key: &str, offset: u64) -> Result<Option<Bytes>, Error> {
        self.blocking(key, move |root, key| root.get_from(key, offset)).await
    }

    async fn get_file(&self, key: &str, path: &Path) -> Result<(), Error> {
        let path = path.to_owned();
        self.blocking(key, move |root, key| root.get_file(key, &path)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, Error> {
        super::check_prefix(prefix)?;
        let (root, prefix) = (Arc::clone(&self.root), prefix.to_owned());
        join(tokio::task::spawn_blocking(move || root.list(&prefix))).await
    }

    async fn delete(&self, key: &str) -> Result<(), Error> {
        self.blocking(key, Root::delete).await
    }

    fn local_path(&self, key: &str) -> Option<PathBuf> {
        let key = key.trim_end_matches('/');
        check_key(key).ok().map(|()| self.root.path.join(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{conformance, open};

    fn fresh() -> (tempfile::TempDir, FileStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::open(folder.path().join("a store, é")).unwrap();
        (folder, store)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn passes_the_suite() {
        let (_folder, store) = fresh();
        conformance::all(&store).await;
        conformance::keys_do_not_nest(&store).await;
        let leftovers = fs::read_dir(store.root.temporary()).unwrap().count();
        assert_eq!(leftovers, 0, "every half-written file is gone");
    }

    #[tokio::test]
    async fn two_handles_are_one_store() {
        let (_folder, store) = fresh();
        let other = open(&store.url()).unwrap();
        store.put("a/ü b.txt", "one".into()).await.unwrap();
        assert_eq!(other.get("a/ü b.txt").await.unwrap().bytes, "one");
        assert_eq!(fs::read(store.local_path("a/ü b.txt").unwrap()).unwrap(), b"one");
        assert_eq!(store.local_path("../a"), None);
    }

    #[tokio::test]
    async fn its_own_folder_is_neither_listed_nor_writable() {
        let (_folder, store) = fresh();
        store.put("a", "x".into()).await.unwrap();
        fs::write(store.root.temporary().join("half"), "half").unwrap();
        assert_eq!(store.list("").await.unwrap(), [ObjectMeta { key: "a".into(), size: 1, version: None }]);
        let error = store.put(".store/tmp/x", "x".into()).await.unwrap_err();
        assert!(error.to_string().contains("own folder"), "{error}");
    }

    #[tokio::test]
    async fn only_old_and_abandoned_temporaries_are_swept() {
        let (_folder, store) = fresh();
        let make = |name: &str, age: u64| {
            let path = store.root.temporary().join(name);
            let file = File::create(&path).unwrap();
            file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age)).unwrap();
            (path, file)
        };
        let (abandoned, _) = make("abandoned", 700);
        let (young, _) = make("young", 1);
        let (held, holder) = make("held", 700);
        holder.lock().unwrap();
        FileStore::open(store.root()).unwrap();
        assert!(!abandoned.exists());
        assert!(young.exists() && held.exists());
    }

    #[tokio::test]
    async fn a_missing_source_file_is_named() {
        let (_folder, store) = fresh();
        let error = store.put_file("a", Path::new("/nowhere/file")).await.unwrap_err();
        assert!(error.to_string().contains("/nowhere/file"), "{error}");
        assert!(store.list("").await.unwrap().is_empty());
    }
}
