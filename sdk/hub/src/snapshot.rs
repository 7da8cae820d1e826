//! The files a model needs, and no others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Error, Hub, Listing, Repo};

/// The index of a sharded checkpoint.
const INDEX: &str = "model.safetensors.index.json";

/// What says which model it is.
const CONFIG: &str = "config.json";

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// A Hugging Face folder.
    pub folder: PathBuf,
    /// The commit it is of.
    pub commit: String,
}

#[derive(Deserialize)]
struct Index {
    weight_map: serde_json::Map<String, serde_json::Value>,
}

/// Checks that a local folder is a Hugging Face model: it has a `config.json`.
///
/// # Errors
/// [`Error::NotAModel`], with what it lacks.
pub fn local_model(folder: &Path) -> Result<PathBuf, Error> {
    let not = |lack: &str| Err(Error::NotAModel { place: folder.display().to_string(), lack: lack.to_owned() });
    if !folder.exists() {
        return not("there is no such folder; a relative path is seen from the current folder");
    }
    if !folder.is_dir() {
        return not("it is a file; name the folder it lies in");
    }
    if !folder.join("config.json").is_file() {
        return not("it has no config.json");
    }
    Ok(folder.to_path_buf())
}

impl Hub {
    /// Brings a model into the cache: configuration, tokenizer, chat template and safetensors
    /// weights, and nothing else a repository may hold (other formats, pictures, code).
    ///
    /// # Errors
    /// Those of [`Hub::files`] and [`Hub::download`]; [`Error::NotAModel`] where the repository has
    /// no `config.json` or no safetensors.
    pub async fn snapshot(&self, id: &str, revision: &str) -> Result<Snapshot, Error> {
        let listing = self.files(&Repo::model(id)?, revision).await?;
        self.config(&listing).await?;
        self.rest(listing).await
    }

    /// Brings a model's `config.json` alone: what says whether the rest is worth its download.
    ///
    /// # Errors
    /// As [`Hub::snapshot`].
    pub async fn config(&self, listing: &Listing) -> Result<PathBuf, Error> {
        if listing.file(CONFIG).is_none() {
            return Err(self.incomplete(listing, CONFIG));
        }
        Ok(self.download(listing, &[CONFIG.to_owned()]).await?.join(CONFIG))
    }

    /// Brings everything else a model needs.
    ///
    /// # Errors
    /// As [`Hub::snapshot`].
    pub async fn rest(&self, listing: Listing) -> Result<Snapshot, Error> {
        let needed: Vec<String> =
            listing.files.iter().map(|file| &file.path).filter(|path| is_described(path)).cloned().collect();
        let folder = self.download(&listing, &needed).await?;
        let weights = self.weights(&listing, &folder)?;
        self.download(&listing, &weights).await?;
        Ok(Snapshot { folder, commit: listing.commit })
    }

    /// The weight files: those the index names, else `model.safetensors`, else all there are.
    fn weights(&self, listing: &Listing, folder: &Path) -> Result<Vec<String>, Error> {
        if listing.file(INDEX).is_some() {
            let path = folder.join(INDEX);
            let text = std::fs::read(&path).map_err(Error::cache("read", &path))?;
            let index: Index = serde_json::from_slice(&text).map_err(|error| Error::NotAModel {
                place: listing.repo.to_string(),
                lack: format!("its {INDEX} cannot be read: {error}"),
            })?;
            let shards: BTreeSet<_> = index.weight_map.values().filter_map(|value| value.as_str()).collect();
            return Ok(shards.into_iter().map(str::to_owned).collect());
        }
        if listing.file("model.safetensors").is_some() {
            return Ok(vec!["model.safetensors".to_owned()]);
        }
        let others: Vec<_> = listing
            .files
            .iter()
            .map(|file| file.path.clone())
            .filter(|path| path.ends_with(".safetensors") && !path.contains('/') && !path.starts_with("consolidated"))
            .collect();
        if others.is_empty() {
            return Err(self.incomplete(listing, "weights in .safetensors files"));
        }
        Ok(others)
    }

    fn incomplete(&self, listing: &Listing, what: &str) -> Error {
        if self.options.offline {
            return self.not_cached(&listing.repo, what);
        }
        let place = format!("{} at {}", listing.repo, listing.revision);
        Error::NotAModel { place, lack: format!("it has no {what}") }
    }
}

/// Whether a file describes the model or its text: everything needed beside the weights.
fn is_described(path: &str) -> bool {
    const NAMES: [&str; 8] = [
        "config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "spiece.model",
        INDEX,
    ];
    let top = !path.contains('/');
    top && (NAMES.contains(&path) || path.starts_with("tokenizer") || path.starts_with("chat_template"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_needed_files_are_needed() {
        for needed in
            ["config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "chat_template.jinja"]
        {
            assert!(is_described(needed), "{needed}");
        }
        for other in ["README.md", "pytorch_model.bin", "original/config.json", "model.safetensors", "figures/a.png"] {
            assert!(!is_described(other), "{other}");
        }
    }

    #[test]
    fn a_local_folder_needs_a_config() {
        let folder = tempfile::tempdir().unwrap();
        let error = local_model(folder.path()).unwrap_err().to_string();
        assert!(error.contains("no config.json"), "{error}");
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        assert_eq!(local_model(folder.path()).unwrap(), folder.path());
        let error = local_model(&folder.path().join("nope")).unwrap_err().to_string();
        assert!(error.contains("no such folder"), "{error}");
        let error = local_model(&folder.path().join("config.json")).unwrap_err().to_string();
        assert!(error.contains("it is a file"), "{error}");
    }
}
