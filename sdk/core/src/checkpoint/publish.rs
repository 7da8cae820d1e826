//! A local folder becomes a checkpoint: files first, manifest last, never over another.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Error, FileEntry, Kind, MANIFEST, Manifest, VersionedManifest, advance_latest, at, blocking, now};
use crate::ids::{ContentHash, RunId, WeightVersion};
use crate::store::{self, Store};

/// What a writer knows of the folder it publishes.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Checkpoint or resume state.
    pub kind: Kind,
    /// The run.
    pub run_id: RunId,
    /// Rollout steps done.
    pub step: u64,
    /// What people call the model.
    pub model: String,
    /// The weights' version.
    pub weight_version: WeightVersion,
    /// Which attempt of the run publishes, from 1.
    pub attempt: u64,
}

/// A published folder.
#[derive(Clone, Debug)]
pub struct Published {
    /// Its manifest as it is in the store.
    pub manifest: Manifest,
    /// Whether it was there already: an earlier attempt published the same and then died.
    pub adopted: bool,
}

/// Publishes the files of `folder` (and its subfolders) as `draft` says; a checkpoint also becomes
/// the run's latest if it is the newest.
///
/// What a lost attempt left half-uploaded under this step is replaced. Publishing the same content
/// again is an adoption.
///
/// # Errors
/// [`Error::Conflict`] if the step is published with other content (which is left as it is);
/// [`Error::Superseded`] if a newer attempt owns the pointer, which then stays; otherwise what failed. After an error without a manifest no reader sees anything, and publishing
/// again is safe.
pub async fn publish(store: &dyn Store, folder: &Path, draft: &Draft) -> Result<Published, Error> {
    let local = folder.to_owned();
    let files = blocking(move || describe(&local)).await?;
    let manifest = Manifest {
        kind: draft.kind,
        run_id: draft.run_id.clone(),
        step: draft.step,
        model: draft.model.clone(),
        weight_version: draft.weight_version,
        files,
        created_at: now(),
    };
    // Looked at first: an upload over a published folder would damage it.
    let published = match at(store, draft.kind, &draft.run_id, draft.step).await? {
        Some(there) => adopt(there, &manifest)?,
        None => upload(store, folder, manifest).await?,
    };
    if draft.kind == Kind::Checkpoint {
        advance_latest(store, &draft.run_id, draft.attempt, draft.step).await?;
    }
    Ok(published)
}

fn adopt(there: Manifest, ours: &Manifest) -> Result<Published, Error> {
    match there.difference(ours) {
        Some(difference) => Err(Error::Conflict { folder: there.folder(), difference }),
        None => Ok(Published { manifest: there, adopted: true }),
    }
}

async fn upload(store: &dyn Store, folder: &Path, manifest: Manifest) -> Result<Published, Error> {
    let target = manifest.folder();
    let failed = |source| Error::Store { folder: target.clone(), source };
    for file in &manifest.files {
        store.put_file(&manifest.key(file), &folder.join(&file.name)).await.map_err(failed)?;
    }
    // A lost attempt may have left files that this one does not have.
    let mut there = BTreeMap::new();
    for object in store.list(&format!("{target}/")).await.map_err(failed)? {
        let name = object.key[target.len() + 1..].to_owned();
        if name == MANIFEST || manifest.files.iter().any(|file| file.name == name) {
            there.insert(name, object.size);
        } else {
            store.delete(&object.key).await.map_err(failed)?;
        }
    }
    for file in &manifest.files {
        if there.get(&file.name) != Some(&file.size) {
            let reason = format!("`{}` changed while it was uploaded; publish a folder nobody writes to", file.name);
            return Err(Error::Unpublishable { path: folder.to_owned(), reason });
        }
    }
    let key = format!("{target}/{MANIFEST}");
    let document = serde_json::to_vec_pretty(&VersionedManifest::V1(manifest.clone()))
        .map_err(|source| Error::Unreadable { key: key.clone(), source })?;
    match store.create(&key, document.into()).await {
        Ok(_) => Ok(Published { manifest, adopted: false }),
        Err(store::Error::AlreadyExists { .. }) => {
            let there = at(store, manifest.kind, &manifest.run_id, manifest.step).await?;
            there.map_or_else(
                || Err(Error::Damaged { folder: target, damage: "its manifest vanished".to_owned() }),
                |there| adopt(there, &manifest),
            )
        }
        Err(source) => Err(failed(source)),
    }
}

/// Every file of a local folder (and its subfolders) with size and hash, by name; the manifest, where
/// there is one, is none of them. Reads every byte.
///
/// # Errors
/// [`Error::Unpublishable`] where there are no files, or something that is no file; or it cannot be read.
pub fn describe(folder: &Path) -> Result<Vec<FileEntry>, Error> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for entry in fs::read_dir(&current).map_err(Error::local("read", &current))? {
            let entry = entry.map_err(Error::local("read", &current))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(Error::local("read", &path))?;
            // The target of a link counts (hub caches are made of them), but a linked folder might loop.
            let meta = fs::metadata(&path).map_err(Error::local("read", &path))?;
            if meta.is_dir() && !kind.is_symlink() {
                folders.push(path);
            } else if meta.is_file() {
                let name = name(folder, &path)?;
                if name != MANIFEST {
                    let sha256 = ContentHash::of_file(&path).map_err(Error::local("read", &path))?;
                    files.push(FileEntry { name, size: meta.len(), sha256 });
                }
            } else {
                let reason = "it is neither a file nor a folder; remove it".to_owned();
                return Err(Error::Unpublishable { path, reason });
            }
        }
    }
    if files.is_empty() {
        let reason = "it has no files; write the model there first".to_owned();
        return Err(Error::Unpublishable { path: folder.to_owned(), reason });
    }
    files.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn name(folder: &Path, path: &Path) -> Result<String, Error> {
    let parts: Option<Vec<&str>> =
        path.strip_prefix(folder).ok().map(|path| path.iter().map(|part| part.to_str()).collect()).unwrap_or_default();
    parts.map(|parts| parts.join("/")).ok_or_else(|| Error::Unpublishable {
        path: PathBuf::from(path),
        reason: "its name is not UTF-8; rename it".to_owned(),
    })
}
