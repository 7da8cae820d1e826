//! The output folder: whole, or not there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::error::{Error, writing};

/// A replaced folder's name while it lies aside.
const OLD: &str = "old";

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
    /// As [`Output::begin`]; the folder that was there stays. Where it cannot be put back, the error
    /// names the place where it lies.
    pub(crate) fn finish(self) -> Result<(), Error> {
        self.place(&mut |from, to| fs::rename(from, to))
    }

    fn place(self, rename: &mut dyn FnMut(&Path, &Path) -> std::io::Result<()>) -> Result<(), Error> {
        let target = self.target.clone();
        self.check_target().map_err(|problem| Error::Output { path: target.clone(), problem })?;
        let parent = target.parent().unwrap_or(Path::new("."));
        let old = match target.is_dir() {
            false => None,
            true => {
                let aside =
                    tempfile::Builder::new().prefix(".replaced-").tempdir_in(parent).map_err(writing(parent))?;
                rename(&target, &aside.path().join(OLD)).map_err(writing(&target))?;
                Some(aside)
            }
        };
        // From here on it is removed by hand: its folder may have another name by then.
        let filled = self.filling.keep();
        let Err(source) = rename(&filled, &target) else { return Ok(()) };
        let _ = fs::remove_dir_all(&filled);
        let restored = old.as_ref().map_or(Ok(()), |old| rename(&old.path().join(OLD), &target));
        match (restored, old) {
            (Err(restore), Some(old)) => {
                // Dropped, it would take the only copy with it.
                let kept = old.keep().join(OLD);
                let problem = format!(
                    "cannot be put in place ({source}), nor the folder that was there be put back ({restore}); \
                     it lies in `{}`, move it back",
                    kept.display()
                );
                Err(Error::Output { path: target, problem })
            }
            _ => Err(Error::Write { path: target, source }),
        }
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
    fn the_folder_that_was_there_is_put_back_or_kept_aside() {
        let place = tempfile::tempdir().unwrap();
        let (source, target) = (place.path().join("source"), place.path().join("model"));
        write(&source, "{}");
        write(&target, "former");
        // The renames that fail: the second puts the new folder in place, the third the old one back.
        let attempt = |fails: &[usize]| {
            let begun = Output::begin(&target, &source, true).unwrap();
            write(begun.folder(), "new");
            let mut count = 0;
            begun
                .place(&mut |from, to| {
                    count += 1;
                    if fails.contains(&count) {
                        Err(std::io::Error::other("stale handle"))
                    } else {
                        fs::rename(from, to)
                    }
                })
                .unwrap_err()
        };
        for fails in [1, 2] {
            assert!(matches!(attempt(&[fails]), Error::Write { .. }));
            assert_eq!(fs::read_to_string(target.join("config.json")).unwrap(), "former");
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2, "nothing is left over");
        }
        let error = attempt(&[2, 3]).to_string();
        let aside = error.split('`').find(|part| part.contains(".replaced-")).expect("a place");
        assert_eq!(fs::read_to_string(Path::new(aside).join("config.json")).unwrap(), "former", "{error}");
        assert!(!target.exists());
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
