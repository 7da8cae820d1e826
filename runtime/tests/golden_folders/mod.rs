//! The folders under `golden/models`.

#[path = "../golden_files/mod.rs"]
mod golden_files;

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use training_gym_runtime::model::{LoadOptions, Model};

/// The golden folders; `None` where there are none.
pub(crate) fn folders() -> Option<Vec<PathBuf>> {
    let models = golden_files::golden_file("models")?;
    let entries = std::fs::read_dir(&models).unwrap();
    let mut folders: Vec<_> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.join("golden.json").is_file()).collect();
    folders.sort();
    assert!(!folders.is_empty(), "`{}` holds no model with a golden.json", models.display());
    Some(folders)
}

/// What a folder is called.
pub(crate) fn name(folder: &Path) -> String {
    folder.file_name().unwrap().to_string_lossy().into_owned()
}

/// Its `golden.json`, or as much of it as is asked for.
pub(crate) fn golden<T: DeserializeOwned>(folder: &Path) -> T {
    serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap()
}

/// Its model.
pub(crate) fn load(folder: &Path, options: LoadOptions) -> Model {
    Model::load(folder, options).unwrap_or_else(|error| panic!("{}: {error}", name(folder)))
}
