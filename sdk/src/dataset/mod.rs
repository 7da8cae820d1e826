//! Datasets: a hub repository, a local folder or a file, a split of it, and typed rows.
//!
//! ```no_run
//! # async fn example() -> Result<(), training_gym::dataset::Error> {
//! use training_gym::dataset::HuggingFaceDataset;
//! let dataset = HuggingFaceDataset::new("zhuzilin/dapo-math-17k").input_key("prompt").label_key("label");
//! let train = dataset.clone().split("train[:100]")?;
//! let eval = dataset.split("train[100:120]")?;
//! println!("{} and {} rows", train.load().await?.len(), eval.load().await?.len());
//! # Ok(())
//! # }
//! ```
//!
//! | module | what it knows |
//! |---|---|
//! | `split` | the expressions, by the rules of Hugging Face `datasets` |
//! | `card`, `files` | which file belongs to which split |
//! | `source` | where the files are, and how they get here |
//! | `stream` | one file row by row, for what is larger than memory |
//! | `table`, `parquet_file` | rows of JSON lines, JSON and parquet files |
//! | `shape`, `template`, `python` | columns to prompt, label and metadata |
//! | `materialise` | rows into the store, by content; rows two sets share |

mod card;
mod error;
mod files;
mod materialise;
mod parquet_file;
mod python;
mod shape;
mod source;
mod split;
mod stream;
mod table;
mod template;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use training_gym_core::sample::Row;
use training_gym_core::spec::HubRef;

use crate::hub::Hub;

pub use error::Error;
pub use materialise::{Materialised, refuse_shared_rows, row_hash, shared_rows};
pub use split::Split;

pub(crate) use stream::RowReader;

use shape::Shape;
use source::Place;

/// The format rows are also written in for people; the runtime always reads JSON lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
    /// JSON lines alone.
    #[default]
    Jsonl,
    /// JSON lines, and a parquet file beside.
    Parquet,
}

/// A dataset and what is taken from it. Nothing is read before [`load`](Self::load) or
/// [`materialise`](Self::materialise).
#[derive(Clone, Debug)]
pub struct HuggingFaceDataset {
    place: Place,
    config: Option<String>,
    revision: Option<String>,
    split: Split,
    input_key: String,
    label_key: Option<String>,
    output_format: OutputFormat,
    apply_chat_template: bool,
    always_prepare: bool,
    system_prompt: Option<String>,
    prompt_template: Option<String>,
    limit: Option<u64>,
    hub: Option<Hub>,
    /// The commit an earlier launch took.
    pin: Option<HubRef>,
}

impl HuggingFaceDataset {
    /// A dataset by its hub id, or a local folder laid out like one. A folder of that name wins
    /// over the hub; what begins with `.`, `/` or `~` is never a hub id.
    pub fn new(repo_or_folder: impl Into<String>) -> Self {
        Self::at(Place::Named(repo_or_folder.into()))
    }

    /// One local `.jsonl`, `.json` (lines, or one array) or `.parquet` file. All of it is `train`.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::at(Place::File(path.into()))
    }

    fn at(place: Place) -> Self {
        Self {
            place,
            config: None,
            revision: None,
            split: Split::whole("train"),
            input_key: "prompt".to_owned(),
            label_key: None,
            output_format: OutputFormat::default(),
            apply_chat_template: true,
            always_prepare: false,
            system_prompt: None,
            prompt_template: None,
            limit: None,
            hub: None,
            pin: None,
        }
    }

    /// The configuration, where the dataset's card lists several. Default: the card's default one.
    #[must_use]
    pub fn config(mut self, name: impl Into<String>) -> Self {
        self.config = Some(name.into());
        self
    }

    /// A branch, tag or commit of the hub repository. Default `main`; the commit it is goes into
    /// the notes, the fingerprint and the run's spec.
    #[must_use]
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.revision = Some(revision.into());
        self
    }

    /// Which rows: `train`, `train[:100]`, `train[100:120]`, `train[-5%:]`, `train+test`, `all`.
    /// Default `train`. See [`Split`] for the grammar.
    ///
    /// # Errors
    /// When the expression is none.
    pub fn split(mut self, expression: &str) -> Result<Self, Error> {
        self.split = expression.parse()?;
        Ok(self)
    }

    /// The column of prompts, each a text or a list of chat messages; a dotted path reaches into a
    /// column. Default `prompt`.
    #[must_use]
    pub fn input_key(mut self, column: impl Into<String>) -> Self {
        self.input_key = column.into();
        self
    }

    /// The column of labels; a dotted path (`reward_model.ground_truth`) reaches into a column.
    /// Default: the column `label` where there is one, else labels are empty.
    #[must_use]
    pub fn label_key(mut self, column: impl Into<String>) -> Self {
        self.label_key = Some(column.into());
        self
    }

    /// Whether a parquet file is written beside the JSON lines. Default [`OutputFormat::Jsonl`].
    #[must_use]
    pub fn output_format(mut self, format: OutputFormat) -> Self {
        self.output_format = format;
        self
    }

    /// Render prompts with the model's chat template: a prompt that is a text becomes a message of
    /// the user. Without it a prompt is raw text. Default true.
    #[must_use]
    pub fn apply_chat_template(mut self, on: bool) -> Self {
        self.apply_chat_template = on;
        self
    }

    /// Read the source again even if these very rows were written before. Default false: rows
    /// prepared from the same source by the same settings are taken from the store.
    #[must_use]
    pub fn always_prepare(mut self, on: bool) -> Self {
        self.always_prepare = on;
        self
    }

    /// A system message put before each prompt; a prompt's own one gives way, and that is noted.
    #[must_use]
    pub fn system_prompt(mut self, text: impl Into<String>) -> Self {
        self.system_prompt = Some(text.into());
        self
    }

    /// The prompt's text, with `{prompt}` for the input column's and `{column}` for any other.
    /// `{{` and `}}` are braces; `{}` is left as it is. In a list of messages it applies to the
    /// last one of the user.
    #[must_use]
    pub fn prompt_template(mut self, template: impl Into<String>) -> Self {
        self.prompt_template = Some(template.into());
        self
    }

    /// At most this many rows, the first of the split.
    #[must_use]
    pub fn limit(mut self, rows: u64) -> Self {
        self.limit = Some(rows);
        self
    }

    /// The hub to ask, instead of the one the environment names.
    #[must_use]
    pub fn hub(mut self, hub: Hub) -> Self {
        self.hub = Some(hub);
        self
    }

    /// Takes the commit of `before` again, if that is of the same repository and revision.
    #[must_use]
    pub(crate) fn pinned(mut self, before: Option<&HubRef>) -> Self {
        self.pin = before.cloned();
        self
    }

    /// What people call it: the repository, folder or file.
    pub fn name(&self) -> String {
        self.place.to_string()
    }

    /// Whether prompts are chat messages for the model's template.
    pub fn applies_chat_template(&self) -> bool {
        self.apply_chat_template
    }

    /// Checks what can be checked without reading rows or asking a hub: the settings, and that a
    /// local file is there.
    ///
    /// # Errors
    /// When a setting cannot be, or the file is missing.
    pub fn check(&self) -> Result<(), Error> {
        self.shape()?;
        match &self.place {
            Place::File(path) if !path.is_file() => Err(Error::NoPlace { place: self.name() }),
            Place::File(_) | Place::Named(_) => Ok(()),
        }
    }

    /// The rows, typed.
    ///
    /// # Errors
    /// When the dataset cannot be found, fetched or read, the split cannot be taken, or a row has
    /// not the columns asked for.
    pub async fn load(&self) -> Result<Vec<Row>, Error> {
        self.shape()?;
        let source = self.locate().await?;
        Ok(self.read(&source).await?.rows)
    }

    /// Checks the settings that can be checked without reading anything.
    fn shape(&self) -> Result<Shape, Error> {
        let empty = |setting, given: &str| Error::Setting { setting, given: given.to_owned(), rule: "name a column" };
        if self.input_key.is_empty() {
            return Err(empty("input_key", &self.input_key));
        }
        if let Some(key) = self.label_key.as_ref().filter(|key| key.is_empty()) {
            return Err(empty("label_key", key));
        }
        if self.limit == Some(0) {
            let rule = "must be ≥ 1; leave it out for all rows";
            return Err(Error::Setting { setting: "limit", given: "0".to_owned(), rule });
        }
        Ok(Shape {
            dataset: self.name(),
            input_key: self.input_key.clone(),
            label_key: self.label_key.clone(),
            system_prompt: self.system_prompt.clone(),
            template: self.prompt_template.as_deref().map(str::parse).transpose()?,
            apply_chat_template: self.apply_chat_template,
        })
    }
}
