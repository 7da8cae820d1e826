use std::fs;
use std::path::Path;

use super::*;
use crate::ids::{RunId, WeightVersion};
use crate::store::{FileStore, MemoryStore, Store};

fn run() -> RunId {
    "run-a".parse().unwrap()
}

fn draft(kind: Kind, step: u64) -> Draft {
    let weight_version = WeightVersion(step);
    Draft { kind, run_id: run(), step, model: "org/tiny".to_owned(), weight_version, attempt: 1 }
}

fn model(weights: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    fs::create_dir(folder.path().join("extra")).unwrap();
    fs::write(folder.path().join("extra/é.txt"), "").unwrap();
    folder
}

fn file_store() -> (tempfile::TempDir, FileStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(folder.path()).unwrap();
    (folder, store)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_published_folder_is_usable_in_place_and_comes_back_whole() {
    let (_folder, store) = file_store();
    let published = publish(&store, model("w5").path(), &draft(Kind::Checkpoint, 5)).await.unwrap();
    assert!(!published.adopted);
    let manifest = published.manifest;
    assert_eq!(manifest.folder(), "runs/run-a/checkpoints/step-5");
    assert_eq!(
        manifest.files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(),
        ["config.json", "extra/é.txt", "model.safetensors"]
    );
    assert_eq!(manifest.size(), 4);
    let in_place = store.local_path(&manifest.folder()).unwrap();
    assert_eq!(names(&in_place), ["config.json", "extra", "manifest.json", "model.safetensors"]);

    verify(&store, &manifest).await.unwrap();
    assert_eq!(latest(&store, Kind::Checkpoint, &run()).await.unwrap().unwrap(), manifest);
    assert_eq!(latest_pointer(&store, &run()).await.unwrap().unwrap().step, 5);

    let target = tempfile::tempdir().unwrap();
    let copy = target.path().join("copy");
    fs::create_dir(&copy).unwrap();
    fs::write(copy.join("model.safetensors"), "a half").unwrap();
    fetch(&store, &manifest, &copy).await.unwrap();
    assert_eq!(names(&copy), names(&in_place));
    assert_eq!(fs::read(copy.join("model.safetensors")).unwrap(), b"w5");
    // A fetched folder can be published again: its manifest is not part of its content.
    let other = publish(&store, &copy, &draft(Kind::Checkpoint, 6)).await.unwrap().manifest;
    assert_eq!(other.files, manifest.files);
}

#[tokio::test]
async fn publishing_again_adopts_the_same_and_refuses_the_different() {
    let store = MemoryStore::new();
    let first = publish(&store, model("w").path(), &draft(Kind::Checkpoint, 1)).await.unwrap();
    let again = publish(&store, model("w").path(), &draft(Kind::Checkpoint, 1)).await.unwrap();
    assert!(again.adopted);
    assert_eq!(again.manifest, first.manifest, "the manifest of the first stands");

    let error = publish(&store, model("other").path(), &draft(Kind::Checkpoint, 1)).await.unwrap_err();
    assert!(
        matches!(&error, Error::Conflict { difference, .. } if difference.contains("model.safetensors")),
        "{error}"
    );
    let renamed = Draft { model: "org/else".to_owned(), ..draft(Kind::Checkpoint, 1) };
    assert!(matches!(publish(&store, model("w").path(), &renamed).await, Err(Error::Conflict { .. })));
    verify(&store, &first.manifest).await.expect("the refused one touched nothing");
}

#[tokio::test]
async fn what_a_crash_left_is_not_trusted_and_is_replaced() {
    let store = MemoryStore::new();
    for (name, content) in [("model.safetensors", "half"), ("model-00002.safetensors", "stray")] {
        store.put(&format!("runs/run-a/checkpoints/step-3/{name}"), content.into()).await.unwrap();
    }
    assert_eq!(latest(&store, Kind::Checkpoint, &run()).await.unwrap(), None);
    assert!(list(&store, Kind::Checkpoint, &run()).await.unwrap().is_empty());
    let manifest = publish(&store, model("w3").path(), &draft(Kind::Checkpoint, 3)).await.unwrap().manifest;
    verify(&store, &manifest).await.unwrap();
    let keys = store.list("runs/run-a/checkpoints/step-3/").await.unwrap();
    assert_eq!(keys.len(), 4, "the stray shard is gone: {keys:?}");
}

#[tokio::test]
async fn listings_are_by_number_and_the_pointer_never_goes_back() {
    let store = MemoryStore::new();
    for step in [2, 10, 9] {
        publish(&store, model(&step.to_string()).path(), &draft(Kind::Checkpoint, step)).await.unwrap();
    }
    let steps: Vec<u64> = list(&store, Kind::Checkpoint, &run()).await.unwrap().iter().map(|m| m.step).collect();
    assert_eq!(steps, [2, 9, 10]);
    assert_eq!(latest(&store, Kind::Checkpoint, &run()).await.unwrap().unwrap().step, 10);
    assert_eq!(latest_pointer(&store, &run()).await.unwrap().unwrap().step, 10);
    assert_eq!(advance_latest(&store, &run(), 1, 4).await.unwrap().step, 10);
    assert_eq!(list(&store, Kind::ResumeState, &run()).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_movers_the_furthest_wins() {
    let (_folder, store) = file_store();
    let tasks: Vec<_> = (1..=8)
        .map(|step| {
            let store = store.clone();
            tokio::spawn(async move { advance_latest(&store, &run(), 1, step).await.unwrap().step })
        })
        .collect();
    for (i, task) in tasks.into_iter().enumerate() {
        assert!(task.await.unwrap() > i as u64, "what a mover is told is at least its own step");
    }
    assert_eq!(latest_pointer(&store, &run()).await.unwrap().unwrap().step, 8);
}

#[tokio::test]
async fn damage_is_found() {
    let store = MemoryStore::new();
    let manifest = publish(&store, model("ww").path(), &draft(Kind::Checkpoint, 1)).await.unwrap().manifest;
    let key = "runs/run-a/checkpoints/step-1/model.safetensors";
    let target = tempfile::tempdir().unwrap();
    for (content, words) in
        [(Some("xx"), "another content"), (Some("longer"), "6 bytes instead of 2"), (None, "missing")]
    {
        match content {
            Some(content) => drop(store.put(key, content.into()).await.unwrap()),
            None => store.delete(key).await.unwrap(),
        }
        let error = verify(&store, &manifest).await.unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }) && error.to_string().contains(words), "{error}");
        assert!(matches!(fetch(&store, &manifest, target.path()).await, Err(Error::Damaged { .. })));
        assert!(!target.path().join(MANIFEST).exists(), "no manifest for a damaged copy");
    }
}

#[tokio::test]
async fn manifests_are_read_strictly() {
    let store = MemoryStore::new();
    let manifest = publish(&store, model("w").path(), &draft(Kind::Checkpoint, 1)).await.unwrap().manifest;
    let key = "runs/run-a/checkpoints/step-1/manifest.json";
    let stored: serde_json::Value = serde_json::from_slice(&store.get(key).await.unwrap().bytes).unwrap();
    assert_eq!(stored["version"], "1");
    let put = async |change: &dyn Fn(&mut serde_json::Value)| {
        let mut document = stored.clone();
        change(&mut document);
        store.put(key, document.to_string().into()).await.unwrap();
        at(&store, Kind::Checkpoint, &run(), 1).await
    };
    assert_eq!(put(&|_| {}).await.unwrap().unwrap(), manifest);
    assert!(matches!(put(&|d| d["version"] = "2".into()).await, Err(Error::Unreadable { .. })));
    assert!(matches!(put(&|d| d["surprise"] = 1.into()).await, Err(Error::Unreadable { .. })));
    assert!(matches!(put(&|d| d["step"] = 2.into()).await, Err(Error::Damaged { .. })));
    let escaping = put(&|d| d["files"][0]["name"] = "../../outside".into()).await;
    assert!(matches!(escaping, Err(Error::Damaged { .. })), "{escaping:?}");
}

#[tokio::test]
async fn a_folder_without_files_is_refused() {
    let store = MemoryStore::new();
    let empty = tempfile::tempdir().unwrap();
    let error = publish(&store, empty.path(), &draft(Kind::Checkpoint, 1)).await.unwrap_err();
    assert!(error.to_string().contains("no files"), "{error}");
    let missing = publish(&store, &empty.path().join("x"), &draft(Kind::Checkpoint, 1)).await.unwrap_err();
    assert!(matches!(missing, Error::Local { .. }), "{missing}");
    assert!(store.list("").await.unwrap().is_empty());
}

#[test]
fn retention_keeps_the_newest_resume_states() {
    let published = |step| State { step, published: true };
    let partial = |step| State { step, published: false };
    let gone = |states: &[State], keep| -> Vec<u64> {
        retention(states, keep).into_iter().map(|Action::DeleteResumeState { step }| step).collect()
    };
    let states = [published(1), published(3), partial(4), published(10), partial(11), published(2)];
    assert_eq!(gone(&states, 2), [1, 2, 4]);
    assert_eq!(gone(&states, 0), [1, 2, 3, 4], "one is always kept");
    assert_eq!(gone(&states, 9), [4]);
    assert!(gone(&[partial(1)], 1).is_empty(), "without a published one nothing goes");
    assert!(gone(&[], 1).is_empty());
}

#[tokio::test]
async fn retention_touches_its_step_alone() {
    let store = MemoryStore::new();
    for step in [1, 10, 11] {
        publish(&store, model("w").path(), &draft(Kind::ResumeState, step)).await.unwrap();
    }
    publish(&store, model("w").path(), &draft(Kind::Checkpoint, 1)).await.unwrap();
    let actions = retention(&states(&store, Kind::ResumeState, &run()).await.unwrap(), 2);
    carry_out(&store, &run(), &actions).await.unwrap();
    let left: Vec<u64> = list(&store, Kind::ResumeState, &run()).await.unwrap().iter().map(|m| m.step).collect();
    assert_eq!(left, [10, 11]);
    assert!(store.list("runs/run-a/resume/step-1/").await.unwrap().is_empty());
    assert_eq!(list(&store, Kind::Checkpoint, &run()).await.unwrap().len(), 1);
    assert_eq!(latest_pointer(&store, &run()).await.unwrap().unwrap().step, 1, "resume states move no pointer");
}

#[tokio::test]
async fn a_damaged_pointer_is_written_anew() {
    let store = MemoryStore::new();
    let run: RunId = "r".parse().unwrap();
    store.put("runs/r/latest.json", bytes::Bytes::from_static(b"junk")).await.unwrap();
    assert!(latest_pointer(&store, &run).await.is_err());
    assert_eq!(advance_latest(&store, &run, 1, 5).await.unwrap().step, 5);
    assert_eq!(latest_pointer(&store, &run).await.unwrap().unwrap().step, 5);
    assert_eq!(advance_latest(&store, &run, 1, 3).await.unwrap().step, 5, "it never moves back");
}

/// The race a superseded attempt may run: it looked at the run, was the owner, and moves the pointer
/// after another has taken over.
async fn a_superseded_attempt_never_moves_the_pointer(store: &dyn Store) {
    claim_latest(store, &run(), 1).await.unwrap();
    assert_eq!(latest_pointer(store, &run()).await.unwrap(), None, "a claim is no checkpoint");
    publish(store, model("w2").path(), &draft(Kind::Checkpoint, 2)).await.unwrap();
    claim_latest(store, &run(), 2).await.unwrap();
    claim_latest(store, &run(), 2).await.unwrap();
    let there = || async { latest_pointer(store, &run()).await.unwrap().unwrap() };
    let (claimed, published) = (there().await, draft(Kind::Checkpoint, 4));
    assert_eq!((claimed.step, claimed.attempt), (2, 2));
    for error in [
        advance_latest(store, &run(), 1, 3).await.unwrap_err(),
        publish(store, model("w4").path(), &published).await.unwrap_err(),
        claim_latest(store, &run(), 1).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Superseded { attempt: 1, newer: 2, .. }), "{error}");
        assert!(error.to_string().contains("attempt 2 of run run-a has begun"), "{error}");
    }
    assert_eq!(there().await, claimed);
    // What it left is adopted by the owner.
    assert!(publish(store, model("w4").path(), &Draft { attempt: 2, ..published }).await.unwrap().adopted);
    let moved = there().await;
    assert_eq!((moved.step, moved.attempt), (4, 2));
    // A pointer from before attempts were noted belongs to nobody.
    let old = r#"{"step": 3, "updated_at": 1.5}"#;
    store.put("runs/run-a/latest.json", old.into()).await.unwrap();
    assert_eq!(advance_latest(store, &run(), 1, 5).await.unwrap().step, 5);
    store.put("runs/run-a/latest.json", "junk".into()).await.unwrap();
    claim_latest(store, &run(), 3).await.unwrap();
    let claimed = there().await;
    assert_eq!((claimed.step, claimed.attempt), (4, 3), "from the manifests");
}

#[tokio::test]
async fn a_superseded_attempt_never_moves_the_pointer_in_memory() {
    a_superseded_attempt_never_moves_the_pointer(&MemoryStore::new()).await;
}

#[tokio::test]
async fn a_superseded_attempt_never_moves_the_pointer_of_files() {
    a_superseded_attempt_never_moves_the_pointer(&file_store().1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_claim_no_older_move_lands() {
    let (_folder, files) = file_store();
    let memory: std::sync::Arc<dyn Store> = std::sync::Arc::new(MemoryStore::new());
    for store in [memory, std::sync::Arc::new(files)] {
        let old = tokio::spawn({
            let store = std::sync::Arc::clone(&store);
            async move {
                for step in 1.. {
                    if advance_latest(&*store, &run(), 1, step).await.is_err() {
                        return step;
                    }
                }
                0
            }
        });
        while latest_pointer(&*store, &run()).await.unwrap().is_none_or(|latest| latest.step < 20) {
            tokio::task::yield_now().await;
        }
        claim_latest(&*store, &run(), 2).await.unwrap();
        let claimed = latest_pointer(&*store, &run()).await.unwrap().unwrap();
        let stopped_at = old.await.unwrap();
        assert_eq!(latest_pointer(&*store, &run()).await.unwrap().unwrap(), claimed);
        assert_eq!((claimed.step, claimed.attempt), (stopped_at - 1, 2));
    }
}
