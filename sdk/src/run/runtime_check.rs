//! What needs a tokenizer or a chat template is asked of `gym-runtime check`.

use std::path::Path;

use serde::Deserialize;
use training_gym_core::spec::{RowsRef, RunSpec};

use super::Error;
use super::launch::Prepared;
use super::preflight::Student;
use crate::backend::{self, Question, RowsQuestion};
use crate::doctor::Finding;
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
    /// Prompts by their tokens: (at most so many, how many), ascending.
    #[serde(default)]
    lengths: Vec<(u64, u64)>,
    #[serde(default)]
    context_length: Option<u64>,
    #[serde(flatten)]
    student: Student,
}

/// The same as findings, and what the runtime says of the student's tokens.
pub(super) async fn findings(gym: &Gym, prepared: &Prepared) -> Result<(Vec<Finding>, Student), Error> {
    let spec = &prepared.spec;
    let at = (spec, prepared.model_folder.as_path());
    let report = ask(gym, at, (&spec.data.train, "training")).await?;
    let mut findings = vec![lengths("prompts", &report, spec.data.max_prompt_len as u64)];
    findings.extend(report.note.as_ref().map(|note| {
        Finding::warning(
            "student: computed",
            format!("the model: {note}"),
            "what is not computed is left as it is in checkpoints",
        )
    }));
    if let Some(eval) = &spec.eval {
        let report = ask(gym, at, (&eval.rows, "evaluation")).await?;
        findings.push(lengths("evaluation prompts", &report, spec.data.max_prompt_len as u64));
    }
    Ok((findings, report.student))
}

/// That every row renders, and how long the prompts are.
fn lengths(check: &str, report: &Report, limit: u64) -> Finding {
    let context = report.context_length.map_or_else(String::new, |context| format!(", of a context of {context}"));
    let buckets: String = report.lengths.iter().map(|(most, count)| format!("\n≤ {most:6} tokens: {count}")).collect();
    let detail = format!(
        "the template renders all {} rows; the longest has {} tokens{context}{buckets}",
        report.rows, report.longest_prompt
    );
    match report.too_long {
        0 => Finding::ok(check, detail),
        count => Finding::warning(
            check,
            format!("{count} of more than {limit} tokens are left out; {detail}"),
            "raise recipe.rollout_max_prompt_len to keep them",
        ),
    }
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
    let report = ask(gym, (spec, folder), (rows_ref, kind)).await?;
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

async fn ask(
    gym: &Gym,
    (spec, folder): (&RunSpec, &Path),
    (rows_ref, kind): (&RowsRef, &str),
) -> Result<Report, Error> {
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
    report.map_err(|said| Error::Check { said: format!("{kind} rows: {said}") })
}
