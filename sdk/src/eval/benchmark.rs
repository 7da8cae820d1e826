//! The benchmarks the papers report, and how their questions are put.

use std::fmt;
use std::str::FromStr;

use training_gym_core::sample::{Message, Prompt, Row};

use super::Error;
use crate::dataset::HuggingFaceDataset;
use crate::scorers::{Graded, boxed, dapo, math, score_answer};

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
            Self::Dapo => format!(
                "Solve the following math problem step by step. The last line of your response should be of the form \
                 Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{question}\n\nRemember to \
                 put your answer on its own line after \"Answer:\"."
            ),
            Self::None => question.to_owned(),
        }
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

/// The rule that says whether a reply is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grader {
    /// [`math`]: by value, three outcomes.
    #[default]
    Math,
    /// [`boxed`]: the MATH benchmark's rule, verl's `math_reward`.
    MathReward,
    /// [`dapo`]: DAPO's rule, verl's `math_dapo`.
    MathDapo,
    /// [`score_answer`]: the tutorial's rule.
    Tutorial,
}

impl Grader {
    const ALL: [(Self, &str); 4] = [
        (Self::Math, "math"),
        (Self::MathReward, "math_reward"),
        (Self::MathDapo, "math_dapo"),
        (Self::Tutorial, "tutorial"),
    ];

    /// 1 for a right response, 0 for a wrong one.
    ///
    /// # Errors
    /// Where the grader cannot decide, why.
    pub fn score(self, response: &str, label: &str) -> Result<f64, math::Reason> {
        let correct = |graded: Graded| if graded.is_correct() { 1.0 } else { 0.0 };
        match self {
            Self::Math => math::grade(response, label).score(),
            Self::MathReward => Ok(boxed::score(response, label)),
            Self::MathDapo => Ok(correct(dapo::grade(response, label))),
            Self::Tutorial => Ok(score_answer(response, label).max(0.0)),
        }
    }
}

impl fmt::Display for Grader {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(name_of(&Self::ALL, *self))
    }
}

impl FromStr for Grader {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        named("grader", &Self::ALL, text)
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
        let (repo, question, split) = match self {
            Self::Math500 => ("HuggingFaceH4/MATH-500", "problem", "test"),
            Self::Aime2024 => ("HuggingFaceH4/aime_2024", "problem", "train"),
            Self::Aime2025 => ("math-ai/aime25", "problem", "test"),
            Self::Gsm8k => ("openai/gsm8k", "question", "test"),
        };
        let dataset = HuggingFaceDataset::new(repo).input_key(question).label_key("answer");
        dataset.split(split).map_err(Error::Dataset)
    }

    /// A label as the grader reads it: GSM8K's ends a worked solution with `#### 18`.
    #[must_use]
    pub fn label(self, mut row: Row) -> Row {
        if self == Self::Gsm8k
            && let Some((_, last)) = row.label.rsplit_once("####")
        {
            row.label = last.trim().to_owned();
        }
        row
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

fn name_of<T: PartialEq>(all: &[(T, &'static str)], value: T) -> &'static str {
    all.iter().find(|(other, _)| *other == value).map_or("", |(_, name)| name)
}

fn named<T: Copy>(setting: &'static str, all: &[(T, &str)], text: &str) -> Result<T, Error> {
    let found = all.iter().find(|(_, name)| *name == text).map(|(value, _)| *value);
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(_, name)| *name).collect();
        Error::Setting { setting, given: text.to_owned(), rule: format!("is one of {}", names.join(", ")) }
    })
}
