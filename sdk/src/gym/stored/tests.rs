use bytes::Bytes;
use training_gym_core::checkpoint::{Draft, Kind, publish};
use training_gym_core::ids::WeightVersion;
use training_gym_core::store::{MemoryStore, key_of, url_of};

use super::super::model::tests::Elsewhere;
use super::*;
use crate::backend::LocalBackend;
use crate::config::ModelSource;

const CONFIG_TEXT: &str = r#"{"architectures": ["FakeForCausalLM"]}"#;

struct World {
    home: tempfile::TempDir,
    store: Arc<dyn Store>,
    gym: Gym,
}

impl World {
    fn new() -> Self {
        let (home, store): (_, Arc<dyn Store>) = (tempfile::tempdir().unwrap(), Arc::new(MemoryStore::new()));
        let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fake_runtime.py");
        let gym = Gym::local(home.path().join("home")).unwrap().with_runtime(runtime).with_store(Arc::clone(&store));
        Self { home, store, gym }
    }

    async fn put(&self, key: &str, text: &str) {
        self.store.put(key, Bytes::from(text.to_owned())).await.unwrap();
    }

    /// A run's checkpoint, and its URL.
    async fn checkpoint(&self) -> String {
        let folder = self.home.path().join("trained");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(CONFIG), CONFIG_TEXT).unwrap();
        fs::write(folder.join("model.safetensors"), "weights").unwrap();
        let draft = Draft {
            kind: Kind::Checkpoint,
            run_id: "r".parse().unwrap(),
            step: 1,
            attempt: 1,
            model: "m".to_owned(),
            weight_version: WeightVersion(1),
        };
        publish(self.store.as_ref(), &folder, &draft).await.unwrap();
        url_of(self.store.as_ref(), "runs/r/checkpoints/step-1")
    }

    async fn placed(&self, url: &str) -> PlacedModel {
        self.gym.model(Model::hub(url), Model::hub(url).name().to_owned(), None).await.unwrap()
    }

    async fn refused(&self, url: &str) -> String {
        match self.gym.model(Model::hub(url), "m".to_owned(), None).await {
            Err(ModelError::Hub(error)) => error.to_string(),
            Err(ModelError::Store(error)) => error.to_string(),
            Err(ModelError::Refused(said)) => said,
            other => panic!("{other:?}"),
        }
    }
}

fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap()
}

#[tokio::test]
async fn a_checkpoint_is_a_model_by_its_url_and_fetched_once() {
    let world = World::new();
    let url = world.checkpoint().await;
    assert!(matches!(Model::hub(&url).source(), ModelSource::Stored(_)));
    let placed = world.placed(&url).await;
    assert_eq!((placed.spec.name.as_str(), &placed.spec.stored), ("step-1", &None));
    assert!(placed.folder.ends_with("step-1") && placed.spec.folder == placed.folder);
    assert_eq!(read(&placed.folder, "model.safetensors"), "weights");
    assert_eq!(Model::hub(&url), Model::folder(&url), "either takes a URL");

    // What the copy lost comes back, and what it has is not fetched again.
    for damage in ["w", "WEIGHTS"] {
        fs::write(placed.folder.join("model.safetensors"), damage).unwrap();
        assert_eq!(read(&world.placed(&url).await.folder, "model.safetensors"), "weights");
    }
    world.store.delete("runs/r/checkpoints/step-1/model.safetensors").await.unwrap();
    assert_eq!(world.placed(&url).await.folder, placed.folder);
    fs::remove_file(placed.folder.join("model.safetensors")).unwrap();
    let said = world.refused(&url).await;
    assert!(said.contains(&url) && said.contains("`model.safetensors` is missing"), "{said}");
    assert!(!placed.folder.exists(), "a copy that is not whole is not there");
    world.put("runs/r/checkpoints/step-1/model.safetensors", "WEIGHTS").await;
    let said = world.refused(&url).await;
    assert!(said.contains("`model.safetensors` is another than"), "{said}");
}

#[tokio::test]
async fn a_folder_without_a_manifest_is_taken_as_it_is_listed() {
    let world = World::new();
    for (name, text) in [
        (CONFIG, CONFIG_TEXT),
        ("model.safetensors", "weights"),
        ("tokenizer.json", "{}"),
        ("manifest.json", "{}"),
        ("README.md", "x"),
        ("original/config.json", "x"),
    ] {
        world.put(&format!("models/My Model/{name}"), text).await;
    }
    let url = "memory://models/My%20Model/";
    let placed = world.placed(url).await;
    assert_eq!(placed.spec.name, "My Model");
    let mut names: Vec<String> =
        fs::read_dir(&placed.folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, [CONFIG, "model.safetensors", "tokenizer.json"]);
    assert_eq!(world.placed(url).await.folder, placed.folder);
    // Other weights are another model, also of the same size.
    world.put("models/My Model/model.safetensors", "WEIGHTS").await;
    let other = world.placed(url).await;
    assert_ne!(other.folder, placed.folder);
    assert_eq!(read(&other.folder, "model.safetensors"), "WEIGHTS");
}

#[tokio::test]
async fn what_is_no_model_is_named_with_what_is_there() {
    let world = World::new();
    world.checkpoint().await;
    world.put("half/config.json", CONFIG_TEXT).await;
    world.put("weights/model.safetensors", "w").await;
    world.put("bad/manifest.json", r#"{"version": "9", "files": []}"#).await;
    world.put("mamba/config.json", r#"{"architectures": ["MambaForCausalLM"]}"#).await;
    world.put("mamba/model.safetensors", "w").await;
    for (url, words) in [
        ("memory://nothing", "nothing lies there"),
        ("memory://runs/r", "folders in it have: `checkpoints/step-1`"),
        ("memory://half", "no safetensors weights"),
        ("memory://weights", "it has no config.json (there are `model.safetensors`)"),
        ("memory://bad", "is no manifest of a model"),
        ("memory://mamba", "MambaForCausalLM"),
        ("gs://bucket/m", "supported are `file:///absolute/path`, `s3://bucket/prefix`"),
        ("s3://bucket/m?secret=hidden", "holds no credential"),
    ] {
        let said = world.refused(url).await;
        assert!(said.contains(words) && !said.contains("hidden"), "{url}: {said}");
    }
    let fetched = world.gym.cache().join("models");
    let copies = fs::read_dir(fetched).map(|copies| copies.count()).unwrap_or_default();
    assert_eq!(copies, 1, "only the one whose family is not computed was begun");
}

#[tokio::test]
async fn a_copy_that_was_cut_short_goes_on() {
    let world = World::new();
    let url = world.checkpoint().await;
    let manifest = world.store.get(&key_of(world.store.as_ref(), &format!("{url}/manifest.json")).unwrap()).await;
    let identity = ContentHash::of(&manifest.unwrap().bytes);
    let part = world.gym.cache().join("models").join(format!("{:.16}", identity.as_str())).join("part");
    fs::create_dir_all(&part).unwrap();
    fs::write(part.join(CONFIG), "{").unwrap();
    fs::write(part.join("model.safetensors"), "weights").unwrap();
    // It is there already, so that it is not asked for.
    world.store.delete("runs/r/checkpoints/step-1/model.safetensors").await.unwrap();
    let placed = world.placed(&url).await;
    assert_eq!(
        (read(&placed.folder, CONFIG).as_str(), read(&placed.folder, "model.safetensors").as_str()),
        (CONFIG_TEXT, "weights")
    );
    assert!(!part.exists());
}

#[tokio::test]
async fn a_job_elsewhere_reads_the_checkpoint_where_it_lies() {
    let world = World::new();
    let url = world.checkpoint().await;
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fake_runtime.py");
    let backend = Elsewhere(LocalBackend::new(world.home.path()).with_runtime(runtime), Some("/models"));
    let gym = world.gym.clone().with_backend(Arc::new(backend));
    // Nothing here asks for the weights.
    world.store.delete("runs/r/checkpoints/step-1/model.safetensors").await.unwrap();
    let placed = gym.model(Model::hub(&url), "m".to_owned(), None).await.unwrap();
    let stored = placed.spec.stored.unwrap();
    assert_eq!(stored.prefix, "runs/r/checkpoints/step-1/");
    let manifest = world.store.get(&stored.manifest_key()).await.unwrap().bytes;
    assert_eq!(stored.manifest_sha256, ContentHash::of(&manifest));
    assert!(placed.spec.folder.starts_with("/models"));
    assert!(placed.folder.join(CONFIG).is_file() && !placed.folder.join("model.safetensors").exists());

    // A folder without a manifest is given one, in the store that the job reads.
    world.put("plain/config.json", CONFIG_TEXT).await;
    world.put("plain/model.safetensors", "w").await;
    let placed = gym.model(Model::hub("memory://plain"), "plain".to_owned(), None).await.unwrap();
    let stored = placed.spec.stored.unwrap();
    assert!(stored.prefix.starts_with("inputs/models/"), "{}", stored.prefix);
    assert_eq!(world.store.get(&stored.key("model.safetensors")).await.unwrap().bytes, "w");
}
