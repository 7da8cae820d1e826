//! The attempts of a reward function to get out of a real pod: the sidecar of the trainer's.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use training_gym_tests::house::House;

use crate::kubectl::{given, situation};
use crate::person::{follow, house, launch, stored};

/// Rows that name what a pod has to find: the trainer's folder, the node's kubelet, the supervisor's socket.
fn rows(house: &House) -> Result<()> {
    let rows: String = ["escape", "kill", "fine", "fine"]
        .iter()
        .enumerate()
        .map(|(index, mood)| {
            let row = json!({
                "prompt": format!("What is {index} + 1?"), "label": index + 1, "mood": mood,
                "home": "/job", "port": 10250, "socket": "/worker/control.sock",
            });
            format!("{row}\n")
        })
        .collect();
    Ok(fs::write(house.path("rows.jsonl"), rows)?)
}

#[test]
fn nobody_gets_out_of_a_pod() -> Result<()> {
    let house = house()?;
    rows(&house)?;
    let id = launch(&house, 2)?;
    follow(&house, &id, 2).with_context(situation)?;
    let records = String::from_utf8(stored(&id, "rollouts/step-1.jsonl")?.context("rollouts")?)?;
    let records: Vec<Value> = records.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let outcome = |mood: &str| {
        let record = records.iter().find(|record| record["metadata"]["mood"] == mood);
        record.map(|record| &record["metadata"]["outcome"]).with_context(|| format!("nothing of `{mood}`"))
    };
    let attempts = outcome("escape")?.as_object().context("attempts")?;
    ensure!(attempts.len() > 25, "{attempts:?}");
    for (name, outcome) in attempts {
        ensure!(outcome["refused"].is_string() && outcome["got"].is_null(), "{name} got out: {outcome}");
    }
    let kill = outcome("kill")?;
    ensure!(kill["refused"].as_str().is_some_and(|said| said.contains("not permitted")), "{kill}");
    // What it might have read aloud is in no record either.
    let text = serde_json::to_string(&records)?;
    ensure!(!text.contains(&given("AWS_SECRET_ACCESS_KEY")?), "a record holds the store's secret key");
    Ok(())
}
