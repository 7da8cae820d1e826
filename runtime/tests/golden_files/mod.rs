//! Where the golden files are: `$TRAINING_GYM_SHARED/golden`, by default `shared` beside the repository.

use std::path::{Path, PathBuf};

/// Set by `cargo xtask test golden`, which was asked for nothing else: what is missing fails.
const REQUIRED: &str = "TRAINING_GYM_GOLDEN_REQUIRED";

/// The golden file or folder `name`. `None`, with a printed reason, where it is not there.
///
/// # Panics
/// When it is not there and `cargo xtask test golden` asks for it.
pub(crate) fn golden_file(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("xtask").is_dir());
    let beside = root.expect("a package of this repository").join("../shared");
    let shared = std::env::var_os("TRAINING_GYM_SHARED").map_or(beside, PathBuf::from);
    match found(&shared, name, std::env::var_os(REQUIRED).is_some()) {
        Ok(path) => path,
        Err(missing) => panic!("{missing}"),
    }
}

fn found(shared: &Path, name: &str, required: bool) -> Result<Option<PathBuf>, String> {
    let path = shared.join("golden").join(name);
    if path.exists() {
        return Ok(Some(path));
    }
    let missing = format!("there is no `{}` (set TRAINING_GYM_SHARED)", path.display());
    if required {
        return Err(missing);
    }
    println!("SKIPPED: {missing}");
    Ok(None)
}

#[test]
fn what_is_missing_is_skipped_unless_it_was_asked_for() {
    let shared = Path::new("/nowhere");
    assert_eq!(found(shared, "models", false), Ok(None));
    assert!(found(shared, "models", true).unwrap_err().contains("/nowhere/golden/models"));
}
