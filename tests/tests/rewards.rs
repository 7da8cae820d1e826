//! A reward function that misbehaves leaves its sample ungraded, never a zero, and too many stop
//! the run by name.

use anyhow::Result;
use serde_json::Value;
use training_gym_tests::house::{House, fail, succeed};

fn reasons(records: &[Value], mood: &str) -> Vec<String> {
    records
        .iter()
        .filter(|record| record["metadata"]["mood"] == mood)
        .map(|record| {
            assert_eq!(record["grade"]["outcome"], "ungraded", "{record}");
            assert!(record["reward"].is_null(), "{record}");
            record["grade"]["reason"].as_str().unwrap_or_default().to_owned()
        })
        .collect()
}

#[test]
fn each_way_to_fail_is_ungraded_with_its_reason_and_the_others_are_graded() -> Result<()> {
    let house = House::new(&["error", "panic", "nan", "die", "hang", "fine", "fine", "fine"])?;
    succeed(house.person("home").args(["--steps", "2", "--max-ungraded-fraction", "1"]))?;
    let mut records = house.lines("home", "rollouts/step-1.jsonl")?;
    records.extend(house.lines("home", "rollouts/step-2.jsonl")?);
    for (mood, words) in [
        ("error", "the label is unreadable"),
        ("panic", "index out of bounds, says the person's code"),
        ("nan", "NaN"),
        ("die", "died"),
        ("hang", "longer than 3 s"),
    ] {
        let reasons = reasons(&records, mood);
        assert_eq!(reasons.len(), 4, "{mood}");
        assert!(reasons.iter().all(|reason| reason.contains(words)), "{mood}: {reasons:?}");
    }
    let fine = records.iter().filter(|record| record["grade"]["outcome"] == "graded").count();
    assert_eq!(fine, 12, "whoever was in flight beside them got a grade");
    let ungraded: u64 =
        house.lines("home", "metrics.jsonl")?.iter().map(|line| line["ungraded"].as_u64().unwrap()).sum();
    assert_eq!(ungraded, 20);
    Ok(())
}

#[test]
fn too_many_stop_the_run_with_the_functions_name_and_message() -> Result<()> {
    let house = House::new(&["error", "error", "fine", "fine"])?;
    let printed = fail(house.person("home").args(["--steps", "2", "--max-ungraded-fraction", "0.25"]))?;
    assert!(printed.contains("moody") && printed.contains("the label is unreadable"), "{printed}");
    let status = house.json("home", "status.json")?;
    assert_eq!(
        (status["state"].as_str(), status["failure"]["cause"].as_str()),
        (Some("failed"), Some("reward")),
        "{status}"
    );
    assert!(status["failure"]["next_step"].as_str().is_some_and(|step| !step.is_empty()));
    Ok(())
}
