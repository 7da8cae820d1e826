//! A reward function that declares hosts: its own pod, with its token and its policy, and nothing of it
//! is left.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use training_gym_tests::house::{House, succeed};

use crate::kubectl::{admin, get, situation};
use crate::person::{await_step, document, house, person, stored};

const STEPS: u64 = 24;
/// Documentation's own network (RFC 5737): nobody is there.
const NOBODY: &str = "192.0.2.7:443";
const COMPONENT: &str = "app.kubernetes.io/component";

/// Has the rows' function connect to the API server, which it does not declare.
fn knocking(house: &House) -> Result<()> {
    let service = get(&["service", "kubernetes", "--namespace", "default"])?;
    let address = format!("{}:443", service["spec"]["clusterIP"].as_str().context("an address")?);
    let rows: String = (0..6)
        .map(|index| {
            let prompt = format!("What is {index} + 1?");
            format!("{}\n", json!({"prompt": prompt, "label": index + 1, "mood": "connect", "address": address}))
        })
        .collect();
    Ok(fs::write(house.path("rows.jsonl"), rows)?)
}

fn items(kind: &str, selector: &str) -> Result<Vec<Value>> {
    Ok(get(&[kind, "--selector", selector])?["items"].as_array().context("a list")?.clone())
}

fn until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds()? {
        if Instant::now() > deadline {
            bail!("{what}: not within two minutes\n{}", situation());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

#[test]
fn a_reward_function_with_hosts_has_its_own_pod_token_and_policy() -> Result<()> {
    let house = house()?;
    knocking(&house)?;
    let steps = STEPS.to_string();
    let asked = |more: &[&str]| {
        succeed(person(&house).args(["--steps", &steps, "--reward-egress", NOBODY]).args(more)).with_context(situation)
    };
    let printed = asked(&["--detach"])?;
    let id = printed.lines().find_map(|line| line.strip_prefix("run ")).context("no run id")?.to_owned();
    await_step(&id, 1)?;
    let run = format!("training-gym/run={id}");
    let apart = format!("{run},{COMPONENT}=reward");

    let pods = items("pods", &apart)?;
    ensure!(pods.len() == 1, "one pod: {}", situation());
    let names = |pod: &Value| -> Vec<String> {
        let all =
            ["initContainers", "containers"].iter().flat_map(|key| pod["spec"][*key].as_array().into_iter().flatten());
        all.filter_map(|container| Some(container["name"].as_str()?.to_owned())).collect()
    };
    ensure!(names(&pods[0]) == ["reward"], "{:?}", names(&pods[0]));
    let text = pods[0]["spec"].to_string();
    ensure!(!text.contains("AWS_") && !text.contains("envFrom") && !text.contains("-store"), "the store: {text}");
    ensure!(pods[0]["spec"]["automountServiceAccountToken"] == false, "a token is mounted");
    let trainer = items("pods", &format!("{run},{COMPONENT}!=reward"))?;
    ensure!(trainer.iter().all(|pod| !names(pod).contains(&"reward".to_owned())), "two places for the function");

    let policies = items("networkpolicies", &run)?;
    ensure!(policies.len() == 1, "{policies:?}");
    let policy = policies[0]["spec"].to_string();
    ensure!(policy.contains("192.0.2.7/32") && policy.contains("kube-dns"), "{policy}");
    let owner = &items("jobs", &format!("{run},{COMPONENT}!=reward"))?[0]["metadata"];
    for kind in ["networkpolicies", "services", "secrets"] {
        for object in items(kind, &run)? {
            let owners = &object["metadata"]["ownerReferences"];
            ensure!(owners[0]["uid"] == owner["uid"], "{kind} has no owner: {}", object["metadata"]);
        }
    }

    // Another pod takes its place, and is brought the program.
    admin(&["delete", "pod", "--selector", &apart, "--wait=false"])?;
    asked(&["--run-id", &id])?;
    ensure!(document(&id, "status.json")?["state"] == "succeeded");
    let ended = |job: &Value| {
        let conditions = job["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|found| found["type"] == "Complete" && found["status"] == "True")
    };
    until("the reward pod ends with the run", || Ok(items("jobs", &apart)?.iter().all(ended)))?;

    let records = String::from_utf8(stored(&id, "rollouts/step-1.jsonl")?.context("rollouts")?)?;
    let first: Value = serde_json::from_str(records.lines().next().context("a record")?)?;
    let outcome = &first["metadata"]["outcome"];
    if outcome["got"].is_string() {
        println!("skipped: this cluster's network plugin does not enforce policies ({outcome})");
    } else {
        ensure!(outcome["refused"].is_string(), "{first}");
    }

    admin(&["delete", "job", owner["name"].as_str().context("a name")?])?;
    until("all of it goes with the run's Job", || {
        let kinds = ["jobs", "pods", "services", "secrets", "networkpolicies"];
        kinds.iter().try_fold(true, |gone, kind| Ok(gone && items(kind, &run)?.is_empty()))
    })
}
