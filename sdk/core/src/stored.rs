//! A model's files in the store, for a job on another machine than the one that launched it.
//!
//! ```text
//! inputs/models/<hash>/<file>           a folder of the launching machine, by content
//! inputs/models/<hash>/manifest.json    what it holds; written last
//! runs/RUN/checkpoints/step-N/          a checkpoint is such a folder as it is
//! ```
//!
//! The hash is the manifest's own, so equal folders are stored once and nobody can exchange a file
//! unnoticed: a spec names the manifest's hash, and the manifest each file's.

use serde::{Deserialize, Serialize};

use crate::checkpoint::{FileEntry, MANIFEST};
use crate::ids::ContentHash;
use crate::store::check_key;

/// Where a model's files lie in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredModel {
    /// The folder in the store, such as `inputs/models/<hash>/` or `runs/RUN/checkpoints/step-3/`.
    pub prefix: String,
    /// sha256 of the `manifest.json` there.
    pub manifest_sha256: ContentHash,
}

/// A [`ModelManifest`] as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "version")]
pub enum VersionedModelManifest {
    /// The first layout.
    #[serde(rename = "1")]
    V1(ModelManifest),
}

/// The files of a model in the store. A checkpoint's manifest reads as one, with more fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelManifest {
    /// Every file, by name.
    pub files: Vec<FileEntry>,
}

/// Why a manifest's text is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is another one than the spec names.
    #[error("`{key}` has sha256 {found}, not {expected}: it was replaced after the launch; launch again")]
    Replaced {
        /// The manifest's key.
        key: String,
        /// What it has.
        found: ContentHash,
        /// What the spec says.
        expected: ContentHash,
    },
    /// It is no manifest.
    #[error("`{key}` is no manifest of a model: it is damaged, or a newer version wrote it; store the model again")]
    Unreadable {
        /// The manifest's key.
        key: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// It names what is no file of a folder.
    #[error("`{key}` lists a file `{name}`, which is no path inside a model's folder; do not use that model")]
    Escapes {
        /// The manifest's key.
        key: String,
        /// The file.
        name: String,
    },
    /// It names nothing.
    #[error("`{key}` lists no files; store the model again")]
    Empty {
        /// The manifest's key.
        key: String,
    },
}

impl ModelManifest {
    /// As it is stored. The same files give the same bytes, and so the same hash.
    ///
    /// ```
    /// # use training_gym_core::stored::ModelManifest;
    /// let manifest = ModelManifest { files: Vec::new() };
    /// assert_eq!(manifest.to_json(), br#"{"version":"1","files":[]}"#);
    /// ```
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(&VersionedModelManifest::V1(self.clone())).expect("texts and numbers")
    }

    /// Where a folder of these files belongs: `inputs/models/<sha256 of the manifest>/`.
    pub fn place(&self) -> StoredModel {
        let manifest_sha256 = ContentHash::of(&self.to_json());
        StoredModel { prefix: format!("inputs/models/{manifest_sha256}/"), manifest_sha256 }
    }
}

impl StoredModel {
    /// The store key of a file of the folder.
    pub fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix.trim_end_matches('/'))
    }

    /// The manifest's store key.
    pub fn manifest_key(&self) -> String {
        self.key(MANIFEST)
    }

    /// The manifest that `bytes`, read from [`manifest_key`](Self::manifest_key), are.
    ///
    /// # Errors
    /// [`Error`], where they are not the promised ones or would write outside of a folder.
    pub fn manifest(&self, bytes: &[u8]) -> Result<ModelManifest, Error> {
        let key = self.manifest_key();
        let found = ContentHash::of(bytes);
        if found != self.manifest_sha256 {
            return Err(Error::Replaced { key, found, expected: self.manifest_sha256.clone() });
        }
        let VersionedModelManifest::V1(manifest) =
            serde_json::from_slice(bytes).map_err(|source| Error::Unreadable { key: key.clone(), source })?;
        if let Some(file) = manifest.files.iter().find(|file| check_key(&file.name).is_err() || file.name == MANIFEST) {
            return Err(Error::Escapes { key, name: file.name.clone() });
        }
        if manifest.files.is_empty() {
            return Err(Error::Empty { key });
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> FileEntry {
        FileEntry { name: name.to_owned(), size: 2, sha256: ContentHash::of(b"{}") }
    }

    #[test]
    fn a_manifest_is_the_promised_one_or_refused() {
        let manifest = ModelManifest { files: vec![file("config.json"), file("extra/é.txt")] };
        let place = manifest.place();
        assert_eq!(place.manifest_key(), format!("inputs/models/{}/manifest.json", place.manifest_sha256));
        assert_eq!(place.manifest(&manifest.to_json()).unwrap(), manifest);
        assert!(matches!(place.manifest(b"{}"), Err(Error::Replaced { .. })));
        for name in ["../outside", "/etc/passwd", "a//b", "", "manifest.json"] {
            let bad = ModelManifest { files: vec![file(name)] };
            assert!(matches!(bad.place().manifest(&bad.to_json()), Err(Error::Escapes { .. })), "{name:?}");
        }
        let none = ModelManifest { files: Vec::new() };
        assert!(matches!(none.place().manifest(&none.to_json()), Err(Error::Empty { .. })));
    }

    #[test]
    fn a_checkpoint_is_a_stored_model_as_it_is() {
        let files = serde_json::to_value([file("config.json")]).unwrap();
        let text = serde_json::json!({
            "version": "1", "kind": "checkpoint", "run_id": "r", "step": 3, "model": "m", "weight_version": 3,
            "files": files, "created_at": 1.5,
        })
        .to_string();
        let prefix = "runs/r/checkpoints/step-3".to_owned();
        let place = StoredModel { prefix, manifest_sha256: ContentHash::of(text.as_bytes()) };
        assert_eq!(place.manifest(text.as_bytes()).unwrap().files, [file("config.json")]);
        assert_eq!(place.key("config.json"), "runs/r/checkpoints/step-3/config.json");
        let newer = br#"{"version":"2","files":[]}"#;
        let place = StoredModel { manifest_sha256: ContentHash::of(newer), ..place };
        assert!(matches!(place.manifest(newer), Err(Error::Unreadable { .. })));
    }
}
