//! The person's program, by its hash.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use training_gym_core::spec::ProgramRef;
use training_gym_core::store::Store;

use super::{Error, hash};

/// Read and run, by whoever sees the volume; written by nobody any more.
const MODE: u32 = 0o555;

/// Puts the program into `folder` under its sha256.
pub(super) async fn fetch(store: &dyn Store, program: &ProgramRef, folder: &Path) -> Result<(), Error> {
    let path = folder.join(program.sha256.as_str());
    let mode = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(MODE)).map_err(Error::disk("prepare", path))
    };
    if path.is_file() && hash(&path).await? == program.sha256 {
        tracing::info!("program {} is there", program.sha256);
        return mode(&path);
    }
    std::fs::create_dir_all(folder).map_err(Error::disk("make", folder))?;
    // Under a name of its own, so that another that fetches the same disturbs nothing.
    let part =
        tempfile::Builder::new().prefix(".program-").tempfile_in(folder).map_err(Error::disk("write in", folder))?;
    let part = part.into_temp_path();
    store.get_file(&program.key, &part).await?;
    let found = hash(&part).await?;
    if found != program.sha256 {
        let (what, expected) = (format!("the program `{}`", program.key), program.sha256.clone());
        return Err(Error::Replaced { what, found, expected });
    }
    mode(&part)?;
    part.persist(&path).map_err(|error| error.error).map_err(Error::disk("write", &path))?;
    tracing::info!("program {} fetched", program.sha256);
    Ok(())
}
