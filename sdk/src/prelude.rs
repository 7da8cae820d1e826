//! What a program needs: `use training_gym::prelude::*;`.

pub use std::time::Duration;

pub use training_gym_core::sample::{FinishReason, Message, Prompt, Row};

pub use crate::backend::Resources;
pub use crate::config::{
    AdvantageEstimator, Divergence, Environment, ExtraConfig, KlLossType, LossAggregation, Model, Opd, PassRate,
    PolicyLoss, Recipe, ResponseSource, SampleWeighting, SelectionRule, Teacher, TrainConfig, models,
};
pub use crate::curriculum::{Curriculum, Finish, SparseToDense, Stage};
pub use crate::dataset::{HuggingFaceDataset, OutputFormat};
pub use crate::deploy::{ChatOptions, ChatReply, CustomDeployment, Deployment, Endpoint, EngineArguments};
pub use crate::eval::evaluate;
pub use crate::gym::Gym;
pub use crate::reward::{
    EnvironmentFn, Episode, Observation, PostProcessFn, RewardError, RewardFn, RolloutEnvironment, Sample, ToolFormat,
    Turn,
};
pub use crate::run::{Checkpoint, TrainResult, TrainRun};
