//! Why a configuration is refused.

use std::fmt;

/// One thing that cannot be: which field, its value, what is allowed, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field's path, such as `recipe.rollout_batch_size`.
    pub field: String,
    /// Its value as typed; `None` where it is unset or must not be shown.
    pub value: Option<String>,
    /// What is allowed.
    pub bound: String,
    /// What to do; empty where the bound says it.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.field)?;
        if let Some(value) = &self.value {
            write!(out, " = {value}")?;
        }
        write!(out, ": {}", self.bound)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(out, "; {}", self.remedy) }
    }
}

/// What can go wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It cannot run. All problems are found before the first is reported.
    #[error("{}", listed(.0))]
    Refused(Vec<Problem>),
}

impl Error {
    /// Everything that is wrong.
    pub fn problems(&self) -> &[Problem] {
        let Self::Refused(problems) = self;
        problems
    }
}

fn listed(problems: &[Problem]) -> String {
    match problems {
        [one] => one.to_string(),
        many => {
            let lines: String = many.iter().map(|problem| format!("\n  {problem}")).collect();
            format!("the configuration has {} problems:{lines}", many.len())
        }
    }
}
