//! `cargo xtask cluster test`: the cluster suite against a running cluster.

use std::time::Instant;

use anyhow::{Context, Result};

use super::cgroups::GROUP;
use super::layout::Layout;
use super::{binaries, up};
use crate::shell::{cargo, run as run_cargo};
use crate::{image, summary};

/// Builds the image, starts the cluster if need be, runs the tests whose names hold a filter, and
/// ends the cluster if it was started here.
pub(crate) fn run(layout: &Layout, arguments: &[String]) -> Result<()> {
    let started = Instant::now();
    image::ensure()?;
    // What a person would run; the tests find them beside themselves.
    let programs = ["--package", "training-gym-examples", "--package", "training-gym-tests", "--bins"];
    run_cargo(cargo().args(["build"]).args(programs))?;
    println!("cluster: the image is there ({:.0} s)", started.elapsed().as_secs_f64());
    let ours = up::up(layout)?;
    let outcome = test(layout, arguments);
    println!("cluster: the suite took {:.0} s with all that it needs", started.elapsed().as_secs_f64());
    if ours {
        up::down(layout)?;
    }
    outcome
}

fn test(layout: &Layout, arguments: &[String]) -> Result<()> {
    let mut command = cargo();
    command.args([
        "test",
        "--no-fail-fast",
        "--package",
        "training-gym-tests",
        "--features",
        "cluster",
        "--test",
        "cluster",
    ]);
    command.args(arguments);
    // One at a time: some tests stop the API server or drain the node under everyone.
    command.args(["--", "--test-threads=1"]);
    let environment = std::fs::read_to_string(layout.environment()).context("no cluster runs")?;
    for line in environment.lines() {
        if let Some((name, value)) = line.strip_prefix("export ").and_then(|line| line.split_once('=')) {
            command.env(name, value.trim_matches('\''));
        }
    }
    command
        .env("GYM_CLUSTER_ADMIN", layout.kubeconfig("admin"))
        .env("GYM_CLUSTER_KUBECTL", binaries::kubectl(layout))
        .env("GYM_CLUSTER_GROUP", GROUP)
        .env("GYM_CLUSTER_LOGS", layout.logs());
    summary::run(&mut [&mut command])
}
