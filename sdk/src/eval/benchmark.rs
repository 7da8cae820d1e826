//! The benchmarks the papers report, and how their questions are put.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use training_gym_core::sample::{Message, Prompt, Row};

use super::Error;
use crate::dataset::{self, HuggingFaceDataset};
use crate::scorers;

const DAPO_BEFORE: &str = "Solve the following math problem step by step. The last line of your response should be of \
                           the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n";
const DAPO_AFTER: &str = "\n\nRemember to put your answer on its own line after \"Answer:\".";

/// What is added to a question, so that the answer can be found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Instruction {
    /// Step by step, the final answer in `\boxed{}`.
    #[default]
    Boxed,
    /// The frame of DAPO-Math-17k: the last line is `Answer: …`.
    Dapo,
    /// Nothing.
    None,
}

impl Instruction {
    const ALL: [(Self, &str); 3] = [(Self::Boxed, "boxed"), (Self::Dapo, "dapo"), (Self::None, "none")];

    /// The question as it is sent.
    pub fn frame(self, question: &str) -> String {
        match self {
            Self::Boxed => {
                format!("{question}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}.")
            }
            Self::Dapo => format!("{DAPO_BEFORE}{question}{DAPO_AFTER}"),
            Self::None => question.to_owned(),
        }
    }

    /// The question without the frame of DAPO-Math-17k, where it has it.
    pub fn bare(question: &str) -> &str {
        let inner = question.strip_prefix(DAPO_BEFORE).unwrap_or(question);
        inner.strip_suffix(DAPO_AFTER).unwrap_or(inner).trim()
    }

    /// The row with its last message framed.
    #[must_use]
    pub fn apply(self, mut row: Row) -> Row {
        match &mut row.prompt {
            Prompt::Text(text) => *text = self.frame(text),
            Prompt::Messages(messages) => {
                if let Some(last) = messages.last_mut()
                    && let Some(text) = last.content.as_str()
                {
                    *last = Message { content: self.frame(text).into(), ..last.clone() };
                }
            }
        }
        row
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(name_of(&Self::ALL, *self))
    }
}

impl FromStr for Instruction {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        named("instruction", &Self::ALL, text)
    }
}

/// Columns of questions and answers, as the benchmarks' copies name them.
pub(crate) const COLUMNS: &[(&str, &str)] = &[
    ("problem", "answer"),
    ("Problem", "Answer"),
    ("question", "answer"),
    ("prompt", "reward_model.ground_truth"),
    ("prompt", "label"),
    ("prompt", "answer"),
    ("problem", "solution"),
];

/// The answer at the end of a worked solution: behind `####` (GSM8K), in the last `\boxed{}` (MATH, AIME);
/// another label is one already.
pub fn final_answer(label: &str) -> &str {
    if let Some((_, last)) = label.rsplit_once("####") {
        return last.trim();
    }
    match scorers::boxed::last_boxed(label) {
        Some(boxed) => boxed.trim(),
        None => label.trim(),
    }
}

/// A benchmark on the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Benchmark {
    /// 500 problems of MATH (Lightman et al., 2023).
    Math500,
    /// AIME I and II of 2024: 30 problems.
    Aime2024,
    /// AIME I and II of 2025: 30 problems.
    Aime2025,
    /// 1,319 problems of grade-school mathematics (Cobbe et al., 2021).
    Gsm8k,
}

impl Benchmark {
    const ALL: [(Self, &str); 4] = [
        (Self::Math500, "math500"),
        (Self::Aime2024, "aime2024"),
        (Self::Aime2025, "aime2025"),
        (Self::Gsm8k, "gsm8k"),
    ];

    /// Where its rows are, with the columns of question and answer named.
    ///
    /// # Errors
    /// None in practice: the splits are constants.
    pub fn dataset(self) -> Result<HuggingFaceDataset, Error> {
        let (repo, split) = match self {
            Self::Math500 => ("HuggingFaceH4/MATH-500", "test"),
            Self::Aime2024 => ("HuggingFaceH4/aime_2024", "train"),
            Self::Aime2025 => ("math-ai/aime25", "test"),
            Self::Gsm8k => ("openai/gsm8k", "test"),
        };
        let dataset = self.columns(HuggingFaceDataset::new(repo));
        let dataset = if self == Self::Gsm8k { dataset.config("main") } else { dataset };
        dataset.split(split).map_err(Error::Dataset)
    }

    /// Its rows in a file of this machine, with the hub's columns.
    pub fn dataset_in(self, file: impl Into<PathBuf>) -> HuggingFaceDataset {
        self.columns(HuggingFaceDataset::file(file))
    }

    fn columns(self, dataset: HuggingFaceDataset) -> HuggingFaceDataset {
        let question = if self == Self::Gsm8k { "question" } else { "problem" };
        dataset.input_key(question).label_key("answer")
    }

    /// Its file below a data folder, laid out as the seed's scripts expect (`MATH-500/test.jsonl`) or flat
    /// (`math500.jsonl`): the first that is there.
    pub fn find_in(self, folder: &Path) -> Option<PathBuf> {
        self.files().iter().map(|file| folder.join(file)).find(|file| file.is_file())
    }

    /// The names [`find_in`](Self::find_in) looks for, the preferred one first.
    pub fn files(self) -> &'static [&'static str] {
        match self {
            Self::Math500 => &["MATH-500/test.jsonl", "math500.jsonl"],
            Self::Aime2024 => {
                &["AIME_2024/aime_2024_problems.parquet", "aime24/test-00000-of-00001.parquet", "aime2024.jsonl"]
            }
            Self::Aime2025 => &["AIME_2025/train.jsonl", "aime25/test.jsonl", "aime2025.jsonl"],
            Self::Gsm8k => &["GSM8K/test.jsonl", "gsm8k.jsonl", "gsm8k_200.jsonl"],
        }
    }

    /// All of them.
    pub const fn all() -> [Self; 4] {
        [Self::Math500, Self::Aime2024, Self::Aime2025, Self::Gsm8k]
    }

    /// A label as the grader reads it: see [`final_answer`].
    #[must_use]
    pub fn label(self, mut row: Row) -> Row {
        row.label = final_answer(&row.label).to_owned();
        row
    }

    /// The questions of a dataset, framed, with labels as the grader reads them. Columns under the names that
    /// other copies of the benchmark use are found too.
    ///
    /// # Errors
    /// When it cannot be loaded, or has no column that is known to hold questions and answers.
    pub async fn load(self, dataset: &HuggingFaceDataset, instruction: Instruction) -> Result<Vec<Row>, Error> {
        let mut rows = dataset.load().await;
        for (question, answer) in COLUMNS {
            if !matches!(rows, Err(dataset::Error::NoColumn { .. })) {
                break;
            }
            let other = dataset.clone().input_key(*question).label_key(*answer).load().await;
            // The first complaint names the columns the benchmark has on the hub.
            if !matches!(other, Err(dataset::Error::NoColumn { .. })) {
                rows = other;
            }
        }
        let rows = rows.map_err(Error::Dataset)?;
        Ok(rows.into_iter().map(|row| instruction.apply(self.label(row))).collect())
    }
}

impl fmt::Display for Benchmark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(name_of(&Self::ALL, *self))
    }
}

impl FromStr for Benchmark {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        named("benchmark", &Self::ALL, text)
    }
}

pub(super) fn name_of<T: PartialEq>(all: &[(T, &'static str)], value: T) -> &'static str {
    all.iter().find(|(other, _)| *other == value).map_or("", |(_, name)| name)
}

pub(super) fn named<T: Copy>(setting: &'static str, all: &[(T, &str)], text: &str) -> Result<T, Error> {
    let found = all.iter().find(|(_, name)| *name == text).map(|(value, _)| *value);
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(_, name)| *name).collect();
        Error::Setting { setting, given: text.to_owned(), rule: format!("is one of {}", names.join(", ")) }
    })
}
