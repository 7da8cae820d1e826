//! The output folder: whole, or not there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::error::{Error, writing};

/// A folder being filled beside the place it will take.
#[derive(Debug)]
pub(crate) struct Output {
    target: PathBuf,
    filling: TempDir,
    overwrite: bool,
}

impl Output {
    /// Begins the folder that will be `target`.
    ///
    /// # Errors
    /// [`Error::Output`] when it is there already and may not be replaced, or holds `source`; [`Error::Write`] when nothing can be written beside it.
    pub(crate) fn begin(target: &Path, source: &Path, overwrite: bool) -> Result<Self, Error> {
        let refuse = |problem: String| Error::Output { path: target.to_owned(), problem };
        let Some(name) = target.file_name() else { return Err(refuse("must end in a folder's name".to_owned())) };
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        fs::create_dir_all(parent).map_err(writing(parent))?;
        let whole = |path: &Path| path.canonicalize().map_err(writing(path));
        let target_path = whole(parent)?.join(name);
        let source_path = whole(source)?;
        if source_path.starts_with(&target_path) {
            return Err(refuse(format!("holds the source `{}`; give another folder", source.display())));
        }
        let begun = Self {
            target: target_path,
            filling: tempfile::Builder::new()
                .prefix(".converting-")
                .permissions(fs::Permissions::from_mode(0o755))
                .tempdir_in(parent)
                .map_err(writing(parent))?,
            overwrite,
        };
        begun.check_target().map_err(refuse)?;
        Ok(begun)
    }

    /// Where to write.
    pub(crate) fn folder(&self) -> &Path {
        self.filling.path()
    }

    fn check_target(&self) -> Result<(), String> {
        match fs::symlink_metadata(&self.target) {
            Err(_) => Ok(()),
            Ok(_) if !self.overwrite => Err("is there already; remove it or give --overwrite".to_owned()),
            Ok(about) if !about.is_dir() => Err("is not a folder; remove it or give another name".to_owned()),
            // So that a mistyped --out does not remove what is no model.
            Ok(_) => match fs::read_dir(&self.target).map(|mut entries| entries.next().is_none()) {
                Ok(empty) if empty || self.target.join("config.json").is_file() => Ok(()),
                Ok(_) => Err("has no config.json, so it is not replaced; remove it or give another name".to_owned()),
                Err(error) => Err(format!("cannot be read: {error}")),
            },
        }
    }

    /// Puts the folder in its place. A folder that was there is removed once the new one stands.
    ///
    /// # Errors
    /// As [`Output::begin`]; the folder that was there stays.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let target = self.target.clone();
        self.check_target().map_err(|problem| Error::Output { path: target.clone(), problem })?;
        let parent = target.parent().unwrap_or(Path::new("."));
        let old = match target.is_dir() {
            false => None,
            true => {
                let aside =
                    tempfile::Builder::new().prefix(".replaced-").tempdir_in(parent).map_err(writing(parent))?;
                fs::rename(&target, aside.path().join("old")).map_err(writing(&target))?;
                Some(aside)
            }
        };
        let filled = self.filling.keep();
        if let Err(source) = fs::rename(&filled, &target) {
            if let Some(old) = old {
                let _ = fs::rename(old.path().join("old"), &target);
            }
            let _ = fs::remove_dir_all(&filled);
            return Err(Error::Write { path: target, source });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, text: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("config.json"), text).unwrap();
    }

    #[test]
    fn a_folder_appears_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let (source, target) = (place.path().join("source"), place.path().join("model"));
        write(&source, "{}");
        let begun = Output::begin(&target, &source, false).unwrap();
        write(begun.folder(), "1");
        assert!(!target.exists());
        begun.finish().unwrap();
        assert_eq!(fs::read_to_string(target.join("config.json")).unwrap(), "1");

        let error = Output::begin(&target, &source, false).unwrap_err().to_string();
        assert!(error.contains("--overwrite"), "{error}");
        let begun = Output::begin(&target, &source, true).unwrap();
        write(begun.folder(), "2");
        begun.finish().unwrap();
        assert_eq!(fs::read_to_string(target.join("config.json")).unwrap(), "2");

        drop(Output::begin(&target, &source, true).unwrap());
        assert_eq!(fs::read_to_string(target.join("config.json")).unwrap(), "2", "a dropped one changes nothing");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2, "nothing is left over");
    }

    #[test]
    fn what_is_no_model_is_never_replaced() {
        let place = tempfile::tempdir().unwrap();
        let (source, target) = (place.path().join("source"), place.path().join("home"));
        write(&source, "{}");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("letter"), "dear").unwrap();
        let error = Output::begin(&target, &source, true).unwrap_err().to_string();
        assert!(error.contains("config.json"), "{error}");
        for above in [source.clone(), place.path().to_owned()] {
            let error = Output::begin(&above, &source, true).unwrap_err().to_string();
            assert!(error.contains("holds the source"), "{error}");
        }
    }
}
