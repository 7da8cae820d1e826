//! Data as people have it, made into rows a run reads: streamed, without duplicates and overlong prompts,
//! split by a seed, with a report, and placed whole or not at all.
//!
//! ```no_run
//! # async fn example() -> Result<(), training_gym::prepare::Error> {
//! use training_gym::config::models;
//! use training_gym::prepare::{Preparation, Source};
//!
//! let report = Preparation::new("data/prepared")
//!     .train(Source::file("train", "data/DAPO-Math-17k-dedup/distinct-prompts-with-rewards.parquet"))
//!     .eval(Source::file("math500", "data/MATH-500/test.jsonl"))
//!     .tokenizer(models::QWEN3_4B)
//!     .max_prompt_len(2048)
//!     .await?;
//! println!("{report}");
//! # Ok(())
//! # }
//! ```
//!
//! Files are read one row at a time, twice: once to drop what is no good, once to write what stays. In
//! memory stay a hash of each different question and a few bytes a row, never the rows (a file of one JSON
//! array is the exception: JSON has no lines to read it by). Token counts are `gym-runtime`'s, by the
//! model's own tokenizer and template: the SDK has neither.
//!
//! | file of the folder | what |
//! |---|---|
//! | `train.jsonl` | the training rows: `prompt` (chat messages), `label`, and the source's other columns |
//! | `validation.jsonl` | those held out of them, where a share is |
//! | `eval-NAME.jsonl` | each evaluation source |
//! | `report.json` | [`Report`] |

mod folder;
mod lengths;
mod report;
mod run;
mod sift;
#[cfg(test)]
mod tests;

use std::future::{Future, IntoFuture};
use std::path::PathBuf;
use std::pin::Pin;

use serde_json::{Map, Value};

use crate::config::Model;
use crate::eval::{Benchmark, Instruction};
use crate::gym::Gym;
use crate::{backend, dataset, gym, hub};

pub use report::{Lengths, Report, SourceReport, Written};

/// Why nothing was prepared. What was there before is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that cannot be.
    #[error("`{setting}` = {given}: {rule}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// As given.
        given: String,
        /// What is allowed, and what to do.
        rule: String,
    },
    /// A source could not be read.
    #[error(transparent)]
    Dataset(#[from] dataset::Error),
    /// No row of a source stayed.
    #[error("no row of source `{source_name}` is left: {why}")]
    NothingLeft {
        /// Its name.
        source_name: String,
        /// What became of its rows.
        why: String,
    },
    /// The tokenizer could not be had.
    #[error(transparent)]
    Hub(#[from] hub::Error),
    /// There is no client to ask for lengths with.
    #[error(transparent)]
    Gym(#[from] gym::Error),
    /// The runtime could not be asked for lengths.
    #[error(transparent)]
    Backend(#[from] backend::Error),
    /// The runtime refused.
    #[error("the prompts of source `{source_name}` cannot be counted: {said}")]
    Lengths {
        /// Its name.
        source_name: String,
        /// The runtime's words.
        said: String,
    },
    /// A file could not be written or placed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// One file of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    name: String,
    file: PathBuf,
    columns: Option<(String, String)>,
}

impl Source {
    /// A `.parquet`, `.jsonl` or `.json` file under a name of letters, digits, `-` and `_`. Its columns of
    /// question and answer are found by the names that DAPO-Math-17k, AIME, MATH-500 and GSM8K use.
    pub fn file(name: impl Into<String>, file: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), file: file.into(), columns: None }
    }

    /// Names its columns of question and answer; a dotted path reaches into a column.
    #[must_use]
    pub fn columns(mut self, question: impl Into<String>, answer: impl Into<String>) -> Self {
        self.columns = Some((question.into(), answer.into()));
        self
    }
}

/// Where the seed's scripts expect DAPO-Math-17k-dedup below the data folder.
pub const DAPO: &str = "DAPO-Math-17k-dedup/distinct-prompts-with-rewards.parquet";

/// What is to be prepared; await it.
#[must_use = "nothing is prepared until it is awaited"]
#[derive(Debug)]
pub struct Preparation {
    out: PathBuf,
    train: Option<Source>,
    eval: Vec<Source>,
    instruction: Option<Instruction>,
    tokenizer: Option<Model>,
    chat_template_kwargs: Map<String, Value>,
    max_prompt_len: usize,
    validation: f64,
    seed: u64,
    keep_duplicates: bool,
    replace: bool,
    gym: Option<Gym>,
}

impl Preparation {
    /// Into this folder, which must not exist unless [`replace`](Self::replace) is set.
    pub fn new(out: impl Into<PathBuf>) -> Self {
        Self {
            out: out.into(),
            train: None,
            eval: Vec::new(),
            instruction: Some(Instruction::Boxed),
            tokenizer: None,
            chat_template_kwargs: Map::new(),
            max_prompt_len: 2048,
            validation: 0.2,
            seed: 42,
            keep_duplicates: false,
            replace: false,
            gym: None,
        }
    }

    /// The seed's inputs below a data folder: [`DAPO`] to train on, and of the benchmarks those that are
    /// there.
    ///
    /// # Errors
    /// [`Error::Setting`] where neither is.
    pub fn data_folder(mut self, folder: impl Into<PathBuf>) -> Result<Self, Error> {
        let folder = folder.into();
        let dapo = folder.join(DAPO);
        if dapo.is_file() {
            self.train = Some(Source::file("train", dapo));
        }
        for benchmark in Benchmark::all() {
            self.eval.extend(benchmark.find_in(&folder).map(|file| Source::file(benchmark.to_string(), file)));
        }
        if self.train.is_none() && self.eval.is_empty() {
            let known: Vec<&str> = Benchmark::all().iter().map(|benchmark| benchmark.files()[0]).collect();
            return Err(Error::Setting {
                setting: "data folder",
                given: folder.display().to_string(),
                rule: format!("it has none of {DAPO}, {}: put them there, or name files", known.join(", ")),
            });
        }
        Ok(self)
    }

    /// What is trained on.
    pub fn train(mut self, source: Source) -> Self {
        self.train = Some(source);
        self
    }

    /// What is evaluated on, in addition. Its questions are taken out of the training rows.
    pub fn eval(mut self, source: Source) -> Self {
        self.eval.push(source);
        self
    }

    /// The frame of the questions; DAPO's own is taken off first. `None` leaves them as they are. Default
    /// [`Instruction::Boxed`].
    pub fn instruction(mut self, instruction: Option<Instruction>) -> Self {
        self.instruction = instruction;
        self
    }

    /// The model whose tokenizer and template count a prompt's tokens. Default: none, and no prompt is
    /// too long.
    pub fn tokenizer(mut self, model: Model) -> Self {
        self.tokenizer = Some(model);
        self
    }

    /// Variables of its chat template, such as `enable_thinking`.
    pub fn chat_template_kwargs(mut self, kwargs: Map<String, Value>) -> Self {
        self.chat_template_kwargs = kwargs;
        self
    }

    /// Tokens a prompt may have; rows with more are dropped, and counted. Default 2048.
    pub fn max_prompt_len(mut self, tokens: usize) -> Self {
        self.max_prompt_len = tokens;
        self
    }

    /// The share of the training rows that is held out, in [0, 1). Default 0.2.
    pub fn validation(mut self, share: f64) -> Self {
        self.validation = share;
        self
    }

    /// Says which rows are held out: a function of the question and this seed, whatever the order of the
    /// file. Default 42.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Keeps rows that ask the same question again. Default: the first stays.
    pub fn keep_duplicates(mut self, yes: bool) -> Self {
        self.keep_duplicates = yes;
        self
    }

    /// Takes the place of a folder that [`Preparation`] made before. Another folder is never touched.
    pub fn replace(mut self, yes: bool) -> Self {
        self.replace = yes;
        self
    }

    /// Counts tokens with this client instead of [`Gym::from_env`].
    pub fn on(mut self, gym: &Gym) -> Self {
        self.gym = Some(gym.clone());
        self
    }

    fn check(&self) -> Result<(), Error> {
        let refuse = |setting, given: String, rule: &str| Err(Error::Setting { setting, given, rule: rule.to_owned() });
        if self.train.is_none() && self.eval.is_empty() {
            return refuse("sources", "none".to_owned(), "name a file to train or to evaluate on");
        }
        if !(0.0..1.0).contains(&self.validation) {
            return refuse(
                "validation",
                self.validation.to_string(),
                "is a share in [0, 1), such as 0.2; 0 holds none out",
            );
        }
        if self.max_prompt_len == 0 {
            return refuse("max_prompt_len", "0".to_owned(), "is ≥ 1 token");
        }
        let mut names = Vec::new();
        for source in self.train.iter().chain(&self.eval) {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            if source.name.is_empty() || !source.name.chars().all(plain) || source.name.len() > 64 {
                return refuse(
                    "source",
                    format!("{:?}", source.name),
                    "is a name of up to 64 letters, digits, - and _",
                );
            }
            if names.contains(&&source.name) {
                return refuse(
                    "source",
                    source.name.clone(),
                    "is the name of one source alone: name the other otherwise",
                );
            }
            names.push(&source.name);
        }
        Ok(())
    }
}

impl IntoFuture for Preparation {
    type Output = Result<Report, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(run::run(self))
    }
}

fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.into();
    move |source| Error::Io { action, path, source }
}
