//! The tutorial as a person runs it, on the cluster.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use training_gym_tests::house::succeed;
use training_gym_tests::programs::program;

use crate::kubectl::{get, situation};

#[test]
fn the_tutorial_runs_on_the_cluster_and_leaves_nothing() -> Result<()> {
    let home = tempfile::tempdir()?;
    let mut tutorial = Command::new(program("dapo_math_opd"));
    tutorial.env("TRAINING_GYM_HOME", home.path()).args(["--steps", "4", "--eval-problems", "12", "--json"]);
    let printed = succeed(&mut tutorial).with_context(situation)?;
    let line = printed.lines().rfind(|line| line.starts_with('{')).context("no line of JSON")?;
    let outcome: Value = serde_json::from_str(line)?;
    ensure!(outcome.is_object() && printed.contains("checkpoint deployed to http"), "{printed}");
    // Endpoints that the program stopped are gone, with their services and secrets.
    for kind in ["deployments", "services"] {
        let left = get(&[kind, "--selector", "app.kubernetes.io/managed-by=training-gym"])?;
        ensure!(left["items"].as_array().is_some_and(Vec::is_empty), "{kind} are left: {left}");
    }
    Ok(())
}
