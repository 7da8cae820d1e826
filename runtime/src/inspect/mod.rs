//! `gym-runtime inspect`: what a model's folder or GGUF file holds, what it needs, whether it is
//! sound. Nothing is computed with it, and its weights are not read beyond their headers (but a
//! stored copy of a tied output projection, which must equal the embedding).
//!
//! | module | what it looks at |
//! |---|---|
//! | `weights` | files, tensors, types |
//! | `shape` | `config.json`: family, context, memory to serve and to train |
//! | `text` | tokenizer, end tokens, chat template |
//!
//! A model of a family that this runtime computes is sound if its tensors are those its config asks
//! for, by the rules by which they are loaded. What stops a model from working is a *problem* and makes the exit code 1; what a person should
//! know is a *note*. An architecture this runtime does not compute is a note: the rest is told.

mod shape;
mod text;
mod weights;

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use crate::convert::gguf::hyperparameters::Hyperparameters;
use crate::convert::gguf::tokenizer::Vocabulary;
use crate::convert::gguf::{self, Gguf};
use crate::convert::{Problem, Source};
use crate::convert::{actor, bytes, write_text};
use crate::model::{self, Checkpoint, ModelConfig};
use crate::settings::InspectOptions;

/// What was found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    path: String,
    /// `gguf`, `safetensors` or `actor`.
    format: &'static str,
    weights: Option<weights::Weights>,
    model: Option<shape::Shape>,
    memory: Option<shape::Memory>,
    tokenizer: Option<text::Tokens>,
    /// `ok`, `none`, or what fails.
    chat_template: Option<String>,
    problems: Vec<String>,
    notes: Vec<String>,
}

impl Report {
    /// Whether nothing was found that stops the model from working.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    fn problem(&mut self, error: &dyn std::error::Error) {
        self.problems.push(sentence(error));
    }
}

/// An error with its causes.
fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Prints a report; the exit code is 1 where it has problems.
///
/// # Errors
/// When the path is nothing that can be looked at.
pub fn run(options: &InspectOptions) -> Result<u8> {
    let report = look(&options.source)?;
    let text = if options.json { serde_json::to_string_pretty(&report)? } else { told(&report) };
    // Whoever has read enough of it may close the pipe.
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    Ok(u8::from(!report.is_sound()))
}

/// Looks at a folder or a file.
///
/// # Errors
/// When it is neither a GGUF file, nor a folder with one, with safetensors or with shards of an
/// actor.
pub fn look(path: &Path) -> Result<Report> {
    let mut report = Report { path: path.display().to_string(), ..Report::default() };
    match Source::find(path)? {
        Source::Gguf(file) => {
            report.format = "gguf";
            gguf_file(&file, &mut report)?;
        }
        Source::Folder(path) => {
            report.format = "safetensors";
            folder(&path, &mut report);
        }
        Source::Actor(layout) => {
            report.format = "actor";
            actor_shards(&layout, &mut report);
        }
    }
    if report.weights.as_ref().is_some_and(|weights| weights.tensors == 0) {
        report.problems.push("its files hold no tensor".to_owned());
    }
    Ok(report)
}

fn folder(path: &Path, report: &mut Report) {
    let checkpoint = match Checkpoint::open(path) {
        Ok(checkpoint) => {
            report.weights = Some(weights::of_folder(&checkpoint));
            report.notes.extend(checkpoint.note());
            Some(checkpoint)
        }
        Err(error) => {
            report.problem(&error);
            None
        }
    };
    let (_, model) = companions(path, report);
    if let (Some(checkpoint), Some(model)) = (checkpoint, model)
        && let Err(error) = checkpoint.check(&model)
    {
        report.problem(&error);
    }
}

fn actor_shards(layout: &actor::Layout, report: &mut Report) {
    let (config, model) = companions(&layout.companions, report);
    let looked = actor::Mapped::open(layout).and_then(|mapped| {
        let merged = mapped.merge()?;
        let planned = merged.folder(&config, None).map_err(|problem| problem.of(&layout.shards[0]))?;
        report.weights = Some(weights::of_planned(&planned, layout.shards.len()));
        Ok(model.as_ref().map_or(Ok(()), |model| weights::check(&planned, model))?)
    });
    if let Err(error) = looked {
        report.problem(&error);
    }
    memory(model.as_ref(), report);
}

fn gguf_file(path: &Path, report: &mut Report) -> Result<()> {
    let bytes = bytes::map(path)?;
    let file = Gguf::read(&bytes).map_err(|problem| problem.of(path))?;
    report.weights = Some(weights::of_gguf(&file, bytes.len() as u64));
    report
        .notes
        .push(format!("GGUF version {}; `gym-runtime convert` makes a Hugging Face folder of it", file.version));
    // Its folder without the weights is looked at as any other.
    let model = match Hyperparameters::read(&file) {
        Ok(model) => model,
        Err(problem @ Problem::Damaged(_)) => {
            report.problem(&problem.of(path));
            return Ok(());
        }
        Err(problem @ Problem::Unsupported(_)) => {
            let architecture = file.text("general.architecture").ok().flatten().unwrap_or("unknown");
            report.notes.push(format!("architecture `{architecture}` is not converted: {problem}"));
            return Ok(());
        }
    };
    report.notes.extend(model.notes.iter().cloned());
    let folder = tempfile::tempdir()?;
    let known = match Vocabulary::read(&file, None, model.vocab_size, model.context) {
        Ok(vocabulary) => {
            write_text(&vocabulary, model.config(&file), folder.path())?;
            companions(folder.path(), report).1
        }
        Err(problem) => {
            report.problem(&problem.of(path));
            shape(&model.config(&file).into(), report)
        }
    };
    match gguf::weights::plan(&file, &model, gguf::weights::lossless(&file)) {
        Ok(planned) => {
            let fits = known.map_or(Ok(()), |known| weights::check(&planned, &known));
            if let Err(error) = fits {
                report.problem(&error);
            }
        }
        Err(problem) => report.problem(&problem.of(path)),
    }
    Ok(())
}

/// Looks at everything beside the weights: the config as it is, and as this runtime computes it.
fn companions(folder: &Path, report: &mut Report) -> (Value, Option<ModelConfig>) {
    let path = folder.join("config.json");
    let read = || {
        let source = |source| model::Error::Json { path: path.clone(), source };
        serde_json::from_slice::<Value>(&model::read_text(&path)?).map_err(source)
    };
    let (config, model) = match read() {
        Ok(config) => {
            let model = shape(&config, report);
            (config, model)
        }
        Err(error) => {
            report.problem(&error);
            (Value::Null, None)
        }
    };
    let rows = report.model.as_ref().and_then(|model| model.vocab_size);
    text::look(folder, rows, report);
    (config, model)
}

fn shape(config: &Value, report: &mut Report) -> Option<ModelConfig> {
    let known = match ModelConfig::from_json(config) {
        Ok(known) => {
            report.notes.extend(known.note());
            report.model = Some(shape::Shape::known(&known));
            Some(known)
        }
        Err(error) => {
            report.model = Some(shape::Shape::unknown(config));
            match error {
                model::Error::Unsupported { .. } => {
                    report.notes.push(format!("this runtime does not compute the model: {error}"));
                }
                error => report.problem(&error),
            }
            None
        }
    };
    memory(known.as_ref(), report);
    known
}

fn memory(model: Option<&ModelConfig>, report: &mut Report) {
    report.memory = report.weights.as_ref().map(|weights| shape::memory(weights, model));
}

/// The report for a person.
fn told(report: &Report) -> String {
    let mut lines = Vec::new();
    lines.push(format!("{} ({})", report.path, report.format));
    if let Some(model) = &report.model {
        let known = if model.supported { "" } else { ", not computed by this runtime" };
        lines.push(format!("family        {}{known}", model.family.as_deref().unwrap_or("unknown")));
    }
    if let Some(weights) = &report.weights {
        lines.push(format!("parameters    {} in {} tensors", grouped(weights.parameters), weights.tensors));
        let types: Vec<String> =
            weights.dtypes.iter().map(|(dtype, count)| format!("{dtype} ({})", grouped(*count))).collect();
        lines.push(format!("types         {}", types.join(", ")));
        lines.push(format!("files         {}, {}", weights.files, amount(weights.bytes)));
    }
    if let Some(model) = &report.model {
        lines.push(format!("context       {}", model.context_length.map_or_else(|| "unknown".to_owned(), grouped)));
    }
    if let Some(memory) = &report.memory {
        lines.push(format!(
            "to serve      {} of weights in {}{}",
            amount(memory.serve_weights),
            memory.dtype,
            memory.cache_per_token.map_or_else(String::new, |bytes| format!(
                ", and {} bytes for a token{} of a running sequence ({} at full context)",
                grouped(bytes),
                match memory.state_per_sequence {
                    None | Some(0) => String::new(),
                    Some(state) => format!(" and {} for the state", amount(state)),
                },
                amount(memory.cache_full_context.unwrap_or(0))
            ))
        ));
        lines.push(format!(
            "to train      {} of weights, float32 masters, gradients and moments, and activations",
            amount(memory.train)
        ));
    }
    if let Some(tokens) = &report.tokenizer {
        let rows = tokens.rows.map_or_else(String::new, |rows| format!(" for {} rows", grouped(rows)));
        lines.push(format!("tokenizer     {} tokens{rows}", grouped(tokens.tokens)));
        let ends: Vec<String> = tokens.eos.iter().map(|(id, text)| format!("{id} `{text}`")).collect();
        lines.push(format!("end tokens    {}", if ends.is_empty() { "none".to_owned() } else { ends.join(", ") }));
    }
    if let Some(template) = &report.chat_template {
        lines.push(format!("chat template {template}"));
    }
    lines.extend(report.notes.iter().map(|text| format!("note          {text}")));
    lines.extend(report.problems.iter().map(|text| format!("problem       {text}")));
    lines.push(if report.is_sound() { "sound" } else { "not sound" }.to_owned());
    lines.join("\n")
}

/// 1234567 as 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(",")
}

fn amount(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} KB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}
