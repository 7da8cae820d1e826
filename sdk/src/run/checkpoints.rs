//! What a run leaves: checkpoints, never none.

use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use training_gym_core::checkpoint::{self, Kind, Manifest};
use training_gym_core::health::Summary;
use training_gym_core::ids::RunId;
use training_gym_core::record::StepMetrics;
use training_gym_core::spec::ModelSpec;
use training_gym_core::store::{self, Store};

use super::Error;
use crate::config::Model;
use crate::gym::{Gym, Spot};

/// The weights of a run after some step: a Hugging Face folder, as transformers, vLLM and SGLang
/// load it.
///
/// It says where the folder is; of a store on the network nothing is downloaded before
/// [`folder`](Self::folder) asks for it, and a job on a cluster reads it where it lies.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The rollout steps done, from 1.
    pub step: u64,
    /// The model it was trained from.
    pub model: Model,
    /// The run.
    pub run_id: RunId,
    lies: Lies,
}

/// Where a checkpoint's files are.
#[derive(Clone, Debug)]
enum Lies {
    /// In a folder of this machine.
    Here(PathBuf),
    /// In a store that is none.
    Stored {
        store: Arc<dyn Store>,
        manifest: Arc<Manifest>,
        /// Where the copy on this machine goes.
        copy: PathBuf,
    },
}

impl Checkpoint {
    /// A folder of this machine as a checkpoint: one that was copied from elsewhere, say.
    pub fn in_folder(folder: impl Into<PathBuf>, step: u64, model: Model, run_id: RunId) -> Self {
        Self { step, model, run_id, lies: Lies::Here(folder.into()) }
    }

    /// Its URL, `file:///…/step-N` or `s3://bucket/…/step-N?…`: what [`Model::hub`] takes in another program.
    pub fn url(&self) -> String {
        match &self.lies {
            Lies::Here(folder) => store::url_of_folder(&std::path::absolute(folder).unwrap_or_else(|_| folder.clone())),
            Lies::Stored { store, manifest, .. } => store::url_of(store.as_ref(), &manifest.folder()),
        }
    }

    /// What was trained, as a model: to be trained further, or to teach.
    pub fn trained(&self) -> Model {
        Model::hub(&self.url())
    }

    /// The folder on this machine. From a store on the network it is fetched first, once: every file is
    /// checked, and a copy that lost one is completed.
    ///
    /// # Errors
    /// When a file is not what was published, or the store fails.
    pub async fn folder(&self) -> Result<PathBuf, Error> {
        Ok(self.files().await?)
    }

    pub(crate) async fn files(&self) -> Result<PathBuf, checkpoint::Error> {
        match &self.lies {
            Lies::Here(folder) => {
                // What was published is used, not what was left of it.
                if let Some(manifest) = checkpoint::manifest_in(folder)? {
                    checkpoint::check_folder(&manifest, folder).await?;
                }
                Ok(folder.clone())
            }
            Lies::Stored { store, manifest, copy } => {
                // The manifest is the last file of a copy.
                let whole = matches!(checkpoint::manifest_in(copy), Ok(Some(there)) if there == **manifest);
                if !whole || checkpoint::check_folder(manifest, copy).await.is_err() {
                    checkpoint::fetch(store.as_ref(), manifest, copy).await?;
                }
                Ok(copy.clone())
            }
        }
    }

    /// Where it is in a store on the network.
    pub(crate) fn spot(&self) -> Option<Spot> {
        match &self.lies {
            Lies::Here(_) => None,
            Lies::Stored { store, manifest, .. } => Some(Spot { store: Arc::clone(store), folder: manifest.folder() }),
        }
    }
}

impl PartialEq for Checkpoint {
    fn eq(&self, other: &Self) -> bool {
        (self.step, self.model, &self.run_id, self.url()) == (other.step, other.model, &other.run_id, other.url())
    }
}

impl Eq for Checkpoint {}

impl fmt::Display for Checkpoint {
    /// Its URL.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.url())
    }
}

/// A run's published checkpoints, by step. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    all: Vec<Checkpoint>,
    last: Checkpoint,
}

impl Checkpoints {
    /// `None` where there are none.
    fn new(all: Vec<Checkpoint>) -> Option<Self> {
        let last = all.last()?.clone();
        Some(Self { all, last })
    }

    /// The newest.
    pub fn last(&self) -> &Checkpoint {
        &self.last
    }
}

impl Deref for Checkpoints {
    type Target = [Checkpoint];

    fn deref(&self) -> &[Checkpoint] {
        &self.all
    }
}

impl<'a> IntoIterator for &'a Checkpoints {
    type Item = &'a Checkpoint;
    type IntoIter = std::slice::Iter<'a, Checkpoint>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.iter()
    }
}

/// A run that succeeded.
#[derive(Clone, Debug)]
pub struct TrainResult {
    run_id: RunId,
    checkpoints: Checkpoints,
    metrics: Vec<StepMetrics>,
}

impl TrainResult {
    pub(super) async fn read(
        gym: &Gym,
        run_id: &RunId,
        model: &ModelSpec,
        (step, metrics): (u64, Vec<StepMetrics>),
    ) -> Result<Self, Error> {
        let none = || Error::NoCheckpoint { run_id: run_id.clone(), store: gym.store().url() };
        let checkpoints = published(gym, run_id, model).await?;
        let checkpoints = Checkpoints::new(checkpoints).ok_or_else(none)?;
        // An earlier one is not what the run says it made.
        let newest = checkpoints.last().step;
        if newest < step {
            let folder = place(gym, &Kind::Checkpoint.folder(run_id, step));
            return Err(Error::LostCheckpoint { run_id: run_id.clone(), step, folder, newest });
        }
        Ok(Self { run_id: run_id.clone(), checkpoints, metrics })
    }

    /// The run.
    pub fn training_run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Its checkpoints, by step; at least one.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Whether it was well: its numbers at both ends and, in plain words, what is out of order. Print it.
    pub fn health(&self) -> Summary {
        Summary::new(&self.metrics)
    }

    /// What it measured, a line a step.
    pub fn metrics(&self) -> &[StepMetrics] {
        &self.metrics
    }
}

/// The checkpoints whose manifest is in the store, by step: of the rest nothing is read.
pub(super) async fn published(gym: &Gym, run_id: &RunId, model: &ModelSpec) -> Result<Vec<Checkpoint>, Error> {
    let mut found = Vec::new();
    for manifest in checkpoint::list(gym.store().as_ref(), Kind::Checkpoint, run_id).await? {
        found.push(Checkpoint {
            step: manifest.step,
            model: model_of(model),
            run_id: run_id.clone(),
            lies: lies(gym, manifest).await?,
        });
    }
    Ok(found)
}

/// In the store where that is a folder of this machine, with every file the manifest lists; else not yet here.
async fn lies(gym: &Gym, manifest: Manifest) -> Result<Lies, Error> {
    let key = manifest.folder();
    if let Some(path) = gym.store().local_path(&key) {
        checkpoint::check_folder(&manifest, &path).await?;
        return Ok(Lies::Here(path));
    }
    Ok(Lies::Stored { store: Arc::clone(gym.store()), copy: gym.cache().join(key), manifest: Arc::new(manifest) })
}

/// Where a document or folder of the store is, for people.
pub(super) fn place(gym: &Gym, key: &str) -> String {
    let path = gym.store().local_path(key).map(|path| path.display().to_string());
    path.unwrap_or_else(|| store::url_of(gym.store().as_ref(), key))
}

/// The model a spec names: a folder is called by its last part, anything else is an id of the hub.
pub(super) fn model_of(spec: &ModelSpec) -> Model {
    let folder = Model::folder(&spec.folder);
    if folder.name() == spec.name { folder } else { Model::hub(&spec.name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_last_one_or_there_are_no_checkpoints() {
        assert_eq!(Checkpoints::new(Vec::new()), None);
        let at = |step| Checkpoint::in_folder("/c", step, Model::hub("a/b"), "r".parse().unwrap());
        let checkpoints = Checkpoints::new(vec![at(5), at(10)]).unwrap();
        assert_eq!((checkpoints.last().step, checkpoints.len(), checkpoints[0].step), (10, 2, 5));
        assert_eq!(checkpoints.iter().map(|checkpoint| checkpoint.step).collect::<Vec<_>>(), [5, 10]);
    }

    #[tokio::test]
    async fn a_copy_that_lost_a_file_is_completed_from_the_store() {
        use training_gym_core::checkpoint::{Draft, publish};
        use training_gym_core::store::MemoryStore;

        let home = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let gym = Gym::local(home.path().join("home")).unwrap().with_store(Arc::clone(&store));
        let model = home.path().join("model");
        std::fs::create_dir_all(&model).unwrap();
        std::fs::write(model.join("config.json"), "{}").unwrap();
        std::fs::write(model.join("model.safetensors"), "weights").unwrap();
        let run_id: RunId = "r".parse().unwrap();
        let draft = Draft {
            kind: Kind::Checkpoint,
            run_id: run_id.clone(),
            step: 1,
            attempt: 1,
            model: "m".to_owned(),
            weight_version: training_gym_core::ids::WeightVersion(1),
        };
        publish(store.as_ref(), &model, &draft).await.unwrap();
        let spec = ModelSpec { name: "m".to_owned(), folder: "/m".into(), hub: None, stored: None };
        let checkpoint = published(&gym, &run_id, &spec).await.unwrap().remove(0);
        assert_eq!(checkpoint.url(), "memory://runs/r/checkpoints/step-1");
        assert!(!gym.cache().exists(), "nothing is fetched before it is asked for");
        let copy = checkpoint.folder().await.unwrap();
        let weights = copy.join("model.safetensors");
        for damage in ["w", "WEIGHTS", ""] {
            std::fs::write(&weights, damage).unwrap();
            checkpoint.folder().await.unwrap();
            assert_eq!(std::fs::read_to_string(&weights).unwrap(), "weights");
        }
        for name in ["model.safetensors", "manifest.json"] {
            std::fs::remove_file(copy.join(name)).unwrap();
            checkpoint.folder().await.unwrap();
            assert!(copy.join(name).is_file(), "{name}");
        }
        // What the store itself lost cannot be completed.
        std::fs::remove_file(&weights).unwrap();
        store.delete("runs/r/checkpoints/step-1/model.safetensors").await.unwrap();
        let error = checkpoint.folder().await.unwrap_err().to_string();
        assert!(error.contains("model.safetensors") && error.contains("missing"), "{error}");
    }

    #[test]
    fn a_model_is_known_again_from_its_spec() {
        let spec = |name: &str, folder: &str| ModelSpec {
            name: name.to_owned(),
            folder: folder.into(),
            hub: None,
            stored: None,
        };
        assert_eq!(model_of(&spec("tiny", "/models/tiny")), Model::folder("/models/tiny"));
        assert_eq!(model_of(&spec("Qwen/Qwen3-4B", "/hub/snapshots/abc")), Model::hub("Qwen/Qwen3-4B"));
    }
}
