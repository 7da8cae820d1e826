//! Why a run was not launched, or did not end well.

use training_gym_core::ids::{InvalidName, RunId};
use training_gym_core::record::{Cause, Failure};
use training_gym_core::{checkpoint, store};

use crate::{backend, config, dataset, deploy, gym, hub, program};

const CHANGED_REMEDY: &str =
    "a changed run is another run: leave `.run_id(…)` out to start a new one, or undo the change to continue this one";
const PROGRAM_REMEDY: &str = "a program that was built anew may hold another reward function: launch with the very \
     executable of the first launch to continue this run, or leave `.run_id(…)` out to start a new one";
const TEACHER_REMEDY: &str =
    "point `opd` at the first teacher to continue this run, or leave `.run_id(…)` out to start a new one";
const GONE_REMEDY: &str = "put the folder back, or launch without `.run_id(…)` to train anew";
const TOKEN_REMEDY: &str = "set it in the environment of the program that launches";

/// What can go wrong with a training run. No text here ever holds a token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no client to launch with.
    #[error(transparent)]
    Gym(#[from] gym::Error),
    /// `.run_id(…)` was given something that is no name.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// `.resources(…)` asked for what there is not.
    #[error(transparent)]
    Resources(#[from] backend::InvalidResources),
    /// The student's files could not be had.
    #[error("cannot get the student model")]
    Model(#[source] hub::Error),
    /// The training or evaluation rows could not be had.
    #[error("cannot prepare the {rows} rows")]
    Dataset {
        /// `training` or `evaluation`.
        rows: &'static str,
        /// Why.
        #[source]
        source: dataset::Error,
    },
    /// Training and evaluation share rows.
    #[error("the run would be evaluated on rows it trains on; `.allow_shared_rows(true)` allows it")]
    SharedRows(#[source] dataset::Error),
    /// The program with the reward function cannot be shipped.
    #[error(transparent)]
    Program(#[from] program::Error),
    /// The teacher is a deployment that does not answer.
    #[error("the teacher is not ready")]
    Teacher(#[source] Box<deploy::Error>),
    /// The variable with the teacher's token is not set.
    #[error("the teacher's token is to be in the environment variable `{variable}`, which is not set; {TOKEN_REMEDY}")]
    NoToken {
        /// The variable.
        variable: String,
    },
    /// The run id was used for another run.
    #[error("run `{run_id}` was launched with another {field}: {stored}, now {asked}; {}", changed_remedy(field))]
    Changed {
        /// The run.
        run_id: RunId,
        /// The first field that differs.
        field: String,
        /// Its value in the run's spec.
        stored: String,
        /// Its value in this launch.
        asked: String,
    },
    /// A run is to be continued under another teacher.
    #[error("run `{run_id}` was launched with the teacher {recorded}; the one at {url} {found}; {TEACHER_REMEDY}")]
    OtherTeacher {
        /// The run.
        run_id: RunId,
        /// What the first teacher said of itself.
        recorded: String,
        /// Where the present one is.
        url: String,
        /// What it says of itself.
        found: String,
    },
    /// Nothing is known of the run.
    #[error("there is no run `{run_id}` in {store}")]
    NotFound {
        /// The run.
        run_id: RunId,
        /// The store's URL.
        store: String,
    },
    /// A document of the run cannot be read.
    #[error("`{file}` cannot be read: it is damaged, or a newer version wrote it; {remedy}")]
    Unreadable {
        /// The file, or the document's key and store where it is no file of this machine.
        file: String,
        /// What to do about it.
        remedy: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] backend::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The run's checkpoints cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// `gym-runtime check` found what cannot run.
    #[error("the runtime refuses the run: {said}")]
    Check {
        /// Its words.
        said: String,
    },
    /// It ended without what was asked.
    #[error("run `{run_id}` failed: {}; {}", failure.sentence, failure.next_step)]
    Failed {
        /// The run.
        run_id: RunId,
        /// Why, and what to do.
        failure: Failure,
    },
    /// Somebody cancelled it.
    #[error("run `{run_id}` was cancelled at step {step}; launch it again with `.run_id(\"{run_id}\")` to continue")]
    Cancelled {
        /// The run.
        run_id: RunId,
        /// Steps it had done.
        step: u64,
    },
    /// It says it succeeded, and no checkpoint of it is in the store.
    #[error("run `{run_id}` says it succeeded, but {store} holds no checkpoint of it; {GONE_REMEDY}")]
    NoCheckpoint {
        /// The run.
        run_id: RunId,
        /// The store's URL.
        store: String,
    },
    /// It says it succeeded, and its last checkpoint is not in the store any more.
    #[error(
        "run `{run_id}` succeeded at step {step}, but `{folder}` is gone: the newest checkpoint there is of step {newest}, \
         which `run.checkpoints()` still gives; {GONE_REMEDY}"
    )]
    LostCheckpoint {
        /// The run.
        run_id: RunId,
        /// Its last step.
        step: u64,
        /// Where its last checkpoint was.
        folder: String,
        /// The newest step whose checkpoint is there.
        newest: u64,
    },
    /// Ctrl-C: this program stopped watching; the run goes on.
    #[error("detached from run `{run_id}`, which goes on; watch it again with `TrainRun::attach(\"{run_id}\")`")]
    Detached {
        /// The run.
        run_id: RunId,
    },
}

impl Error {
    /// The part of the message that says what to do, where there is something to do.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Changed { field, .. } => Some(changed_remedy(field)),
            Self::OtherTeacher { .. } => Some(TEACHER_REMEDY),
            Self::NoToken { .. } => Some(TOKEN_REMEDY),
            Self::Failed { failure, .. } => Some(&failure.next_step),
            Self::Unreadable { remedy, .. } => Some(remedy),
            Self::NoCheckpoint { .. } | Self::LostCheckpoint { .. } => Some(GONE_REMEDY),
            Self::Teacher(error) => error.hint(),
            Self::Backend(error) => error.hint(),
            Self::Gym(error) => error.hint(),
            _ => None,
        }
    }

    /// What went wrong with a run that ended, in kinds a program can act on.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Failed { failure, .. } => Some(failure.cause),
            _ => None,
        }
    }
}

impl From<gym::ModelError> for Error {
    fn from(error: gym::ModelError) -> Self {
        match error {
            gym::ModelError::Hub(error) => Self::Model(error),
            gym::ModelError::Backend(error) => Self::Backend(error),
            gym::ModelError::Store(error) => Self::Store(error),
            gym::ModelError::Checkpoint(error) => Self::Checkpoint(error),
            gym::ModelError::Refused(said) => Self::Check { said: format!("model {said}") },
        }
    }
}

fn changed_remedy(field: &str) -> &'static str {
    if field.starts_with("reward.program") { PROGRAM_REMEDY } else { CHANGED_REMEDY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_program_is_told_from_a_changed_recipe() {
        let changed = |field: &str| {
            let (stored, asked) = ("1".to_owned(), "2".to_owned());
            Error::Changed { run_id: "r".parse().unwrap(), field: field.to_owned(), stored, asked }
        };
        let error = changed("reward.program.sha256");
        assert!(error.to_string().contains("the very executable"), "{error}");
        assert_eq!(error.hint(), Some(PROGRAM_REMEDY));
        assert_eq!(changed("update.optimizer.lr").hint(), Some(CHANGED_REMEDY));
    }
}
