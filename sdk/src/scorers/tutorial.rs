//! The tutorial's scorer: the last `Answer: …` line, stripped of LaTeX dress, against the label.

use super::{Graded, INVALID, after_last_equals, last_answer, python};

/// What is cut out of an answer, in this order.
const REMOVED: [&str; 7] = ["$", "\\$", ",", " ", "\\text{", "}", "\\boxed{"];

/// 1 where the response's last `Answer: …` equals the label, −1 otherwise.
pub fn score_answer(response: &str, label: &str) -> f64 {
    grade(response, label).score
}

/// [`score_answer`] with what was compared.
///
/// A label that Python's `float` accepts is cut to its integer part: with the label `3.7`, `3` is
/// right and `3.7` is wrong. That is the tutorial's rule, kept as it is.
pub fn grade(response: &str, label: &str) -> Graded {
    let pred = normalize_answer(extract_answer(response));
    let gt = normalize_answer(label);
    let gt = python::float(&gt).and_then(python::int_text).unwrap_or(gt);
    Graded::compare(Some(pred), gt)
}

/// The text after the last `Answer:`, or [`INVALID`].
pub fn extract_answer(response: &str) -> &str {
    last_answer(response).map_or(INVALID, python::strip)
}

/// What follows the last `=`, without dollar signs, commas, spaces and braces.
pub fn normalize_answer(answer: &str) -> String {
    let answer = after_last_equals(python::strip(answer)).to_owned();
    let answer = REMOVED.iter().fold(answer, |text, removed| text.replace(removed, ""));
    python::strip(&answer).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_answer_counts() {
        assert_eq!(score_answer("Answer: 3\nno, ANSWER :\n 4", "4"), 1.0);
        assert_eq!(score_answer("anſwer: 4", "4"), 1.0);
        assert_eq!(score_answer("the answer is 4", "4"), -1.0);
        assert_eq!(extract_answer("nothing"), INVALID);
    }

    #[test]
    fn labels_are_cut_to_integers_and_answers_are_not() {
        let graded = grade("Answer: 3.7", "3.7");
        assert_eq!((graded.score, graded.gt.as_str()), (-1.0, "3"));
        assert_eq!(score_answer("Answer: x = 1000", "1e3"), 1.0);
        assert_eq!(score_answer("Answer: inf", "inf"), 1.0);
    }
}
