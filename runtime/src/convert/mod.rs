//! `gym-runtime convert`: other tools' checkpoints to Hugging Face folders.
//!
//! ```text
//! GGUF file ──────────────► gguf ───┐
//! Hugging Face folder ────► folder ─┼─► plan: names, shapes, numbers on demand ─► shards ─► output
//! sharded actor checkpoint► actor ──┘        (one piece of one tensor at a time)
//!                            └─ pickle
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `gguf` | metadata to config and tokenizer; blocks to numbers; names back |
//! | `folder` | safetensors, single or sharded, of any architecture, read as `model` reads them |
//! | `actor` | PyTorch shards of a world, merged by their placements |
//! | `pickle` | PyTorch's files through a machine that runs nothing |
//! | `plan`, `number` | what is to be written, in which type |
//! | `shards`, `output` | what is planned, written as `model` writes; a folder that appears whole |
//! | `bytes` | files mapped, and read without passing their end |
//!
//! Sources are not trusted: every count and offset is checked against the file before anything is
//! allocated for it, and what does not fit is an error with its place.

pub(crate) mod actor;
pub(crate) mod bytes;
pub(crate) mod error;
pub(crate) mod folder;
pub(crate) mod gguf;
pub(crate) mod number;
mod output;
pub(crate) mod pickle;
pub(crate) mod plan;
mod shards;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tch::Kind;

use crate::model;
use crate::settings::{ConvertOptions, Number};
pub use error::{Error, Problem};
use error::{reading, writing};
use gguf::Gguf;
use gguf::hyperparameters::Hyperparameters;
use gguf::tokenizer::Vocabulary;
use output::Output;
use plan::Planned;
use shards::Written;

/// What a path is, as a source of weights.
#[derive(Debug)]
pub(crate) enum Source {
    /// A GGUF file.
    Gguf(PathBuf),
    /// A folder of safetensors.
    Folder(PathBuf),
    /// A sharded actor checkpoint.
    Actor(actor::Layout),
}

impl Source {
    /// Looks at a path.
    ///
    /// # Errors
    /// When it is nothing that is converted: with what would be.
    pub(crate) fn find(path: &Path) -> Result<Self, Error> {
        let about = std::fs::metadata(path).map_err(reading(path))?;
        if !about.is_dir() {
            return Ok(Self::Gguf(path.to_owned()));
        }
        if let Some(layout) = actor::Layout::find(path)? {
            return Ok(Self::Actor(layout));
        }
        let there = |name: &str| path.join(name).is_file();
        if there("model.safetensors") || there("model.safetensors.index.json") {
            return Ok(Self::Folder(path.to_owned()));
        }
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path).map_err(reading(path))? {
            let entry = entry.map_err(reading(path))?.path();
            if entry.extension().is_some_and(|extension| extension == "gguf") {
                files.push(entry);
            }
        }
        let refuse = |problem: &str| Err(Error::Unsupported { path: path.to_owned(), problem: problem.to_owned() });
        match files.len() {
            1 => Ok(Self::Gguf(files.remove(0))),
            0 => refuse(
                "it holds neither safetensors (`model.safetensors` or its index), nor a .gguf file, nor shards \
                 `model_world_size_W_rank_R.pt`",
            ),
            _ => refuse("it holds several .gguf files; name the one to convert"),
        }
    }
}

/// Converts, and prints a line of what came of it.
///
/// # Errors
/// For a source that is damaged or not supported, and for an output that cannot be written; then
/// nothing is left behind.
pub fn run(options: &ConvertOptions) -> Result<(), Error> {
    let source = Source::find(&options.source)?;
    let output = Output::begin(&options.out, &options.source, options.overwrite)?;
    let (what, written) = match &source {
        Source::Gguf(path) => from_gguf(path, options, output.folder())?,
        Source::Folder(path) => from_folder(path, options, output.folder())?,
        Source::Actor(layout) => from_actor(layout, options, output.folder())?,
    };
    output.finish()?;
    let files = if written.files == 1 { "1 file".to_owned() } else { format!("{} files", written.files) };
    let rounded = match written.rounded {
        0 => String::new(),
        count => format!(", {count} tensors rounded"),
    };
    println!(
        "converted {what}: {} parameters, {files}, {} MB{rounded} -> {}",
        written.parameters,
        written.bytes / 1_000_000,
        options.out.display()
    );
    Ok(())
}

fn note(text: &str) {
    eprintln!("convert: {text}");
}

fn write(tensors: &[Planned<'_>], options: &ConvertOptions, to: &Path, source: &Path) -> Result<Written, Error> {
    note(&format!("{} tensors of `{}`", tensors.len(), source.display()));
    shards::write(tensors, to, options.max_shard_size, source)
}

fn write_json(folder: &Path, name: &str, value: &Value) -> Result<(), Error> {
    let path = folder.join(name);
    let mut text = serde_json::to_vec_pretty(value).expect("maps with text keys are JSON");
    text.push(b'\n');
    std::fs::write(&path, text).map_err(writing(&path))
}

fn from_gguf(path: &Path, options: &ConvertOptions, to: &Path) -> Result<(String, Written), Error> {
    let bytes = bytes::map(path)?;
    let wrong = |problem: Problem| problem.of(path);
    let file = Gguf::read(&bytes).map_err(wrong)?;
    let model = Hyperparameters::read(&file).map_err(wrong)?;
    model.notes.iter().for_each(|text| note(text));
    let vocabulary = Vocabulary::read(&file, options.pre.as_deref(), model.vocab_size, model.context).map_err(wrong)?;
    let dtype = options.dtype.unwrap_or_else(|| gguf::weights::lossless(&file));
    let tensors = gguf::weights::plan(&file, &model, dtype).map_err(wrong)?;

    let mut config = model.config(&file);
    config.insert("torch_dtype".to_owned(), number::config_name(dtype).into());
    write_text(&vocabulary, config, to)?;
    if vocabulary.templates().is_empty() {
        note("the file has no chat template; chat messages cannot be rendered");
    }
    let written = write(&tensors, options, to, path)?;
    let what = format!("GGUF `{}` of {} tokens to {}", model.key, vocabulary.len(), number::config_name(dtype));
    Ok((what, written))
}

/// Writes all files of a GGUF's Hugging Face folder but its weights.
///
/// # Errors
/// [`Error::Write`].
pub(crate) fn write_text(vocabulary: &Vocabulary<'_>, mut config: Map<String, Value>, to: &Path) -> Result<(), Error> {
    config.extend(vocabulary.config_ids());
    write_json(to, "config.json", &config.into())?;
    write_json(to, "generation_config.json", &vocabulary.generation_config())?;
    write_json(to, "tokenizer.json", &vocabulary.tokenizer())?;
    write_json(to, "tokenizer_config.json", &vocabulary.tokenizer_config())?;
    for (name, template) in vocabulary.templates() {
        let path = to.join(name);
        let folder = path.parent().unwrap_or(to);
        std::fs::create_dir_all(folder).map_err(writing(folder))?;
        std::fs::write(&path, template).map_err(writing(&path))?;
    }
    Ok(())
}

fn from_folder(path: &Path, options: &ConvertOptions, to: &Path) -> Result<(String, Written), Error> {
    let checkpoint = folder::open(path)?;
    checkpoint.note().iter().for_each(|text| note(text));
    model::copy_companions(path, to)?;
    if let Some(number) = options.dtype {
        model::set_dtype(to, kind(number))?;
    }
    let tensors = folder::plan(&checkpoint, options.dtype);
    let written = write(&tensors, options, to, path)?;
    Ok((format!("folder with weights in {} file(s)", checkpoint.files()), written))
}

fn from_actor(layout: &actor::Layout, options: &ConvertOptions, to: &Path) -> Result<(String, Written), Error> {
    let config = layout.companions.join("config.json");
    let text = model::read_text(&config)?;
    let config: Value = serde_json::from_slice(&text)
        .map_err(|error| Problem::Damaged(format!("it is not JSON: {error}")).of(&config))?;
    let mapped = actor::Mapped::open(layout)?;
    let merged = mapped.merge()?;
    let first = &layout.shards[0];
    let tensors = merged.folder(&config, options.dtype).map_err(|problem| problem.of(first))?;
    model::copy_companions(&layout.companions, to)?;
    if let Some(number) = only_type(&tensors) {
        model::set_dtype(to, kind(number))?;
    }
    let written = write(&tensors, options, to, first)?;
    Ok((format!("actor of {} ranks", layout.shards.len()), written))
}

/// The one type of all tensors.
fn only_type(tensors: &[Planned<'_>]) -> Option<Number> {
    let first = tensors.first()?.dtype;
    number::number(first).filter(|_| tensors.iter().all(|tensor| tensor.dtype == first))
}

fn kind(number: Number) -> Kind {
    match number {
        Number::F32 => Kind::Float,
        Number::Bf16 => Kind::BFloat16,
        Number::F16 => Kind::Half,
    }
}
