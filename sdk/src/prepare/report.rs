//! What became of every row.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A preparation's outcome: `report.json`, and a table by `Display`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The layout of this document: 1.
    pub version: u32,
    /// Seed of the split.
    pub seed: u64,
    /// Share of the training rows that is held out.
    pub validation: f64,
    /// The frame of the questions; `keep` left them as they were.
    pub instruction: String,
    /// The model whose tokenizer counted; `None` where nothing was counted.
    pub tokenizer: Option<String>,
    /// Tokens a prompt may have, where they were counted.
    pub max_prompt_len: Option<usize>,
    /// Each source, the training one last.
    pub sources: Vec<SourceReport>,
}

/// What became of one source's rows: `read` is the sum of what was dropped and `kept`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceReport {
    /// Its name.
    pub name: String,
    /// The file, as it was named.
    pub file: String,
    /// Its column of questions.
    pub input_key: String,
    /// Its column of answers.
    pub label_key: String,
    /// Rows of the file.
    pub read: u64,
    /// Dropped: no prompt or label that could be read.
    pub unusable: u64,
    /// What was wrong with the first of those.
    pub first_unusable: Option<String>,
    /// Dropped: the label is empty.
    pub unlabelled: u64,
    /// Dropped: an earlier row asks the same.
    pub duplicates: u64,
    /// Of those, the ones that give another answer.
    pub conflicting_labels: u64,
    /// Dropped: an evaluation source asks the same.
    pub in_evaluation: u64,
    /// Dropped: more tokens than allowed.
    pub too_long: u64,
    /// What stayed.
    pub kept: u64,
    /// Tokens of the prompts that stayed, where they were counted.
    pub tokens: Option<Lengths>,
    /// The files that were written.
    pub written: Vec<Written>,
}

/// How many tokens prompts have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lengths {
    /// The mean.
    pub mean: f64,
    /// Half have at most so many.
    pub p50: u32,
    /// 95 of 100 have at most so many.
    pub p95: u32,
    /// The longest.
    pub max: u32,
}

impl Lengths {
    /// Of some prompts; `None` of none.
    pub(super) fn of(mut tokens: Vec<u32>) -> Option<Self> {
        tokens.sort_unstable();
        let at = |share: f64| tokens[((tokens.len() - 1) as f64 * share).round() as usize];
        let max = *tokens.last()?;
        let mean = tokens.iter().map(|count| f64::from(*count)).sum::<f64>() / tokens.len() as f64;
        Some(Self { mean, p50: at(0.5), p95: at(0.95), max })
    }
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Its name in the folder.
    pub file: String,
    /// Its rows.
    pub rows: u64,
    /// Its content's hash.
    pub sha256: String,
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = ["SOURCE", "READ", "UNUSABLE", "UNLABELLED", "DUPLICATE", "IN EVAL", "TOO LONG", "KEPT"];
        let mut table: Vec<Vec<String>> = vec![heads.iter().map(|head| (*head).to_owned()).collect()];
        for source in &self.sources {
            let counts = [
                source.read,
                source.unusable,
                source.unlabelled,
                source.duplicates,
                source.in_evaluation,
                source.too_long,
                source.kept,
            ];
            table.push(std::iter::once(source.name.clone()).chain(counts.map(|count| count.to_string())).collect());
        }
        let widths: Vec<usize> =
            (0..heads.len()).map(|column| table.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
        for row in &table {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        for source in &self.sources {
            if source.conflicting_labels > 0 {
                let (count, name) = (source.conflicting_labels, &source.name);
                writeln!(out, "{name}: {count} duplicates give another answer; the first row's was kept")?;
            }
            if let Some(first) = &source.first_unusable {
                writeln!(out, "{}: the first unusable row: {first}", source.name)?;
            }
            if let Some(Lengths { mean, p50, p95, max }) = source.tokens {
                writeln!(out, "{}: prompts of {mean:.0} tokens (p50 {p50}, p95 {p95}, longest {max})", source.name)?;
            }
        }
        if self.tokenizer.is_none() {
            writeln!(out, "prompts were not counted: name a model to drop those that are too long")?;
        }
        let files = self.sources.iter().flat_map(|source| &source.written);
        let lines: Vec<String> = files.map(|file| format!("wrote {} rows to {}", file.rows, file.file)).collect();
        write!(out, "{}", lines.join("\n"))
    }
}
