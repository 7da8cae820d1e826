//! What the SDK's tests with processes share.
#![allow(dead_code, reason = "each test crate uses its own part")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use training_gym::backend::LocalBackend;
use training_gym::config::Model;
use training_gym::dataset::HuggingFaceDataset;
use training_gym::gym::Gym;
use training_gym_core::spec::{Dtype, EngineSpec, ModelSpec, NodeSpec, ServeSpec};

/// A state folder; what runs from it is killed when it is dropped.
pub(crate) struct Home(tempfile::TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn gym(&self) -> Gym {
        Gym::local(self.path()).unwrap().with_runtime(fake_runtime())
    }

    /// A model whose name is the scene the stand-in plays.
    pub(crate) fn model(&self, scene: &str) -> Model {
        let folder = self.path().join("models").join(scene);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), r#"{"max_position_embeddings": 8192}"#).unwrap();
        Model::folder(folder)
    }

    pub(crate) fn backend(&self) -> LocalBackend {
        LocalBackend::new(self.path()).with_runtime(fake_runtime())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for line in alive(self.path()) {
            let pid = line.split(' ').next().unwrap().to_owned();
            std::process::Command::new("kill").args(["-9", &pid]).status().ok();
        }
    }
}

pub(crate) fn fake_runtime() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fake_runtime.py")
}

/// `PID COMMAND` of each live process with `folder` in its arguments.
pub(crate) fn alive(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = String::from_utf8_lossy(&std::fs::read(entry.path().join("cmdline")).ok()?).replace('\0', " ");
        line.contains(folder.to_str()?).then(|| format!("{pid} {line}"))
    });
    lines.collect()
}

/// Asks until there is an answer; panics after 20 seconds.
pub(crate) async fn wait_until<T, F: Future<Output = Option<T>>>(mut ask: impl FnMut() -> F) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "waited in vain");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) fn serve_spec(name: &str, scene: &str) -> ServeSpec {
    ServeSpec {
        app_name: name.parse().unwrap(),
        model: ModelSpec { name: format!("fake/{scene}"), folder: "/models/fake".into(), hub: None, stored: None },
        host: "127.0.0.1".to_owned(),
        port: 0,
        token: None,
        engine: EngineSpec::default(),
        node: NodeSpec { device: "cpu".to_owned(), dtype: Dtype::Float32, threads: 1 },
    }
}

pub(crate) fn walk(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() { walk(&entry.path(), visit) } else { visit(&entry.path()) }
    }
}

pub(crate) fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A dataset of these problems, each with the answer 4, in a file of the home.
pub(crate) fn rows(home: &Home, name: &str, problems: &[&str]) -> HuggingFaceDataset {
    let path = home.path().join(name);
    let lines = problems.iter().map(|problem| serde_json::json!({"prompt": problem, "label": 4}).to_string() + "\n");
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    HuggingFaceDataset::file(path).input_key("prompt").label_key("label")
}
