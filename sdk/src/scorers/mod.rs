//! Rules that say whether a response answers a math problem, each equal to its Python reference.
//!
//! | room | reads | right / wrong | reference |
//! |---|---|---|---|
//! | [`tutorial`] | the last `Answer: …` line | 1 / −1 | the on-policy-distillation tutorial's `score_answer` |
//! | [`dapo`] | the last `Answer: …` of the last 300 characters, or a strict `\boxed{}` | 1 / −1 | DAPO's `math_dapo` with Minerva's normalisation |
//! | [`boxed`] | the last `\boxed{}` | 1 / 0 | the MATH benchmark's `is_equiv` |
//! | [`math`] | the last `\boxed{}`, else the last `Answer:` or `####` | right / wrong / ungradable, by value | none: the default |
//!
//! The references are Python, and a reward that differs from them in a corner differs in training.
//! [`python`] holds the corners: which characters are white space or digits, and what `float` accepts.
//!
//! ```
//! use training_gym::scorers::{boxed, dapo, score_answer};
//!
//! assert_eq!(score_answer("So x = 4.\nAnswer: $1,024$", "1024"), 1.0);
//! assert_eq!(dapo::grade("Answer: 5 square feet", "5").score, 1.0);
//! assert_eq!(boxed::score(r"\boxed{0.5}", r"\frac{1}{2}"), 1.0);
//! ```

pub mod boxed;
pub mod dapo;
pub mod math;
pub mod python;
pub mod tutorial;

use std::sync::LazyLock;

use regex::Regex;

pub use tutorial::score_answer;

/// Bytes of a response that are graded; see [`Grader`](crate::eval::Grader).
pub const LONGEST_RESPONSE: usize = 4 << 20;
/// Bytes of a label that are graded.
pub const LONGEST_LABEL: usize = 1 << 16;

/// What a response that names no answer is taken to say.
pub const INVALID: &str = "[INVALID]";

/// A score, and the two texts that were compared for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Graded {
    /// 1 where they are equal, −1 otherwise.
    pub score: f64,
    /// The answer read from the response, normalised by the rule; `None` where the rule found none
    /// and has no word for that.
    pub pred: Option<String>,
    /// The label, normalised by the rule.
    pub gt: String,
}

impl Graded {
    fn compare(pred: Option<String>, gt: String) -> Self {
        let score = if pred.as_ref() == Some(&gt) { 1.0 } else { -1.0 };
        Self { score, pred, gt }
    }

    /// Whether the answer is right.
    pub fn is_correct(&self) -> bool {
        self.score > 0.0
    }
}

/// The text after the last `Answer:` of `response`, up to the end of its line.
///
/// Python's `(?i)Answer\s*:\s*([^\n]+)`: its `\s` has four control characters that Rust's lacks.
fn last_answer(response: &str) -> Option<&str> {
    static ANSWER: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)Answer[\s\x1c-\x1f]*:[\s\x1c-\x1f]*([^\n]+)"));
    let last = ANSWER.captures_iter(response).last()?;
    last.get(1).map(|text| text.as_str())
}

/// What follows the last `=`; all of `text` where there is none.
fn after_last_equals(text: &str) -> &str {
    text.rsplit('=').next().unwrap_or(text)
}

/// Compiles a pattern that is part of this program.
fn pattern(source: &str) -> Regex {
    Regex::new(source).expect("a valid constant pattern")
}
