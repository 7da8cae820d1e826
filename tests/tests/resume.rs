//! Killed at any moment and launched again, a run ends with the weights of one that was not.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use training_gym_tests::house::{House, signal, start, succeed, wait_for, weights_hash};

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
