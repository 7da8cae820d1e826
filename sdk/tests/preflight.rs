//! `config.check().report()`: one table, with what is wrong and what depends on it.

mod support;

use support::{Home, rows};
use training_gym::backend::Resources;
use training_gym::config::{Opd, Recipe, TrainConfig};
use training_gym::doctor::{Finding, Outcome, Report};
use training_gym::hub::{Hub, HubOptions};

fn config(home: &Home, scene: &str) -> TrainConfig {
    TrainConfig {
        model: home.model(scene),
        dataset: rows(home, "train.jsonl", &["2 + 2 = ?", "1 + 3 = ?"]),
        recipe: Recipe {
            num_rollout: Some(3),
            rollout_batch_size: Some(2),
            n_samples_per_prompt: Some(2),
            opd: Some(Opd::to_url("http://127.0.0.1:9/generate")),
            ..Recipe::default()
        },
    }
}

fn of<'a>(report: &'a Report, check: &str) -> &'a Finding {
    let found = report.findings.iter().find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("no `{check}` in\n{report}"))
}

#[tokio::test]
async fn every_check_has_its_line_and_nothing_is_started() {
    let home = Home::new();
    // No test asks the real hub.
    let offline = HubOptions { offline: true, ..HubOptions::new(home.path().join("hub")) };
    let gym = home.gym().with_hub(Hub::new(offline).unwrap());
    let report = config(&home, "noted").check().on(&gym).report().await;
    for check in ["configuration", "student", "training rows", "prompts", "run id", "store: write", "gym-runtime"] {
        assert_eq!(of(&report, check).outcome, Outcome::Ok, "{check}\n{report}");
    }
    assert!(of(&report, "training rows").detail.starts_with("2 rows"), "{report}");
    assert!(of(&report, "prompts").detail.contains("longest has 12 tokens"), "{report}");
    assert_eq!(of(&report, "student: computed").outcome, Outcome::Warning);
    assert_eq!(of(&report, "teacher").outcome, Outcome::Failed, "nothing listens there\n{report}");
    for skipped in ["program", "evaluation rows", "overlap", "hub"] {
        assert_eq!(of(&report, skipped).outcome, Outcome::Skipped, "{skipped}\n{report}");
    }
    assert!(gym.backend().list().await.unwrap().is_empty() && gym.runs().await.unwrap().is_empty());
}

#[tokio::test]
async fn several_faults_are_all_reported_and_what_depends_on_them_is_skipped() {
    let home = Home::new();
    let offline = HubOptions { offline: true, ..HubOptions::new(home.path().join("hub")) };
    let gym = home.gym().with_hub(Hub::new(offline).unwrap());
    let eval = rows(&home, "eval.jsonl", &["1 + 3 = ?"]);
    let mut config = config(&home, "steady");
    config.recipe.rollout_batch_size = Some(0);
    let launch =
        config.launch().on(&gym).eval(eval).resources(Resources { threads: Some(4096), ..Resources::default() });
    let report = launch.report().await;
    assert!(of(&report, "configuration").detail.contains("rollout_batch_size"), "{report}");
    let overlap = of(&report, "overlap");
    assert_eq!(overlap.outcome, Outcome::Failed, "{report}");
    assert!(overlap.remedy.as_ref().unwrap().contains("allow_shared_rows"), "{report}");
    assert_eq!(of(&report, "prompts").outcome, Outcome::Skipped);
    assert_eq!(of(&report, "threads").outcome, Outcome::Warning, "{report}");
    assert!(report.has_failed() && report.to_string().contains("→"));
}
