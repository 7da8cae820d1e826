//! Where `gym-runtime` is.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::backend::Error;

/// The variable that names the program.
pub(super) const VARIABLE: &str = "TRAINING_GYM_RUNTIME";
const NAME: &str = "gym-runtime";

/// Finds the program: what `chosen` or [`VARIABLE`] names, else beside the current executable
/// (or one folder up, where cargo puts it for examples and tests), else on `PATH`.
pub(super) fn find(chosen: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(path) = chosen {
        return exact(path, "the path given to the backend");
    }
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return exact(Path::new(&path), &format!("the environment variable `{VARIABLE}`"));
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    search(beside.as_deref(), std::env::var_os("PATH").as_deref())
}

fn exact(path: &Path, what: &str) -> Result<PathBuf, Error> {
    // The job runs elsewhere, and its command line should say which program it is.
    match std::fs::canonicalize(path) {
        Ok(found) if found.is_file() => Ok(found),
        _ => Err(Error::NoRuntime { looked: format!("`{}` ({what})", path.display()) }),
    }
}

fn search(beside: Option<&Path>, path: Option<&OsStr>) -> Result<PathBuf, Error> {
    let near = beside.into_iter().flat_map(|folder| {
        let cargo = matches!(folder.file_name().and_then(OsStr::to_str), Some("examples" | "deps"));
        [Some(folder), folder.parent().filter(|_| cargo)].into_iter().flatten().map(Path::to_owned)
    });
    let near: Vec<PathBuf> = near.collect();
    let on_path = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
    let found = near.iter().chain(&on_path).map(|folder| folder.join(NAME)).find(|file| file.is_file());
    found.ok_or_else(|| {
        let near = near.iter().map(|folder| format!("`{}`", folder.join(NAME).display())).collect::<Vec<_>>();
        let near = if near.is_empty() { "nothing beside this executable".to_owned() } else { near.join(", ") };
        Error::NoRuntime { looked: format!("`{VARIABLE}` (not set), {near}, and `{NAME}` on `PATH`") }
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
        let find = || search(Some(&target.join("examples")), Some(&path));

        let error = find().unwrap_err();
        let text = error.to_string();
        assert!(text.contains(VARIABLE) && text.contains("debug/gym-runtime") && text.contains("PATH"), "{text}");
        assert!(error.hint().unwrap().contains("cargo xtask setup"));

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
