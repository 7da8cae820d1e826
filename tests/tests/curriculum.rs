//! Programs of several runs, and what a run learns from responses that are not the student's own:
//! real SDK, real processes, tiny random models.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use training_gym_tests::house::{House, fail, signal, start, succeed, wait_for};
use training_gym_tests::programs::program;

const MOODS: [&str; 6] = ["fine"; 6];

/// The program with the student and teacher of the house, and rows that have a solution each.
fn curriculum(house: &House, home: &str, more: &[&str]) -> Command {
    let rows: String = (0..6)
        .map(|n| {
            let solution = if n % 2 == 0 { "it is a" } else { "see: e" };
            format!("{}\n", json!({"prompt": format!("What is {n} + 1?"), "label": n + 1, "solution": solution}))
        })
        .collect();
    let path = house.path("solved.jsonl");
    if !path.exists() {
        std::fs::write(&path, rows).unwrap();
    }
    let mut command = Command::new(program("curriculum"));
    command.env("TRAINING_GYM_RUNTIME", program("gym-runtime")).stdin(Stdio::null());
    command.arg("--home").arg(house.path(home)).arg("--dataset").arg(path);
    command.arg("--student").arg(house.path("student")).arg("--teacher").arg(house.path("teacher")).args(more);
    command
}

fn run_file(house: &House, home: &str, run: &str, name: &str) -> std::path::PathBuf {
    house.path(home).join("store/runs").join(run).join(name)
}

fn json_of(house: &House, home: &str, run: &str, name: &str) -> Result<Value> {
    let path = run_file(house, home, run, name);
    let text = std::fs::read(&path).with_context(|| format!("{} is not there", path.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

fn lines_of(house: &House, home: &str, run: &str, name: &str) -> Result<Vec<Value>> {
    let path = run_file(house, home, run, name);
    let text = std::fs::read_to_string(&path).with_context(|| format!("{} is not there", path.display()))?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn column(lines: &[Value], name: &str) -> Vec<f64> {
    lines.iter().map(|line| line[name].as_f64().unwrap_or_else(|| panic!("no {name} in {line}"))).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().map(|list| list.iter().filter_map(Value::as_f64).collect()).unwrap_or_default()
}

/// Mean of log π of all recorded tokens under whoever drew them.
fn mean_logprob(records: &[Value]) -> f64 {
    let all: Vec<f64> = records.iter().flat_map(|record| numbers(&record["rollout_logprobs"])).collect();
    all.iter().sum::<f64>() / all.len() as f64
}

#[test]
fn supervised_fine_tuning_learns_the_responses_alone_and_its_loss_is_their_likelihood() -> Result<()> {
    let house = House::new(&MOODS)?;
    succeed(&mut curriculum(&house, "home", &["--stages", "sft", "--steps", "30", "--lr", "5e-3"]))?;
    let metrics = lines_of(&house, "home", "bridge-sft", "metrics.jsonl")?;
    let losses = column(&metrics, "loss");
    assert!(losses[29] < 0.5 * losses[0], "{losses:?}");
    for line in &metrics {
        let (loss, surprisal) = (line["loss"].as_f64().unwrap(), line["entropy"].as_f64().unwrap());
        assert!((loss - surprisal).abs() < 1e-5, "the loss is the mean of −log π over response tokens: {line}");
        assert!(line["reward"].is_null() && line["reverse_kl"].is_null() && line["logprob_gap"] == 0.0, "{line}");
    }
    let record = &lines_of(&house, "home", "bridge-sft", "rollouts/step-1.jsonl")?[0];
    let ids = record["response_ids"].as_array().unwrap();
    let text = record["response"].as_str().unwrap();
    // A token a character in this vocabulary, and the end of the turn.
    assert_eq!((ids.len(), ids.last()), (text.chars().count() + 1, Some(&json!(2))), "{record}");
    assert_eq!((record["finish_reason"].as_str(), &record["grade"]["outcome"]), (Some("stop"), &json!("not-asked")));
    let spec = json_of(&house, "home", "bridge-sft", "spec.json")?;
    assert_eq!(spec["update"]["policy_loss"], "likelihood", "{spec}");

    // A row without a response is named before anything is trained.
    let bare = json!({"prompt": "What is 9 + 1?", "label": 10});
    let rows = std::fs::read_to_string(house.path("solved.jsonl"))? + &format!("{bare}\n");
    std::fs::write(house.path("solved.jsonl"), rows)?;
    let printed = fail(&mut curriculum(&house, "other", &["--stages", "sft"]))?;
    assert!(printed.contains("row 6 of the dataset has no text in its column `solution`"), "{printed}");
    Ok(())
}

#[test]
fn a_warm_up_learns_from_what_the_teacher_draws() -> Result<()> {
    let house = House::new(&MOODS)?;
    succeed(&mut curriculum(&house, "home", &["--stages", "warm-up", "--steps", "12"]))?;
    let metrics = lines_of(&house, "home", "bridge-warm-up", "metrics.jsonl")?;
    let divergences = column(&metrics, "divergence");
    assert!(divergences[11] < 0.7 * divergences[0], "{divergences:?}");
    // The forward KL is E_T[log T − log S]: the teacher's engine gave the first, the trainer the second.
    // Over some hundred tokens the two estimates of one number are near, and no more.
    let records = lines_of(&house, "home", "bridge-warm-up", "rollouts/step-1.jsonl")?;
    let sampled = mean_logprob(&records) + metrics[0]["entropy"].as_f64().unwrap();
    let tokens = metrics[0]["tokens"].as_f64().unwrap();
    assert!(tokens > 100.0, "{tokens}");
    let noise = 4.0 * (2.0 * divergences[0] / tokens).sqrt();
    assert!((sampled - divergences[0]).abs() < noise, "{sampled} and {} ± {noise}", divergences[0]);
    let spec = json_of(&house, "home", "bridge-warm-up", "spec.json")?;
    assert_eq!((&spec["responses"], &spec["distill"]["divergence"]), (&json!("teacher"), &json!("forward_kl")));
    Ok(())
}

#[test]
fn what_was_recorded_is_trained_on_again_and_its_likelihood_is_the_engines_own_word() -> Result<()> {
    let house = House::new(&MOODS)?;
    succeed(&mut curriculum(&house, "home", &["--stages", "opd,replay", "--steps", "2"]))?;
    // The replay control: one step more than there are, so the first comes again.
    for (replayed, source) in [(1, 1), (2, 2), (3, 1)] {
        let of = |run: &str, step: u64| lines_of(&house, "home", run, &format!("rollouts/step-{step}.jsonl"));
        let (again, first) = (of("bridge-replay", replayed)?, of("bridge-opd", source)?);
        for name in ["prompt_ids", "response_ids", "rollout_logprobs", "grade"] {
            let same = again.iter().zip(&first).all(|(again, first)| again[name] == first[name]);
            assert!(same && again.len() == first.len(), "{name} of step {replayed}");
        }
    }
    let metrics = lines_of(&house, "home", "bridge-replay", "metrics.jsonl")?;
    assert!(metrics.iter().all(|line| line["divergence"].is_number() && line["logprob_gap"] == 0.0), "{metrics:?}");
    let begun = json_of(&house, "home", "bridge-replay", "spec.json")?;
    let folder = begun["model"]["folder"].as_str().unwrap();
    assert!(folder.ends_with("runs/bridge-opd/checkpoints/step-2"), "{folder}");

    // From the weights that drew them, the likelihood of recorded responses is what the engine said.
    let more = ["--program", "sft", "--steps", "1", "--recorded", "bridge-opd"];
    succeed(&mut curriculum(&house, "home", &more))?;
    let loss = lines_of(&house, "home", "sft-again", "metrics.jsonl")?[0]["loss"].as_f64().unwrap();
    let said = -mean_logprob(&lines_of(&house, "home", "bridge-opd", "rollouts/step-1.jsonl")?);
    assert!((loss - said).abs() < 1e-4, "{loss} and {said}");
    let printed = fail(&mut curriculum(&house, "home", &["--program", "none", "--recorded", "nobody"]))?;
    assert!(printed.contains("runs/nobody/status.json"), "{printed}");
    Ok(())
}

fn weights(house: &House, home: &str, run: &str, step: u64) -> Result<String> {
    let manifest = json_of(house, home, run, &format!("checkpoints/step-{step}/manifest.json"))?;
    let files = manifest["files"].as_array().context("a manifest lists files")?;
    let weights = files.iter().find(|file| file["name"] == "model.safetensors").context("no weights")?;
    Ok(weights["sha256"].as_str().context("a hash")?.to_owned())
}

#[test]
fn a_program_that_is_killed_between_and_inside_its_stages_ends_as_one_that_was_not() -> Result<()> {
    let house = House::new(&MOODS)?;
    let arguments = ["--stages", "teacher-rl,warm-up,opd,student-rl", "--steps", "4"];
    let stages = ["bridge-teacher-rl", "bridge-warm-up", "bridge-opd", "bridge-student-rl"];
    let printed = succeed(&mut curriculum(&house, "whole", &arguments))?;
    for (name, run) in ["teacher-rl", "warm-up", "opd", "student-rl"].iter().zip(stages) {
        assert!(printed.contains(&format!("stage {name} {run} file:///")), "{printed}");
    }

    // Between two stages: the program is killed as the second begins, whose run goes on without it.
    let mut person = start(&mut curriculum(&house, "cut", &arguments))?;
    wait_for("the second stage", || run_file(&house, "cut", stages[1], "spec.json").exists());
    person.kill()?;
    person.wait()?;
    // Inside a stage: its trainer is killed behind its first step, and the program with it.
    let mut person = start(&mut curriculum(&house, "cut", &arguments))?;
    let stepped = || lines_of(&house, "cut", stages[2], "metrics.jsonl").is_ok_and(|lines| !lines.is_empty());
    wait_for("a step of the third stage", stepped);
    let trainer = house.job_pid("cut", &format!("train-{}", stages[2])).context("a trainer")?;
    signal(trainer, libc::SIGKILL);
    person.kill()?;
    person.wait()?;
    wait_for("its end", || !Path::new(&format!("/proc/{trainer}")).exists());

    succeed(&mut curriculum(&house, "cut", &arguments))?;
    for run in stages {
        assert_eq!(weights(&house, "cut", run, 4)?, weights(&house, "whole", run, 4)?, "{run}: bit-identical weights");
        let steps = lines_of(&house, "cut", run, "metrics.jsonl")?.len();
        assert_eq!(steps, 4, "{run}");
    }
    let attempts = |run: &str| Ok::<_, anyhow::Error>(json_of(&house, "cut", run, "status.json")?["attempt"].clone());
    assert_eq!(attempts(stages[0])?, 1, "what is done is not done again");
    // Each stage begins where the one before ended.
    let spec = json_of(&house, "cut", stages[3], "spec.json")?;
    assert!(spec["teacher"].is_null() && spec["distill"].is_null() && spec["reward"]["function"] == "vowels", "{spec}");
    let taught = json_of(&house, "cut", stages[2], "spec.json")?;
    let folder = taught["distill"]["teacher"]["folder"].as_str().context("a folder")?;
    assert!(folder.ends_with("runs/bridge-teacher-rl/checkpoints/step-4"), "{folder}");
    // A changed stage under the same name is another run, and is told by its field.
    let mut changed = curriculum(&house, "cut", &arguments);
    let printed = fail(changed.args(["--lr", "0.5"]))?;
    assert!(printed.contains("stage `teacher-rl`") && printed.contains("update.optimizer.lr"), "{printed}");
    Ok(())
}
