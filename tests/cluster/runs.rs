//! A run that is disturbed ends with the very weights of one that is not.

use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use training_gym_tests::house::{fail, signal, succeed};

use crate::kubectl::{Created, admin, get, given, situation};
use crate::node::{await_phase, pod};
use crate::person::{STEPS, await_step, document, follow, house, launch, person, stored, weights};

/// The undisturbed run's id and weights.
fn reference() -> Result<&'static (String, String)> {
    static REFERENCE: OnceLock<(String, String)> = OnceLock::new();
    if let Some(reference) = REFERENCE.get() {
        return Ok(reference);
    }
    let house = house()?;
    let id = launch(&house, STEPS)?;
    follow(&house, &id, STEPS).with_context(situation)?;
    let status = document(&id, "status.json")?;
    ensure!(status["attempt"] == 1, "nothing disturbed it: {status}");
    let weights = weights(&id, STEPS)?;
    Ok(REFERENCE.get_or_init(|| (id, weights)))
}

/// Checks that a run came to its end as if nothing had been, in so many attempts.
fn check(id: &str, attempts: std::ops::RangeInclusive<u64>) -> Result<()> {
    let status = document(id, "status.json")?;
    ensure!(status["state"] == "succeeded" && status["step"] == STEPS, "{status}");
    let attempt = status["attempt"].as_u64().context("an attempt has a number")?;
    ensure!(attempts.contains(&attempt), "{attempts:?} attempts were expected: {status}");
    let metrics = stored(id, "metrics.jsonl")?.context("no metrics")?;
    let steps: Vec<u64> = String::from_utf8(metrics)?
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["step"].as_u64())
        .collect();
    ensure!(steps == (1..=STEPS).collect::<Vec<_>>(), "each step has one line: {steps:?}");
    ensure!(weights(id, STEPS)? == reference()?.1, "the weights are others than the undisturbed run's");
    Ok(())
}

fn of_run(id: &str) -> String {
    format!("training-gym/run={id}")
}

#[test]
fn a_deleted_pod_is_replaced_and_the_run_goes_on() -> Result<()> {
    reference()?;
    let house = house()?;
    let id = launch(&house, STEPS)?;
    await_step(&id, 3)?;
    admin(&["delete", "pod", "--selector", &of_run(&id), "--wait=false"])?;
    follow(&house, &id, STEPS).with_context(situation)?;
    check(&id, 2..=2)
}

#[test]
fn a_pod_that_is_killed_without_warning_is_replaced_too() -> Result<()> {
    reference()?;
    let house = house()?;
    let id = launch(&house, STEPS)?;
    await_step(&id, 3)?;
    admin(&["delete", "pod", "--selector", &of_run(&id), "--grace-period=0", "--force"])?;
    follow(&house, &id, STEPS).with_context(situation)?;
    check(&id, 2..=2)
}

#[test]
fn a_drained_node_comes_back_and_the_run_goes_on() -> Result<()> {
    reference()?;
    let house = house()?;
    let id = launch(&house, STEPS)?;
    await_step(&id, 3)?;
    let selector = format!("--pod-selector={}", of_run(&id));
    let drained = admin(&["drain", "gym-node", &selector, "--delete-emptydir-data", "--timeout=90s"]);
    // Whatever came of it, the next test finds a node.
    let back = admin(&["uncordon", "gym-node"]);
    drained.with_context(situation)?;
    back?;
    follow(&house, &id, STEPS).with_context(situation)?;
    check(&id, 2..=2)
}

/// Kibibytes of the node's memory that pods may ask for.
fn allocatable() -> Result<u64> {
    let node = get(&["node", "gym-node"])?;
    let memory = node["status"]["allocatable"]["memory"].as_str().context("memory")?;
    memory.trim_end_matches("Ki").parse().with_context(|| memory.to_owned())
}

#[test]
fn a_preempted_run_goes_on_when_there_is_room_again() -> Result<()> {
    reference()?;
    let house = house()?;
    let _class = Created::new(&json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "suite-urgent"}, "value": 1_000_000,
    }))?;
    let run = succeed(person(&house).args(["--steps", &STEPS.to_string(), "--memory", "2Gi", "--detach"]))?;
    let id = run.lines().find_map(|line| line.strip_prefix("run ")).context("no run id")?;
    await_step(id, 3)?;
    // Too much beside the run, not without it.
    let memory = format!("{}Ki", allocatable()? - (3 << 19));
    let mut urgent =
        pod("urgent", &["--version"], &json!({"requests": {"memory": memory}, "limits": {"memory": memory}}))?;
    urgent["spec"]["priorityClassName"] = "suite-urgent".into();
    let _urgent = Created::new(&urgent)?;
    await_phase("urgent", "Succeeded")?;
    let events = admin(&["get", "events", "--field-selector", "reason=Preempted", "--output", "name"])?;
    ensure!(!events.is_empty(), "nothing was preempted: {}", situation());
    follow(&house, id, STEPS).with_context(situation)?;
    check(id, 2..=2)
}

/// Kills a component of the node; what watches over them starts it again.
fn kill_component(name: &str) -> Result<()> {
    // A process's own name is cut after 15 characters.
    let short: String = name.chars().take(15).collect();
    let group = format!("/sys/fs/cgroup/pids/{}/node/cgroup.procs", given("GYM_CLUSTER_GROUP")?);
    let unified = group.replace("/pids/", "/");
    let listed = std::fs::read_to_string(&group).or_else(|_| std::fs::read_to_string(unified))?;
    let is_it =
        |pid: &&str| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == short);
    let pid = listed.lines().find(is_it).with_context(|| format!("no process {name}"))?;
    signal(pid.parse()?, 9);
    Ok(())
}

#[test]
fn neither_the_api_servers_end_nor_the_drivers_is_the_runs() -> Result<()> {
    reference()?;
    let house = house()?;
    let id = launch(&house, STEPS)?;
    await_step(&id, 2)?;
    // One driver looks on when the API server goes away, and is not disturbed.
    let mut first = follower(&house, &id)?;
    std::thread::sleep(Duration::from_secs(1));
    kill_component("kube-apiserver")?;
    await_step(&id, 6)?;
    if let Some(status) = first.try_wait()? {
        bail!("the driver did not outlive the API server: {status}");
    }
    first.kill()?;
    first.wait()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while admin(&["get", "--raw", "/readyz"]).is_err() {
        ensure!(Instant::now() < deadline, "the API server does not come back");
        std::thread::sleep(Duration::from_millis(200));
    }
    // Another process, in another home, comes back to the run.
    follow(&house, &id, STEPS).with_context(situation)?;
    check(&id, 1..=1)
}

fn follower(house: &training_gym_tests::house::House, id: &str) -> Result<std::process::Child> {
    let mut command: Command = person(house);
    command.args(["--steps", &STEPS.to_string(), "--run-id", id]).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("cannot start the person's program")
}

#[test]
fn another_recipe_under_the_same_id_is_refused() -> Result<()> {
    let (id, _) = reference()?;
    let house = house()?;
    let refusal = fail(person(&house).args(["--steps", &STEPS.to_string(), "--run-id", id, "--lr", "0.5"]))?;
    ensure!(refusal.contains("lr"), "the first field that differs is named: {refusal}");
    Ok(())
}
