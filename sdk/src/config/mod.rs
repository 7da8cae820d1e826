//! What a person types: the model, the recipe, the run. `None` is *unset*, never a default.
//!
//! | file | what it holds |
//! |---|---|
//! | [`model`] | [`Model`]: a hub id or a folder, as a `Copy` handle; [`models`]: the presets, one table |
//! | [`response`] | reasoning split from content, per family |
//! | [`recipe`] | [`Recipe`]: every knob, by the name the field knows it under |
//! | [`opd`] | [`Opd`] and [`Teacher`]: on-policy distillation |
//! | [`explain`] | each value and where it came from |
//! | [`train`] | [`TrainConfig`], and [`resolve`]: the only road from here to a [`RunSpec`] |
//!
//! [`RunSpec`]: training_gym_core::spec::RunSpec

mod destination;
mod distance;
mod engine_key;
mod error;
pub mod explain;
mod ledger;
pub mod model;
pub mod models;
pub mod opd;
pub mod recipe;
pub mod response;
mod settle;
#[cfg(test)]
mod tests;
pub mod train;
pub mod values;

pub(crate) use destination::Destination;
pub(crate) use engine_key::EngineKey;
pub use error::{Error, Problem};
pub use explain::{Explanation, Origin, Setting};
pub use model::{Family, Model, ModelSource};
pub use opd::{CoResident, Opd, Teacher};
pub use recipe::Recipe;
pub use response::ParsedResponse;
pub use train::{Facts, Resolve, TrainConfig, resolve};
pub use training_gym_core::spec::{
    AdvantageEstimator, Divergence, DivergenceSwitch, Dtype, Egress, KlLossType, LossAggregation, LrDecayStyle,
    PassRate, PolicyLoss, ResponseSource, SampleWeighting, SelectionRule, TeacherDialect, TokenSelection, ToolFormat,
    TopK,
};
pub use values::{ChatTemplateKwargs, Environment, ExtraConfig};
