//! Killed at any moment and launched again, a run ends with the weights of one that was not.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use training_gym_tests::house::{House, fail, signal, start, succeed, wait_for, weights_hash};

const STEPS: u64 = 16;
const MOODS: [&str; 6] = ["fine"; 6];

/// A moment to kill a trainer at: once this many steps are in the metrics (0: as soon as it runs),
/// and a little later.
#[derive(Clone, Copy)]
struct Moment {
    steps: usize,
    later: Duration,
}

const fn at(steps: usize, milliseconds: u64) -> Moment {
    Moment { steps, later: Duration::from_millis(milliseconds) }
}

/// Launches the run and kills its trainer; `last` is the trainer killed before.
fn kill(house: &House, arguments: &[&str], moment: Moment, last: i32) -> Result<i32> {
    let mut person = start(house.person("cut").args(arguments))?;
    let living = |pid: &i32| *pid != last && Path::new(&format!("/proc/{pid}")).exists();
    wait_for("a living trainer", || house.job_pid("cut", "train-").as_ref().is_some_and(living));
    let trainer = house.job_pid("cut", "train-").expect("a trainer");
    let written = || house.lines("cut", "metrics.jsonl").map_or(0, |lines| lines.len());
    wait_for("its metrics", || written() >= moment.steps);
    std::thread::sleep(moment.later);
    signal(trainer, libc::SIGKILL);
    person.wait()?;
    // What a killed trainer leaves goes with its end.
    let scratch = house.path("cut/jobs/train-resumed/scratch");
    wait_for("its scratch to be removed", || !scratch.exists());
    Ok(trainer)
}

fn survives(teacher: bool) -> Result<()> {
    let house = House::new(&MOODS)?;
    let steps = STEPS.to_string();
    let path = house.path("teacher").to_string_lossy().into_owned();
    let mut arguments = vec!["--steps", &steps, "--save-interval", "2", "--run-id", "resumed"];
    if teacher {
        arguments.extend(["--teacher", &path]);
    }
    succeed(house.person("whole").args(&arguments))?;
    // Where in a step, a write or an upload each kill falls is chance: that is the point.
    let moments = [at(0, 60), at(1, 9), at(3, 0), at(5, 23), at(8, 4)];
    moments.into_iter().try_fold(0, |last, moment| kill(&house, &arguments, moment, last))?;
    succeed(house.person("cut").args(&arguments))?;

    assert_eq!(weights_hash(&house, "cut", STEPS)?, weights_hash(&house, "whole", STEPS)?, "bit-identical weights");
    let steps_of = |home: &str| -> Result<Vec<u64>> {
        Ok(house.lines(home, "metrics.jsonl")?.iter().map(|line| line["step"].as_u64().unwrap_or(0)).collect())
    };
    assert_eq!(steps_of("cut")?, (1..=STEPS).collect::<Vec<_>>(), "every step once, in order");
    // The first kill may come before the trainer took its number; the others come after a step.
    let attempts = house.json("cut", "status.json")?["attempt"].as_u64().unwrap_or(0);
    assert!(attempts >= moments.len() as u64, "only {attempts} attempts: the trainer was not killed each time");
    Ok(())
}

#[test]
fn without_a_teacher() -> Result<()> {
    survives(false)
}

#[test]
fn with_a_teacher_over_http() -> Result<()> {
    survives(true)
}

#[test]
fn asked_to_stop_it_publishes_what_it_has_and_goes_on_later() -> Result<()> {
    let house = House::new(&MOODS)?;
    let arguments = ["--steps", "60", "--save-interval", "60", "--run-id", "stopped"];
    let mut person = start(house.person("home").args(arguments))?;
    wait_for("the trainer", || house.job_pid("home", "train-").is_some());
    wait_for("a step", || house.lines("home", "metrics.jsonl").is_ok_and(|lines| !lines.is_empty()));
    signal(house.job_pid("home", "train-").expect("a trainer"), libc::SIGTERM);
    person.wait()?;
    let status = house.json("home", "status.json")?;
    assert_eq!(status["state"], "cancelled", "{status}");
    let step = status["step"].as_u64().unwrap_or(0);
    assert!((1..60).contains(&step), "{status}");
    weights_hash(&house, "home", step)?;
    succeed(house.person("home").args(arguments))?;
    assert_eq!(house.lines("home", "metrics.jsonl")?.len(), 60);
    Ok(())
}

/// Takes a run back to where its trainer was killed after the state of step `step` and before its end:
/// what it wrote behind that lies around.
fn cut_behind(house: &House, run_id: &str, step: u64) -> Result<()> {
    let folder = house.path(&format!("home/store/runs/{run_id}"));
    for kind in ["resume", "checkpoints"] {
        assert!(folder.join(format!("{kind}/step-{step}/manifest.json")).exists(), "{kind} of step {step}");
        std::fs::remove_dir_all(folder.join(format!("{kind}/step-{}", step + 1)))?;
    }
    Ok(())
}

#[test]
fn cut_before_a_last_step_without_a_signal_it_ends_as_one_that_was_not() -> Result<()> {
    // In order: the last step asks what is graded alike whatever the answer.
    let house = House::new(&["fine", "fine", "fine", "fine", "flat", "flat", "flat", "flat"])?;
    let arguments = ["--steps", "2", "--in-order", "--keep-resume-states", "2", "--run-id", "flat-end"];
    succeed(house.person("home").args(arguments))?;
    let metrics = house.lines("home", "metrics.jsonl")?;
    assert!(metrics[0]["grad_norm"].as_f64() > Some(0.0) && metrics[1]["grad_norm"] == 0.0, "{metrics:?}");
    let whole = weights_hash(&house, "home", 2)?;

    cut_behind(&house, "flat-end", 1)?;
    // A record that was damaged meanwhile is told, too.
    std::fs::write(house.path("home/store/runs/flat-end/rollouts/step-2.jsonl"), "{\"step\": 2,\n")?;
    succeed(&mut house.trainer("home", "flat-end"))?;
    let status = house.json("home", "status.json")?;
    assert_eq!((status["state"].as_str(), &status["attempt"]), (Some("succeeded"), &2.into()), "{status}");
    assert_eq!(weights_hash(&house, "home", 2)?, whole);
    let told = |note: &Value| note.as_str().is_some_and(|note| note.contains("rollouts/step-2.jsonl` is damaged"));
    assert!(status["notes"].as_array().is_some_and(|notes| notes.iter().any(told)), "{status}");
    Ok(())
}

#[test]
fn cut_where_the_learning_rate_has_come_to_0_it_ends_as_one_that_was_not() -> Result<()> {
    let house = House::new(&MOODS)?;
    let decay = ["--steps", "2", "--lr-decay-iters", "2", "--keep-resume-states", "2", "--run-id", "slow-end"];
    succeed(house.person("home").args(decay))?;
    let metrics = house.lines("home", "metrics.jsonl")?;
    assert_eq!(metrics[1]["lr"], 0.0, "{metrics:?}");
    cut_behind(&house, "slow-end", 1)?;
    succeed(&mut house.trainer("home", "slow-end"))?;
    assert_eq!(weights_hash(&house, "home", 1)?, weights_hash(&house, "home", 2)?, "the last step moves no weight");
    Ok(())
}

#[test]
fn a_run_that_learned_nothing_does_not_succeed_by_another_attempt() -> Result<()> {
    let house = House::new(&["flat"; 4])?;
    fail(house.person("home").args(["--steps", "2", "--run-id", "blind"]))?;
    fail(&mut house.trainer("home", "blind"))?;
    let status = house.json("home", "status.json")?;
    let sentence = status["failure"]["sentence"].as_str().unwrap_or_default();
    assert!(sentence.contains("no step of the 2 carried a signal") && status["attempt"] == 2, "{status}");
    Ok(())
}

#[test]
fn recorded_likeliest_tokens_are_learnt_from_again_and_not_asked_for() -> Result<()> {
    let house = House::new(&MOODS)?;
    let mut person = house.person("home");
    person.args(["--steps", "2", "--in-order", "--keep-resume-states", "2", "--run-id", "named", "--top-k", "8"]);
    succeed(person.args(["--divergence", "forward-kl", "--teacher"]).arg(house.path("teacher")))?;
    let whole = weights_hash(&house, "home", 2)?;
    let records = house.path("home/store/runs/named/rollouts/step-2.jsonl");
    let recorded = std::fs::read_to_string(&records)?;

    cut_behind(&house, "named", 1)?;
    succeed(&mut house.trainer("home", "named"))?;
    assert_eq!(weights_hash(&house, "home", 2)?, whole, "the same run");

    // What the record says counts, even where the teacher would say something else now.
    cut_behind(&house, "named", 1)?;
    let other: Vec<String> = recorded
        .lines()
        .map(|line| {
            let mut record: Value = serde_json::from_str(line)?;
            for logprob in record["teacher_top"]["logprobs"].as_array_mut().expect("log-probabilities") {
                *logprob = (logprob.as_f64().expect("a number") - 1.0).into();
            }
            Ok(record.to_string())
        })
        .collect::<Result<_>>()?;
    std::fs::write(&records, other.join("\n") + "\n")?;
    succeed(&mut house.trainer("home", "named"))?;
    assert_ne!(weights_hash(&house, "home", 2)?, whole, "it was asked anew");
    Ok(())
}
