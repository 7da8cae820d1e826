//! A folder that is there whole, or not at all.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::{Error, io};

/// What says that a folder is one of ours.
pub(super) const REPORT: &str = "report.json";

/// The folder while it is made, beside its final place: on the same file system, so that placing it is one
/// rename. Dropped before that, it is removed.
#[derive(Debug)]
pub(super) struct Folder {
    staging: tempfile::TempDir,
    out: PathBuf,
    replace: bool,
}

impl Folder {
    pub(super) fn begin(out: &Path, replace: bool) -> Result<Self, Error> {
        let out = std::path::absolute(out).map_err(io("resolve", out))?;
        refuse_foreign(&out, replace)?;
        let parent = out.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).map_err(io("create", parent))?;
        let staging = tempfile::Builder::new()
            .prefix(".preparing-")
            .tempdir_in(parent)
            .map_err(io("create a folder in", parent))?;
        Ok(Self { staging, out, replace })
    }

    pub(super) fn path(&self) -> &Path {
        self.staging.path()
    }

    /// Puts it in its place, once everything in it is on the disk.
    pub(super) fn place(self) -> Result<(), Error> {
        let Self { staging, out, replace } = self;
        for entry in fs::read_dir(staging.path()).map_err(io("list", staging.path()))? {
            let path = entry.map_err(io("list", staging.path()))?.path();
            File::open(&path).and_then(|file| file.sync_all()).map_err(io("write", &path))?;
        }
        // `tempdir` is for its owner alone; data is for whoever may read the folder it is put into.
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(staging.path(), fs::Permissions::from_mode(0o755)).map_err(io("share", staging.path()))?;
        refuse_foreign(&out, replace)?;
        let parent = out.parent().unwrap_or(Path::new("/"));
        if out.exists() {
            let aside = tempfile::Builder::new()
                .prefix(".replaced-")
                .tempdir_in(parent)
                .map_err(io("create a folder in", parent))?;
            let before = aside.path().join("before");
            fs::rename(&out, &before).map_err(io("move aside", &out))?;
            if let Err(error) = fs::rename(staging.path(), &out) {
                // What was there is put back.
                fs::rename(&before, &out).map_err(io("put back", &out))?;
                return Err(io("place", &out)(error));
            }
        } else {
            fs::rename(staging.path(), &out).map_err(io("place", &out))?;
        }
        // It is no longer there to be removed.
        let _ = staging.keep();
        Ok(())
    }
}

/// Refuses to write over what is there, and ever over what is not ours.
fn refuse_foreign(out: &Path, replace: bool) -> Result<(), Error> {
    if !out.exists() {
        return Ok(());
    }
    let rule = match (replace, out.join(REPORT).is_file()) {
        (true, true) => return Ok(()),
        (true, false) => "it is no folder of prepared data (it has no report.json): name another",
        (false, _) => "it is there already: name another folder, or replace it",
    };
    Err(Error::Setting { setting: "out", given: out.display().to_string(), rule: rule.to_owned() })
}
