//! Files of a run that were deleted, cut or overwritten behind its back.

mod support;

use std::path::Path;

use support::{Home, alive, wait_until};
use training_gym::config::{Opd, Recipe, TrainConfig};
use training_gym::dataset::HuggingFaceDataset;
use training_gym::deploy::Endpoint;
use training_gym::gym::Gym;
use training_gym::run::{Checkpoint, Error, RunState, TrainRun};

async fn finished(home: &Home, gym: &Gym, id: &str) -> TrainRun {
    let rows = home.path().join("train.jsonl");
    std::fs::write(&rows, "{\"prompt\": \"2 + 2 = ?\", \"label\": 4}\n").unwrap();
    let config = TrainConfig {
        model: home.model("fine"),
        dataset: HuggingFaceDataset::file(rows),
        recipe: Recipe {
            num_rollout: Some(3),
            opd: Some(Opd::to_url("http://127.0.0.1:9/generate")),
            ..Recipe::default()
        },
    };
    let run = config.launch().run_id(id).on(gym).await.unwrap();
    run.result().await.unwrap();
    wait_until(|| async { alive(&home.path().join("jobs")).is_empty().then_some(()) }).await;
    run
}

/// The message and all its causes.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

fn mentions(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_lost_its_weights_is_no_success() {
    let home = Home::new();
    let gym = home.gym();
    let run = finished(&home, &gym, "done").await;
    let checkpoint = run.result().await.unwrap().checkpoints().last().clone();
    let folder_of = async |checkpoint: &Checkpoint| checkpoint.folder().await.unwrap();
    let folder = folder_of(&checkpoint).await;
    let weights = folder.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    type Damage<'a> = &'a dyn Fn(&Path);
    let damages: [(Damage<'_>, &str); 4] = [
        (&|path| std::fs::remove_file(path).unwrap(), "is missing"),
        (&|path| std::fs::write(path, &whole[..4]).unwrap(), "has 4 bytes instead of 11"),
        (&|path| std::fs::write(path, "the WEIGHTS").unwrap(), "another content"),
        (&|path| std::fs::remove_file(path).and_then(|()| std::fs::create_dir(path)).unwrap(), "is no file"),
    ];
    for (damage, words) in damages {
        damage(&weights);
        for error in [run.result().await.unwrap_err(), run.checkpoints().await.unwrap_err()] {
            let text = told(&error);
            mentions(&text, &[weights.to_str().unwrap(), words, "put the file back", "remove the checkpoint's folder"]);
        }
        // Nor is what is left of it served.
        let error = Endpoint::launch(&checkpoint).on(&gym).await.unwrap_err();
        mentions(&told(&error), &[weights.to_str().unwrap(), words]);
        if weights.is_dir() {
            std::fs::remove_dir(&weights).unwrap();
        }
        std::fs::write(&weights, &whole).unwrap();
    }
    run.result().await.unwrap();

    // An earlier checkpoint is not the one the run says it made.
    std::fs::remove_dir_all(&folder).unwrap();
    let error = run.result().await.unwrap_err();
    assert!(matches!(error, Error::LostCheckpoint { step: 3, newest: 1, .. }), "{error}");
    mentions(&told(&error), &[folder.to_str().unwrap(), "run.checkpoints()", "train anew"]);
    let left = run.checkpoints().await.unwrap();
    assert_eq!(left.iter().map(|checkpoint| checkpoint.step).collect::<Vec<_>>(), [1]);
    std::fs::remove_dir_all(folder_of(&left[0]).await).unwrap();
    let error = run.result().await.unwrap_err();
    assert!(matches!(error, Error::NoCheckpoint { .. }), "{error}");
    mentions(&told(&error), &["`done`", "train anew"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_document_is_named_with_its_cause_and_what_to_do() {
    let home = Home::new();
    let gym = home.gym();
    let run = finished(&home, &gym, "hurt").await;
    finished(&home, &gym, "well").await;
    let folder = home.path().join("store/runs/hurt");
    for (name, remedy) in [
        ("status.json", "launch again with `.run_id(\"hurt\")`"),
        ("spec.json", "put back a copy"),
        ("metrics.jsonl", "remove that line"),
        ("checkpoints/step-3/manifest.json", "put back a copy"),
    ] {
        let path = folder.join(name);
        let whole = std::fs::read(&path).unwrap();
        let mut half = whole[..whole.len() / 2].to_vec();
        half.push(b'\n');
        for damage in [half, b"[]\n".to_vec(), b"\0\0\n".to_vec()] {
            std::fs::write(&path, damage).unwrap();
            let text = match name {
                "spec.json" => told(&gym.run("hurt").await.unwrap_err()),
                _ => told(&run.result().await.unwrap_err()),
            };
            mentions(&text, &[path.to_str().unwrap(), "damaged", remedy, " line "]);
        }
        // One damaged run hides no other.
        let runs = gym.runs().await.unwrap();
        assert_eq!(runs.len(), 2);
        assert_eq!(runs[1].status.state, RunState::Succeeded);
        if matches!(name, "status.json" | "spec.json") {
            assert_eq!(runs[0].status.state, RunState::Failed);
            let failure = runs[0].status.failure.as_ref().unwrap();
            mentions(&format!("{} {}", failure.sentence, failure.next_step), &[path.to_str().unwrap(), remedy]);
        }
        std::fs::write(&path, whole).unwrap();
    }
    run.result().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_program_in_the_runtimes_place_is_named_before_anything_starts() {
    let home = Home::new();
    let rows = home.path().join("train.jsonl");
    std::fs::write(&rows, "{\"prompt\": \"2 + 2 = ?\"}\n").unwrap();
    let plain = home.path().join("plain-file");
    std::fs::write(&plain, "no program").unwrap();
    for program in [Path::new("/bin/true"), Path::new("/nowhere/gym-runtime"), &plain, home.path()] {
        let gym = Gym::local(home.path()).unwrap().with_runtime(program);
        let config = TrainConfig {
            model: home.model("fine"),
            dataset: HuggingFaceDataset::file(&rows),
            recipe: Recipe { opd: Some(Opd::to_url("http://127.0.0.1:9/generate")), ..Recipe::default() },
        };
        let name = program.file_name().unwrap().to_str().unwrap();
        let hint = ["TRAINING_GYM_RUNTIME", "cargo xtask runtime", name];
        let error = config.check().on(&gym).await.unwrap_err();
        mentions(&told(&error), &hint);
        assert!(error.hint().unwrap().contains("cargo xtask runtime"), "{error}");
        mentions(&told(&config.launch().on(&gym).await.unwrap_err()), &hint);
        let error = Endpoint::launch(home.model("fine")).on(&gym).await.unwrap_err();
        mentions(&told(&error), &hint);
        assert!(error.hint().unwrap().contains("cargo xtask runtime"), "{error}");
        assert!(gym.backend().list().await.unwrap().is_empty());
    }
}
