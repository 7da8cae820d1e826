//! Why a deployment did not do what it was asked.

use std::time::Duration;

use training_gym_core::ids::InvalidName;
use training_gym_core::wire::teacher::{ProbeFault, TeacherFault};
use training_gym_core::{checkpoint, store};

use crate::gym::ModelError;
use crate::{backend, hub};

/// What can go wrong with a deployment. No text here ever holds a token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `.app_name(…)` was given something that is no name.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// An engine argument that nobody reads, or with a value it cannot have.
    #[error("engine argument `{key}`{}: {rule}", given.as_ref().map(|given| format!(" = {given}")).unwrap_or_default())]
    Argument {
        /// The argument.
        key: String,
        /// Its value, where that is what is wrong.
        given: Option<String>,
        /// What is allowed.
        rule: String,
    },
    /// `.resources(…)` asked for what there is not.
    #[error(transparent)]
    Resources(#[from] backend::InvalidResources),
    /// The model's files could not be had.
    #[error("cannot get the model")]
    Model(#[source] hub::Error),
    /// The runtime does not compute the model.
    #[error("the runtime refuses the model {said}")]
    Check {
        /// The model, and the runtime's words.
        said: String,
    },
    /// The checkpoint's files are not those that were published.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// There is no client to launch with.
    #[error(transparent)]
    Gym(#[from] crate::gym::Error),
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] backend::Error),
    /// The model's store failed, or the one it is put into.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A live deployment has the name and is something else.
    #[error(
        "deployment `{app_name}` is running already with another {field}: {running}, asked for {asked}; {EXISTING_REMEDY}"
    )]
    Existing {
        /// The name.
        app_name: String,
        /// The first field that differs.
        field: String,
        /// Its value in the running deployment.
        running: String,
        /// Its value as asked for.
        asked: String,
    },
    /// No deployment has this name.
    #[error("there is no deployment `{app_name}`")]
    NotFound {
        /// The name.
        app_name: String,
    },
    /// Its process ended.
    #[error("deployment `{app_name}` is not running: it {exit}{}", quoted(lines))]
    Died {
        /// Its name.
        app_name: String,
        /// How it ended.
        exit: String,
        /// The last lines of its log.
        lines: Vec<String>,
    },
    /// It did not answer in time.
    #[error("deployment `{app_name}` did not answer within {} s{}", waited.as_secs_f32(), quoted(lines))]
    NotReady {
        /// Its name.
        app_name: String,
        /// How long it was given.
        waited: Duration,
        /// The last lines of its log.
        lines: Vec<String>,
    },
    /// It has no address yet.
    #[error("deployment `{app_name}` is still starting and has no address yet; {ADDRESS_REMEDY}")]
    NoAddress {
        /// Its name.
        app_name: String,
    },
    /// A request got no answer.
    #[error("deployment `{app_name}` gave no answer to `{path}`")]
    Unreachable {
        /// Its name.
        app_name: String,
        /// What was asked.
        path: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A request was answered with an HTTP error.
    #[error("deployment `{app_name}` refused `{path}` with status {status}: {message}")]
    Refused {
        /// Its name.
        app_name: String,
        /// What was asked.
        path: &'static str,
        /// The HTTP status.
        status: u16,
        /// The server's words.
        message: String,
    },
    /// An answer is not what the protocol promises.
    #[error("deployment `{app_name}` answered `{path}` with something unreadable: {what}")]
    Unreadable {
        /// Its name.
        app_name: String,
        /// What was asked.
        path: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// A request this call cannot make.
    #[error("request `{field}` = {given}: {rule}")]
    Request {
        /// The field.
        field: &'static str,
        /// Its value.
        given: String,
        /// What is allowed.
        rule: &'static str,
    },
    /// A span of ids that cannot be scored.
    #[error("cannot score ids {start}..{end} of {len}: {rule}")]
    Span {
        /// The span's first position.
        start: usize,
        /// The position behind its last.
        end: usize,
        /// How many ids there are.
        len: usize,
        /// What is allowed.
        rule: &'static str,
    },
    /// The answer to a request for log-probabilities is wrong.
    #[error("deployment `{app_name}` gave no usable log-probabilities")]
    Logprobs {
        /// Its name.
        app_name: String,
        /// What is wrong with them.
        #[source]
        source: TeacherFault,
    },
    /// It promised log-probabilities and does not give them.
    #[error("deployment `{app_name}` failed the start-up probe of its log-probabilities")]
    Probe {
        /// Its name.
        app_name: String,
        /// What is wrong with them.
        #[source]
        source: ProbeFault,
    },
}

const EXISTING_REMEDY: &str =
    "replace it with `.recreate_if_existing(true)`, or run this one beside it under another `.app_name(…)`";
const ADDRESS_REMEDY: &str = "call `wait_until_ready(…)` first";

impl Error {
    /// The part of the message that says what to do, where there is something to do.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Existing { .. } => Some(EXISTING_REMEDY),
            Self::NoAddress { .. } => Some(ADDRESS_REMEDY),
            Self::Backend(error) => error.hint(),
            Self::Gym(error) => error.hint(),
            _ => None,
        }
    }

    /// Whether the same request can succeed a little later: no answer, an overloaded or a failing
    /// server. A deployment whose process has ended is not going to come back by itself.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }
}

impl From<ModelError> for Error {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Hub(error) => Self::Model(error),
            ModelError::Backend(error) => Self::Backend(error),
            ModelError::Store(error) => Self::Store(error),
            ModelError::Checkpoint(error) => Self::Checkpoint(error),
            ModelError::Refused(said) => Self::Check { said },
        }
    }
}

fn quoted(lines: &[String]) -> String {
    if lines.is_empty() {
        return "; its log is empty".to_owned();
    }
    let lines: String = lines.iter().map(|line| format!("\n  | {line}")).collect();
    format!("; its last log lines:{lines}")
}
