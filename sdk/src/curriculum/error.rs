//! Why a curriculum did not come to its end.

use training_gym_core::ids::InvalidName;

use crate::run;

/// What can go wrong with a curriculum.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Program and stage make no run id.
    #[error("the stage `{stage}` of the program `{program}` has no run id")]
    Name {
        /// The program.
        program: String,
        /// The stage.
        stage: String,
        /// What a name is.
        #[source]
        source: InvalidName,
    },
    /// Two stages of one name would be one run.
    #[error("the program `{program}` has two stages `{stage}`: give each a name of its own")]
    Twice {
        /// The program.
        program: String,
        /// The stage.
        stage: String,
    },
    /// A stage's recipe says what the program decides, or lacks what it needs.
    #[error("stage `{stage}`: recipe.{field}: {bound}; {remedy}")]
    Recipe {
        /// The stage.
        stage: &'static str,
        /// The field.
        field: &'static str,
        /// What is wrong.
        bound: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// Nothing is left to do.
    #[error("sparse-to-dense without a stage teaches nothing: name one of them")]
    Empty,
    /// A stage's run was not launched, or did not end well.
    #[error("stage `{stage}`")]
    Stage {
        /// The stage.
        stage: String,
        /// Why.
        #[source]
        source: Box<run::Error>,
    },
}
