//! A log that the kubelet rotates while somebody follows it.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use training_gym_tests::programs::program;

use crate::kubectl::{admin, given, situation};
use crate::person::{STEPS, follow, house, launch};

/// Numbers of the lines that the reward function printed, and how many the worker's supervisor left out.
fn read(log: &str) -> (Vec<u64>, u64) {
    let number = |line: &str, before: &str| line.split_once(before)?.1.split(' ').next()?.parse().ok();
    let numbers = log.lines().filter_map(|line| number(line, "chatter ")).collect();
    let left_out = log.lines().filter(|line| line.contains("lines were left out)"));
    (numbers, left_out.filter_map(|line| number(line, "(")).sum())
}

#[test]
fn a_rotated_log_is_followed_without_loss_or_duplicates() -> Result<()> {
    let house = house()?;
    let rows: String = (0..6)
        .map(|index| {
            let row = json!({"prompt": format!("What is {index} + 1?"), "label": index + 1, "mood": "chatter"});
            format!("{row}\n")
        })
        .collect();
    fs::write(house.path("rows.jsonl"), rows)?;
    let id = launch(&house, STEPS)?;
    let printed = house.path("followed");
    let mut follower = Command::new(program("gym"));
    follower.args(["runs", "logs", &id, "-f"]).stdout(File::create(&printed)?);
    let mut follower = follower.spawn().context("cannot start gym")?;
    follow(&house, &id, STEPS).with_context(situation)?;
    ensure!(follower.wait()?.success(), "the follower failed");
    let followed = fs::read_to_string(printed)?;
    let (numbers, left_out) = read(&followed);
    let fall = numbers.windows(2).find(|pair| pair[0] >= pair[1]);
    ensure!(fall.is_none(), "a line came twice, or out of order: {fall:?}");
    let last = numbers.last().context("no line came")?;
    ensure!(
        last + 1 == numbers.len() as u64 + left_out,
        "{} of {} lines, {left_out} left out",
        numbers.len(),
        last + 1
    );
    let pods = admin(&["get", "pods", "--selector", &format!("training-gym/run={id}"), "--output", "name"])?;
    let pod = pods.lines().next().context("the run's pod is kept")?.trim_start_matches("pod/").to_owned();
    let mut files = 0;
    for of_pod in fs::read_dir(Path::new(&given("GYM_CLUSTER_LOGS")?).join("pods"))?.flatten() {
        if of_pod.file_name().to_string_lossy().contains(&pod) {
            files += fs::read_dir(of_pod.path().join("trainer"))?.count();
        }
    }
    ensure!(files > 1, "the log was not rotated: {files} files");
    Ok(())
}
