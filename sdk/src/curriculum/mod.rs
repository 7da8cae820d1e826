//! Programs of several runs: each stage begins with the weights that an earlier one left.
//!
//! ```no_run
//! # use training_gym::prelude::*;
//! # async fn f(gym: &Gym, student: Model, solved: HuggingFaceDataset, open: HuggingFaceDataset) -> anyhow::Result<()> {
//! let mut curriculum = Curriculum::new(gym, "cold-start");
//! let recipe = Recipe { responses: Some(ResponseSource::column("solution")), ..student.recipe() };
//! let sft = curriculum.stage("sft", TrainConfig { model: student, dataset: solved, recipe }).await?;
//! let recipe = Recipe { opd: Some(Opd::co_resident(models::QWEN3_8B)), ..student.recipe() };
//! let opd = curriculum.stage("opd", TrainConfig { model: sft.model(), dataset: open, recipe }).await?;
//! println!("{}", opd.checkpoint());
//! # Ok(())
//! # }
//! ```
//!
//! A stage is a run of its own, `PROGRAM-STAGE`, with its own checkpoints, metrics and log. A program
//! that is started again takes stages that are done as they are and continues the one that was cut.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod` | [`Curriculum`]: stages in whatever order a program awaits them |
//! | `sparse_to_dense` | [`SparseToDense`]: reward for the teacher, the teacher for the student |

mod error;
mod sparse_to_dense;

use training_gym_core::ids::RunId;

pub use error::Error;
pub use sparse_to_dense::{Finish, SparseToDense, SparseToDenseResult, Stage};

use crate::backend::Resources;
use crate::config::{Model, TrainConfig};
use crate::gym::Gym;
use crate::run::{Checkpoint, TrainResult};

/// A program of runs under one name.
#[derive(Clone, Debug)]
pub struct Curriculum {
    gym: Gym,
    program: String,
    resources: Resources,
    stages: Vec<String>,
}

/// A stage that is done.
#[derive(Clone, Debug)]
pub struct StageResult {
    name: String,
    result: TrainResult,
}

impl Curriculum {
    /// A program whose runs are called `PROGRAM-STAGE`. The name is checked with the first stage.
    #[must_use]
    pub fn new(gym: &Gym, program: impl Into<String>) -> Self {
        Self { gym: gym.clone(), program: program.into(), resources: Resources::default(), stages: Vec::new() }
    }

    /// What the stages compute with from now on.
    #[must_use]
    pub fn resources(self, resources: Resources) -> Self {
        Self { resources, ..self }
    }

    /// The run of a stage.
    ///
    /// # Errors
    /// When the two names make no run id.
    pub fn run_id(&self, stage: &str) -> Result<RunId, Error> {
        let id = format!("{}-{stage}", self.program).parse();
        id.map_err(|source| Error::Name { program: self.program.clone(), stage: stage.to_owned(), source })
    }

    /// Runs a stage to its end. One that is done already is taken as it is, one that was cut goes on,
    /// one that runs is attached to; in each case it must be the same stage, since a changed one is
    /// another run.
    ///
    /// # Errors
    /// Those of the launch and of the run, with the stage's name; a second stage of the same name.
    pub async fn stage(&mut self, name: &str, config: TrainConfig) -> Result<StageResult, Error> {
        let run_id = self.run_id(name)?;
        if self.stages.iter().any(|known| known == name) {
            return Err(Error::Twice { program: self.program.clone(), stage: name.to_owned() });
        }
        self.stages.push(name.to_owned());
        let run = async {
            let launch = config.launch().run_id(run_id.as_str()).resources(self.resources.clone()).on(&self.gym);
            launch.await?.result().await
        };
        let result = run.await.map_err(|source| Error::Stage { stage: name.to_owned(), source: Box::new(source) })?;
        Ok(StageResult { name: name.to_owned(), result })
    }
}

impl StageResult {
    /// The stage.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its run.
    pub fn result(&self) -> &TrainResult {
        &self.result
    }

    /// Its last checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        self.result.checkpoints().last()
    }

    /// What it made, for the next stage to begin with or to learn from.
    pub fn model(&self) -> Model {
        self.checkpoint().trained()
    }
}
