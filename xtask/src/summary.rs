//! Runs test commands, shows what they print as it comes, and ends with a line for every suite.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// What one suite's runner said.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Runs each command to its end whatever the others say, prints a table of all suites, and fails
/// if any command did.
pub(crate) fn run(commands: &mut [&mut Command]) -> Result<()> {
    let mut suites: Vec<(String, Counts)> = Vec::new();
    let mut broken = 0;
    for command in commands.iter_mut() {
        // Suites are named on standard error, counted on standard output: one pipe keeps their order.
        let (reader, writer) = std::io::pipe().context("no pipe")?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(writer.try_clone().context("no pipe")?)
            .stderr(writer)
            .spawn()
            .context("cannot start cargo")?;
        // The command keeps its copies of the pipe's end until it is told otherwise.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut suite = "tests".to_owned();
        let mut out = std::io::stdout();
        for line in BufReader::new(reader).split(b'\n') {
            let line = line.context("cannot read the tests' output")?;
            let text = String::from_utf8_lossy(&line);
            // A reader that went away is no reason to stop testing.
            let _ = writeln!(out, "{text}");
            if let Some(name) = suite_name(&text) {
                suite = name;
            } else if let Some(counts) = counts(&text) {
                suites.push((suite.clone(), counts));
            }
        }
        broken += u64::from(!child.wait().context("cannot wait for cargo")?.success());
    }
    print(&suites);
    let failed: u64 = suites.iter().map(|(_, counts)| counts.failed).sum();
    if broken > 0 || failed > 0 {
        bail!("{failed} tests failed; a suite that did not build or crashed is named above");
    }
    Ok(())
}

fn print(suites: &[(String, Counts)]) {
    println!("\nsuites:");
    for (name, counts) in suites.iter().filter(|(_, counts)| *counts != Counts::default()) {
        println!("  {name:<60} {:>4} passed {:>3} failed {:>3} ignored", counts.passed, counts.failed, counts.ignored);
    }
    let sum = |of: fn(&Counts) -> u64| suites.iter().map(|(_, counts)| of(counts)).sum::<u64>();
    println!("{} passed, {} failed, {} skipped", sum(|c| c.passed), sum(|c| c.failed), sum(|c| c.ignored));
}

/// `Running unittests src/lib.rs (target/…)`, `Running tests/x.rs (…)`, `Doc-tests x`.
fn suite_name(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(rest) = line.strip_prefix("Doc-tests ") {
        return Some(format!("doc {rest}"));
    }
    let rest = line.strip_prefix("Running ")?;
    let (what, binary) = rest.rsplit_once(" (")?;
    // target/debug/deps/NAME-HASH)
    let binary = binary.trim_end_matches(')').rsplit('/').next()?;
    let name = binary.rsplit_once('-').map_or(binary, |(name, _)| name);
    Some(if what.starts_with("unittests") { format!("unit {name}") } else { format!("{name} ({what})") })
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; …`
fn counts(line: &str) -> Option<Counts> {
    let rest = line.trim_start().strip_prefix("test result: ")?;
    let number = |word: &str| -> Option<u64> {
        rest.split([';', '.']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
    };
    Some(Counts { passed: number("passed")?, failed: number("failed")?, ignored: number("ignored").unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cargo_and_libtest_are_understood() {
        let suite = |line| suite_name(line).unwrap_or_default();
        assert_eq!(
            suite("     Running unittests src/lib.rs (target/debug/deps/training_gym-0123abc)"),
            "unit training_gym"
        );
        assert_eq!(suite("     Running tests/rooms.rs (target/debug/deps/rooms-99ff)"), "rooms (tests/rooms.rs)");
        assert_eq!(suite("   Doc-tests training_gym_core"), "doc training_gym_core");
        assert_eq!(suite_name("running 3 tests"), None);
        let line = "test result: FAILED. 2 passed; 1 failed; 4 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(counts(line), Some(Counts { passed: 2, failed: 1, ignored: 4 }));
        assert_eq!(counts("test a ... ok"), None);
    }
}
