//! What is known about a response after it was drawn: the person's reward, the teacher's
//! log-probabilities. No gradients here, and nothing of the model.

mod asking;
pub mod reward;
pub mod share;
pub mod teacher;
pub mod worker;

use training_gym_core::record::Cause;

/// Why scoring cannot go on. A single sample that fails is *ungraded*, not an error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The reward worker does not start or stay.
    #[error("the reward worker {what}{}", last_words(.log))]
    Worker {
        /// What it did.
        what: String,
        /// Its last output.
        log: String,
    },
    /// The program does not have the function.
    #[error("the program has no {kind} `{name}`; it has: {}", .known.join(", "))]
    UnknownFunction {
        /// `reward function`, `post-process function` or `rollout environment`.
        kind: &'static str,
        /// As asked.
        name: String,
        /// What it registered.
        known: Vec<String>,
    },
    /// Too many samples are ungraded.
    #[error(
        "{kind} `{function}` left {ungraded} of {samples} samples of step {step} ungraded \
         (allowed: {allowed}); the last one: {reason}"
    )]
    TooManyUngraded {
        /// `reward function`, `post-process function` or `rollout environment`: whose sample was one too many.
        kind: &'static str,
        /// The function.
        function: String,
        /// The step.
        step: u64,
        /// How many, by either function.
        ungraded: usize,
        /// Of how many.
        samples: usize,
        /// How many may be.
        allowed: usize,
        /// Why the last one was.
        reason: String,
    },
    /// The group-level function failed as a whole: there is no reward to go on with.
    #[error("reward post-process function `{function}` failed at step {step}: {reason}")]
    PostProcess {
        /// The function.
        function: String,
        /// The step.
        step: u64,
        /// Its message.
        reason: String,
    },
    /// The teacher.
    #[error("teacher at {url}: {what}")]
    Teacher {
        /// Where it was asked.
        url: String,
        /// What happened.
        what: String,
    },
}

impl Error {
    /// The kind, for the run's status.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Teacher { .. } => Cause::Teacher,
            _ => Cause::Reward,
        }
    }
}

fn last_words(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; its last output:\n{log}") }
}
