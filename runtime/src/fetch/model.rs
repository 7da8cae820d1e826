//! A model's files: from the store by a manifest, or from the hub at a commit.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use training_gym_core::checkpoint::{FileEntry, MANIFEST};
use training_gym_core::ids::ContentHash;
use training_gym_core::spec::{HubRef, ModelSpec};
use training_gym_core::store::Store;
use training_gym_core::stored::{ModelManifest, StoredModel};
use training_gym_hub::{Hub, HubOptions, local_model};

use super::{Error, hash};

/// Files on their way at once.
const PARALLEL: usize = 4;
/// Between two looks at a lock that another holds.
const LOOK: Duration = Duration::from_millis(200);

/// Brings a model to its folder.
pub(super) async fn fetch(store: Arc<dyn Store>, model: &ModelSpec) -> Result<(), Error> {
    match (&model.stored, &model.hub) {
        (Some(stored), _) => from_store(store, model, stored).await,
        (None, Some(place)) => {
            let failed = |source| Error::Hub { model: model.name.clone(), source: Box::new(source) };
            from_hub(&Hub::from_env().map_err(failed)?, model, place).await
        }
        (None, None) if local_model(&model.folder).is_ok() => {
            tracing::info!("model `{}` is at {}", model.name, model.folder.display());
            Ok(())
        }
        (None, None) => Err(Error::Nowhere { model: model.name.clone(), path: model.folder.clone() }),
    }
}

async fn from_store(store: Arc<dyn Store>, model: &ModelSpec, stored: &StoredModel) -> Result<(), Error> {
    let text = store.get(&stored.manifest_key()).await?.bytes;
    let manifest = stored.manifest(&text).map_err(|source| Error::Manifest { model: model.name.clone(), source })?;
    if is_there(model, &manifest, &text)? {
        return Ok(());
    }
    let (parent, name) = place(&model.folder)?;
    std::fs::create_dir_all(parent).map_err(Error::disk("make", parent))?;
    let hidden = |end: &str| parent.join(format!(".{name}.{end}"));
    let lock = lock(&hidden("lock")).await?;
    // Whoever held the lock may have brought it meanwhile.
    if is_there(model, &manifest, &text)? {
        return Ok(());
    }
    // By content: what another model of this name left half is no beginning of this one. Where there
    // are no locks, one of its own.
    let short = &stored.manifest_sha256.as_str()[..16];
    let own = if lock.is_none() { format!("-{:08x}", std::process::id()) } else { String::new() };
    let part = hidden(&format!("{short}{own}.part"));
    receive(&*store, stored, &manifest, &part).await?;
    std::fs::write(part.join(MANIFEST), &text).map_err(Error::disk("write", &part))?;
    match std::fs::rename(&part, &model.folder) {
        Ok(()) => {}
        Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
            // Where there are no locks another was quicker: with this model, or it is an error.
            is_there(model, &manifest, &text)?;
            let _ = std::fs::remove_dir_all(&part);
        }
        Err(source) => return Err(Error::disk("write", &model.folder)(source)),
    }
    tracing::info!("model `{}` is at {}", model.name, model.folder.display());
    Ok(())
}

/// Whether the folder holds what the manifest lists: it appeared whole, so sizes tell. An empty folder
/// (a volume's mount point) holds nothing yet.
fn is_there(model: &ModelSpec, manifest: &ModelManifest, text: &[u8]) -> Result<bool, Error> {
    let folder = &model.folder;
    let occupied = |difference: String| Error::Occupied { path: folder.clone(), model: model.name.clone(), difference };
    match std::fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => return Ok(false),
        Ok(false) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(Error::disk("read", folder)(source)),
    }
    match std::fs::read(folder.join(MANIFEST)) {
        Ok(there) if ContentHash::of(&there) == ContentHash::of(text) => {}
        Ok(_) => return Err(occupied(format!("its {MANIFEST} is another"))),
        Err(_) => return Err(occupied(format!("it has no {MANIFEST}"))),
    }
    for file in &manifest.files {
        match std::fs::metadata(folder.join(&file.name)) {
            Ok(meta) if meta.is_file() && meta.len() == file.size => {}
            Ok(meta) => {
                return Err(occupied(format!("`{}` has {} bytes instead of {}", file.name, meta.len(), file.size)));
            }
            Err(error) => return Err(occupied(format!("`{}`: {error}", file.name))),
        }
    }
    tracing::info!("model `{}` is at {} already", model.name, folder.display());
    Ok(true)
}

/// Fetches the files into `part`, several at once; those that are there and right are kept.
async fn receive(store: &dyn Store, stored: &StoredModel, manifest: &ModelManifest, part: &Path) -> Result<(), Error> {
    let total: u64 = manifest.files.iter().map(|file| file.size).sum();
    let done = AtomicU64::new(0);
    let fetches: Vec<_> = manifest.files.iter().map(|file| receive_one(store, stored, file, part)).collect();
    let mut received = futures::stream::iter(fetches).buffer_unordered(PARALLEL);
    while let Some(file) = received.try_next().await? {
        let so_far = done.fetch_add(file.size, Ordering::Relaxed) + file.size;
        tracing::info!("{} of {}: `{}` is there", megabytes(so_far), megabytes(total), file.name);
    }
    Ok(())
}

async fn receive_one<'a>(
    store: &dyn Store,
    stored: &StoredModel,
    file: &'a FileEntry,
    part: &Path,
) -> Result<&'a FileEntry, Error> {
    let path = part.join(&file.name);
    if std::fs::metadata(&path).is_ok_and(|meta| meta.len() == file.size) && hash(&path).await? == file.sha256 {
        return Ok(file);
    }
    let folder = path.parent().unwrap_or(part);
    std::fs::create_dir_all(folder).map_err(Error::disk("make", folder))?;
    store.get_file(&stored.key(&file.name), &path).await?;
    let found = hash(&path).await?;
    if found != file.sha256 {
        // Not kept: the next try must not take it for a beginning.
        let _ = std::fs::remove_file(&path);
        let (what, expected) = (format!("`{}`", stored.key(&file.name)), file.sha256.clone());
        return Err(Error::Replaced { what, found, expected });
    }
    Ok(file)
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// The folder's parent and its name.
fn place(folder: &Path) -> Result<(&Path, &str), Error> {
    folder.parent().zip(folder.file_name().and_then(|name| name.to_str())).ok_or_else(|| {
        Error::disk("use", folder)(std::io::Error::new(ErrorKind::InvalidInput, "it is no path of a folder in another"))
    })
}

/// Waits until no other fetches into this place. `None`: the volume has no locks. The lock ends with
/// the value, also when its process is killed.
async fn lock(path: &Path) -> Result<Option<File>, Error> {
    let file = File::options().create(true).append(true).open(path).map_err(Error::disk("open", path))?;
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => {
                if !told {
                    tracing::info!("another job fetches into {}; waiting for it", path.display());
                    told = true;
                }
                tokio::time::sleep(LOOK).await;
            }
            Err(TryLockError::Error(error)) => {
                tracing::warn!("{} cannot be locked ({error}): fetching into a folder of its own", path.display());
                return Ok(None);
            }
        }
    }
}

/// Brings a model of the hub into the cache, and its folder to it.
pub(super) async fn from_hub(hub: &Hub, model: &ModelSpec, place: &HubRef) -> Result<(), Error> {
    let failed = |source| Error::Hub { model: model.name.clone(), source: Box::new(source) };
    // What the cache has whole needs no hub: a node goes on without a network.
    let offline = Hub::new(HubOptions { offline: true, ..hub.options().clone() }).map_err(failed)?;
    let snapshot = match offline.snapshot(&place.repo, &place.commit).await {
        Ok(snapshot) => snapshot,
        Err(_) => {
            tracing::info!("fetching {} at {} from the hub", place.repo, place.commit);
            let hub = hub.clone().on_progress(progress());
            hub.snapshot(&place.repo, &place.commit).await.map_err(failed)?
        }
    };
    point(&model.folder, &snapshot.folder, model)?;
    tracing::info!("model `{}` is at {}", model.name, model.folder.display());
    Ok(())
}

/// A line of the log for every tenth of a large file.
fn progress() -> impl Fn(&training_gym_hub::Progress) + Send + Sync + 'static {
    let told = std::sync::Mutex::new(std::collections::BTreeMap::<String, u64>::new());
    move |progress| {
        let Some(total) = progress.total.filter(|total| *total > 64 << 20) else { return };
        let tenth = progress.received * 10 / total;
        let Ok(mut told) = told.lock() else { return };
        if told.insert(progress.file.clone(), tenth) != Some(tenth) {
            tracing::info!("{}: {} of {}", progress.file, megabytes(progress.received), megabytes(total));
        }
    }
}

/// Makes `folder` lead to `target`, unless it is that.
fn point(folder: &Path, target: &Path, model: &ModelSpec) -> Result<(), Error> {
    let target = target.canonicalize().map_err(Error::disk("read", target))?;
    if folder.canonicalize().is_ok_and(|there| there == target) {
        return Ok(());
    }
    let (parent, name) = place(folder)?;
    let occupied = |difference: &str| {
        let (path, model) = (folder.to_owned(), model.name.clone());
        Error::Occupied { path, model, difference: difference.to_owned() }
    };
    match std::fs::symlink_metadata(folder) {
        Ok(meta) if meta.is_symlink() => {}
        // The mount point of an empty volume: a link cannot take its place, but an empty folder may go.
        Ok(meta) if meta.is_dir() && std::fs::remove_dir(folder).is_ok() => {}
        Ok(_) => return Err(occupied("it is no link to the hub's cache")),
        Err(_) => {}
    }
    std::fs::create_dir_all(parent).map_err(Error::disk("make", parent))?;
    let beside: PathBuf = parent.join(format!(".{name}.{:08x}.link", std::process::id()));
    let _ = std::fs::remove_file(&beside);
    symlink(&target, &beside).map_err(Error::disk("link", &beside))?;
    std::fs::rename(&beside, folder).map_err(Error::disk("link", folder))
}
