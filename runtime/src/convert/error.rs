//! What can be wrong with a checkpoint that is converted, or with the place it should go.

use std::path::{Path, PathBuf};

use crate::model;

/// Why a checkpoint was not converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// What was read.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("cannot write `{}`; check the disk's free space and permissions", path.display())]
    Write {
        /// What was written.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is not what its format says.
    #[error("`{}` is damaged: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The file is sound, but holds what is not converted here.
    #[error("`{}` cannot be read as a model: {problem}", path.display())]
    Unsupported {
        /// The file or folder.
        path: PathBuf,
        /// What it holds, and what is supported.
        problem: String,
    },
    /// The output folder cannot be used.
    #[error("--out `{}`: {problem}", path.display())]
    Output {
        /// The folder.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
    /// What is wrong with a Hugging Face folder.
    #[error(transparent)]
    Model(model::Error),
}

impl From<model::Error> for Error {
    fn from(error: model::Error) -> Self {
        match error {
            model::Error::Read { path, source } => Self::Read { path, source },
            model::Error::Write { path, source } => Self::Write { path, source },
            error => Self::Model(error),
        }
    }
}

/// What a reader of bytes finds wrong; it does not know the file's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The bytes contradict their format.
    #[error("{0}")]
    Damaged(String),
    /// The bytes are sound, but not supported.
    #[error("{0}")]
    Unsupported(String),
}

/// The bytes contradict their format.
pub(crate) fn damaged<T>(problem: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Damaged(problem.into()))
}

/// The bytes hold what is not supported.
pub(crate) fn unsupported<T>(problem: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Unsupported(problem.into()))
}

impl Problem {
    /// The problem of a part, with the part's name.
    pub(crate) fn within(self, name: &str) -> Self {
        match self {
            Self::Damaged(problem) => Self::Damaged(format!("`{name}`: {problem}")),
            Self::Unsupported(problem) => Self::Unsupported(format!("`{name}`: {problem}")),
        }
    }

    /// The problem with the name of its file.
    pub(crate) fn of(self, path: &Path) -> Error {
        let path = path.to_owned();
        match self {
            Self::Damaged(problem) => Error::Damaged { path, problem },
            Self::Unsupported(problem) => Error::Unsupported { path, problem },
        }
    }
}

/// Maps an I/O error to one that names what was read.
pub(crate) fn reading(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Read { path, source }
}

/// Maps an I/O error to one that names what was written.
pub(crate) fn writing(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Write { path, source }
}
