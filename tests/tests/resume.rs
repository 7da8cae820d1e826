//! Killed at any moment and launched again, a run ends with the weights of one that was not.

use std::time::{Duration, Instant};

use anyhow::Result;
use training_gym_tests::house::{House, signal, start, succeed, weights_hash};

const STEPS: u64 = 8;
const MOODS: [&str; 6] = ["fine"; 6];

/// Waits for `ready`; a minute is more than any of these takes.
fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !ready() {
        assert!(Instant::now() < deadline, "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Kills the trainer right after line `line` of metrics (0: right after its start), plus `delay`.
fn kill_at(house: &House, arguments: &[&str], (line, delay): (usize, Duration)) -> Result<()> {
    let mut person = start(house.person("cut").args(arguments))?;
    wait_for("the trainer", || house.job_pid("cut", "train-").is_some());
    let trainer = house.job_pid("cut", "train-").expect("a trainer");
    wait_for("its metrics", || line == 0 || house.lines("cut", "metrics.jsonl").map_or(0, |lines| lines.len()) >= line);
    std::thread::sleep(delay);
    signal(trainer, libc::SIGKILL);
    person.wait()?;
    Ok(())
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
    // Where a kill falls between these is the scheduler's choice: that is the point.
    let moments = [(0, 30), (1, 7), (3, 0), (4, 13), (6, 3)];
    for (line, milliseconds) in moments {
        kill_at(&house, &arguments, (line, Duration::from_millis(milliseconds)))?;
    }
    succeed(house.person("cut").args(&arguments))?;

    assert_eq!(weights_hash(&house, "cut", STEPS)?, weights_hash(&house, "whole", STEPS)?, "bit-identical weights");
    let steps_of = |home: &str| -> Result<Vec<u64>> {
        Ok(house.lines(home, "metrics.jsonl")?.iter().map(|line| line["step"].as_u64().unwrap_or(0)).collect())
    };
    assert_eq!(steps_of("cut")?, (1..=STEPS).collect::<Vec<_>>(), "every step once, in order");
    let attempts = house.json("cut", "status.json")?["attempt"].as_u64().unwrap_or(0);
    assert!(attempts > 1, "it was never really killed");
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
    let arguments = ["--steps", "30", "--save-interval", "30", "--run-id", "stopped"];
    let mut person = start(house.person("home").args(arguments))?;
    wait_for("the trainer", || house.job_pid("home", "train-").is_some());
    wait_for("a step", || house.lines("home", "metrics.jsonl").is_ok_and(|lines| !lines.is_empty()));
    signal(house.job_pid("home", "train-").expect("a trainer"), libc::SIGTERM);
    person.wait()?;
    let status = house.json("home", "status.json")?;
    assert_eq!(status["state"], "cancelled", "{status}");
    let step = status["step"].as_u64().unwrap_or(0);
    assert!((1..30).contains(&step), "{status}");
    weights_hash(&house, "home", step)?;
    succeed(house.person("home").args(arguments))?;
    assert_eq!(house.lines("home", "metrics.jsonl")?.len(), 30);
    Ok(())
}
