//! The graders by name, bounded.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::Error;
use super::benchmark::{name_of, named};
use crate::scorers::{self, LONGEST_LABEL, LONGEST_RESPONSE, boxed, dapo, math, tutorial};

/// The rule that says whether a reply is right.
///
/// Whatever a response or label holds, a judgement takes bounded time and memory: more than
/// [`LONGEST_RESPONSE`] bytes of a response ([`Grader::MathDapo`] reads its end alone) or [`LONGEST_LABEL`] of
/// a label are not read, up to there the reference rules take time in proportion to the length, and
/// [`math`] has limits of its own. The limits count bytes and operations, not seconds: the judgement is the same on
/// every machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grader {
    /// [`math`]: by value, three outcomes.
    #[default]
    Math,
    /// [`boxed`]: the MATH benchmark's rule, verl's `math_reward`.
    MathReward,
    /// [`dapo`]: DAPO's rule, verl's `math_dapo`.
    MathDapo,
    /// [`tutorial`]: the tutorial's rule.
    Tutorial,
}

/// What a grader says of one response, and what it took for the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: math::Verdict,
    /// The answer it read, in its own normal form where it has one; `None` where it found none.
    pub answer: Option<String>,
}

impl Judgement {
    /// One word: `right`, `wrong` or `ungradable`.
    pub fn word(&self) -> &'static str {
        match self.verdict {
            math::Verdict::Right => "right",
            math::Verdict::Wrong => "wrong",
            math::Verdict::Ungradable(_) => "ungradable",
        }
    }

    /// Why there is no verdict.
    pub fn reason(&self) -> Option<math::Reason> {
        match self.verdict {
            math::Verdict::Ungradable(reason) => Some(reason),
            math::Verdict::Right | math::Verdict::Wrong => None,
        }
    }
}

impl Serialize for Judgement {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Said<'a> {
            verdict: &'a str,
            answer: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            reason: Option<String>,
        }
        let reason = self.reason().map(|reason| reason.to_string());
        Said { verdict: self.word(), answer: self.answer.as_deref(), reason }.serialize(serializer)
    }
}

impl Grader {
    const ALL: [(Self, &str); 4] = [
        (Self::Math, "math"),
        (Self::MathReward, "math_reward"),
        (Self::MathDapo, "math_dapo"),
        (Self::Tutorial, "tutorial"),
    ];

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|(grader, _)| grader)
    }

    /// What it says of a response.
    pub fn judge(self, response: &str, label: &str) -> Judgement {
        let verdict = |right: bool| if right { math::Verdict::Right } else { math::Verdict::Wrong };
        let reads_all = self != Self::MathDapo;
        let cut_off = |reason| Judgement { verdict: math::Verdict::Ungradable(reason), answer: None };
        if label.len() > LONGEST_LABEL {
            return cut_off(math::Reason::LabelTooLong);
        }
        if reads_all && response.len() > LONGEST_RESPONSE {
            return cut_off(math::Reason::ResponseTooLong);
        }
        let found = |pred: Option<String>| pred.filter(|pred| pred != scorers::INVALID);
        match self {
            Self::Math => {
                let math::Grade { verdict, answer } = math::grade(response, label);
                Judgement { verdict, answer }
            }
            Self::MathReward => Judgement {
                verdict: verdict(boxed::score(response, label) > 0.0),
                answer: boxed::last_boxed(response).map(str::to_owned),
            },
            Self::MathDapo => {
                let graded = dapo::grade(response, label);
                Judgement { verdict: verdict(graded.is_correct()), answer: found(graded.pred) }
            }
            Self::Tutorial => {
                let graded = tutorial::grade(response, label);
                Judgement { verdict: verdict(graded.is_correct()), answer: found(graded.pred) }
            }
        }
    }

    /// 1 for a right response, 0 for a wrong one.
    ///
    /// # Errors
    /// Where the grader cannot decide, why: a reward function returns it, and the sample is left out.
    pub fn score(self, response: &str, label: &str) -> Result<f64, math::Reason> {
        match self.judge(response, label).verdict {
            math::Verdict::Right => Ok(1.0),
            math::Verdict::Wrong => Ok(0.0),
            math::Verdict::Ungradable(reason) => Err(reason),
        }
    }

    /// What a majority is counted by: the answer a response states, as this grader reads it.
    pub fn vote(self, response: &str) -> Option<String> {
        match self {
            Self::Math if response.len() > LONGEST_RESPONSE => None,
            Self::Math => math::stated_form(response),
            _ => self.judge(response, "").answer,
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Answers made to hurt whoever reads them.
    fn hostile() -> Vec<(&'static str, String)> {
        let nested = |open: &str, close: &str, depth| format!("{}1{}", open.repeat(depth), close.repeat(depth));
        let answers = [
            ("a tower of powers", "9^{9^{9^{9^{9^{9^{9}}}}}}".to_owned()),
            ("a tower without braces", "9^9^9^9^9^9^9^9".to_owned()),
            ("a million braces", "{".repeat(1 << 20)),
            ("a million closed braces", nested("{", "}", 1 << 19)),
            ("deep brackets", nested("(", ")", 900)),
            ("deep roots", nested(r"\sqrt{", "}", 250)),
            ("deep indices", nested("x_{", "}", 60)),
            ("indices of indices", nested("x_{1+x_{", "}}", 30)),
            ("deep fractions", nested(r"\frac{1}{", "}", 190)),
            ("factorials of factorials", format!("5{}", "!".repeat(1900))),
            ("a long sum", vec!["1"; 990].join("+")),
            ("a long product", vec!["x"; 990].join("*")),
            ("a sum of large numbers", vec!["9^{7000}"; 200].join("+")),
            ("a long list", vec!["x"; 900].join(",")),
            ("a list of sums", vec![r"\sqrt2+\pi+x"; 120].join(",")),
            ("many signs", vec![r"\pm 1"; 300].join(r"\pm")),
            ("many minus signs", format!("{}5", "-".repeat(1900))),
            ("a giant integer", "9".repeat(1_000_000)),
            ("ten million decimals", format!("0.{}", "1".repeat(10_000_000))),
            ("a large exponent", "1e999999999999999999".to_owned()),
            ("a small exponent", "1e-1999".to_owned()),
            ("a giant root", r"\sqrt[4000000000]{2}".to_owned()),
            ("a giant binomial", r"\binom{4000000000}{2000000000}".to_owned()),
            ("a giant period", format!(r"0.\overline{{{}}}", "7".repeat(1900))),
            ("relations of relations", nested("(x=", ")", 300)),
            ("many boxes", r"\boxed{".repeat(100_000)),
            ("many answers", "answer: answer is ".repeat(60_000)),
            ("many dollars", "$ $".repeat(300_000)),
            ("white space", " \n".repeat(500_000)),
            ("zero bytes", "\0".repeat(1 << 20)),
        ];
        answers.into_iter().collect()
    }

    #[test]
    fn an_answer_made_to_hurt_is_cut_off_by_every_grader() {
        for (name, answer) in hostile() {
            let responses = [
                format!(r"So \boxed{{{answer}}}"),
                format!("So\nAnswer: {answer}"),
                format!("Answer: {answer}\n{answer}"),
            ];
            for grader in Grader::all() {
                let begun = Instant::now();
                for response in &responses {
                    let judged = grader.judge(response, "5");
                    assert_ne!(judged.verdict, math::Verdict::Right, "{grader}, {name}");
                    let _ = grader.vote(response);
                }
                // As the label: nobody trusts a file.
                let _ = grader.judge("Answer: 5, \\boxed{5}", &answer);
                let _ = grader.judge(&responses[0], &answer);
                println!("{grader}, {name}: {:?}", begun.elapsed());
                // Unbounded, they would take for ever. These are eight judgements, without optimisation.
                assert!(begun.elapsed() < Duration::from_secs(20), "{grader}, {name}: {:?}", begun.elapsed());
            }
        }
    }

    #[test]
    fn what_is_cut_off_is_ungradable_and_says_why() {
        let judged = Grader::Math.judge(r"\boxed{9^{9^{9^9}}}", "5");
        assert_eq!((judged.word(), judged.reason()), ("ungradable", Some(math::Reason::TooLarge)));
        let long = format!("Answer: 0.{}", "1".repeat(10_000_000));
        for grader in [Grader::Math, Grader::MathReward, Grader::Tutorial] {
            assert_eq!(grader.judge(&long, "5").reason(), Some(math::Reason::ResponseTooLong), "{grader}");
        }
        let judged = Grader::MathDapo.judge(&long, "5");
        assert_eq!((judged.word(), judged.answer), ("wrong", None), "it reads the last 300 characters");
        let json = serde_json::json!(Grader::Math.judge(&long, "5"));
        assert!(
            json["verdict"] == "ungradable" && json["reason"].as_str().unwrap().contains("4194304 bytes"),
            "{json}"
        );
    }

    #[test]
    fn graders_differ_where_their_rules_do() {
        let words = |response: &str, label: &str| -> Vec<&str> {
            Grader::all().map(|grader| grader.judge(response, label).word()).collect()
        };
        assert_eq!(words(r"\boxed{1,024}", "1024"), ["right", "wrong", "wrong", "wrong"]);
        assert_eq!(words("Answer: 1,024", "1024"), ["right", "wrong", "right", "right"]);
        assert_eq!(words(r"\boxed{0.5}", r"\frac{1}{2}"), ["right", "right", "wrong", "wrong"]);
        assert_eq!(Grader::MathReward.judge(r"\boxed{x} then \boxed{7}", "7").answer.as_deref(), Some("7"));
        assert_eq!(Grader::Tutorial.judge("no", "7").answer, None);
        assert_eq!(Grader::MathDapo.vote("Answer: 7 cm").as_deref(), Some("7"));
    }
}
