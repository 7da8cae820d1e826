//! What is in order and what is not, before anything runs: findings with remedies, in one table.
//!
//! [`Gym::doctor`](crate::gym::Gym::doctor) looks at the environment: store, backend, hub.
//! [`TrainCheck::report`](crate::run::TrainCheck::report) looks at one run. Neither uses a GPU, and
//! neither stops at the first thing that is wrong: what depends on it is reported as skipped.

mod environment;
pub(crate) mod machine;

pub use environment::store_at;

use std::fmt;

use serde::Serialize;

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// In order.
    Ok,
    /// It will run, and a person should know this.
    Warning,
    /// It will not run.
    Failed,
    /// Not looked at, for the reason that is given.
    Skipped,
}

impl Outcome {
    /// Its name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// One check and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, such as `store: write`.
    pub check: String,
    /// What came of it.
    pub outcome: Outcome,
    /// What was seen; for a skipped one, why.
    pub detail: String,
    /// What to do, where something is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// In order.
    pub fn ok(check: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { check: check.into(), outcome: Outcome::Ok, detail: detail.into(), remedy: None }
    }

    /// Worth knowing.
    pub fn warning(check: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (check, detail) = (check.into(), detail.into());
        Self { check, outcome: Outcome::Warning, detail, remedy: Some(remedy.into()) }
    }

    /// Not in order.
    pub fn failed(check: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (check, detail, remedy) = (check.into(), detail.into(), remedy.into());
        // Our errors end with their remedy: it is not said twice.
        let remedy = Some(remedy).filter(|remedy| !remedy.is_empty() && !detail.contains(remedy.as_str()));
        Self { check, outcome: Outcome::Failed, detail, remedy }
    }

    /// Not looked at, and why.
    pub fn skipped(check: impl Into<String>, why: impl Into<String>) -> Self {
        Self { check: check.into(), outcome: Outcome::Skipped, detail: why.into(), remedy: None }
    }
}

/// Findings, in the order in which they were made. Its `Display` is a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The findings.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether something is not in order.
    pub fn has_failed(&self) -> bool {
        self.findings.iter().any(|finding| finding.outcome == Outcome::Failed)
    }

    /// The findings with this outcome.
    pub fn with(&self, outcome: Outcome) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.outcome == outcome)
    }

    pub(crate) fn push(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}

impl fmt::Display for Report {
    /// A line for each finding, a remedy below it, and how many there are of each outcome.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.findings.iter().map(|finding| finding.check.chars().count()).max().unwrap_or(0);
        for finding in &self.findings {
            let detail = finding.detail.replace('\n', "\n           ");
            writeln!(out, "{:width$}  {:7}  {detail}", finding.check, finding.outcome.name())?;
            if let Some(remedy) = &finding.remedy {
                writeln!(out, "{:width$}           → {remedy}", "")?;
            }
        }
        let all = [Outcome::Ok, Outcome::Warning, Outcome::Failed, Outcome::Skipped];
        let counts = all.map(|outcome| format!("{} {}", self.with(outcome).count(), outcome.name()));
        write!(out, "{}", counts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_an_aligned_table_with_remedies() {
        let mut report = Report::default();
        report.push(Finding::ok("store: write", "file:///s"));
        report.push(Finding::failed("hub", "no answer", "check the network"));
        report.push(Finding::failed("x", "broken; set A", "set A"));
        report.push(Finding::skipped("gpu", "the backend is local"));
        let text = report.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "store: write  ok       file:///s");
        assert_eq!(lines[1], "hub           failed   no answer");
        assert_eq!(lines[2].trim(), "→ check the network");
        assert_eq!(lines[3], "x             failed   broken; set A");
        assert_eq!(lines.last(), Some(&"1 ok, 0 warning, 2 failed, 1 skipped"));
        assert!(report.has_failed());
    }
}
