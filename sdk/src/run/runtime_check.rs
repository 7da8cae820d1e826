//! What needs a tokenizer or a chat template is asked of `gym-runtime check`.

use std::path::Path;

use serde::Deserialize;
use training_gym_core::spec::{RowsRef, RunSpec};

use super::Error;
use crate::backend::{self, Question, RowsQuestion};
use crate::gym::Gym;

/// The part of the runtime's report that is used here.
#[derive(Deserialize)]
struct Report {
    rows: u64,
    longest_prompt: u64,
    too_long: u64,
    /// What the model has and is not computed.
    #[serde(default)]
    note: Option<String>,
}

/// Runs `gym-runtime check` on the model, whose files are in `folder` here, and the rows the run will
/// read: notes, or its words.
pub(super) async fn check(gym: &Gym, spec: &RunSpec, folder: &Path) -> Result<Vec<String>, Error> {
    let mut notes = check_rows(gym, (spec, folder), (&spec.data.train, "training")).await?;
    if let Some(eval) = &spec.eval {
        // What it says of the model it has said already.
        let more = check_rows(gym, (spec, folder), (&eval.rows, "evaluation")).await?;
        notes.extend(more.into_iter().filter(|note| !notes.contains(note)).collect::<Vec<_>>());
    }
    Ok(notes)
}

async fn check_rows(
    gym: &Gym,
    (spec, folder): (&RunSpec, &Path),
    (rows_ref, kind): (&RowsRef, &str),
) -> Result<Vec<String>, Error> {
    let rows = tempfile::NamedTempFile::new().map_err(|source| backend::Error::Io {
        action: "create",
        path: std::env::temp_dir(),
        source,
    })?;
    gym.store().get_file(&rows_ref.key, rows.path()).await?;
    let question = Question::Rows(RowsQuestion {
        model: folder.to_owned(),
        rows: rows.path().to_owned(),
        raw: !spec.data.apply_chat_template,
        chat_template_kwargs: spec.data.chat_template_kwargs.clone(),
        max_prompt_len: spec.data.max_prompt_len,
    });
    let report = gym.backend().ask(question).await?.json::<Report>()?;
    let report = report.map_err(|said| Error::Check { said: format!("{kind} rows: {said}") })?;
    let mut notes: Vec<String> = report.note.map(|note| format!("the model: {note}")).into_iter().collect();
    notes.push(format!("the longest of {} {kind} prompts has {} tokens", report.rows, report.longest_prompt));
    if report.too_long > 0 {
        let (count, limit) = (report.too_long, spec.data.max_prompt_len);
        notes.push(format!(
            "{count} {kind} prompts of more than {limit} tokens are left out; recipe.rollout_max_prompt_len"
        ));
    }
    Ok(notes)
}
