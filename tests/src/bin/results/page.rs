//! The page: a table for each question, made anew from what was measured.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::measure::{Ledger, Line, STARTS};
use crate::rows::{ROWS, Row, SEEDS, STAGE_STEPS, STEPS, Table};

/// What stands below this in the page is a person's, and is kept.
const KEPT: &str = "<!-- Below this line nothing is generated. -->";

/// Rows and seeds that were not measured yet.
pub(crate) fn missing(ledger: &Ledger) -> Vec<(&'static str, u64)> {
    let all = ROWS.iter().flat_map(|row| SEEDS.map(|seed| (row.name, seed)));
    all.filter(|(row, seed)| !ledger.has(row, *seed)).collect()
}

/// Writes the page, and leaves a person's part of it as it is.
pub(crate) fn write(path: &Path, ledger: &Ledger) -> Result<()> {
    let before = if path.exists() { fs::read_to_string(path)? } else { String::new() };
    let kept = before.split_once(KEPT).map_or("\n", |(_, kept)| kept);
    let page = format!("{}{KEPT}{kept}", generated(ledger));
    fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))
}

/// Mean and standard error; none of one value.
fn mean(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    let error = (values.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt());
    (!values.is_empty()).then_some((mean, error))
}

fn percent(value: Option<(f64, Option<f64>)>) -> String {
    match value {
        None => "–".to_owned(),
        Some((mean, None)) => format!("{:.1}", 100.0 * mean),
        Some((mean, Some(error))) => format!("{:.1} ± {:.1}", 100.0 * mean, 100.0 * error),
    }
}

/// Differences to the baseline, seed by seed: both have the same problems in the same order.
fn paired(row: &[&Line], baseline: &[&Line]) -> Vec<f64> {
    let other = |line: &&&Line| {
        baseline.iter().find(|other| other.seed == line.seed).map(|other| (line.accuracy, other.accuracy))
    };
    row.iter().filter_map(|line| other(&line)).map(|(ours, theirs)| ours - theirs).collect()
}

fn generated(ledger: &Ledger) -> String {
    let [one, two_a, two_b, three] = STAGE_STEPS;
    let mut page = format!(
        "# Results\n\n\
         Do the methods learn, and which learns more? At tiny scale: the demo's models and its generated arithmetic \
         ([the demo](demo.md)), {} seeds a row, the share in percent of 200 held-out problems that are answered rightly, \
         greedily. `±` is the standard error over seeds; a difference is taken seed by seed, since rows of one seed see \
         the same problems in the same order.\n\n\
         `cargo xtask results` measures what is missing and writes this page; it can be stopped and started again at any \
         time. Every row of one run has {STEPS} steps of 8 problems with 8 responses each; the stages 1, 2a, 2b and 3 have \
         {one}, {two_a}, {two_b} and {three} (a reward's are of 16 problems).\n\n\
         These models have a few hundred thousand parameters: what is seen here is that a method works, not what it \
         is worth on a language model.\n",
        SEEDS.len()
    );
    let starts = STARTS.iter().filter_map(|start| Some((start, ledger.of(start).first()?.accuracy)));
    let starts: Vec<String> = starts.map(|(name, accuracy)| format!("{name} {:.1}", 100.0 * accuracy)).collect();
    if !starts.is_empty() {
        let _ = writeln!(page, "\nBefore any training: {}.", starts.join(", "));
    }
    for table in Table::ALL {
        let _ = write!(page, "\n## {}\n\n{}\n\n", table.title(), table.says());
        page += "| row | accuracy | beside the first | seeds | tokens | slowest run, s |\n|---|---|---|---|---|---|\n";
        let baseline = ROWS.iter().find(|row| row.name == table.baseline());
        let outside = baseline.filter(|row| row.table != table);
        for row in outside.into_iter().chain(ROWS.iter().filter(|row| row.table == table)) {
            page += &line(row, table, ledger);
        }
        page = page.replace("beside the first", &format!("beside {}", baseline.map_or("", |row| row.title)));
    }
    let trained: Vec<f64> = ledger.of("s2d").iter().filter_map(|line| line.teacher).collect();
    if let Some(accuracy) = mean(&trained) {
        let _ = writeln!(page, "\nThe teacher after stage 1: {}.", percent(Some(accuracy)));
    }
    let missing = missing(ledger);
    if !missing.is_empty() {
        let names: Vec<String> = missing.iter().map(|(row, seed)| format!("`{row}` {seed}")).collect();
        let _ = writeln!(page, "\nNot measured yet (row, seed): {}.", names.join(", "));
    }
    page + "\n"
}

fn line(row: &Row, table: Table, ledger: &Ledger) -> String {
    let lines = ledger.of(row.name);
    let accuracies: Vec<f64> = lines.iter().map(|line| line.accuracy).collect();
    let beside = match row.name == table.baseline() {
        true => String::new(),
        false => percent(mean(&paired(&lines, &ledger.of(table.baseline())))),
    };
    let tokens = lines.iter().map(|line| line.tokens).sum::<u64>() / lines.len().max(1) as u64;
    let slowest = lines.iter().map(|line| line.slowest_run_seconds).fold(0.0, f64::max);
    let (title, accuracy, seeds) = (row.title, percent(mean(&accuracies)), lines.len());
    format!("| {title} | {accuracy} | {beside} | {seeds} | {tokens} | {slowest:.0} |\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_over_seeds_and_differences_are_paired() {
        assert_eq!(mean(&[]), None);
        assert_eq!(mean(&[0.5]), Some((0.5, None)));
        let (value, error) = mean(&[0.4, 0.5, 0.6]).unwrap();
        assert!((value - 0.5).abs() < 1e-12 && (error.unwrap() - 0.1 / 3f64.sqrt()).abs() < 1e-12);
        let at = |seed, accuracy| Line { seed, ..Line::start("r", accuracy) };
        let (ours, theirs) = ([at(1, 0.5), at(3, 0.7)], [at(1, 0.4), at(2, 0.9), at(3, 0.4)]);
        let differences = paired(&ours.iter().collect::<Vec<_>>(), &theirs.iter().collect::<Vec<_>>());
        assert!((differences[0] - 0.1).abs() < 1e-12 && (differences[1] - 0.3).abs() < 1e-12 && differences.len() == 2);
    }

    #[test]
    fn what_a_person_wrote_stays_and_what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(&folder.path().join("measured.jsonl")).unwrap();
        let path = folder.path().join("results.md");
        write(&path, &ledger).unwrap();
        let page = fs::read_to_string(&path).unwrap() + "\nForward KL surprised us.\n";
        fs::write(&path, page).unwrap();
        ledger.add(Line { seed: 2, ..Line::start("jsd", 0.625) }).unwrap();
        write(&path, &ledger).unwrap();
        let page = fs::read_to_string(&path).unwrap();
        assert!(page.contains("| full JSD, β ½ | 62.5 | – | 1 |"), "{page}");
        assert!(page.contains("`jsd` 1, `jsd` 3") && !page.contains("`jsd` 2"), "{page}");
        assert!(page.ends_with("\n\nForward KL surprised us.\n"), "{page}");
        assert_eq!(missing(&ledger).len(), ROWS.len() * SEEDS.len() - 1);
    }

    #[test]
    fn rows_have_names_of_their_own_and_their_baselines_are_rows() {
        for (index, row) in ROWS.iter().enumerate() {
            assert!(!ROWS[..index].iter().any(|other| other.name == row.name), "{}", row.name);
        }
        for table in Table::ALL {
            assert!(ROWS.iter().any(|row| row.name == table.baseline()));
        }
    }
}
