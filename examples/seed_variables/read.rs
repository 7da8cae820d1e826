//! Variables as typed values; everything that is wrong with them, at once.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::table::{Program, VARIABLES};

/// Beginnings that belong to the scripts: a name with one of them that is none of theirs is a slip.
const THEIRS: [&str; 3] = ["OPD_", "PPO_", "VAL_"];

/// The variables that are set.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Those of this process.
    pub fn of_process() -> Self {
        let theirs = |name: &str| {
            VARIABLES.iter().any(|variable| variable.name == name) || THEIRS.iter().any(|start| name.starts_with(start))
        };
        let text = |name: std::ffi::OsString| name.into_string().ok();
        let all = std::env::vars_os().filter_map(|(name, value)| {
            let name = text(name).filter(|name| theirs(name))?;
            // What is no text is refused like any other value that cannot be.
            Some((name, value.to_string_lossy().into_owned()))
        });
        Self(all.collect())
    }

    /// These ones.
    pub fn of(pairs: &[(&str, &str)]) -> Self {
        Self(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }
}

/// Everything that is wrong, a line each.
#[derive(Debug, Default)]
pub struct Problems(Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Problems {}

/// Reads variables and remembers what was wrong.
pub(crate) struct Reader<'a> {
    environment: &'a Environment,
    program: Program,
    problems: Problems,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(environment: &'a Environment, program: Program) -> Self {
        let mut reader = Self { environment, program, problems: Problems::default() };
        for (name, value) in &environment.0 {
            if !VARIABLES.iter().any(|variable| variable.name == *name) {
                let start = THEIRS.iter().find(|start| name.starts_with(**start)).copied().unwrap_or_default();
                let near: Vec<&str> =
                    VARIABLES.iter().map(|variable| variable.name).filter(|known| known.starts_with(start)).collect();
                reader.refuse(name, value, &format!("no program reads it; there are {}", near.join(", ")));
            }
        }
        reader
    }

    /// The value, where it is set and not blank.
    pub(crate) fn text(&self, name: &str) -> Option<&'a str> {
        debug_assert!(VARIABLES.iter().any(|variable| variable.name == name), "{name} is not on the list");
        self.environment.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    pub(crate) fn refuse(&mut self, name: &str, value: &str, rule: &str) {
        let value: String = value.chars().take(80).collect();
        self.problems.0.push(format!("{name} = {value}: {rule}"));
    }

    /// A value that must be there.
    pub(crate) fn required(&mut self, name: &str, rule: &str) -> &'a str {
        match self.text(name) {
            Some(text) => text,
            None => {
                self.problems.0.push(format!("{name} is not set: {rule}"));
                ""
            }
        }
    }

    /// A value that `allowed` takes, else `default`; `rule` says what it takes.
    pub(crate) fn value<T: FromStr + Copy>(
        &mut self,
        name: &str,
        default: T,
        (allowed, rule): (fn(T) -> bool, &str),
    ) -> T {
        let Some(text) = self.text(name) else { return default };
        match text.parse() {
            Ok(value) if allowed(value) => value,
            _ => {
                self.refuse(name, text, rule);
                default
            }
        }
    }

    /// A whole number of at least 1.
    pub(crate) fn count(&mut self, name: &str, default: usize) -> usize {
        // Beyond this, products of several would not fit.
        let allowed = |count: usize| (1..=1 << 24).contains(&count);
        self.value(name, default, (allowed, "write a whole number from 1 to 16777216"))
    }

    /// True or false.
    pub(crate) fn truth(&mut self, name: &str) -> Option<bool> {
        let text = self.text(name)?;
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => {
                self.refuse(name, text, "write true or false");
                None
            }
        }
    }

    /// Everything that is wrong, or what is set and does not apply to this program.
    pub(crate) fn finish(self) -> Result<Vec<String>, Problems> {
        if !self.problems.0.is_empty() {
            return Err(self.problems);
        }
        let idle = VARIABLES.iter().filter(|variable| !variable.programs.contains(&self.program));
        let noted = idle.filter_map(|variable| {
            let value = self.text(variable.name)?;
            let why = match variable.programs {
                [] => variable.becomes.to_owned(),
                programs => {
                    let programs: Vec<&str> = programs.iter().map(|program| program.file()).collect();
                    format!("it is read by {}", programs.join(" and "))
                }
            };
            Some(format!("{} = {value} is not applied: {why}", variable.name))
        });
        Ok(noted.collect())
    }
}
