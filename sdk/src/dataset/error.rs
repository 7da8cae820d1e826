//! What can go wrong with a dataset, each with its own message.

use std::path::PathBuf;

use crate::hub;
use training_gym_core::store;

/// An error of a dataset.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A split expression that is none.
    #[error("split `{split}`, at `{part}`: {rule}")]
    Split {
        /// The whole expression.
        split: String,
        /// The part that is wrong.
        part: String,
        /// What is allowed.
        rule: &'static str,
    },
    /// A split the dataset does not have.
    #[error("`{dataset}` has no split `{split}`; its splits are {}", list(known))]
    UnknownSplit {
        /// The dataset.
        dataset: String,
        /// The name asked for.
        split: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A bound beyond the rows.
    #[error("split `{split}` reaches to {bound}, but there are {rows} rows: take a bound of at most {rows}")]
    OutOfRange {
        /// The part of the expression.
        split: String,
        /// The bound.
        bound: i64,
        /// How many rows the split has.
        rows: u64,
    },
    /// A selection of nothing.
    #[error("split `{split}` selects no row of the {rows} there are: widen the slice")]
    NothingSelected {
        /// The expression.
        split: String,
        /// How many rows its splits have.
        rows: u64,
    },
    /// Whole percents of fewer than 100 rows are nothing.
    #[error("split `{split}`: `pct1_dropremainder` needs at least 100 rows, and there are {rows}: use `closest`")]
    TooFewForPercent {
        /// The part of the expression.
        split: String,
        /// How many rows the split has.
        rows: u64,
    },
    /// A configuration the dataset does not have, or one that must be named.
    #[error("`{dataset}` has no configuration `{config}`: name one of {} with `.config(…)`", list(known))]
    UnknownConfig {
        /// The dataset.
        dataset: String,
        /// The name asked for; `default` where none was.
        config: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A dataset card whose `configs` we do not understand.
    #[error(
        "README.md of `{dataset}`, line {line}: {problem}: load one of its files with `HuggingFaceDataset::file` instead"
    )]
    Card {
        /// The dataset.
        dataset: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// No data file where some were looked for.
    #[error("`{dataset}` has no data file {wanted}: the formats read are .jsonl, .json and .parquet")]
    NoFiles {
        /// The dataset.
        dataset: String,
        /// Which were looked for.
        wanted: String,
    },
    /// A format we do not read.
    #[error("`{file}` is a `.{format}` file: convert it to .jsonl, .json or .parquet, the formats read")]
    Format {
        /// The file.
        file: String,
        /// Its extension.
        format: String,
    },
    /// Neither a file nor a folder here, nor the id of a repository.
    #[error("no file or folder `{place}` here: a relative path is seen from the current folder")]
    NoPlace {
        /// As given.
        place: String,
    },
    /// A file without a row.
    #[error("`{file}` is empty: it has no rows")]
    EmptyFile {
        /// The file.
        file: String,
    },
    /// A line or element that is not a row.
    #[error("{file}:{line}: {problem}")]
    Malformed {
        /// The file.
        file: String,
        /// The line, from 1; in a parquet file the row.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// A parquet file that cannot be read.
    #[error("cannot read `{file}` as parquet")]
    Parquet {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A column that is not there.
    #[error("{setting} = `{key}`: row {row} of `{dataset}` has no such column; its columns are {}", list(columns))]
    NoColumn {
        /// `input_key`, `label_key` or `prompt_template`.
        setting: &'static str,
        /// The column asked for.
        key: String,
        /// The row, from 0.
        row: u64,
        /// The dataset.
        dataset: String,
        /// The columns there are.
        columns: Vec<String>,
    },
    /// A value that cannot be a prompt or a label, or a setting that does not go with it.
    #[error("row {row} of `{dataset}`, column `{key}`: {problem}")]
    Value {
        /// The row, from 0.
        row: u64,
        /// The dataset.
        dataset: String,
        /// The column.
        key: String,
        /// What is wrong, and what is expected.
        problem: String,
    },
    /// A setting that cannot be.
    #[error("{setting} = `{given}`: {rule}")]
    Setting {
        /// The setter.
        setting: &'static str,
        /// As given.
        given: String,
        /// What is allowed.
        rule: &'static str,
    },
    /// Rows of evaluation that are rows of training too.
    #[error(
        "{count} of {of} evaluation rows are training rows too (evaluation row {eval} is training row {train}): choose disjoint splits, or allow the overlap explicitly"
    )]
    SharedRows {
        /// How many evaluation rows.
        count: usize,
        /// Of how many.
        of: usize,
        /// The first such evaluation row, from 0.
        eval: usize,
        /// The training row it equals, from 0.
        train: usize,
    },
    /// A file that cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The hub.
    #[error(transparent)]
    Hub(#[from] Box<hub::Error>),
    /// The store.
    #[error(transparent)]
    Store(#[from] Box<store::Error>),
}

impl From<hub::Error> for Error {
    fn from(error: hub::Error) -> Self {
        Self::Hub(Box::new(error))
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        Self::Store(Box::new(error))
    }
}

impl Error {
    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

/// Names in backticks, or `none`.
fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
