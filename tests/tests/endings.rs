//! Ends of a run that are neither success nor a crash: nothing to learn from, another attempt that
//! took over, and a request to stop before anything was loaded.

use std::time::{Duration, Instant};

use anyhow::Result;
use training_gym_tests::held::Held;
use training_gym_tests::house::{House, fail, signal, start, succeed, wait_for};

#[test]
fn a_run_without_a_signal_fails_and_says_so() -> Result<()> {
    for mood in ["flat", "error"] {
        let house = House::new(&[mood; 4])?;
        let arguments = ["--steps", "2", "--max-ungraded-fraction", "1", "--run-id", "blind"];
        fail(house.person("home").args(arguments))?;
        let status = house.json("home", "status.json")?;
        let failure = &status["failure"];
        assert_eq!(
            (status["state"].as_str(), failure["cause"].as_str()),
            (Some("failed"), Some("numerics")),
            "{status}"
        );
        let sentence = failure["sentence"].as_str().unwrap_or_default();
        assert!(sentence.contains("no step of the 2 carried a signal"), "{mood}: {status}");
        // The status comes first, then the process ends.
        wait_for("its end", || house.job_json("home", "blind", "exit.json").is_ok());
        assert_eq!(house.job_json("home", "blind", "exit.json")?["code"], 5);
        let metrics = house.lines("home", "metrics.jsonl")?;
        assert!(metrics.len() == 2 && metrics.iter().all(|line| line["grad_norm"] == 0.0), "{metrics:?}");
        // The reward is what was given, or none: never a 0 that nobody gave.
        let expected = if mood == "flat" { serde_json::json!(1.0) } else { serde_json::Value::Null };
        assert!(metrics.iter().all(|line| line["reward"] == expected), "{metrics:?}");
    }
    Ok(())
}

#[test]
fn an_attempt_that_another_superseded_ends_and_leaves_the_run_alone() -> Result<()> {
    let house = House::new(&["fine"; 6])?;
    let arguments = ["--steps", "5000", "--save-interval", "5000", "--run-id", "twice", "--detach"];
    succeed(house.person("home").args(arguments))?;
    wait_for("a step", || house.lines("home", "metrics.jsonl").is_ok_and(|lines| !lines.is_empty()));
    let mut newer = start(&mut house.trainer("home", "twice"))?;
    wait_for("the older one's end", || house.job_json("home", "twice", "exit.json").is_ok());
    assert_eq!(house.job_json("home", "twice", "exit.json")?["code"], 7);
    let pointer = house.json("home", "latest.json")?;
    assert_eq!((&pointer["attempt"], &pointer["step"]), (&2.into(), &0.into()), "it published no more");
    signal(i32::try_from(newer.id())?, libc::SIGTERM);
    assert_eq!(newer.wait()?.code(), Some(143));
    let status = house.json("home", "status.json")?;
    assert_eq!((&status["attempt"], status["state"].as_str()), (&2.into(), Some("cancelled")), "{status}");
    assert_eq!(house.json("home", "latest.json")?["attempt"], 2);
    Ok(())
}

#[test]
fn a_trainer_that_is_asked_to_stop_while_it_loads_ends_at_once() -> Result<()> {
    let house = House::new(&["fine"; 4])?;
    succeed(house.person("home").args(["--steps", "1", "--run-id", "early"]))?;
    // Whoever reads it waits, as for a disk that does not answer.
    let tokenizer = Held::new(&house.path("student/tokenizer.json"))?;
    let mut trainer = start(&mut house.trainer("home", "early"))?;
    wait_for("the trainer to load its model", || tokenizer.is_waited_for());
    let asked = Instant::now();
    signal(i32::try_from(trainer.id())?, libc::SIGTERM);
    assert_eq!(trainer.wait()?.code(), Some(143));
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    let status = house.json("home", "status.json")?;
    assert_eq!((status["state"].as_str(), &status["step"]), (Some("cancelled"), &1.into()), "{status}");
    Ok(())
}
