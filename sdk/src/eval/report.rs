//! What an evaluation found.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};
use training_gym_core::sample::FinishReason;

use super::statistics::pass_at_k;
use super::{Error, Estimate};
use crate::deploy::Usage;
use crate::deploy::chat::said;

/// What became of one reply.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// It came and was scored.
    Scored {
        /// The score.
        score: f64,
        /// What the model said.
        content: String,
        /// What it thought.
        reasoning_content: Option<String>,
        /// Why it ended.
        finish_reason: FinishReason,
        /// Tokens it took.
        usage: Usage,
    },
    /// It came, and the scorer could not decide.
    Ungradable {
        /// Why.
        reason: String,
        /// What the model said.
        content: String,
        /// What it thought.
        reasoning_content: Option<String>,
    },
    /// It never came, or the scorer returned no finite number: neither right nor wrong.
    Failed {
        /// Why.
        error: String,
    },
}

impl Outcome {
    /// What is graded and counted of the reply: what the model said, or what it thought where a thought
    /// that never ended is all there is. `None` for one that never came.
    pub fn said(&self) -> Option<&str> {
        match self {
            Self::Scored { content, reasoning_content, .. } | Self::Ungradable { content, reasoning_content, .. } => {
                Some(said(content, reasoning_content.as_deref()))
            }
            Self::Failed { .. } => None,
        }
    }

    /// The score, where there is one.
    pub fn score(&self) -> Option<f64> {
        match self {
            Self::Scored { score, .. } => Some(*score),
            Self::Ungradable { .. } | Self::Failed { .. } => None,
        }
    }
}

/// One row's replies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowResult {
    /// Which row, from 0.
    pub row: usize,
    /// Its label.
    pub label: String,
    /// Its replies, in order.
    pub samples: Vec<Outcome>,
}

impl RowResult {
    fn scores(&self) -> Vec<f64> {
        self.samples.iter().filter_map(Outcome::score).collect()
    }
}

/// What an evaluation found. Rows are in the order of the dataset.
///
/// Failed and ungradable replies are left out of every number; a row with no other is left out as a
/// whole, and each [`Estimate`] says how many rows it is the mean of.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What was evaluated.
    pub target: String,
    /// Replies a row.
    pub samples: usize,
    /// Each row's.
    pub rows: Vec<RowResult>,
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn right(score: &f64) -> bool {
    *score > 0.0
}

impl Report {
    fn estimate(&self, value: impl Fn(&RowResult) -> Option<f64>) -> Estimate {
        Estimate::of(&self.rows.iter().filter_map(value).collect::<Vec<f64>>())
    }

    /// The mean score.
    pub fn mean(&self) -> Estimate {
        self.estimate(|row| mean(&row.scores()))
    }

    /// The share of replies with a score above 0.
    pub fn accuracy(&self) -> Estimate {
        self.estimate(|row| {
            mean(&row.scores().iter().map(|score| f64::from(u8::from(right(score)))).collect::<Vec<_>>())
        })
    }

    /// mean@k: the mean score over each row's first `k` scored replies. Rows with fewer are left out.
    ///
    /// # Errors
    /// [`Error::Setting`] unless 1 ≤ k ≤ samples.
    pub fn mean_at(&self, k: usize) -> Result<Estimate, Error> {
        self.check(k)?;
        Ok(self.estimate(|row| row.scores().get(..k).and_then(mean)))
    }

    /// pass@k: the chance that at least one of `k` replies to a row has a score above 0, by the
    /// unbiased estimator of Chen et al. (2021). Rows with fewer than `k` scored replies are left out.
    ///
    /// # Errors
    /// [`Error::Setting`] unless 1 ≤ k ≤ samples.
    pub fn pass_at(&self, k: usize) -> Result<Estimate, Error> {
        self.check(k)?;
        Ok(self.estimate(|row| {
            let scores = row.scores();
            (scores.len() >= k).then(|| pass_at_k(scores.len(), scores.iter().filter(|score| right(score)).count(), k))
        }))
    }

    /// The spread of mean@k's runs: the standard deviation (n − 1) of the `k` means over all rows, one for
    /// each row's 1st, 2nd, … scored reply. `None` for k = 1. It is what papers write after mean@k; the
    /// uncertainty of the mean itself is [`Estimate::standard_error`].
    ///
    /// # Errors
    /// [`Error::Setting`] unless 1 ≤ k ≤ samples.
    pub fn std_at(&self, k: usize) -> Result<Option<f64>, Error> {
        self.check(k)?;
        let rows: Vec<Vec<f64>> = self.rows.iter().map(RowResult::scores).filter(|scores| scores.len() >= k).collect();
        let runs: Vec<f64> =
            (0..k).filter_map(|run| mean(&rows.iter().map(|row| row[run]).collect::<Vec<_>>())).collect();
        Ok(mean(&runs).filter(|_| runs.len() > 1).map(|middle| {
            let squares: f64 = runs.iter().map(|run| (run - middle).powi(2)).sum();
            (squares / (runs.len() - 1) as f64).sqrt()
        }))
    }

    /// maj@k: the share of rows whose most frequent answer among the first `k` scored replies has a score
    /// above 0 (Wang et al., "Self-Consistency", 2022). `answer` reads a reply's answer, such as
    /// [`crate::scorers::math::stated_form`]; a reply without one has no vote, a tie goes to the answer
    /// given first. Rows with fewer than `k` scored replies are left out.
    ///
    /// # Errors
    /// [`Error::Setting`] unless 1 ≤ k ≤ samples.
    pub fn maj_at(&self, k: usize, answer: impl Fn(&str) -> Option<String>) -> Result<Estimate, Error> {
        self.check(k)?;
        Ok(self.estimate(|row| {
            let replies: Vec<(&str, f64)> = row
                .samples
                .iter()
                .filter_map(|outcome| match outcome {
                    Outcome::Scored { score, .. } => Some((outcome.said()?, *score)),
                    Outcome::Ungradable { .. } | Outcome::Failed { .. } => None,
                })
                .collect();
            let mut votes: Vec<(String, usize, f64)> = Vec::new();
            for (content, score) in replies.get(..k)? {
                let Some(said) = answer(content) else { continue };
                match votes.iter_mut().find(|(other, ..)| *other == said) {
                    Some((_, count, _)) => *count += 1,
                    None => votes.push((said, 1, *score)),
                }
            }
            // The first of the most frequent: `max_by_key` would take the last.
            let most = votes.iter().map(|(_, count, _)| *count).max();
            let elected = votes.iter().find(|(_, count, _)| Some(*count) == most);
            Some(elected.map_or(0.0, |(.., score)| f64::from(u8::from(right(score)))))
        }))
    }

    /// Tokens of a scored reply, reasoning included: the mean over rows.
    pub fn completion_tokens(&self) -> Estimate {
        self.estimate(|row| {
            let tokens: Vec<f64> = row
                .samples
                .iter()
                .filter_map(|outcome| match outcome {
                    Outcome::Scored { usage, .. } => Some(usage.completion_tokens as f64),
                    Outcome::Ungradable { .. } | Outcome::Failed { .. } => None,
                })
                .collect();
            mean(&tokens)
        })
    }

    fn check(&self, k: usize) -> Result<(), Error> {
        if (1..=self.samples).contains(&k) {
            return Ok(());
        }
        let rule = format!("must be between 1 and the {} replies a row has; set `.samples(n)`", self.samples);
        Err(Error::Setting { setting: "k", given: k.to_string(), rule })
    }

    /// Replies that failed.
    pub fn failed(&self) -> usize {
        self.outcomes().filter(|outcome| matches!(outcome, Outcome::Failed { .. })).count()
    }

    /// Replies that the scorer could not decide on.
    pub fn ungradable(&self) -> usize {
        self.outcomes().filter(|outcome| matches!(outcome, Outcome::Ungradable { .. })).count()
    }

    /// The share of scored replies that reached the length limit.
    pub fn truncated(&self) -> f64 {
        let ends: Vec<f64> = self
            .outcomes()
            .filter_map(|outcome| match outcome {
                Outcome::Scored { finish_reason, .. } => {
                    Some(f64::from(u8::from(*finish_reason == FinishReason::Length)))
                }
                Outcome::Ungradable { .. } | Outcome::Failed { .. } => None,
            })
            .collect();
        mean(&ends).unwrap_or(0.0)
    }

    fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.rows.iter().flat_map(|row| &row.samples)
    }

    /// The whole report: the numbers above, then every row with its replies.
    pub fn to_json(&self) -> Value {
        let per_k = |number: fn(&Self, usize) -> Result<Estimate, Error>| -> Value {
            // 1, 2, 4, … and all of them.
            let mut ks: Vec<usize> =
                std::iter::successors(Some(1), |k| Some(k * 2)).take_while(|k| *k < self.samples).collect();
            ks.push(self.samples);
            ks.into_iter().filter_map(|k| Some((k.to_string(), json!(number(self, k).ok()?)))).collect()
        };
        json!({
            "version": "1",
            "target": self.target,
            "samples": self.samples,
            "failed": self.failed(),
            "ungradable": self.ungradable(),
            "completion_tokens": self.completion_tokens(),
            "truncated": self.truncated(),
            "mean": self.mean(),
            "accuracy": self.accuracy(),
            "mean_at": per_k(Self::mean_at),
            "pass_at": per_k(Self::pass_at),
            "rows": self.rows,
        })
    }

    /// Writes [`Report::to_json`] to a file, whole or not at all.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_json(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let write = || -> std::io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            serde_json::to_writer_pretty(&mut file, &self.to_json())?;
            file.persist(path)?;
            Ok(())
        };
        write().map_err(|source| Error::Write { path: path.to_owned(), source })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (accuracy, mean) = (self.accuracy(), self.mean());
        write!(out, "{}: {:.1}%", self.target, accuracy.value * 100.0)?;
        if let Some(error) = accuracy.standard_error {
            write!(out, " ± {:.1}", error * 100.0)?;
        }
        write!(out, " right, mean score {mean} ({} rows, {} each", mean.rows, self.samples)?;
        if self.truncated() > 0.0 {
            write!(out, ", {:.0}% truncated", self.truncated() * 100.0)?;
        }
        if self.ungradable() > 0 {
            write!(out, ", {} ungradable", self.ungradable())?;
        }
        match self.failed() {
            0 => write!(out, ")"),
            failed => write!(out, ", {failed} failed)"),
        }
    }
}
