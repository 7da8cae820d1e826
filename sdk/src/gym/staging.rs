//! A model's files in the store, for jobs that do not see this machine's disk: put there once, by
//! content.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use training_gym_core::checkpoint::{FileEntry, Kind, MANIFEST};
use training_gym_core::ids::ContentHash;
use training_gym_core::spec::{ModelSpec, StoredModel};
use training_gym_core::store::{self, Store};
use training_gym_core::stored::ModelManifest;

use super::Gym;
use super::model::ModelError;
use crate::backend;
use crate::config::Model;
use crate::hub::local_model;
use crate::run::Checkpoint;

/// A model that a job can have, and its files on this machine.
#[derive(Clone, Debug)]
pub(crate) struct PlacedModel {
    /// As the job's spec says.
    pub(crate) spec: ModelSpec,
    /// Here.
    pub(crate) folder: PathBuf,
}

/// What a model folder's files looked like when they were hashed: reading gigabytes again would find
/// the same.
#[derive(Serialize, Deserialize)]
struct Seen {
    /// Name, bytes, inode, time of change in nanoseconds.
    files: Vec<(String, u64, u64, i128)>,
    manifest: ModelManifest,
}

impl Gym {
    /// Puts a model where jobs find it: nowhere, where they see this machine's folders; else into the
    /// store.
    pub(super) async fn place(&self, model: ModelSpec) -> Result<PlacedModel, ModelError> {
        let folder = std::path::absolute(&model.folder).unwrap_or_else(|_| model.folder.clone());
        let Some(root) = self.backend().models() else {
            return Ok(PlacedModel { spec: ModelSpec { folder: folder.clone(), ..model }, folder });
        };
        if let Some(hub) = model.hub.as_ref().filter(|_| self.backend().fetches_from_hub()) {
            let cached = format!("{root}/models--{}/snapshots/{}", hub.repo.replace('/', "--"), hub.commit);
            return Ok(PlacedModel { spec: ModelSpec { folder: cached.into(), ..model }, folder });
        }
        let manifest = self.describe(&folder).await?;
        let stored = stage(self.store().as_ref(), &folder, &manifest).await?;
        Ok(PlacedModel { spec: in_pod(root, model, stored), folder })
    }

    /// A run's checkpoint, of a family that is computed, where jobs find it: in the store where it lies.
    pub(crate) async fn checkpoint(
        &self,
        model: Model,
        name: String,
        checkpoint: &Checkpoint,
    ) -> Result<PlacedModel, ModelError> {
        if let (Some(_), Some(spot)) = (self.backend().models(), checkpoint.spot()) {
            return self.stored_model(model, name, &spot).await;
        }
        let folder = local_model(&checkpoint.files().await?)?;
        self.computes(model, &folder.join("config.json")).await?;
        self.place_checkpoint(name, folder, checkpoint).await
    }

    async fn place_checkpoint(
        &self,
        name: String,
        folder: PathBuf,
        checkpoint: &Checkpoint,
    ) -> Result<PlacedModel, ModelError> {
        let model = ModelSpec { name, folder: folder.clone(), hub: None, stored: None };
        let Some(root) = self.backend().models() else { return self.place(model).await };
        let prefix = format!("{}/", Kind::Checkpoint.folder(&checkpoint.run_id, checkpoint.step));
        let there = match self.store().get(&format!("{prefix}{MANIFEST}")).await {
            Ok(object) => Some(object.bytes),
            Err(store::Error::NotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        // Under the same name another store may hold another run.
        match there.filter(|there| fs::read(folder.join(MANIFEST)).is_ok_and(|here| here == **there)) {
            Some(manifest) => {
                let stored = StoredModel { prefix, manifest_sha256: ContentHash::of(&manifest) };
                Ok(PlacedModel { spec: in_pod(root, model, stored), folder })
            }
            None => self.place(model).await,
        }
    }

    /// The manifest of a folder, from memory where none of its files changed.
    async fn describe(&self, folder: &Path) -> Result<ModelManifest, ModelError> {
        let memory = self
            .cache()
            .join("staged")
            .join(format!("{}.json", ContentHash::of(folder.as_os_str().as_encoded_bytes())));
        let folder = folder.to_owned();
        let described = tokio::task::spawn_blocking(move || -> Result<ModelManifest, backend::Error> {
            let files = model_files(&folder)?;
            let seen = fs::read(&memory).ok().and_then(|bytes| serde_json::from_slice::<Seen>(&bytes).ok());
            if let Some(seen) = seen.filter(|seen| seen.files == files) {
                return Ok(seen.manifest);
            }
            let entry = |(name, size, ..): &(String, u64, u64, i128)| {
                let path = folder.join(name);
                let sha256 = ContentHash::of_file(&path).map_err(local("read", &path))?;
                Ok(FileEntry { name: name.clone(), size: *size, sha256 })
            };
            let manifest = ModelManifest { files: files.iter().map(entry).collect::<Result<_, backend::Error>>()? };
            let seen = Seen { files, manifest };
            // Memory saves time and no more: without it the files are read again.
            if let (Some(parent), Ok(bytes)) = (memory.parent(), serde_json::to_vec(&seen)) {
                let _ = fs::create_dir_all(parent).and_then(|()| fs::write(&memory, bytes));
            }
            Ok(seen.manifest)
        });
        Ok(described.await.map_err(|_| backend::Error::Interrupted)??)
    }
}

/// The model as a pod has it. The folder's last part stays: a folder is called by it.
pub(super) fn in_pod(root: &str, model: ModelSpec, stored: StoredModel) -> ModelSpec {
    let last = model.name.rsplit('/').next().unwrap_or(&model.name);
    let folder = format!("{root}/{:.16}/{last}", stored.manifest_sha256.as_str());
    ModelSpec { folder: folder.into(), stored: Some(stored), ..model }
}

/// Puts the files of a manifest into the store, unless they are there; the manifest last.
pub(crate) async fn stage(
    store: &dyn Store,
    folder: &Path,
    manifest: &ModelManifest,
) -> Result<StoredModel, store::Error> {
    let place = manifest.place();
    let there = store.list(&place.prefix).await?;
    let key = place.manifest_key();
    if there.iter().any(|object| object.key == key) {
        return Ok(place);
    }
    for file in &manifest.files {
        let key = place.key(&file.name);
        // An upload that was cut short goes on behind its last whole file.
        if !there.iter().any(|object| object.key == key && object.size == file.size) {
            store.put_file(&key, &folder.join(&file.name)).await?;
        }
    }
    match store.create(&key, manifest.to_json().into()).await {
        // Somebody else staged the same.
        Ok(_) | Err(store::Error::AlreadyExists { .. }) => Ok(place),
        Err(error) => Err(error),
    }
}

/// The files of a folder that a model consists of: weights, and what describes it and its text.
fn model_files(folder: &Path) -> Result<Vec<(String, u64, u64, i128)>, backend::Error> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(local("list", folder))? {
        let path = entry.map_err(local("list", folder))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()).map(str::to_owned) else { continue };
        // The target of a link counts: hub caches are made of them.
        let meta = fs::metadata(&path).map_err(local("read", &path))?;
        if meta.is_file() && is_of_model(&name) {
            let changed = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
            files.push((name, meta.len(), meta.ino(), changed));
        }
    }
    files.sort_unstable();
    Ok(files)
}

pub(super) fn is_of_model(name: &str) -> bool {
    let kinds = [".json", ".safetensors", ".txt", ".jinja", ".model", ".tiktoken"];
    !name.starts_with('.') && name != MANIFEST && kinds.iter().any(|kind| name.ends_with(kind))
}

pub(super) fn local(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> backend::Error {
    let path = path.to_owned();
    move |source| backend::Error::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use training_gym_core::store::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn a_folder_is_staged_once_and_whole() {
        let home = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let gym = Gym::local(home.path().join("home")).unwrap().with_store(Arc::clone(&store));
        let folder = home.path().join("tiny");
        fs::create_dir_all(folder.join(".git")).unwrap();
        for (name, text) in [("config.json", "{}"), ("model.safetensors", "w"), ("manifest.json", "x"), ("a.py", "x")] {
            fs::write(folder.join(name), text).unwrap();
        }
        let manifest = gym.describe(&folder).await.unwrap();
        let names: Vec<&str> = manifest.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["config.json", "model.safetensors"]);
        // An upload that was cut short: a file has half its bytes, and there is no manifest.
        let place = manifest.place();
        store.put(&place.key("config.json"), "{".into()).await.unwrap();
        assert_eq!(stage(store.as_ref(), &folder, &manifest).await.unwrap(), place);
        let bytes = store.get(&place.manifest_key()).await.unwrap().bytes;
        assert_eq!(place.manifest(&bytes).unwrap(), manifest);
        assert_eq!(store.get(&place.key("config.json")).await.unwrap().bytes, "{}");
        // The files are not looked at again until one changes.
        store.delete(&place.key("model.safetensors")).await.unwrap();
        stage(store.as_ref(), &folder, &manifest).await.unwrap();
        assert!(store.get(&place.key("model.safetensors")).await.is_err());
        assert_eq!(gym.describe(&folder).await.unwrap(), manifest);
        fs::write(folder.join("model.safetensors"), "v").unwrap();
        assert_ne!(gym.describe(&folder).await.unwrap(), manifest);
    }

    #[test]
    fn a_staged_folder_keeps_its_name() {
        let stored = ModelManifest { files: Vec::new() }.place();
        let model = |name: &str| ModelSpec { name: name.to_owned(), folder: "/here".into(), hub: None, stored: None };
        let placed = in_pod("/models", model("tiny"), stored.clone());
        assert!(placed.folder.ends_with("tiny") && placed.folder.starts_with("/models"));
        assert!(in_pod("/models", model("Qwen/Qwen3-4B"), stored).folder.ends_with("Qwen3-4B"));
    }
}
