//! Worked solutions, as the models learn to write them.

use serde_json::{Value, json};

use super::problem::Problem;
use super::random::Random;

/// A solution as text; what lies in `unscored` (byte ranges) is read but not learnt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Trace {
    pub(super) text: String,
    pub(super) unscored: Vec<(usize, usize)>,
}

/// How often a trace goes wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Corruption {
    /// Share of steps with one wrong digit in the result.
    pub(super) result: f64,
    /// Share of steps with one wrong digit in the operand.
    pub(super) operand: f64,
}

impl Corruption {
    /// Every step is right.
    pub(super) const NONE: Self = Self { result: 0.0, operand: 0.0 };
}

/// A value above this is not continued: no student gets there.
const LIMIT: i64 = 999;

impl Trace {
    /// One line a step, then the answer.
    ///
    /// A model that has only ever read perfect solutions says nothing useful about a solution with
    /// a mistake in it. So some digits are made wrong, left unscored, and the solution goes on
    /// *consistently* from there: what a teacher should think of the rest of a student's response.
    pub(super) fn write(problem: &Problem, corruption: Corruption, random: &mut Random) -> Self {
        loop {
            if let Some(trace) = Self::try_write(problem, corruption, random) {
                return trace;
            }
        }
    }

    fn try_write(problem: &Problem, corruption: Corruption, random: &mut Random) -> Option<Self> {
        let mut trace = Self::default();
        let mut value = problem.start;
        for step in &problem.steps {
            let sign = step.operation.sign();
            trace.text += &format!("{value} {sign} ");
            let operand = trace.push_number(step.operand, corruption.operand, random);
            trace.text += " = ";
            let result = step.operation.apply(value, operand);
            if !(0..=LIMIT).contains(&result) {
                return None;
            }
            value = trace.push_number(result, corruption.result, random);
            trace.text.push('\n');
        }
        trace.text += &format!("Answer: {value}");
        Some(trace)
    }

    /// Writes a number, in a share of calls with one digit wrong; returns what it wrote.
    fn push_number(&mut self, number: i64, share: f64, random: &mut Random) -> i64 {
        let mut digits = number.to_string().into_bytes();
        if random.chance(share) {
            let place = random.between(0, digits.len() as i64 - 1) as usize;
            let right = digits[place];
            let lowest = if place == 0 && digits.len() > 1 { b'1' } else { b'0' };
            // Students miss by one or two more often than by six.
            let near = random.chance(0.6);
            let wrong: Vec<u8> =
                (lowest..=b'9').filter(|&digit| digit != right && (!near || digit.abs_diff(right) <= 2)).collect();
            digits[place] = *random.pick(&wrong);
            self.unscored.push((self.text.len() + place, self.text.len() + place + 1));
        }
        let written = String::from_utf8(digits).expect("digits are ASCII");
        self.text += &written;
        written.parse().expect("digits are a number")
    }

    /// The row a model is pretrained on.
    pub(super) fn row(&self, prompt: &str) -> Value {
        json!({
            "prompt": [{ "role": "user", "content": prompt }],
            "response": self.text,
            "unscored": self.unscored.iter().map(|&(from, to)| [from, to]).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::{Operation, Step};
    use super::*;

    fn problem() -> Problem {
        let step = |operation, operand| Step { operation, operand };
        Problem { start: 15, steps: vec![step(Operation::Add, 27), step(Operation::Subtract, 6)] }
    }

    #[test]
    fn a_perfect_trace_ends_with_the_answer_and_is_scored_throughout() {
        let trace = Trace::write(&problem(), Corruption::NONE, &mut Random::new(0));
        assert_eq!(trace.text, "15 + 27 = 42\n42 - 6 = 36\nAnswer: 36");
        assert_eq!(trace.unscored, []);
    }

    #[test]
    fn a_corrupted_trace_goes_on_from_its_mistakes() {
        let corruption = Corruption { result: 0.9, operand: 0.3 };
        let mut random = Random::new(5);
        for _ in 0..100 {
            let trace = Trace::write(&problem(), corruption, &mut random);
            let lines: Vec<&str> = trace.text.lines().collect();
            let result = |line: &str| line.rsplit_once(' ').map(|(_, last)| last.to_owned());
            assert!(lines[1].starts_with(&format!("{} - ", result(lines[0]).unwrap())), "{trace:?}");
            assert_eq!(result(lines[2]), result(lines[1]), "{trace:?}");
            for &(from, to) in &trace.unscored {
                assert!(trace.text[from..to].bytes().all(|byte| byte.is_ascii_digit()), "{trace:?}");
            }
        }
    }
}
