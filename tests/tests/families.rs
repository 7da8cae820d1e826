//! The main job, and what it publishes, on families with other layers than the rest of the suites.

use anyhow::Result;
use training_gym_tests::fixture::Family;
use training_gym_tests::house::{House, succeed, weights_hash};

#[test]
fn every_family_is_distilled_like_any_other() -> Result<()> {
    for family in Family::ALL {
        let house = House::of(&["fine"; 4], family)?;
        let teacher = house.path("teacher");
        succeed(house.person("home").arg("--teacher").arg(&teacher).args(["--steps", "3"]))?;
        let status = house.json("home", "status.json")?;
        assert_eq!((status["state"].as_str(), status["step"].as_u64()), (Some("succeeded"), Some(3)), "{status}");
        for line in house.lines("home", "metrics.jsonl")? {
            assert!(line["reverse_kl"].as_f64().unwrap() > 0.0, "{family:?}: {line}");
            let gap = line["logprob_gap"].as_f64().unwrap();
            assert!(gap < 1e-4, "{family:?}: engine and trainer disagree: {line}");
        }
        assert_ne!(weights_hash(&house, "home", 1)?, weights_hash(&house, "home", 3)?, "{family:?}");

        let checkpoint = house.run_folder("home")?.join("checkpoints/step-3");
        let written = std::fs::read(checkpoint.join("config.json"))?;
        let source = std::fs::read(house.path("student").join("config.json"))?;
        assert_eq!(written, source, "{family:?}: the config stays as it was");
        // What was published trains on, without a teacher.
        succeed(house.person_of("rl", &checkpoint).args(["--steps", "1"]))?;
    }
    Ok(())
}
