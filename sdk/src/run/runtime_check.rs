//! What needs a tokenizer or a chat template is asked of `gym-runtime check`.

use std::process::Stdio;

use training_gym_core::spec::RunSpec;

use super::Error;
use crate::backend::{self, LocalBackend};
use crate::gym::Gym;

/// Runs `gym-runtime check --model FOLDER --rows FILE` and quotes what it finds.
pub(super) async fn check(gym: &Gym, spec: &RunSpec) -> Result<(), Error> {
    let rows = tempfile::NamedTempFile::new()
        .map_err(|source| backend::Error::Io { action: "create", path: std::env::temp_dir(), source })?;
    gym.store().get_file(&spec.data.train.key, rows.path()).await?;
    let program = LocalBackend::find_runtime(gym.runtime())?;
    let output = tokio::process::Command::new(&program)
        .arg("check")
        .arg("--model")
        .arg(&spec.model.folder)
        .arg("--rows")
        .arg(rows.path())
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|source| backend::Error::Start { program, source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let said = if said.is_empty() { format!("`gym-runtime check` ended with {}", output.status) } else { said };
    Err(Error::Check { said })
}
