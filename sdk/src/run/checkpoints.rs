//! What a run leaves: checkpoints, never none.

use std::ops::Deref;
use std::path::PathBuf;

use training_gym_core::checkpoint::{self, Kind, Manifest};
use training_gym_core::health::Summary;
use training_gym_core::ids::RunId;
use training_gym_core::record::StepMetrics;
use training_gym_core::spec::ModelSpec;

use super::Error;
use crate::config::Model;
use crate::gym::Gym;

/// The weights of a run after some step: a Hugging Face folder, as transformers, vLLM and SGLang
/// load it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The folder.
    pub path: PathBuf,
    /// The rollout steps done, from 1.
    pub step: u64,
    /// The model it was trained from.
    pub model: Model,
    /// The run.
    pub run_id: RunId,
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

/// The checkpoints whose manifest is in the store, by step.
pub(super) async fn published(gym: &Gym, run_id: &RunId, model: &ModelSpec) -> Result<Vec<Checkpoint>, Error> {
    let mut found = Vec::new();
    for manifest in checkpoint::list(gym.store().as_ref(), Kind::Checkpoint, run_id).await? {
        found.push(Checkpoint {
            path: folder(gym, &manifest).await?,
            step: manifest.step,
            model: model_of(model),
            run_id: run_id.clone(),
        });
    }
    Ok(found)
}

/// The folder in the store where that is a folder of this machine, else a copy of it; with every file
/// the manifest lists. A copy that lacks one is completed; in the store itself nothing can be.
async fn folder(gym: &Gym, manifest: &Manifest) -> Result<PathBuf, Error> {
    let key = manifest.folder();
    if let Some(path) = gym.store().local_path(&key) {
        checkpoint::check_folder(manifest, &path).await?;
        return Ok(path);
    }
    let copy = gym.cache().join(key);
    // The manifest is the last file of a copy.
    let whole = matches!(checkpoint::manifest_in(&copy), Ok(Some(there)) if there == *manifest);
    if !whole || checkpoint::check_folder(manifest, &copy).await.is_err() {
        checkpoint::fetch(gym.store().as_ref(), manifest, &copy).await?;
    }
    Ok(copy)
}

/// Where a document or folder of the store is, for people.
pub(super) fn place(gym: &Gym, key: &str) -> String {
    let path = gym.store().local_path(key).map(|path| path.display().to_string());
    path.unwrap_or_else(|| format!("{}/{key}", gym.store().url().trim_end_matches('/')))
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
        let at = |step| Checkpoint { path: "/c".into(), step, model: Model::hub("a/b"), run_id: "r".parse().unwrap() };
        let checkpoints = Checkpoints::new(vec![at(5), at(10)]).unwrap();
        assert_eq!((checkpoints.last().step, checkpoints.len(), checkpoints[0].step), (10, 2, 5));
        assert_eq!(checkpoints.iter().map(|checkpoint| checkpoint.step).collect::<Vec<_>>(), [5, 10]);
    }

    #[tokio::test]
    async fn a_copy_that_lost_a_file_is_completed_from_the_store() {
        use std::sync::Arc;

        use training_gym_core::checkpoint::{Draft, publish};
        use training_gym_core::store::{MemoryStore, Store};

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
        let copy = published(&gym, &run_id, &spec).await.unwrap()[0].path.clone();
        let weights = copy.join("model.safetensors");
        for damage in ["w", "WEIGHTS", ""] {
            std::fs::write(&weights, damage).unwrap();
            published(&gym, &run_id, &spec).await.unwrap();
            assert_eq!(std::fs::read_to_string(&weights).unwrap(), "weights");
        }
        for name in ["model.safetensors", "manifest.json"] {
            std::fs::remove_file(copy.join(name)).unwrap();
            published(&gym, &run_id, &spec).await.unwrap();
            assert!(copy.join(name).is_file(), "{name}");
        }
        // What the store itself lost cannot be completed.
        std::fs::remove_file(&weights).unwrap();
        store.delete("runs/r/checkpoints/step-1/model.safetensors").await.unwrap();
        let error = published(&gym, &run_id, &spec).await.unwrap_err().to_string();
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
