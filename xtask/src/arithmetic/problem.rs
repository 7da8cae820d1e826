//! Arithmetic problems: a starting number and a few operations, told as an expression or a story.

use sha2::{Digest, Sha256};

use super::random::Random;
use super::vocabulary::{ADDING, ITEMS, NAMES, REMINDER, REQUEST, SUBTRACTING};

/// What is done to the running value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Add,
    Subtract,
    Multiply,
}

impl Operation {
    /// The sign as it is written.
    pub(super) fn sign(self) -> char {
        match self {
            Self::Add => '+',
            Self::Subtract => '-',
            Self::Multiply => '*',
        }
    }

    /// The value after it.
    pub(super) fn apply(self, value: i64, operand: i64) -> i64 {
        match self {
            Self::Add => value + operand,
            Self::Subtract => value - operand,
            Self::Multiply => value * operand,
        }
    }
}

/// One operation with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) operation: Operation,
    pub(super) operand: i64,
}

/// Which rows a problem may be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Split {
    /// Pretraining and distillation.
    Train,
    /// Evaluation, and nothing else.
    Eval,
}

/// Largest value of a problem.
const LIMIT: i64 = 99;

/// A chain of operations whose values all lie in 1..=99.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) start: i64,
    pub(super) steps: Vec<Step>,
}

impl Problem {
    /// A problem of the split with this many operations.
    pub(super) fn draw(random: &mut Random, operations: usize, split: Split) -> Self {
        loop {
            if let Some(problem) = Self::try_draw(random, operations)
                && problem.split() == split
            {
                return problem;
            }
        }
    }

    fn try_draw(random: &mut Random, operations: usize) -> Option<Self> {
        use Operation::{Add, Multiply, Subtract};
        let start = random.between(3, 60);
        let mut value = start;
        let mut steps = Vec::with_capacity(operations);
        for _ in 0..operations {
            let operation = *random.pick(&[Add, Add, Subtract, Subtract, Multiply]);
            let largest = match operation {
                Add => (LIMIT - value).min(9),
                Subtract => (value - 1).min(9),
                Multiply => (LIMIT / value).min(9),
            };
            if largest < 2 {
                return None;
            }
            let operand = random.between(2, largest);
            value = operation.apply(value, operand);
            steps.push(Step { operation, operand });
        }
        Some(Self { start, steps })
    }

    /// The split of a problem, by the hash of its numbers: one in ten is held out. Its wording has
    /// no say, so a held-out problem is never met in other words.
    pub(super) fn split(&self) -> Split {
        let mut written = self.start.to_string();
        for step in &self.steps {
            written.push(step.operation.sign());
            written.push_str(&step.operand.to_string());
        }
        if Sha256::digest(written)[0] < 26 { Split::Eval } else { Split::Train }
    }

    /// The answer.
    pub(super) fn answer(&self) -> i64 {
        self.steps.iter().fold(self.start, |value, step| step.operation.apply(value, step.operand))
    }

    /// The problem in words, as an expression or a story by the toss of a coin, in DAPO's prompt.
    pub(super) fn prompt(&self, random: &mut Random) -> String {
        let told = if random.chance(0.5) { self.expression() } else { self.story(random) };
        format!("{REQUEST}{told}{REMINDER}")
    }

    fn expression(&self) -> String {
        let mut written = self.start.to_string();
        for (index, step) in self.steps.iter().enumerate() {
            if index > 0 {
                written = format!("({written})");
            }
            written = format!("{written} {} {}", step.operation.sign(), step.operand);
        }
        format!("What is {written}?")
    }

    fn story(&self, random: &mut Random) -> String {
        let (name, items) = (*random.pick(&NAMES), *random.pick(&ITEMS));
        let mut told = format!("{name} has {}{items}", self.start);
        for step in &self.steps {
            let operand = step.operand;
            told += &match step.operation {
                Operation::Add => format!("{}{operand}", random.pick(&ADDING)),
                Operation::Subtract => format!("{}{operand}", random.pick(&SUBTRACTING)),
                Operation::Multiply => format!(", then has {operand} times as many"),
            };
        }
        format!("{told}. How many{items} are there now?")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem() -> Problem {
        let step = |operation, operand| Step { operation, operand };
        let steps = vec![step(Operation::Add, 8), step(Operation::Multiply, 3), step(Operation::Subtract, 6)];
        Problem { start: 7, steps }
    }

    #[test]
    fn an_expression_groups_from_the_left() {
        assert_eq!(problem().expression(), "What is ((7 + 8) * 3) - 6?");
        assert_eq!(problem().answer(), 39);
    }

    #[test]
    fn a_story_tells_every_step() {
        let story = problem().story(&mut Random::new(3));
        assert!(story.contains(" has 7 ") && story.contains(", then has 3 times as many"), "{story}");
        assert!(story.ends_with(" are there now?") && !story.contains("  "), "{story}");
    }

    #[test]
    fn values_stay_between_1_and_99_and_one_problem_in_ten_is_held_out() {
        let mut random = Random::new(1);
        let mut held_out = 0;
        for _ in 0..2000 {
            let Some(problem) = Problem::try_draw(&mut random, 4) else { continue };
            let mut value = problem.start;
            for step in &problem.steps {
                value = step.operation.apply(value, step.operand);
                assert!((1..=99).contains(&value), "{problem:?}");
            }
            held_out += usize::from(problem.split() == Split::Eval);
        }
        assert!((60..300).contains(&held_out), "{held_out}");
    }
}
