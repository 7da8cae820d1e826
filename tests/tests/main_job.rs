//! The main job through the real SDK, the real runtime and real HTTP, on tiny random models.

use anyhow::Result;
use training_gym_tests::house::{House, fail, succeed, weights_hash};

const MOODS: [&str; 6] = ["fine"; 6];

#[test]
fn distillation_with_a_reward_trains_publishes_and_records() -> Result<()> {
    let house = House::new(&MOODS)?;
    let printed = succeed(house.person("home").arg("--teacher").arg(house.path("teacher")).args(["--steps", "3"]))?;
    assert!(printed.contains("checkpoint "), "{printed}");

    let status = house.json("home", "status.json")?;
    assert_eq!((status["state"].as_str(), status["step"].as_u64()), (Some("succeeded"), Some(3)), "{status}");
    let metrics = house.lines("home", "metrics.jsonl")?;
    assert_eq!(metrics.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    for line in &metrics {
        // Another random model is the teacher: the student cannot agree with it.
        assert!(line["reverse_kl"].as_f64().unwrap() > 0.0, "{line}");
        assert!(line["reward"].as_f64().is_some() && line["loss"].as_f64().is_some(), "{line}");
        assert!(line["logprob_gap"].as_f64().unwrap() < 1e-4, "engine and trainer disagree: {line}");
    }
    let records = house.lines("home", "rollouts/step-3.jsonl")?;
    assert_eq!(records.len(), 16);
    for record in &records {
        let count = record["response_ids"].as_array().unwrap().len();
        assert_eq!(record["rollout_logprobs"].as_array().unwrap().len(), count);
        assert_eq!(record["teacher_logprobs"].as_array().unwrap().len(), count);
        assert!(record["metadata"]["vowels"].is_u64(), "what the reward function wrote comes back: {record}");
        assert_eq!(record["weight_version"], 2);
    }
    // A checkpoint is a Hugging Face folder.
    let folder = house.run_folder("home")?.join("checkpoints/step-3");
    for name in
        ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"]
    {
        assert!(folder.join(name).is_file(), "{name}");
    }
    assert_ne!(weights_hash(&house, "home", 1)?, weights_hash(&house, "home", 3)?);
    Ok(())
}

#[test]
fn pure_reinforcement_learning_and_pure_distillation_are_the_same_loop() -> Result<()> {
    let house = House::new(&MOODS)?;
    succeed(house.person("rl").args(["--reward", "doubled", "--steps", "2"]))?;
    let metrics = house.lines("rl", "metrics.jsonl")?;
    assert!(metrics.iter().all(|line| line["reverse_kl"].is_null() && line["reward"].is_number()));
    for record in house.lines("rl", "rollouts/step-1.jsonl")? {
        let (reward, score) = (record["reward"].as_f64().unwrap(), record["score"].as_f64().unwrap());
        assert!((reward - 2.0 * score).abs() < 1e-12, "the post-process function's reward counts: {record}");
    }

    let teacher = house.path("teacher");
    succeed(house.person("opd").args(["--reward", "none", "--steps", "2", "--teacher"]).arg(teacher))?;
    let metrics = house.lines("opd", "metrics.jsonl")?;
    assert!(metrics.iter().all(|line| line["reverse_kl"].is_number() && line["reward"].is_null()));
    Ok(())
}

#[test]
fn a_run_outlives_its_program_and_another_process_comes_back_to_it() -> Result<()> {
    let house = House::new(&MOODS)?;
    let launched = succeed(house.person("home").args(["--steps", "12", "--detach"]))?;
    let id = launched.lines().find_map(|line| line.strip_prefix("run ")).expect("the run's id").to_owned();
    let printed = succeed(house.person("home").args(["--steps", "12", "--run-id", &id]))?;
    assert!(printed.contains("step-12"), "{printed}");
    assert_eq!(house.lines("home", "metrics.jsonl")?.len(), 12);
    assert_eq!(house.json("home", "status.json")?["attempt"], 1, "it was followed, not started again");
    Ok(())
}

#[test]
fn the_last_step_is_evaluated_whatever_the_interval() -> Result<()> {
    let house = House::new(&MOODS)?;
    succeed(house.person("home").args(["--steps", "3", "--eval-interval", "2"]))?;
    let evaluated: Vec<u64> = house
        .lines("home", "metrics.jsonl")?
        .iter()
        .filter(|line| line["eval_reward"].is_number())
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(evaluated, [2, 3]);
    Ok(())
}

#[test]
fn a_model_that_is_not_computed_is_refused_by_name_before_anything_starts() -> Result<()> {
    let house = House::new(&MOODS)?;
    let path = house.path("student/config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    config["architectures"] = serde_json::json!(["MambaForCausalLM"]);
    std::fs::write(&path, config.to_string())?;
    let printed = fail(house.person("home").args(["--steps", "1"]))?;
    for part in ["`student`", "MambaForCausalLM", "supported", "Qwen3ForCausalLM"] {
        assert!(printed.contains(part), "{part} is not in: {printed}");
    }
    assert!(house.run_folder("home").is_err(), "no run was made");
    Ok(())
}
