//! `gym` on the cluster: what the driver may do, and what is there.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use training_gym_tests::house::{fail, succeed};
use training_gym_tests::programs::program;

use crate::kubectl::situation;

fn gym(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("gym"));
    // The suite's machine may have no way to a hub.
    command.args(arguments).env("HF_HUB_OFFLINE", "1");
    command
}

#[test]
fn the_doctor_finds_all_that_a_run_needs() -> Result<()> {
    let printed = succeed(&mut gym(&["doctor"])).with_context(situation)?;
    for check in ["cluster", "permissions", "image", "store", "store: write", "store for pods"] {
        let is_it = |line: &&str| line.strip_prefix(check).is_some_and(|rest| rest.starts_with("  "));
        let line = printed.lines().find(is_it).with_context(|| format!("nothing of `{check}`:\n{printed}"))?;
        ensure!(line[check.len()..].trim_start().starts_with("ok"), "{line}");
    }
    Ok(())
}

#[test]
fn the_doctor_says_what_is_missing() -> Result<()> {
    let printed = fail(gym(&["doctor"]).env("TRAINING_GYM_NAMESPACE", "nowhere"))?;
    ensure!(printed.contains("nowhere"), "{printed}");
    Ok(())
}
