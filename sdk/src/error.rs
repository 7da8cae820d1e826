//! One error for a whole program: the rooms' own, gathered.

use crate::{backend, config, curriculum, dataset, deploy, eval, gym, hub, prepare, program, run};

/// Whatever can go wrong in the SDK. Each room's own error says what, why and what to do; this type
/// only lets one `?` take them all.
///
/// ```
/// fn of(error: training_gym::error::Error) -> Option<String> {
///     error.hint().map(str::to_owned)
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The dataset.
    #[error(transparent)]
    Dataset(#[from] dataset::Error),
    /// The hub.
    #[error(transparent)]
    Hub(#[from] hub::Error),
    /// The program with the reward function.
    #[error(transparent)]
    Program(#[from] program::Error),
    /// The client.
    #[error(transparent)]
    Gym(#[from] gym::Error),
    /// The backend.
    #[error(transparent)]
    Backend(#[from] backend::Error),
    /// A deployment.
    #[error(transparent)]
    Deploy(#[from] deploy::Error),
    /// An evaluation.
    #[error(transparent)]
    Eval(#[from] eval::Error),
    /// A preparation of data.
    #[error(transparent)]
    Prepare(#[from] prepare::Error),
    /// A training run.
    #[error(transparent)]
    Run(#[from] run::Error),
    /// A program of several runs.
    #[error(transparent)]
    Curriculum(#[from] curriculum::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] training_gym_core::store::Error),
}

impl Error {
    /// The part of the message that says what to do, for a program that shows it apart.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Gym(error) => error.hint(),
            Self::Backend(error) => error.hint(),
            Self::Deploy(error) => error.hint(),
            Self::Run(error) => error.hint(),
            Self::Curriculum(curriculum::Error::Stage { source, .. }) => source.hint(),
            Self::Curriculum(_)
            | Self::Config(_)
            | Self::Dataset(_)
            | Self::Eval(_)
            | Self::Hub(_)
            | Self::Prepare(_)
            | Self::Program(_)
            | Self::Store(_) => None,
        }
    }
}
