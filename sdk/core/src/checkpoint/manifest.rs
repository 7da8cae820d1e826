//! What a published folder holds.

use serde::{Deserialize, Serialize};

use crate::ids::{ContentHash, RunId, WeightVersion};

/// The manifest's name in its folder.
pub const MANIFEST: &str = "manifest.json";

/// Which of a run's folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A model that anyone may use.
    Checkpoint,
    /// What the trainer continues from; of use to nobody else.
    ResumeState,
}

impl Kind {
    /// The key prefix of all folders of this kind, with its `/`.
    pub fn prefix(self, run: &RunId) -> String {
        match self {
            Self::Checkpoint => format!("runs/{run}/checkpoints/"),
            Self::ResumeState => format!("runs/{run}/resume/"),
        }
    }

    /// The folder of one step, without a `/` at its end.
    pub fn folder(self, run: &RunId, step: u64) -> String {
        format!("{}step-{step}", self.prefix(run))
    }
}

/// A [`Manifest`] as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "version", deny_unknown_fields)]
pub enum VersionedManifest {
    /// The first layout.
    #[serde(rename = "1")]
    V1(Manifest),
}

/// The list of a published folder's files: the one thing that makes it a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Checkpoint or resume state.
    pub kind: Kind,
    /// The run.
    pub run_id: RunId,
    /// Rollout steps done, from 1 (0 is the model the run started from).
    pub step: u64,
    /// What people call the model: a hub id or a folder's name.
    pub model: String,
    /// The weights' version.
    pub weight_version: WeightVersion,
    /// Every file, by name.
    pub files: Vec<FileEntry>,
    /// Unix seconds of the publication.
    pub created_at: f64,
}

/// One file of a published folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its path in the folder, parts joined by `/`.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its content.
    pub sha256: ContentHash,
}

impl Manifest {
    /// The folder in the store, without a `/` at its end.
    pub fn folder(&self) -> String {
        self.kind.folder(&self.run_id, self.step)
    }

    /// The store key of one of its files.
    pub fn key(&self, file: &FileEntry) -> String {
        format!("{}/{}", self.folder(), file.name)
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// The first thing in which two manifests of one folder differ, apart from when they were written.
    pub(super) fn difference(&self, new: &Self) -> Option<String> {
        if self.weight_version != new.weight_version {
            return Some(format!("weight version {} there, {} here", self.weight_version, new.weight_version));
        }
        if self.model != new.model {
            return Some(format!("model `{}` there, `{}` here", self.model, new.model));
        }
        let changed = new.files.iter().find(|file| !self.files.contains(file));
        let missing = self.files.iter().find(|file| !new.files.iter().any(|other| other.name == file.name));
        match (changed, missing) {
            (Some(file), _) if self.files.iter().any(|other| other.name == file.name) => {
                Some(format!("`{}` has another content", file.name))
            }
            (Some(file), _) => Some(format!("`{}` is not there", file.name)),
            (None, Some(file)) => Some(format!("`{}` is there and not here", file.name)),
            (None, None) => (self != &Self { created_at: self.created_at, ..new.clone() })
                .then(|| "another kind, run or step".to_owned()),
        }
    }
}
