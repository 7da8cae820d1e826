//! Launching with a reward function: the program is stored by content, and rows that training and
//! evaluation share are refused. A program of its own, since a test harness may not ship itself.

mod support;

use support::Home;
use training_gym::prelude::*;
use training_gym::run::Error;
use training_gym_core::ids::ContentHash;

#[training_gym::reward]
async fn exact(sample: &mut Sample) -> Result<f64, RewardError> {
    Ok(if sample.response == sample.label { 1.0 } else { 0.0 })
}

fn rows(home: &Home, name: &str, problems: &[&str]) -> HuggingFaceDataset {
    let path = home.path().join(name);
    let lines = problems.iter().map(|problem| format!("{{\"prompt\": \"{problem}\", \"label\": 4}}\n"));
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    HuggingFaceDataset::file(path).input_key("prompt").label_key("label")
}

fn config(home: &Home) -> TrainConfig {
    TrainConfig {
        model: home.model("fine"),
        dataset: rows(home, "train.jsonl", &["2 + 2 = ?", "1 + 3 = ?"]),
        recipe: Recipe {
            num_rollout: Some(2),
            rollout_batch_size: Some(2),
            n_samples_per_prompt: Some(2),
            custom_rm_function: Some(EXACT),
            ..Recipe::default()
        },
    }
}

async fn the_program_is_stored_by_content(home: &Home, gym: &Gym) {
    let run = config(home).launch().on(gym).await.unwrap();
    let reward = run.spec().reward.clone().unwrap();
    assert_eq!(reward.function, "exact");
    let stored = gym.store().get(&reward.program.key).await.unwrap();
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(reward.program.sha256, ContentHash::of(&own));
    assert!(stored.bytes == own, "the stored program is this one");
    run.result().await.unwrap();
}

async fn shared_rows_are_refused_unless_allowed(home: &Home, gym: &Gym) {
    let eval = || rows(home, "eval.jsonl", &["5 + 5 = ?", "1 + 3 = ?"]);
    let before = gym.runs().await.unwrap().len();
    let launch = || config(home).launch().eval(eval()).on(gym);
    let error = launch().await.unwrap_err();
    assert!(matches!(error, Error::SharedRows(_)), "{error}");
    assert!(error.to_string().contains("allow_shared_rows"), "{error}");
    assert_eq!(gym.runs().await.unwrap().len(), before, "nothing was started");

    launch().allow_shared_rows(true).await.unwrap().result().await.unwrap();
    let held_out = rows(home, "held-out.jsonl", &["5 + 5 = ?"]);
    let run = config(home).launch().eval(held_out).on(gym).await.unwrap();
    assert_eq!(run.spec().eval.as_ref().unwrap().rows.rows, 1);
    run.result().await.unwrap();
}

#[training_gym::main]
async fn main() {
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    let home = Home::new();
    let gym = home.gym();
    the_program_is_stored_by_content(&home, &gym).await;
    shared_rows_are_refused_unless_allowed(&home, &gym).await;
    println!("test result: ok. 2 passed; 0 failed (launch_with_reward)");
}
