//! Where `gym-runtime` is.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::backend::Error;

/// The variable that names the program.
pub(super) const VARIABLE: &str = "TRAINING_GYM_RUNTIME";
const NAME: &str = "gym-runtime";

/// Finds the program: what `chosen` or [`VARIABLE`] names, else beside the current executable
/// (or one folder up, where cargo puts it for examples and tests), else on `PATH`, else where it is
/// built in the repository that this SDK was compiled in.
pub(super) fn find(chosen: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(path) = chosen {
        return exact(path, "the path given to the backend");
    }
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return exact(Path::new(&path), &format!("the environment variable `{VARIABLE}`"));
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target").join("debug");
    search(beside.as_deref(), std::env::var_os("PATH").as_deref(), &built)
}

fn exact(path: &Path, what: &str) -> Result<PathBuf, Error> {
    // The job runs elsewhere, and its command line should say which program it is.
    match std::fs::canonicalize(path) {
        Ok(found) if found.is_file() => Ok(found),
        _ => Err(Error::NoRuntime { looked: format!("`{}` ({what})", path.display()) }),
    }
}

fn search(beside: Option<&Path>, path: Option<&OsStr>, built: &Path) -> Result<PathBuf, Error> {
    let near = beside.into_iter().flat_map(|folder| {
        let cargo = matches!(folder.file_name().and_then(OsStr::to_str), Some("examples" | "deps"));
        [Some(folder), folder.parent().filter(|_| cargo)].into_iter().flatten().map(Path::to_owned)
    });
    let near: Vec<PathBuf> = near.collect();
    let on_path = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
    let places = near.iter().chain(&on_path).map(PathBuf::as_path).chain([built]);
    let found = places.map(|folder| folder.join(NAME)).find(|file| file.is_file());
    found.ok_or_else(|| {
        let near = near.iter().map(|folder| format!("`{}`", folder.join(NAME).display())).collect::<Vec<_>>();
        let near = if near.is_empty() { "nothing beside this executable".to_owned() } else { near.join(", ") };
        let built = built.join(NAME);
        let looked = format!("`{VARIABLE}` (not set), {near}, `{NAME}` on `PATH`, and `{}`", built.display());
        Error::NoRuntime { looked }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_the_executable_comes_before_path_and_examples_look_one_up() {
        let home = tempfile::tempdir().unwrap();
        let (target, bin) = (home.path().join("debug"), home.path().join("bin"));
        std::fs::create_dir_all(target.join("examples")).unwrap();
        std::fs::create_dir_all(&bin).unwrap();
        let path = std::env::join_paths([&bin]).unwrap();
        let built = home.path().join("repository/target/debug");
        let find = || search(Some(&target.join("examples")), Some(&path), &built);

        let error = find().unwrap_err();
        let text = error.to_string();
        assert!(text.contains(VARIABLE) && text.contains("debug/gym-runtime") && text.contains("PATH"), "{text}");
        assert!(text.contains("repository/target/debug/gym-runtime"), "{text}");
        // What to run, and where: a person's crate may be anywhere.
        let hint = error.hint().unwrap();
        assert!(hint.contains("cargo xtask runtime") && hint.contains(env!("CARGO_MANIFEST_DIR")), "{hint}");

        std::fs::create_dir_all(&built).unwrap();
        std::fs::write(built.join(NAME), "").unwrap();
        assert_eq!(find().unwrap(), built.join(NAME));
        std::fs::write(bin.join(NAME), "").unwrap();
        assert_eq!(find().unwrap(), bin.join(NAME));
        std::fs::write(target.join(NAME), "").unwrap();
        assert_eq!(find().unwrap(), target.join(NAME));
    }

    #[test]
    fn a_named_program_that_is_not_there_is_not_replaced_by_another() {
        let error = find(Some(Path::new("/nowhere/gym-runtime"))).unwrap_err();
        assert!(error.to_string().contains("/nowhere/gym-runtime"), "{error}");
    }
}
