//! Methods of the literature through the real SDK and runtime, on tiny random models.

use anyhow::Result;
use training_gym_tests::house::{House, fail, succeed, weights_hash};

const MOODS: [&str; 6] = ["fine"; 6];

fn numbers(house: &House, home: &str, name: &str) -> Result<Vec<f64>> {
    Ok(house.lines(home, "metrics.jsonl")?.iter().map(|line| line[name].as_f64().unwrap()).collect())
}

#[test]
fn a_co_resident_teacher_draws_the_student_near_by_each_divergence() -> Result<()> {
    let house = House::new(&MOODS)?;
    let teacher = house.path("teacher");
    for divergence in ["reverse-kl", "forward-kl", "jsd"] {
        let mut person = house.person(divergence);
        person.args(["--reward", "none", "--steps", "12", "--divergence", divergence, "--co-resident"]).arg(&teacher);
        succeed(&mut person)?;
        let metrics = house.lines(divergence, "metrics.jsonl")?;
        let distances = numbers(&house, divergence, "divergence")?;
        assert!(distances[11] < 0.7 * distances[0], "{divergence}: {distances:?}");
        for line in &metrics {
            assert!(line["reward"].is_null() && line["reverse_kl"].is_number(), "{line}");
            assert!(line["logprob_gap"].as_f64().unwrap() < 1e-4, "engine and trainer disagree: {line}");
        }
        let record = &house.lines(divergence, "rollouts/step-1.jsonl")?[0];
        assert!(record["teacher_logprobs"].is_null(), "nobody was asked over HTTP: {record}");
    }
    Ok(())
}

#[test]
fn the_likeliest_tokens_of_a_served_teacher_draw_the_student_near() -> Result<()> {
    let house = House::new(&MOODS)?;
    for divergence in ["forward-kl", "reverse-kl"] {
        let mut person = house.person(divergence);
        person.args(["--reward", "none", "--steps", "12", "--divergence", divergence, "--top-k", "16", "--teacher"]);
        succeed(person.arg(house.path("teacher")))?;
        let distances = numbers(&house, divergence, "divergence")?;
        assert!(distances[11] < 0.7 * distances[0], "{divergence}: {distances:?}");
        for line in house.lines(divergence, "metrics.jsonl")? {
            assert!(line["reverse_kl"].is_number() && line["health"]["reverse_kl_p95"].is_number(), "{line}");
        }
        for record in house.lines(divergence, "rollouts/step-1.jsonl")? {
            let (top, tokens) = (&record["teacher_top"], record["response_ids"].as_array().unwrap().len());
            assert_eq!((&top["k"], top["ids"].as_array().unwrap().len()), (&16.into(), 16 * tokens), "{record}");
            assert_eq!(record["teacher_logprobs"].as_array().unwrap().len(), tokens);
        }
    }
    Ok(())
}

#[test]
fn doing_without_memory_changes_no_bit_and_is_counted() -> Result<()> {
    let house = House::new(&MOODS)?;
    let run = |home: &str, more: &[&str]| -> Result<String> {
        let mut person = house.person(home);
        person.args(["--steps", "2", "--in-order", "--run-id", "same", "--teacher"]).arg(house.path("teacher"));
        succeed(person.args(more))
    };
    run("plain", &[])?;
    run("sparing", &["--sparing"])?;
    for step in [1, 2] {
        assert_eq!(weights_hash(&house, "plain", step)?, weights_hash(&house, "sparing", step)?, "step {step}");
    }
    assert!(house.lines("plain", "metrics.jsonl")?.iter().all(|line| line["memory"].is_null()));
    for line in house.lines("sparing", "metrics.jsonl")? {
        let memory = &line["memory"];
        assert!(memory["cache_bytes"].as_u64() > Some(0), "{line}");
        assert_eq!(memory["cache_freed_bytes"], memory["cache_bytes"], "{line}");
        assert_eq!(memory["moved_bytes"], 0, "the device is the CPU: {line}");
    }
    let status = house.json("sparing", "status.json")?.to_string();
    assert!(status.contains("param_offload, optimizer_offload: the device is the CPU"), "{status}");
    Ok(())
}

#[test]
fn a_reward_and_a_co_resident_teacher_are_one_loss_and_a_run_can_be_had_again() -> Result<()> {
    let house = House::new(&MOODS)?;
    let run = |home: &str, steps: &str, id: &str| -> Result<String> {
        let mut person = house.person(home);
        person.args(["--steps", steps, "--run-id", id, "--in-order", "--divergence", "jsd", "--co-resident"]);
        succeed(person.arg(house.path("teacher")))
    };
    run("whole", "3", "whole")?;
    assert!(
        house.lines("whole", "metrics.jsonl")?.iter().all(|l| l["reward"].is_number() && l["divergence"].is_number())
    );
    run("again", "3", "again")?;
    assert_eq!(weights_hash(&house, "whole", 3)?, weights_hash(&house, "again", 3)?, "the same run twice");
    Ok(())
}

#[test]
fn a_teacher_of_another_tokenizer_is_refused_by_name() -> Result<()> {
    let house = House::new(&MOODS)?;
    let path = house.path("teacher/tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    let (a, b) = (vocabulary["a"].clone(), vocabulary["b"].clone());
    (vocabulary["a"], vocabulary["b"]) = (b, a);
    std::fs::write(&path, tokenizer.to_string())?;
    let mut person = house.person("home");
    let printed = fail(person.args(["--reward", "none", "--co-resident"]).arg(house.path("teacher")))?;
    assert!(printed.contains("the teacher `teacher` has another tokenizer than the student `student`"), "{printed}");
    Ok(())
}

#[test]
fn every_method_trains() -> Result<()> {
    let house = House::new(&MOODS)?;
    for method in ["dr-grpo", "rloo", "reinforce-plus-plus", "gspo", "cispo", "dapo"] {
        succeed(house.person(method).args(["--steps", "2", "--method", method]))?;
        assert!(numbers(&house, method, "grad_norm")?.iter().all(|norm| *norm > 0.0), "{method}");
        assert_ne!(weights_hash(&house, method, 1)?, weights_hash(&house, method, 2)?, "{method}");
    }
    Ok(())
}

#[test]
fn half_of_the_tokens_and_weighed_problems_draw_the_student_near_too() -> Result<()> {
    let house = House::new(&MOODS)?;
    let run = |home: &str, more: &[&str]| -> Result<String> {
        let mut person = house.person(home);
        person.args(["--steps", "12", "--co-resident"]).arg(house.path("teacher")).args(more);
        succeed(&mut person)
    };
    let health = |home: &str, name: &str| -> Result<Vec<f64>> {
        let lines = house.lines(home, "metrics.jsonl")?;
        Ok(lines.iter().map(|line| line["health"][name].as_f64().unwrap()).collect())
    };
    // The sampled reverse KL is over all tokens of a teacher that teaches all, and over the chosen otherwise.
    run("tip", &["--reward", "none", "--tip", "0.5"])?;
    assert!(health("tip", "selected_share")?.iter().all(|share| *share > 0.3 && *share <= 0.5));
    let distances = numbers(&house, "tip", "divergence")?;
    assert!(distances[11] < 0.8 * distances[0], "{distances:?}");

    let printed = run("paced", &["--method", "paced", "--divergence", "forward-kl", "--then-reverse"])?;
    assert!(health("paced", "effective_share")?.iter().all(|share| *share > 0.0 && *share <= 1.0));
    assert!(house.lines("paced", "metrics.jsonl")?.iter().all(|line| line["reward"].is_number()));
    for line in ["first step   last step", "effective share of weights", "stopped share"] {
        assert!(printed.contains(line), "the summary has no `{line}`: {printed}");
    }
    run("weighted", &["--method", "reward-weighted"])?;
    assert!(health("weighted", "effective_share")?.iter().any(|share| *share < 0.9));
    let spec = house.json("paced", "spec.json")?;
    assert_eq!(spec["distill"]["switch"]["at"], 0.5, "{spec}");
    Ok(())
}
