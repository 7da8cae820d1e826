//! The default grader: is the answer the same *value* as the label?
//!
//! The references compare texts, and mark right answers wrong for a full stop, a bold marker, a `\$`, a
//! decimal, a thousands separator, a full-width digit or a unit. This one reads both sides as mathematics
//! and compares values: exactly for rationals of any size, numerically (at fixed sample points, relative
//! tolerance 1e-9) for what has roots, functions or variables.
//!
//! Three outcomes, since a grader that cannot decide must not punish: [`Verdict::Right`],
//! [`Verdict::Wrong`] (also a response that states no answer), and [`Verdict::Ungradable`] with the reason.
//! Work and memory are bounded whatever the answer is: texts beyond [`LONGEST`] characters, nesting beyond
//! 64, more than 300 operations, numbers beyond 8192 bits, and a verdict that would cost more than 500,000
//! operations are not computed. The limits count work and not time: the verdict is the same on every machine.
//!
//! ```
//! use training_gym::scorers::math::{Verdict, grade};
//!
//! assert_eq!(grade("So **Answer:** \\$1,024.00.", "1024").verdict, Verdict::Right);
//! assert_eq!(grade(r"\boxed{\frac{\sqrt{8}}{2}}", r"\sqrt2").verdict, Verdict::Right);
//! assert_eq!(grade(r"\boxed{0.33}", r"\frac13").verdict, Verdict::Wrong);
//! assert!(matches!(grade(r"\boxed{9^{9^{9^9}}}", "5").verdict, Verdict::Ungradable(_)));
//! ```

mod clean;
mod compare;
mod effort;
mod extract;
mod group;
mod number;
mod parse;
mod token;
mod value;

#[cfg(test)]
mod tests;

use std::fmt;

/// Characters of an answer that are read as mathematics; a longer one is compared as text.
pub const LONGEST: usize = 2000;

/// Why there is no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The label is empty.
    NoLabel,
    /// An answer or label is longer than [`LONGEST`] characters.
    TooLong,
    /// Nested deeper than is read.
    TooDeep,
    /// A number too large to compute.
    TooLarge,
    /// More to compute than a verdict may cost.
    TooMuch,
    /// A response of more than [`LONGEST_RESPONSE`](crate::scorers::LONGEST_RESPONSE) bytes.
    ResponseTooLong,
    /// A label of more than [`LONGEST_LABEL`](crate::scorers::LONGEST_LABEL) bytes.
    LabelTooLong,
    /// The texts differ, and at least one is not mathematics that is understood.
    NotUnderstood,
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLabel => out.write_str("the label is empty"),
            Self::TooLong => write!(out, "longer than {LONGEST} characters"),
            Self::TooDeep => out.write_str("nested too deeply"),
            Self::TooLarge => out.write_str("a number too large to compute"),
            Self::TooMuch => out.write_str("more to compute than a verdict may cost"),
            Self::ResponseTooLong => {
                write!(out, "the response has more than {} bytes", crate::scorers::LONGEST_RESPONSE)
            }
            Self::LabelTooLong => write!(out, "the label has more than {} bytes", crate::scorers::LONGEST_LABEL),
            Self::NotUnderstood => out.write_str("the texts differ, and one is not mathematics that is understood"),
        }
    }
}

/// What the grader says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The same value as the label.
    Right,
    /// Another value, or no answer at all.
    Wrong,
    /// Not decided.
    Ungradable(Reason),
}

/// A verdict and what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grade {
    /// The verdict.
    pub verdict: Verdict,
    /// The answer as the response states it; `None` where it states none.
    pub answer: Option<String>,
}

impl Grade {
    /// 1 for right, 0 for wrong.
    ///
    /// # Errors
    /// The reason where it is neither: a reward function returns it, and the sample is left out.
    pub fn score(&self) -> Result<f64, Reason> {
        match self.verdict {
            Verdict::Right => Ok(1.0),
            Verdict::Wrong => Ok(0.0),
            Verdict::Ungradable(reason) => Err(reason),
        }
    }
}

impl std::error::Error for Reason {}

/// Grades what `response` states last: the content of its last `\boxed{}`, else the text after its last
/// `Answer:`, `answer is` or `####`.
pub fn grade(response: &str, label: &str) -> Grade {
    let answer = extract::stated(response);
    let verdict = answer.map_or(Verdict::Wrong, |answer| equivalent(answer, label));
    let verdict = if label.trim().is_empty() { Verdict::Ungradable(Reason::NoLabel) } else { verdict };
    Grade { verdict, answer: answer.map(str::to_owned) }
}

/// The answer a response states, without dress: what a majority is counted by. Two ways to write one value
/// that only arithmetic can tell to be the same are two answers.
pub fn stated_form(response: &str) -> Option<String> {
    let plain = clean::clean(extract::stated(response)?);
    let plain = clean::ungrouped(&plain).unwrap_or(plain);
    Some(plain.split_whitespace().collect())
}

/// Whether an answer has the label's value.
pub fn equivalent(answer: &str, label: &str) -> Verdict {
    if answer.trim() == label.trim() {
        return Verdict::Right;
    }
    // `take` so that a megabyte is not counted to its end.
    if [answer, label].iter().any(|text| text.chars().take(LONGEST + 1).count() > LONGEST) {
        return Verdict::Ungradable(Reason::TooLong);
    }
    compare::compare(answer, label)
}
