//! What a deployment serves.

use training_gym_core::ids::{AppName, ContentHash};

use crate::config::Model;
use crate::run::Checkpoint;

/// A model as it is, or with a run's weights.
#[derive(Clone, Debug)]
pub struct ServedModel {
    model: Model,
    checkpoint: Option<Checkpoint>,
}

impl ServedModel {
    /// The model: for a checkpoint the one it was trained from.
    pub fn model(&self) -> Model {
        self.model
    }

    /// The checkpoint whose weights are served, if any.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.checkpoint.as_ref()
    }

    /// What its server calls it.
    pub(super) fn name(&self) -> String {
        match &self.checkpoint {
            None => self.model.name().to_owned(),
            Some(checkpoint) => format!("{}/{}/step-{}", self.model.name(), checkpoint.run_id, checkpoint.step),
        }
    }

    /// The name a deployment of it has unless another is given: one a model, one a checkpoint.
    pub(super) fn default_app_name(&self) -> AppName {
        let name = match &self.checkpoint {
            None => self.model.to_string(),
            Some(checkpoint) => format!("{}-step-{}", checkpoint.run_id, checkpoint.step),
        };
        if name.len() <= 63 {
            return AppName::slug(&name);
        }
        // Two long names must not become one by being cut.
        let hash = ContentHash::of(name.as_bytes());
        AppName::slug(&format!("{:.50}-{:.8}", AppName::slug(&name).as_str(), hash.as_str()))
    }
}

impl From<Model> for ServedModel {
    fn from(model: Model) -> Self {
        Self { model, checkpoint: None }
    }
}

impl From<Checkpoint> for ServedModel {
    fn from(checkpoint: Checkpoint) -> Self {
        Self { model: checkpoint.model, checkpoint: Some(checkpoint) }
    }
}

impl From<&Checkpoint> for ServedModel {
    fn from(checkpoint: &Checkpoint) -> Self {
        checkpoint.clone().into()
    }
}

impl From<(Model, Checkpoint)> for ServedModel {
    fn from((model, checkpoint): (Model, Checkpoint)) -> Self {
        Self { model, checkpoint: Some(checkpoint) }
    }
}

impl From<(Model, &Checkpoint)> for ServedModel {
    fn from((model, checkpoint): (Model, &Checkpoint)) -> Self {
        (model, checkpoint.clone()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_names_tell_models_and_checkpoints_apart() {
        let model = Model::hub("Qwen/Qwen3.5-4B");
        let checkpoint = |run: &str, step| Checkpoint::in_folder("/c", step, model, run.parse().unwrap());
        let name = |served: ServedModel| served.default_app_name().as_str().to_owned();
        assert_eq!(name(model.into()), "qwen-qwen3.5-4b");
        assert_eq!(name((&checkpoint("run-1", 5)).into()), "run-1-step-5");
        assert_eq!(name((model, checkpoint("run-1", 5)).into()), "run-1-step-5");
        let long = "r".repeat(60);
        let (five, six) = (name(checkpoint(&long, 5).into()), name(checkpoint(&long, 6).into()));
        assert_ne!(five, six);
        assert!(five.len() <= 63);
    }
}
