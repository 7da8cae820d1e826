//! The folders under `$TRAINING_GYM_SHARED/golden/models`.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use training_gym_runtime::model::{LoadOptions, Model};

/// The golden folders, or `None` with a printed reason.
pub(crate) fn folders() -> Option<Vec<PathBuf>> {
    let shared = std::env::var_os("TRAINING_GYM_SHARED").unwrap_or_else(|| "../shared".into());
    let models = Path::new(&shared).join("golden/models");
    let Ok(entries) = std::fs::read_dir(&models) else {
        println!("golden models: SKIPPED, there is no folder `{}` (set TRAINING_GYM_SHARED)", models.display());
        return None;
    };
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
