//! Finding, checking and copying what is published.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{Error, FileEntry, Kind, MANIFEST, Manifest, State, VersionedManifest, blocking};
use crate::ids::{ContentHash, RunId};
use crate::store::{self, Store, check_key};

/// A file of up to this many bytes is hashed whenever its checkpoint is looked at.
const CHEAP: u64 = 16 << 20;

/// The manifest of one step, or `None` where nothing is published.
///
/// # Errors
/// When the store fails, or the manifest cannot be read or belongs elsewhere.
pub async fn at(store: &dyn Store, kind: Kind, run: &RunId, step: u64) -> Result<Option<Manifest>, Error> {
    let folder = kind.folder(run, step);
    let key = format!("{folder}/{MANIFEST}");
    let object = match store.get(&key).await {
        Ok(object) => object,
        Err(store::Error::NotFound { .. }) => return Ok(None),
        Err(source) => return Err(Error::Store { folder, source }),
    };
    let shown = store.local_path(&key).map_or(key, |path| path.display().to_string());
    let manifest = parse(&shown, &folder, &object.bytes)?;
    if manifest.folder() != folder {
        let damage = format!("its manifest says it is `{}`", manifest.folder());
        return Err(Error::Damaged { folder, damage });
    }
    Ok(Some(manifest))
}

/// The folders there are, published or not, by step.
///
/// # Errors
/// When the store fails.
pub async fn states(store: &dyn Store, kind: Kind, run: &RunId) -> Result<Vec<State>, Error> {
    let prefix = kind.prefix(run);
    let mut states = BTreeMap::new();
    for object in store.list(&prefix).await.map_err(Error::store(&prefix))? {
        let parts = object.key[prefix.len()..].split_once('/');
        let step = parts.and_then(|(folder, file)| Some((folder.strip_prefix("step-")?.parse::<u64>().ok()?, file)));
        if let Some((step, file)) = step {
            *states.entry(step).or_insert(false) |= file == MANIFEST;
        }
    }
    Ok(states.into_iter().map(|(step, published)| State { step, published }).collect())
}

/// All manifests of a run, by step. Folders without one are left out.
///
/// # Errors
/// As [`at`].
pub async fn list(store: &dyn Store, kind: Kind, run: &RunId) -> Result<Vec<Manifest>, Error> {
    let mut manifests = Vec::new();
    for state in states(store, kind, run).await? {
        if state.published {
            manifests.extend(at(store, kind, run, state.step).await?);
        }
    }
    Ok(manifests)
}

/// The newest manifest of a run. It asks the manifests, not `latest.json`: a crash between the two
/// leaves the pointer behind.
///
/// # Errors
/// As [`at`].
pub async fn latest(store: &dyn Store, kind: Kind, run: &RunId) -> Result<Option<Manifest>, Error> {
    match states(store, kind, run).await?.iter().rev().find(|state| state.published) {
        Some(state) => at(store, kind, run, state.step).await,
        None => Ok(None),
    }
}

/// Checks that every file is there with its size and content.
///
/// # Errors
/// [`Error::Damaged`] with the first file that is not.
pub async fn verify(store: &dyn Store, manifest: &Manifest) -> Result<(), Error> {
    let folder = manifest.folder();
    let objects = store.list(&format!("{folder}/")).await.map_err(Error::store(&folder))?;
    let sizes: BTreeMap<&str, u64> = objects.iter().map(|object| (object.key.as_str(), object.size)).collect();
    for file in &manifest.files {
        let damage = match sizes.get(manifest.key(file).as_str()) {
            None => format!("`{}` is missing", file.name),
            Some(size) if *size != file.size => format!("`{}` has {size} bytes instead of {}", file.name, file.size),
            Some(_) => continue,
        };
        return Err(Error::Damaged { folder, damage });
    }
    let scratch = tempfile::tempdir().map_err(Error::local("make a folder in", &std::env::temp_dir()))?;
    for file in &manifest.files {
        let key = manifest.key(file);
        let path = match store.local_path(&key) {
            Some(path) => path,
            None => {
                let copy = scratch.path().join("file");
                store.get_file(&key, &copy).await.map_err(Error::store(&folder))?;
                copy
            }
        };
        if !holds(path, file.clone()).await? {
            return Err(Error::Damaged { folder, damage: other_content(file) });
        }
    }
    Ok(())
}

/// Checks that the folder `at` of this machine holds what a manifest lists: every file with its size,
/// and its content where that is cheap to read (files of up to 16 MiB).
///
/// # Errors
/// [`Error::Incomplete`] with the first file that is missing or another.
pub async fn check_folder(manifest: &Manifest, at: &Path) -> Result<(), Error> {
    for file in &manifest.files {
        let path = at.join(&file.name);
        let damage = match std::fs::metadata(&path) {
            Ok(meta) if meta.is_file() && meta.len() == file.size => {
                if file.size > CHEAP || holds(path.clone(), file.clone()).await? {
                    continue;
                }
                "has another content than when it was published".to_owned()
            }
            Ok(meta) if meta.is_file() => format!("has {} bytes instead of {}", meta.len(), file.size),
            Ok(_) => "is no file".to_owned(),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                "is missing".to_owned()
            }
            Err(source) => return Err(Error::local("read", &path)(source)),
        };
        return Err(Error::Incomplete { path, damage });
    }
    Ok(())
}

/// The manifest that lies in a folder of this machine; `None` where there is none.
///
/// # Errors
/// When it cannot be read, or lists what is no file of the folder.
pub fn manifest_in(folder: &Path) -> Result<Option<Manifest>, Error> {
    let path = folder.join(MANIFEST);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(source) => return Err(Error::local("read", &path)(source)),
    };
    parse(&path.display().to_string(), &folder.display().to_string(), &bytes).map(Some)
}

fn parse(key: &str, folder: &str, bytes: &[u8]) -> Result<Manifest, Error> {
    let VersionedManifest::V1(manifest) =
        serde_json::from_slice(bytes).map_err(|source| Error::Unreadable { key: key.to_owned(), source })?;
    // Names become paths on the reader's machine, so none may step outside its folder.
    if let Some(file) = manifest.files.iter().find(|file| check_key(&file.name).is_err() || file.name == MANIFEST) {
        let damage = format!("its manifest has a file `{}`", file.name);
        return Err(Error::Damaged { folder: folder.to_owned(), damage });
    }
    Ok(manifest)
}

/// Copies a published folder to the local folder `to`, checking every file; files that are there
/// already are kept, so an interrupted copy goes on. The manifest is written last, there too.
///
/// # Errors
/// [`Error::Damaged`] where a file is not what the manifest says; otherwise what failed.
pub async fn fetch(store: &dyn Store, manifest: &Manifest, to: &Path) -> Result<(), Error> {
    let folder = manifest.folder();
    for file in &manifest.files {
        let path = to.join(&file.name);
        if holds(path.clone(), file.clone()).await? {
            continue;
        }
        match store.get_file(&manifest.key(file), &path).await {
            Ok(()) => {}
            Err(store::Error::NotFound { .. }) => {
                return Err(Error::Damaged { folder, damage: format!("`{}` is missing", file.name) });
            }
            Err(source) => return Err(Error::Store { folder, source }),
        }
        if !holds(path, file.clone()).await? {
            return Err(Error::Damaged { folder, damage: other_content(file) });
        }
    }
    store.get_file(&format!("{folder}/{MANIFEST}"), &to.join(MANIFEST)).await.map_err(Error::store(&folder))
}

fn other_content(file: &FileEntry) -> String {
    format!("`{}` has another content than when it was published", file.name)
}

/// Whether the file at `path` is the one described; a missing one is not.
async fn holds(path: PathBuf, file: FileEntry) -> Result<bool, Error> {
    blocking(move || match std::fs::metadata(&path) {
        Ok(meta) if meta.is_file() && meta.len() == file.size => {
            Ok(ContentHash::of_file(&path).map_err(Error::local("read", &path))? == file.sha256)
        }
        Ok(_) => Ok(false),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::local("read", &path)(source)),
    })
    .await
}
