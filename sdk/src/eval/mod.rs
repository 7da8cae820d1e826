//! How good is a deployment on rows it was not trained on?
//!
//! ```no_run
//! use training_gym::deploy::{ChatReply, Endpoint};
//! use training_gym::eval::evaluate;
//! use training_gym::{config::models, dataset::HuggingFaceDataset, scorers::score_answer};
//! use training_gym_core::sample::Row;
//!
//! fn score_row(row: &Row, reply: &ChatReply) -> f64 {
//!     score_answer(&reply.content, &row.label)
//! }
//!
//! # async fn example() -> anyhow::Result<()> {
//! let student = Endpoint::launch(models::QWEN3_0_6B).await?;
//! let held_out = HuggingFaceDataset::new("zhuzilin/dapo-math-17k").label_key("label").split("train[100:120]")?;
//! let report = evaluate(&student, &held_out, score_row).samples(4).max_tokens(2048).await?;
//! println!("{report}");
//! println!("pass@4 {}", report.pass_at(4)?);
//! # Ok(())
//! # }
//! ```
//!
//! A reply that could not be had is *failed*, one that the scorer could not decide on is *ungradable*:
//! neither right nor wrong, left out of every mean and counted; too many failed ones are an error.
//! [`Benchmark`], [`Instruction`] and [`Grader`] name what the papers report.

mod benchmark;
mod grader;
mod openai;
mod progress;
mod report;
mod run;
mod statistics;
mod table;
mod target;

#[cfg(test)]
mod tests;

use std::fmt;
use std::future::{Future, IntoFuture, ready};
use std::pin::Pin;
use std::time::Duration;

use serde_json::{Map, Value};
use training_gym_core::sample::Row;
use training_gym_core::spec::SamplingSpec;

pub(crate) use benchmark::COLUMNS;
pub use benchmark::{Benchmark, Instruction, final_answer};
pub use grader::{Grader, Judgement};
pub use openai::ChatServer;
pub use report::{Outcome, Report, RowResult};
pub use statistics::Estimate;
pub use table::Summary;
pub use target::{ChatError, ChatTarget};

use crate::dataset::{self, HuggingFaceDataset};
use crate::deploy::{ChatOptions, ChatReply};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that cannot be.
    #[error("evaluation `{setting}` = {given}: {rule}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// As given.
        given: String,
        /// What is allowed.
        rule: String,
    },
    /// The rows could not be had.
    #[error("the rows to evaluate on cannot be loaded")]
    Dataset(#[source] dataset::Error),
    /// There are none.
    #[error("there are no rows to evaluate on; check the split")]
    NoRows,
    /// The report would say little about the model.
    #[error(
        "{failed} of {total} replies failed, more than the {allowed} allowed (`max_failed_fraction`); row {row} first, with: {first}"
    )]
    TooManyFailed {
        /// Replies failed until it stopped.
        failed: usize,
        /// Replies of the whole evaluation.
        total: usize,
        /// Replies that may fail.
        allowed: usize,
        /// The row that failed first.
        row: usize,
        /// Why it did.
        first: String,
    },
    /// The report could not be written.
    #[error("cannot write the report to {}", path.display())]
    Write {
        /// Where to.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// What is evaluated on: a dataset, or rows that are at hand.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Loaded when the evaluation begins.
    Dataset(&'a HuggingFaceDataset),
    /// As they are.
    Given(&'a [Row]),
}

impl<'a> From<&'a HuggingFaceDataset> for Rows<'a> {
    fn from(dataset: &'a HuggingFaceDataset) -> Self {
        Self::Dataset(dataset)
    }
}

impl<'a> From<&'a [Row]> for Rows<'a> {
    fn from(rows: &'a [Row]) -> Self {
        Self::Given(rows)
    }
}

impl<'a> From<&'a Vec<Row>> for Rows<'a> {
    fn from(rows: &'a Vec<Row>) -> Self {
        Self::Given(rows)
    }
}

/// What a scorer may return: a number, or a number or why there is none.
pub trait Score: Send {
    /// The number, or the words of a scorer that could not decide.
    ///
    /// # Errors
    /// Where the reply is ungradable.
    fn into_score(self) -> Result<f64, String>;
}

impl Score for f64 {
    fn into_score(self) -> Result<f64, String> {
        Ok(self)
    }
}

impl<E: fmt::Display + Send> Score for Result<f64, E> {
    fn into_score(self) -> Result<f64, String> {
        self.map_err(|error| error.to_string())
    }
}

type Scoring<'a> = Pin<Box<dyn Future<Output = Result<f64, String>> + Send + 'a>>;
type Scorer<'a> = Box<dyn Fn(&Row, &ChatReply) -> Scoring<'a> + Send + Sync + 'a>;

/// Evaluates `target` on `rows`: each prompt is sent as a chat (a plain text is one user's message),
/// each reply goes through `scorer`. A score above 0 counts as right in [`Report::accuracy`] and
/// [`Report::pass_at`]; an `Err` makes the reply *ungradable*, NaN and infinities a failed one.
///
/// The result is a builder that can be awaited.
pub fn evaluate<'a, S, R>(target: &'a dyn ChatTarget, rows: impl Into<Rows<'a>>, scorer: S) -> Evaluation<'a>
where
    S: Fn(&Row, &ChatReply) -> R + Send + Sync + 'a,
    R: Score,
{
    Evaluation::new(target, rows.into(), Box::new(move |row, reply| Box::pin(ready(scorer(row, reply).into_score()))))
}

/// As [`evaluate`], with a scorer that takes its time: a model that judges, a sandbox.
pub fn evaluate_async<'a, S, F>(target: &'a dyn ChatTarget, rows: impl Into<Rows<'a>>, scorer: S) -> Evaluation<'a>
where
    S: Fn(Row, ChatReply) -> F + Send + Sync + 'a,
    F: Future + Send + 'a,
    F::Output: Score,
{
    let scorer = move |row: &Row, reply: &ChatReply| -> Scoring<'a> {
        let scored = scorer(row.clone(), reply.clone());
        Box::pin(async move { scored.await.into_score() })
    };
    Evaluation::new(target, rows.into(), Box::new(scorer))
}

/// An evaluation that has not begun; await it to run it.
#[must_use = "an evaluation does nothing until it is awaited"]
pub struct Evaluation<'a> {
    target: &'a dyn ChatTarget,
    rows: Rows<'a>,
    scorer: Scorer<'a>,
    options: ChatOptions,
    samples: usize,
    max_concurrency: usize,
    retries: u32,
    retry_pause: Duration,
    max_failed_fraction: f64,
    show_progress: bool,
}

impl<'a> Evaluation<'a> {
    fn new(target: &'a dyn ChatTarget, rows: Rows<'a>, scorer: Scorer<'a>) -> Self {
        Self {
            target,
            rows,
            scorer,
            options: ChatOptions::default(),
            samples: 1,
            max_concurrency: 8,
            retries: 4,
            retry_pause: Duration::from_millis(500),
            max_failed_fraction: 0.1,
            show_progress: true,
        }
    }

    /// Replies a row. Default 1.
    pub fn samples(mut self, n: usize) -> Self {
        self.samples = n;
        self
    }

    /// Requests in flight at once. Default 8.
    pub fn max_concurrency(mut self, n: usize) -> Self {
        self.max_concurrency = n;
        self
    }

    /// How a token is drawn. Default: the server's choice.
    pub fn sampling(mut self, sampling: SamplingSpec) -> Self {
        self.options.temperature = Some(sampling.temperature);
        self.options.top_p = Some(sampling.top_p);
        self.options.top_k = Some(sampling.top_k);
        self.options.min_p = Some(sampling.min_p);
        self
    }

    /// Tokens a reply may have, reasoning included. Default: what fits the context.
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.options.max_tokens = Some(n);
        self
    }

    /// Variables of the chat template, such as `enable_thinking`.
    pub fn chat_template_kwargs(mut self, kwargs: Map<String, Value>) -> Self {
        self.options.chat_template_kwargs = kwargs;
        self
    }

    /// Makes the evaluation repeatable: each reply's seed is a function of this one, its row and
    /// its number. Default: the server's choice.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = Some(seed);
        self
    }

    /// All options of a chat at once; the setters above each change one of them.
    pub fn options(mut self, options: ChatOptions) -> Self {
        self.options = options;
        self
    }

    /// How often a request that failed transiently is tried again, ever more slowly. Default 4.
    pub fn retries(mut self, n: u32) -> Self {
        self.retries = n;
        self
    }

    /// Share of the replies that may fail, in [0, 1]; beyond it the evaluation is an error.
    /// Default 0.1.
    pub fn max_failed_fraction(mut self, share: f64) -> Self {
        self.max_failed_fraction = share;
        self
    }

    /// Shows nothing meanwhile.
    pub fn quiet(mut self) -> Self {
        self.show_progress = false;
        self
    }

    fn check(&self) -> Result<(), Error> {
        let refuse = |setting, given: String, rule: &str| Err(Error::Setting { setting, given, rule: rule.to_owned() });
        if self.samples == 0 {
            return refuse("samples", "0".to_owned(), "must be ≥ 1");
        }
        if self.max_concurrency == 0 {
            return refuse("max_concurrency", "0".to_owned(), "must be ≥ 1");
        }
        if !(0.0..=1.0).contains(&self.max_failed_fraction) {
            return refuse("max_failed_fraction", self.max_failed_fraction.to_string(), "must be in [0, 1]");
        }
        let greedy = self.options.temperature == Some(0.0);
        if greedy && self.samples > 1 {
            let rule = "greedy replies (`temperature` 0) are all the same; take 1, or a temperature above 0";
            return refuse("samples", self.samples.to_string(), rule);
        }
        Ok(())
    }
}

impl fmt::Debug for Evaluation<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Evaluation")
            .field("target", &self.target.name())
            .field("rows", &self.rows)
            .field("options", &self.options)
            .field("samples", &self.samples)
            .field("max_concurrency", &self.max_concurrency)
            .finish_non_exhaustive()
    }
}

impl<'a> IntoFuture for Evaluation<'a> {
    type Output = Result<Report, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(run::run(self))
    }
}
