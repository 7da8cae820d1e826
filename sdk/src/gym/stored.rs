//! Models in a store: found by a manifest where there is one, else by what is listed, and fetched once.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use training_gym_core::checkpoint::MANIFEST;
use training_gym_core::ids::ContentHash;
use training_gym_core::spec::{ModelSpec, StoredModel};
use training_gym_core::store::{self, Store};

use super::Gym;
use super::model::ModelError;
use super::staging::{PlacedModel, in_pod, is_of_model, local};
use crate::backend;
use crate::config::Model;
use crate::hub;

const CONFIG: &str = "config.json";
/// A file of up to this many bytes is hashed whenever its copy is looked at.
const CHEAP: u64 = 16 << 20;
/// Folders that a message names.
const NAMED: usize = 3;

/// A model's folder in a store.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pub(crate) store: Arc<dyn Store>,
    /// Without a `/` at its end; empty for the whole store.
    pub(crate) folder: String,
}

/// What lies there.
#[derive(Debug)]
struct Found {
    files: Vec<Wanted>,
    /// The manifest's text.
    manifest: Option<Bytes>,
    /// Another content has another one.
    identity: ContentHash,
}

#[derive(Clone, Debug)]
struct Wanted {
    name: String,
    size: u64,
    /// Known where there is a manifest.
    sha256: Option<ContentHash>,
}

impl Gym {
    /// Where a store's URL is: in this client's store, or in another.
    pub(super) fn spot(&self, url: &str) -> Result<Spot, ModelError> {
        Ok(match store::key_of(self.store().as_ref(), url) {
            Some(folder) => Spot { store: Arc::clone(self.store()), folder },
            None => Spot { store: store::open(url)?, folder: String::new() },
        })
    }

    /// A model of a store where jobs find it: as it lies, where they read that store and it has a manifest;
    /// else from a copy on this machine, which is made once.
    pub(super) async fn stored_model(
        &self,
        model: Model,
        name: String,
        spot: &Spot,
    ) -> Result<PlacedModel, ModelError> {
        let found = spot.look().await?;
        let manifest = found.manifest.as_ref().filter(|_| self.is_own(spot));
        let as_it_lies = self.backend().models().zip(manifest);
        // Such a job fetches the weights itself; what is asked about the model here needs none of them.
        let (kept, files): (_, Vec<Wanted>) = match as_it_lies {
            Some(_) => ("described", found.files.iter().filter(|file| !file.is_weights()).cloned().collect()),
            None => ("models", found.files.clone()),
        };
        let last = store::last_part(&spot.url());
        let folder = self.cache().join(kept).join(format!("{:.16}", found.identity.as_str())).join(last);
        self.bring(model, spot, (&found, &files), &folder).await?;
        let spec = ModelSpec { name, folder: folder.clone(), hub: None, stored: None };
        match as_it_lies {
            Some((root, manifest)) => {
                let stored =
                    StoredModel { prefix: format!("{}/", spot.folder), manifest_sha256: ContentHash::of(manifest) };
                Ok(PlacedModel { spec: in_pod(root, spec, stored), folder })
            }
            None => self.place(spec).await,
        }
    }

    fn is_own(&self, spot: &Spot) -> bool {
        let here = self.store();
        // Two stores in memory have one URL.
        !spot.folder.is_empty()
            && (Arc::ptr_eq(here, &spot.store)
                || (!here.url().starts_with("memory:") && here.url() == spot.store.url()))
    }

    /// Makes `folder` a whole copy: beside its place first, where what an earlier try fetched is kept.
    async fn bring(
        &self,
        model: Model,
        spot: &Spot,
        (found, files): (&Found, &[Wanted]),
        folder: &Path,
    ) -> Result<(), ModelError> {
        let parent = folder.parent().unwrap_or(folder);
        let part = parent.join("part");
        let _held = lock(parent).await?;
        if are_whole(folder, files, CHEAP).await? {
            return self.computes(model, &folder.join(CONFIG)).await;
        }
        // A copy that lost a file is completed.
        if folder.exists() && !part.exists() {
            fs::rename(folder, &part).map_err(local("move", folder))?;
        }
        // A family that is not computed costs no download.
        let (config, rest): (Vec<&Wanted>, Vec<&Wanted>) = files.iter().partition(|file| file.name == CONFIG);
        for file in config {
            spot.receive(file, &part).await?;
        }
        self.computes(model, &part.join(CONFIG)).await?;
        let bytes: u64 = files.iter().map(|file| file.size).sum();
        tracing::info!("fetching `{model}` from {}: {:.1} MB", spot.url(), bytes as f64 / 1e6);
        for file in rest {
            spot.receive(file, &part).await?;
        }
        match &found.manifest {
            Some(text) => fs::write(part.join(MANIFEST), text).map_err(local("write", &part))?,
            // Nothing says that the files belong together but that none of them changed meanwhile.
            None if spot.look().await?.identity != found.identity => {
                let _ = fs::remove_dir_all(&part);
                return Err(spot.no_model("it changed while it was read; try again once it is whole"));
            }
            None => {}
        }
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(local("remove", folder))?;
        }
        fs::rename(&part, folder).map_err(local("move", &part))?;
        Ok(())
    }
}

impl Spot {
    pub(crate) fn url(&self) -> String {
        store::url_of(self.store.as_ref(), &self.folder)
    }

    fn key(&self, name: &str) -> String {
        if self.folder.is_empty() { name.to_owned() } else { format!("{}/{name}", self.folder) }
    }

    fn no_model(&self, lack: impl Into<String>) -> ModelError {
        hub::Error::NotAModel { place: self.url(), lack: lack.into() }.into()
    }

    async fn look(&self) -> Result<Found, ModelError> {
        let found = match self.store.get(&self.key(MANIFEST)).await {
            Ok(object) if is_ours(&object.bytes) => self.promised(object.bytes)?,
            // Somebody else's file of that name, or none.
            Ok(_) | Err(store::Error::NotFound { .. }) => self.listed().await?,
            Err(error) => return Err(error.into()),
        };
        let has = |is: fn(&Wanted) -> bool| found.files.iter().any(is);
        match (has(|file| file.name == CONFIG), has(Wanted::is_weights)) {
            (true, true) => Ok(found),
            (true, false) => {
                Err(self.no_model("it has no safetensors weights; bring the model's `*.safetensors` there"))
            }
            (false, _) => Err(self.no_model(self.without_config(&found).await?)),
        }
    }

    /// What a manifest lists: one of a checkpoint, or of a model that was staged.
    fn promised(&self, text: Bytes) -> Result<Found, ModelError> {
        let identity = ContentHash::of(&text);
        let prefix = if self.folder.is_empty() { store::last_part(&self.url()) } else { self.folder.clone() };
        let place = StoredModel { prefix, manifest_sha256: identity.clone() };
        let manifest = place.manifest(&text).map_err(|error| self.no_model(error.to_string()))?;
        let wanted = |file: training_gym_core::checkpoint::FileEntry| Wanted {
            name: file.name,
            size: file.size,
            sha256: Some(file.sha256),
        };
        let files = manifest.files.into_iter().map(wanted).collect();
        Ok(Found { files, manifest: Some(text), identity })
    }

    /// The files of a model that lie in the folder itself.
    async fn listed(&self) -> Result<Found, ModelError> {
        let (prefix, mut files) = (self.key(""), Vec::new());
        let mut seen = self.url();
        for object in self.store.list(&prefix).await? {
            let name = &object.key[prefix.len()..];
            if !name.contains('/') && is_of_model(name) {
                let version = object.version.map(|version| version.0).unwrap_or_default();
                seen.push_str(&format!("\n{name} {} {version}", object.size));
                files.push(Wanted { name: name.to_owned(), size: object.size, sha256: None });
            }
        }
        Ok(Found { files, manifest: None, identity: ContentHash::of(seen.as_bytes()) })
    }

    /// What there is instead of a `config.json`.
    async fn without_config(&self, found: &Found) -> Result<String, ModelError> {
        let prefix = self.key("");
        let below = self.store.list(&prefix).await?;
        let folders: Vec<String> = below
            .iter()
            .filter_map(|object| object.key[prefix.len()..].strip_suffix("/config.json"))
            .take(NAMED)
            .map(|folder| format!("`{folder}`"))
            .collect();
        Ok(if below.is_empty() {
            "nothing lies there; check the path after the bucket, upper and lower case too".to_owned()
        } else if !folders.is_empty() {
            format!("it has no {CONFIG}, but folders in it have: {}; name one of them", folders.join(", "))
        } else {
            let names: Vec<String> = found.files.iter().take(NAMED).map(|file| format!("`{}`", file.name)).collect();
            let there = if names.is_empty() { "files of other kinds".to_owned() } else { names.join(", ") };
            format!("it has no {CONFIG} (there are {there}); name the folder of a Hugging Face model")
        })
    }

    /// Fetches a file, unless it is there.
    async fn receive(&self, file: &Wanted, to: &Path) -> Result<(), ModelError> {
        let path = to.join(&file.name);
        if file.is_at(&path, u64::MAX).await? {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(to);
        fs::create_dir_all(parent).map_err(local("make", parent))?;
        match self.store.get_file(&self.key(&file.name), &path).await {
            Ok(()) => {}
            Err(store::Error::NotFound { .. }) => {
                return Err(self.no_model(format!("its file `{}` is missing; store the model again", file.name)));
            }
            Err(error) => return Err(error.into()),
        }
        if file.is_at(&path, u64::MAX).await? {
            return Ok(());
        }
        // The next try must not take it for a beginning.
        let _ = fs::remove_file(&path);
        let lack =
            format!("its file `{}` is another than its manifest or listing says; store the model again", file.name);
        Err(self.no_model(lack))
    }
}

impl Wanted {
    fn is_weights(&self) -> bool {
        self.name.ends_with(".safetensors")
    }

    /// Whether the file at `path` is this one; its content is read up to a size of `most`.
    async fn is_at(&self, path: &Path, most: u64) -> Result<bool, ModelError> {
        match fs::metadata(path) {
            Ok(meta) if meta.is_file() && meta.len() == self.size => {}
            Ok(_) => return Ok(false),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(false),
            Err(source) => return Err(local("read", path)(source).into()),
        }
        let Some(expected) = self.sha256.clone().filter(|_| self.size <= most) else { return Ok(true) };
        let path = path.to_owned();
        let hashed = tokio::task::spawn_blocking(move || match ContentHash::of_file(&path) {
            Ok(found) => Ok(found == expected),
            Err(source) => Err(local("read", &path)(source)),
        });
        Ok(hashed.await.map_err(|_| backend::Error::Interrupted)??)
    }
}

async fn are_whole(folder: &Path, files: &[Wanted], most: u64) -> Result<bool, ModelError> {
    for file in files {
        if !file.is_at(&folder.join(&file.name), most).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a `manifest.json` is one of ours: others use the name, too.
fn is_ours(text: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(text).is_ok_and(|value| {
        value.get("version").is_some() && value.get("files").is_some_and(serde_json::Value::is_array)
    })
}

/// Waits until no other program fetches into `folder`; the lock ends with the value. Without locks two may fetch
/// the same files, each of which appears whole.
async fn lock(folder: &Path) -> Result<File, ModelError> {
    let folder: PathBuf = folder.to_owned();
    let locked = tokio::task::spawn_blocking(move || {
        fs::create_dir_all(&folder).map_err(local("make", &folder))?;
        let path = folder.join("lock");
        let file = File::options().create(true).append(true).open(&path).map_err(local("open", &path))?;
        if let Err(error) = file.lock() {
            tracing::debug!("{} cannot be locked: {error}", path.display());
        }
        Ok::<_, backend::Error>(file)
    });
    Ok(locked.await.map_err(|_| backend::Error::Interrupted)??)
}

#[cfg(test)]
mod tests;
