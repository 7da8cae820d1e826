//! DAPO's rule: the last `Answer: …` near the end, normalised as Minerva does, against the label.
//!
//! Yu et al., "DAPO" (2025), with the normalisation of Lewkowycz et al., "Solving Quantitative
//! Reasoning Problems with Language Models" (2022), appendix D.1.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::{Graded, INVALID, after_last_equals, last_answer, pattern, python};

/// Only so many last characters of a response are looked at.
const LOOKED_AT: usize = 300;
/// And of these so many, where a box is asked for.
const STRICT_LOOKED_AT: usize = 100;

/// What replaces what, in this order.
const SUBSTITUTIONS: [(&str, &str); 10] = [
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    (r"\$", ""),
    (r"\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (r",\text{and}", ","),
    (r"\text{and}", ","),
    (r"\text{m}", r"\text{}"),
];

/// Units and LaTeX dress that are cut out, in this order, wherever they stand.
const REMOVED: [&str; 41] = [
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "hours",
    "km",
    "units",
    r"\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
    r"\text{s}",
    r"\text{.}",
    "\\text{\ns}",
    r"\text{}^2",
    r"\text{}^3",
    "\\text{\n}",
    r"\text{}",
    r"\mathrm{th}",
    r"^\circ",
    r"^{\circ}",
    r"\;",
    r",\!",
    "{,}",
    "\"",
    r"\dots",
];

/// 1 where the last `Answer: …` of the last 300 characters equals the label, both normalised.
pub fn grade(response: &str, ground_truth: &str) -> Graded {
    let answer = last_answer(python::tail(response, LOOKED_AT)).unwrap_or(INVALID);
    Graded::compare(Some(normalize_final_answer(answer)), normalize_final_answer(ground_truth))
}

/// 1 where the last `\boxed{…}` of the last 100 characters is the label, letter by letter.
/// `pred` is `None` where there is no box.
pub fn grade_strict(response: &str, ground_truth: &str) -> Graded {
    let looked_at = python::tail(python::tail(response, LOOKED_AT), STRICT_LOOKED_AT);
    Graded::compare(last_boxed(looked_at).map(str::to_owned), ground_truth.to_owned())
}

/// What is in the last `\boxed{…}`; `None` where there is none or its brace never closes.
fn last_boxed(text: &str) -> Option<&str> {
    const OPEN: &str = r"\boxed{";
    let inside = &text[text.rfind(OPEN)? + OPEN.len()..];
    let mut depth = 1;
    for (at, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&inside[..at]);
        }
    }
    None
}

/// Minerva's normal form of a final answer: what follows the last `=`, without units, spaces and
/// dollar signs, `\frac12` written as `\frac{1}{2}`, thousands without commas.
pub fn normalize_final_answer(answer: &str) -> String {
    static DOLLARS: LazyLock<Regex> = LazyLock::new(|| pattern(r"(.*?)(\$)(.*?)(\$)(.*)"));
    static TEXT: LazyLock<Regex> = LazyLock::new(|| pattern(r"(\\text\{)(.*?)(\})"));
    static TEXTBF: LazyLock<Regex> = LazyLock::new(|| pattern(r"(\\textbf\{)(.*?)(\})"));
    static OVERLINE: LazyLock<Regex> = LazyLock::new(|| pattern(r"(\\overline\{)(.*?)(\})"));
    static BOXED: LazyLock<Regex> = LazyLock::new(|| pattern(r"(\\boxed\{)(.*)(\})"));
    static FRAC: LazyLock<Regex> = LazyLock::new(|| pattern(r"(frac)([^{])(.)"));
    static SQRT: LazyLock<Regex> = LazyLock::new(|| pattern(r"(sqrt)([^{])"));

    let mut answer = after_last_equals(answer).to_owned();
    for (from, to) in SUBSTITUTIONS {
        answer = answer.replace(from, to);
    }
    for removed in REMOVED {
        answer = answer.replace(removed, "");
    }
    answer = DOLLARS.replace_all(&answer, |found: &Captures<'_>| format!("${}$", &found[3])).into_owned();
    for wrapper in [&TEXT, &TEXTBF, &OVERLINE, &BOXED] {
        answer = wrapper.replace_all(&answer, |found: &Captures<'_>| found[2].to_owned()).into_owned();
    }
    answer = FRAC
        .replace_all(&answer, |found: &Captures<'_>| format!("frac{{{}}}{{{}}}", &found[2], &found[3]))
        .into_owned();
    answer = SQRT.replace_all(&answer, |found: &Captures<'_>| format!("sqrt{{{}}}", &found[2])).into_owned();
    answer = answer.replace('$', "");
    let without_commas = answer.replace(',', "");
    if python::is_digit(&without_commas) {
        answer = without_commas;
    }
    python::strip(&answer).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_compared_in_normal_form() {
        for (response, label) in [
            ("**Answer:** $120$", "120"),
            ("Answer: 1,234", "1234"),
            (r"Answer: \frac34", r"\frac{3}{4}"),
            (r"Answer: 10 \text{m}^2", "10"),
            (r"Answer: \boxed{5}", "5"),
        ] {
            assert_eq!(grade(response, label).score, 1.0, "{response}");
        }
        assert_eq!(grade("Answer: 1,234.5", "1234.5").score, -1.0);
    }

    #[test]
    fn only_the_end_is_looked_at() {
        let far = format!("Answer: 5\n{}", "é".repeat(300));
        assert_eq!(grade(&far, "5").pred.as_deref(), Some(INVALID));
        let near = format!("Answer: 5\n{}", "é".repeat(290));
        assert_eq!(grade(&near, "5").score, 1.0);
        let boxed = format!(r"\boxed{{5}}{}", "é".repeat(91));
        assert_eq!(grade_strict(&boxed, "5").score, 1.0);
        assert_eq!(grade_strict(&format!("{boxed}é"), "5").pred, None);
    }
}
