use std::os::unix::fs::PermissionsExt;

use training_gym_core::checkpoint::{self, Draft, Kind};
use training_gym_core::ids::WeightVersion;
use training_gym_core::spec::{Divergence, HubRef};
use training_gym_core::store::{FileStore, MemoryStore};
use training_gym_core::stored::{ModelManifest, StoredModel};
use training_gym_hub::testing::{COMMIT, FakeHub};

use super::*;

/// A store with a model of three files, staged as a launch stages it.
async fn staged(weights: &str) -> (Arc<dyn Store>, StoredModel) {
    let store = MemoryStore::new();
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("extra")).unwrap();
    for (name, text) in [("config.json", "{}"), ("model.safetensors", weights), ("extra/é.txt", "")] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let manifest = ModelManifest { files: checkpoint::describe(folder.path()).unwrap() };
    let place = manifest.place();
    for file in &manifest.files {
        store.put_file(&place.key(&file.name), &folder.path().join(&file.name)).await.unwrap();
    }
    store.put(&place.manifest_key(), manifest.to_json().into()).await.unwrap();
    (Arc::new(store), place)
}

fn model(folder: &Path, stored: Option<StoredModel>) -> Wanted {
    let model = ModelSpec { name: "org/tiny".to_owned(), folder: folder.to_owned(), hub: None, stored };
    Wanted { models: vec![model], program: None }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_stored_model_appears_whole_and_is_then_taken_as_it_is() {
    let (store, place) = staged("weights").await;
    let volume = tempfile::tempdir().unwrap();
    let folder = volume.path().join("models/tiny");
    let wanted = model(&folder, Some(place.clone()));
    fetch(Arc::clone(&store), &wanted).await.unwrap();
    assert_eq!(names(&folder), ["config.json", "extra", "manifest.json", "model.safetensors"]);
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), b"weights");
    assert_eq!(names(folder.parent().unwrap()), [".tiny.lock", "tiny"]);
    // Its files are not asked for again.
    for name in ["config.json", "model.safetensors", "extra/é.txt"] {
        store.delete(&place.key(name)).await.unwrap();
    }
    fetch(store, &wanted).await.unwrap();

    let (other, place) = staged("others").await;
    let error = fetch(other, &model(&folder, Some(place))).await.unwrap_err();
    assert!(error.to_string().contains("remove that folder") && error.to_string().contains("org/tiny"), "{error}");
    assert_eq!(error.cause(), Cause::InvalidInput);
}

#[tokio::test]
async fn a_co_resident_teacher_is_brought_too() {
    let (store, place) = staged("weights").await;
    let volume = tempfile::tempdir().unwrap();
    let of = |name: &str| model(&volume.path().join(name), Some(place.clone())).models.remove(0);
    let divergence = Divergence::ReverseKl;
    let distill = DistillSpec { teacher: of("teacher"), divergence, switch: None, coef: 1.0, selection: None };
    let models = models(of("student"), Some(distill));
    fetch(store, &Wanted { models, program: None }).await.unwrap();
    for name in ["student", "teacher"] {
        assert_eq!(std::fs::read(volume.path().join(name).join("model.safetensors")).unwrap(), b"weights");
    }
}

#[tokio::test]
async fn a_cut_fetch_goes_on_and_what_is_wrong_is_never_kept() {
    let (store, place) = staged("weights").await;
    let volume = tempfile::tempdir().unwrap();
    let folder = volume.path().join("tiny");
    let wanted = model(&folder, Some(place.clone()));
    let key = place.key("model.safetensors");
    for bad in [Some("weightz"), Some("short"), None] {
        match bad {
            Some(bad) => drop(store.put(&key, bad.into()).await.unwrap()),
            None => store.delete(&key).await.unwrap(),
        }
        let error = fetch(Arc::clone(&store), &wanted).await.unwrap_err();
        let text = training_gym_core::chain(&error);
        assert!(text.contains("model.safetensors"), "{text}");
        assert!(!folder.exists(), "nothing is there before all of it is");
    }
    let part = std::fs::read_dir(volume.path()).unwrap().flatten().map(|entry| entry.path());
    let part = part.into_iter().find(|path| path.extension().is_some_and(|end| end == "part")).unwrap();
    assert!(part.join("config.json").exists() && !part.join("model.safetensors").exists());
    // What came before is kept: only what lacks is asked for.
    store.delete(&place.key("config.json")).await.unwrap();
    store.put(&key, "weights".into()).await.unwrap();
    fetch(store, &wanted).await.unwrap();
    assert_eq!(std::fs::read(folder.join("config.json")).unwrap(), b"{}");
    assert_eq!(names(volume.path()), [".tiny.lock", "tiny"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_fetch_into_one_volume_at_once_both_have_it() {
    let (store, place) = staged("weights").await;
    let volume = tempfile::tempdir().unwrap();
    let folder = volume.path().join("tiny");
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (store, wanted) = (Arc::clone(&store), model(&folder, Some(place.clone())));
            tokio::spawn(async move { fetch(store, &wanted).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(names(volume.path()), [".tiny.lock", "tiny"]);
}

#[tokio::test]
async fn a_manifest_that_was_exchanged_is_refused() {
    let (store, place) = staged("weights").await;
    let volume = tempfile::tempdir().unwrap();
    store.put(&place.manifest_key(), r#"{"version":"1","files":[]}"#.into()).await.unwrap();
    let error = fetch(store, &model(&volume.path().join("tiny"), Some(place))).await.unwrap_err();
    assert!(matches!(error, Error::Manifest { .. }), "{error}");
    assert_eq!(error.cause(), Cause::Store);
}

#[tokio::test]
async fn a_checkpoint_of_a_run_is_a_stored_model() {
    let root = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(FileStore::open(root.path()).unwrap());
    let trained = tempfile::tempdir().unwrap();
    std::fs::write(trained.path().join("config.json"), "{}").unwrap();
    std::fs::write(trained.path().join("model.safetensors"), "w").unwrap();
    let draft = Draft {
        kind: Kind::Checkpoint,
        run_id: "run-a".parse().unwrap(),
        step: 3,
        model: "org/tiny".to_owned(),
        weight_version: WeightVersion(3),
        attempt: 1,
    };
    let published = checkpoint::publish(&*store, trained.path(), &draft).await.unwrap().manifest;
    let prefix = format!("{}/", published.folder());
    let text = store.get(&format!("{prefix}manifest.json")).await.unwrap().bytes;
    let place = StoredModel { prefix, manifest_sha256: ContentHash::of(&text) };
    let folder = root.path().join("copy");
    fetch(store, &model(&folder, Some(place))).await.unwrap();
    assert_eq!(names(&folder), ["config.json", "manifest.json", "model.safetensors"]);
    assert_eq!(checkpoint::manifest_in(&folder).unwrap().unwrap(), published);
}

#[tokio::test]
async fn a_program_is_there_by_its_hash_and_can_be_run() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let sha256 = ContentHash::of(b"#!/bin/sh\n");
    let reference = ProgramRef { key: "inputs/program/p".to_owned(), sha256: sha256.clone() };
    store.put(&reference.key, "#!/bin/sh\n".into()).await.unwrap();
    let volume = tempfile::tempdir().unwrap();
    let folder = volume.path().join("program");
    for _ in 0..2 {
        program::fetch(&*store, &reference, &folder).await.unwrap();
        let mode = std::fs::metadata(folder.join(sha256.as_str())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o555);
    }
    assert_eq!(names(&folder), [sha256.as_str()]);
    store.put(&reference.key, "#!/bin/zsh\n".into()).await.unwrap();
    let other = ProgramRef { sha256: ContentHash::of(b"?"), ..reference };
    let error = program::fetch(&*store, &other, &folder).await.unwrap_err();
    assert!(error.to_string().contains("inputs/program/p") && error.to_string().contains("launch again"), "{error}");
    assert_eq!(names(&folder), [sha256.as_str()], "what is wrong leaves nothing");
}

#[tokio::test]
async fn a_hub_model_comes_at_its_commit_and_then_needs_no_hub() {
    let volume = tempfile::tempdir().unwrap();
    let cache = volume.path().join("hub");
    let server =
        FakeHub::serve(&[("config.json", b"{}"), ("tokenizer.json", b"{}"), ("model.safetensors", b"w")]).await;
    let folder = volume.path().join("models/name");
    let place = HubRef { repo: "org/name".to_owned(), revision: "main".to_owned(), commit: COMMIT.to_owned() };
    let model = ModelSpec { hub: Some(place.clone()), ..model(&folder, None).models.remove(0) };
    let hub = server.hub(&cache);
    // The mount point of an empty volume may be there.
    std::fs::create_dir_all(&folder).unwrap();
    model::from_hub(&hub, &model, &place).await.unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), b"w");
    let asked = server.seen().len();
    model::from_hub(&hub, &model, &place).await.unwrap();
    assert_eq!(server.seen().len(), asked);
    // A folder that is a snapshot of the cache itself stays one.
    let inside = ModelSpec { folder: folder.canonicalize().unwrap(), ..model.clone() };
    model::from_hub(&hub, &inside, &place).await.unwrap();
    let taken = ModelSpec { folder: volume.path().join("taken"), ..model };
    std::fs::create_dir(&taken.folder).unwrap();
    std::fs::write(taken.folder.join("notes.txt"), "mine").unwrap();
    let error = model::from_hub(&hub, &taken, &place).await.unwrap_err();
    assert!(matches!(error, Error::Occupied { .. }), "{error}");
    assert_eq!(std::fs::read(taken.folder.join("notes.txt")).unwrap(), b"mine");
}

#[tokio::test]
async fn what_is_nowhere_is_said_with_what_to_do() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let volume = tempfile::tempdir().unwrap();
    let error = fetch(Arc::clone(&store), &model(&volume.path().join("x"), None)).await.unwrap_err();
    assert!(error.to_string().contains("launch it from the machine that has the folder"), "{error}");
    std::fs::write(volume.path().join("config.json"), "{}").unwrap();
    fetch(Arc::clone(&store), &model(volume.path(), None)).await.unwrap();
    let run: RunId = "run-x".parse().unwrap();
    let error = of_run(&*store, &run, None).await.unwrap_err();
    assert!(matches!(error, Error::Store(store::Error::NotFound { .. })), "{error}");
    store.put(&keys::spec(&run), "{}".into()).await.unwrap();
    assert!(matches!(of_run(&*store, &run, None).await, Err(Error::Spec { .. })));
}
