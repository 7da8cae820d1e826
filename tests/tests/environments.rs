//! Responses of several turns, in an environment of the person's program, which may misbehave.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use training_gym_tests::house::{House, fail, signal, start, succeed, wait_for, weights_hash};

/// Text of a number in JSON is compared as it is: the same bits have the same text.
fn records(house: &House, home: &str, steps: u64) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for step in 1..=steps {
        all.extend(house.lines(home, &format!("rollouts/step-{step}.jsonl"))?);
    }
    Ok(all)
}

fn count(value: &Value) -> usize {
    value.as_u64().expect("a count") as usize
}

#[test]
fn turns_masks_and_diagnostics_are_recorded_and_a_seed_gives_one_result() -> Result<()> {
    let house = House::new(&["fine", "long", "fine", "endless"])?;
    let teacher = house.path("teacher").to_string_lossy().into_owned();
    let arguments = ["--reward", "world", "--steps", "2", "--eval-interval", "1", "--teacher", &teacher];
    succeed(house.person("home").args(arguments))?;
    let records = records(&house, "home", 2)?;
    assert_eq!(records.len(), 32);
    let (mut drawn, mut told, mut turns) = (0, 0, 0);
    for record in &records[..16] {
        let mask: Vec<u64> =
            record["response_mask"].as_array().context("a mask")?.iter().filter_map(Value::as_u64).collect();
        let list = |name: &str| record[name].as_array().map(Vec::as_slice).unwrap_or_default();
        let ids = list("response_ids");
        assert_eq!(mask.len(), ids.len());
        for name in ["rollout_logprobs", "teacher_logprobs"] {
            let values = list(name);
            assert_eq!(values.len(), mask.len(), "{name}");
            assert!(
                values.iter().zip(&mask).all(|(value, &mask)| value.is_number() == (mask == 1)),
                "{name}: {values:?}"
            );
        }
        // The mask is that of the turns: what was drawn, then what was told.
        let expected: Vec<u64> = record["episode"]["turns"]
            .as_array()
            .context("turns")?
            .iter()
            .flat_map(|turn| [vec![1; count(&turn["drawn"])], vec![0; count(&turn["told"])]].concat())
            .collect();
        assert_eq!(mask, expected);
        assert_eq!(mask.last(), Some(&1), "nothing is told that nobody answers");
        drawn += mask.iter().filter(|mask| **mask == 1).count();
        told += mask.iter().filter(|mask| **mask == 0).count();
        turns += record["episode"]["turns"].as_array().map_or(0, Vec::len);
        match record["metadata"]["mood"].as_str() {
            Some("fine") if record["finish_reason"] == "stop" => {
                assert_eq!(record["episode"]["end"]["by"], "environment");
                assert_eq!(record["metadata"]["turns"], 3);
            }
            Some("endless") if record["finish_reason"] == "stop" => {
                assert_eq!(
                    (&record["episode"]["end"]["by"], &record["metadata"]["turns"]),
                    (&"turns".into(), &4.into())
                );
            }
            Some("long") => {
                let said = &record["episode"]["turns"][0]["observation"]["messages"][0]["content"];
                assert!(said.is_null() || *said == format!("{}...(truncated)", "x".repeat(20)), "{said}");
            }
            _ => {}
        }
    }
    let metrics = &house.lines("home", "metrics.jsonl")?[0];
    assert_eq!(count(&metrics["tool_mask/llm_tokens"]), drawn);
    assert_eq!((count(&metrics["tool_mask/tool_tokens"]), count(&metrics["tokens"])), (told, drawn));
    let ratio = metrics["tool_mask/tool_ratio"].as_f64().context("a ratio")?;
    assert!((ratio - told as f64 / (told + drawn) as f64).abs() < 1e-9 && told > drawn / 2, "{metrics}");
    assert!((metrics["num_turns/mean"].as_f64().context("a mean")? - turns as f64 / 16.0).abs() < 1e-9);
    assert_eq!(count(&metrics["num_turns/max"]), 4);
    assert!(metrics["eval_reward"].is_number(), "{metrics}");

    succeed(house.person("again").args(arguments))?;
    assert_eq!(weights_hash(&house, "again", 2)?, weights_hash(&house, "home", 2)?);
    Ok(())
}

#[test]
fn each_way_to_misbehave_is_ungraded_with_its_reason_and_the_others_go_on() -> Result<()> {
    let house = House::new(&["error", "panic", "hang", "die", "mute", "broken", "fine", "long"])?;
    succeed(house.person("home").args([
        "--reward",
        "world",
        "--steps",
        "2",
        "--max-ungraded-fraction",
        "1",
        "--in-order",
    ]))?;
    let records = records(&house, "home", 2)?;
    for (mood, words) in [
        ("error", "the door is stuck"),
        ("panic", "index out of bounds, says the person's world"),
        ("hang", "longer than 3 s"),
        ("die", "died"),
        ("mute", "neither ended the episode nor said anything"),
        ("broken", "there is no such world"),
    ] {
        let of_mood: Vec<&Value> = records.iter().filter(|record| record["metadata"]["mood"] == mood).collect();
        assert_eq!(of_mood.len(), 4, "{mood}");
        let asked = of_mood.iter().filter(|record| record["finish_reason"] != "length").count();
        assert!(asked > 0, "{mood}: its world was never asked");
        for record in of_mood {
            assert_eq!(record["grade"]["outcome"], "ungraded", "{record}");
            let reason = record["grade"]["reason"].as_str().unwrap_or_default();
            // A turn that never ends is cut before the world is asked.
            let cut = record["finish_reason"] == "length";
            assert!(cut || reason.contains(words), "{mood}: {reason}");
            assert!(cut || record["episode"]["end"]["by"] == "failed", "{record}");
        }
    }
    let well = records.iter().filter(|record| matches!(record["metadata"]["mood"].as_str(), Some("fine" | "long")));
    assert!(well.clone().all(|record| record["grade"]["outcome"] == "graded"), "{:?}", well.collect::<Vec<_>>());
    Ok(())
}

#[test]
fn too_many_stop_the_run_with_the_environments_name_and_message() -> Result<()> {
    let house = House::new(&["broken", "broken", "fine", "fine"])?;
    let arguments = ["--reward", "world", "--steps", "2", "--max-ungraded-fraction", "0.25"];
    let printed = fail(house.person("home").args(arguments))?;
    assert!(printed.contains("rollout environment `moody_world`"), "{printed}");
    assert!(printed.contains("there is no such world"), "{printed}");
    let status = house.json("home", "status.json")?;
    assert_eq!(status["failure"]["cause"], "reward", "{status}");
    Ok(())
}

/// What the environment says differs from process to process; a step that was recorded must not.
#[test]
fn a_resumed_run_is_told_what_was_recorded() -> Result<()> {
    let house = House::new(&["unsteady", "unsteady", "fine", "unsteady"])?;
    let arguments = ["--reward", "world", "--steps", "6", "--save-interval", "6", "--run-id", "resumed"];
    let mut person = start(house.person("home").args(arguments))?;
    let lines = || house.lines("home", "metrics.jsonl").map_or(0, |lines| lines.len());
    wait_for("two steps", || lines() >= 2);
    let trainer = house.job_pid("home", "train-").context("a trainer")?;
    signal(trainer, libc::SIGKILL);
    person.wait()?;
    wait_for("its end", || !Path::new(&format!("/proc/{trainer}")).exists());
    // No state was published: the run begins again, and its first steps are as they were.
    let before = house.lines("home", "rollouts/step-1.jsonl")?;
    succeed(house.person("home").args(arguments))?;
    assert!(house.json("home", "status.json")?["attempt"].as_u64() > Some(1));
    assert_eq!(house.lines("home", "rollouts/step-1.jsonl")?, before);
    let said = |record: &Value| record["episode"]["turns"][0]["observation"]["messages"][0]["content"].clone();
    let later = house.lines("home", "rollouts/step-6.jsonl")?;
    let unsteady = |records: &[Value]| -> Option<Value> {
        records.iter().find(|record| record["metadata"]["mood"] == "unsteady" && said(record).is_string()).map(said)
    };
    assert_ne!(unsteady(&before), unsteady(&later), "another process says another thing, so this test could fail");
    Ok(())
}
