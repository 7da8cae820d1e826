//! A report as papers print it.

use std::fmt;

use serde::Serialize;

use super::{Error, Estimate, Grader, Report};

/// The numbers of one evaluation, with `k` replies a row: what [`Report::summary`] gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// What was evaluated.
    pub target: String,
    /// Replies a row.
    pub k: usize,
    /// Rows.
    pub rows: usize,
    /// mean@k over the rows whose replies were all graded.
    pub mean_at_k: Estimate,
    /// The standard deviation of its k runs; what papers write after mean@k. `None` for k = 1.
    pub std: Option<f64>,
    /// pass@k.
    pub pass_at_k: Estimate,
    /// maj@k.
    pub maj_at_k: Estimate,
    /// The share of right replies among all that were graded, rows with ungraded replies included.
    pub accuracy: Estimate,
    /// Tokens of a reply.
    pub completion_tokens: Estimate,
    /// Share of replies that reached the length limit.
    pub truncated: f64,
    /// Replies the grader could not decide on.
    pub ungradable: usize,
    /// Replies that never came.
    pub failed: usize,
}

impl Report {
    /// The numbers papers report, a majority counted by the answers as `grader` reads them.
    ///
    /// # Errors
    /// None in practice: k is the report's own.
    pub fn summary(&self, grader: Grader) -> Result<Summary, Error> {
        let k = self.samples;
        Ok(Summary {
            target: self.target.clone(),
            k,
            rows: self.rows.len(),
            mean_at_k: self.mean_at(k)?,
            std: self.std_at(k)?,
            pass_at_k: self.pass_at(k)?,
            maj_at_k: self.maj_at(k, |reply| grader.vote(reply))?,
            accuracy: self.accuracy(),
            completion_tokens: self.completion_tokens(),
            truncated: self.truncated(),
            ungradable: self.ungradable(),
            failed: self.failed(),
        })
    }
}

impl fmt::Display for Summary {
    /// A line a number, in percent; a `±` behind a mean is the spread of its runs, `se` the standard error
    /// over rows.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let k = self.k;
        let percent = |share: f64| if share.is_nan() { "-".to_owned() } else { format!("{:.1} %", 100.0 * share) };
        let with = |estimate: &Estimate| {
            let error = estimate.standard_error.map_or_else(String::new, |error| format!("se {:.1}", 100.0 * error));
            (percent(estimate.value), error, estimate.rows)
        };
        let mut line = |name: String, (value, error, rows): (String, String, usize)| {
            writeln!(out, "{name:<18}{value:>9}  {error:<10}{rows:>5} rows")
        };
        let (mean, error, rows) = with(&self.mean_at_k);
        let spread = self.std.map_or_else(String::new, |std| format!("± {:.1}", 100.0 * std));
        line(format!("mean@{k}"), (mean, spread, rows))?;
        if !error.is_empty() {
            line(String::new(), (String::new(), error, rows))?;
        }
        line(format!("pass@{k}"), with(&self.pass_at_k))?;
        line(format!("maj@{k}"), with(&self.maj_at_k))?;
        line("right, if graded".to_owned(), with(&self.accuracy))?;
        let tokens = self.completion_tokens.value;
        let tokens = if tokens.is_nan() { "-".to_owned() } else { format!("{tokens:.0}") };
        writeln!(out, "{:<18}{tokens:>9}  tokens a reply", "length")?;
        writeln!(out, "{:<18}{:>9}", "truncated", percent(self.truncated))?;
        let all = self.rows * k;
        writeln!(out, "{:<18}{:>9}  of {all} replies", "ungradable", self.ungradable)?;
        write!(out, "{:<18}{:>9}  of {all} replies", "failed", self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Outcome, RowResult};
    use super::*;
    use crate::deploy::Usage;
    use training_gym_core::sample::FinishReason;

    fn scored(score: f64, content: &str) -> Outcome {
        Outcome::Scored {
            score,
            content: content.to_owned(),
            reasoning_content: None,
            finish_reason: FinishReason::Stop,
            usage: Usage { prompt_tokens: 1, completion_tokens: 12 },
        }
    }

    #[test]
    fn the_table_has_every_number() {
        let row = |row, samples| RowResult { row, label: "5".to_owned(), samples };
        let unsure = Outcome::Ungradable { reason: "?".to_owned(), content: String::new(), reasoning_content: None };
        let rows = vec![
            row(0, vec![scored(1.0, r"\boxed{5}"), scored(1.0, "Answer: 5."), scored(0.0, r"\boxed{4}")]),
            row(1, vec![scored(0.0, r"\boxed{4}"), scored(1.0, r"\boxed{5}"), scored(0.0, r"\boxed{4}")]),
            row(2, vec![scored(1.0, r"\boxed{5}"), unsure, scored(1.0, r"\boxed{5}")]),
        ];
        let report = Report { target: "m".to_owned(), samples: 3, rows };
        let summary = report.summary(Grader::Math).unwrap();
        assert_eq!((summary.mean_at_k.value, summary.mean_at_k.rows), (0.5, 2));
        // Run means ½, 1, 0.
        assert!((summary.std.unwrap() - 0.5).abs() < 1e-12);
        assert_eq!((summary.pass_at_k.value, summary.maj_at_k.value), (1.0, 0.5));
        assert_eq!((summary.ungradable, summary.accuracy.rows), (1, 3));
        let text = summary.to_string();
        for part in ["mean@3", "50.0 %  ± 50.0", "pass@3", "maj@3", "12  tokens", "1  of 9 replies", "2 rows"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let json = serde_json::json!(summary);
        assert_eq!((&json["k"], &json["truncated"]), (&serde_json::json!(3), &serde_json::json!(0.0)));
    }
}
