//! A model by name: a hub id, a folder, or the URL of a folder in a store.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use training_gym_core::store;

use super::models::{self, Preset};
use super::response::{self, ParsedResponse};
use super::{Problem, Recipe};
use crate::hub::Repo;

const URL_REMEDY: &str = "name the model's folder: `s3://bucket/prefix/folder?…` or `file:///absolute/path`";

/// A model, as a handle that is copied like a number.
///
/// Its texts are kept for the rest of the process, once each, so that a reward function can name
/// the student without owning anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Model {
    place: Place,
    revision: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Hub(&'static str),
    Folder(&'static Path),
    Stored { url: &'static str, name: &'static str },
}

/// Where a model's files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelSource {
    /// A repository of the hub.
    Hub {
        /// `org/name`.
        repo: &'static str,
        /// A branch, tag or commit; `main` unless [`Model::with_revision`] said otherwise.
        revision: &'static str,
    },
    /// A Hugging Face folder on this machine.
    Folder(&'static Path),
    /// A Hugging Face folder in a store, by its URL: a checkpoint's, or one that somebody copied there.
    Stored(&'static str),
}

/// Which habits a model's responses have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Qwen3.5: thinks; its chat template opens `<think>` in the prompt.
    Qwen3_5,
    /// Qwen3: thinks, and opens `<think>` itself.
    Qwen3,
    /// Qwen2.5: does not think.
    Qwen2_5,
    /// Llama 3: does not think.
    Llama3,
    /// Any other: thinks if its response says so.
    Other,
}

impl Model {
    /// A model of the hub by its id, `org/name`, or a folder by its URL: `file:///absolute/path`, or
    /// `s3://bucket/prefix/folder?…` with the settings that a store's URL has, such as a checkpoint's
    /// [`url`](crate::run::Checkpoint::url). It is checked by `check()` and every launch; another URL is
    /// refused by name.
    #[must_use]
    pub fn hub(repo: &str) -> Self {
        Self::by_url(repo).unwrap_or_else(|| Self::known(kept(repo)))
    }

    /// A Hugging Face folder, `config.json`, safetensors, tokenizer, by its path, or its URL as
    /// [`Model::hub`] takes it.
    #[must_use]
    pub fn folder(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let url = path.to_str().filter(|_| !path.is_dir()).and_then(Self::by_url);
        url.unwrap_or_else(|| Self { place: Place::Folder(kept_path(path)), revision: None })
    }

    fn by_url(text: &str) -> Option<Self> {
        let place = match store::local_folder(text) {
            Some(folder) => Place::Folder(kept_path(folder)),
            None if text.contains("://") => Place::Stored { url: kept(text), name: kept(&store::last_part(text)) },
            None => return None,
        };
        Some(Self { place, revision: None })
    }

    /// The model at a branch, tag or commit of its repository instead of `main`.
    #[must_use]
    pub fn with_revision(self, revision: &str) -> Self {
        Self { revision: Some(kept(revision)), ..self }
    }

    pub(super) const fn known(repo: &'static str) -> Self {
        Self { place: Place::Hub(repo), revision: None }
    }

    /// What people call it: the hub id, or the folder's name.
    pub fn name(&self) -> &'static str {
        match self.place {
            Place::Hub(repo) => repo,
            Place::Stored { name, .. } => name,
            Place::Folder(path) => path.file_name().unwrap_or(path.as_os_str()).to_str().unwrap_or("model"),
        }
    }

    /// Where its files are.
    pub fn source(&self) -> ModelSource {
        match self.place {
            Place::Hub(repo) => ModelSource::Hub { repo, revision: self.revision.unwrap_or("main") },
            Place::Folder(path) => ModelSource::Folder(path),
            Place::Stored { url, .. } => ModelSource::Stored(url),
        }
    }

    /// Its family: that of its preset, [`Family::Other`] for a model without one.
    pub fn family(&self) -> Family {
        self.preset().map_or(Family::Other, |preset| preset.family)
    }

    /// Its preset as a recipe to build on (`Recipe { num_rollout: Some(10), ..model.recipe() }`);
    /// an empty recipe for a model without one.
    #[must_use]
    pub fn recipe(&self) -> Recipe {
        self.preset().map(|preset| preset.recipe(*self)).unwrap_or_default()
    }

    /// Splits a response into reasoning and content.
    ///
    /// Text that no tag marks as reasoning is content. See [`Model::parse_thinking`] for a response
    /// to a prompt that already opened `<think>`.
    pub fn parse_response(&self, response: &str) -> ParsedResponse {
        response::split(response, self.family(), false)
    }

    /// [`Model::parse_response`] of a response whose prompt ended inside `<think>`, as Qwen3.5's
    /// template does while thinking is on: without a `</think>` all of it is reasoning.
    pub fn parse_thinking(&self, response: &str) -> ParsedResponse {
        response::split(response, self.family(), true)
    }

    fn preset(&self) -> Option<&'static Preset> {
        match self.place {
            Place::Hub(repo) => models::PRESETS.iter().find(|preset| preset.repo == repo),
            Place::Folder(_) | Place::Stored { .. } => None,
        }
    }

    /// What can be seen to be wrong with the name without asking anyone.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let problem = |value: String, bound: &str, remedy: &str| Problem {
            field: "model".to_owned(),
            value: Some(value),
            bound: bound.to_owned(),
            remedy: remedy.to_owned(),
        };
        let mut problems = Vec::new();
        match self.place {
            // A map in memory is known to its own client alone.
            Place::Stored { url, .. } if !url.starts_with("memory://") => match store::open(url) {
                Ok(_) => {}
                // It leaves out what could be a secret.
                Err(store::Error::Invalid { given, rule, .. }) => {
                    problems.push(problem(format!("{given:?}"), &rule, URL_REMEDY));
                }
                Err(error) => problems.push(problem(self.name().to_owned(), &error.to_string(), URL_REMEDY)),
            },
            Place::Hub(repo) if Repo::model(repo).is_err() => problems.push(problem(
                format!("{repo:?}"),
                "a hub id is `org/name` of letters, digits, `-`, `_` and `.`",
                "correct the id, or use Model::folder for a local folder",
            )),
            Place::Folder(path) if !path.is_dir() => problems.push(problem(
                path.display().to_string(),
                "there is no such folder",
                "give the folder that holds the model's config.json",
            )),
            Place::Folder(path) if !path.join("config.json").is_file() => problems.push(problem(
                path.display().to_string(),
                "the folder has no config.json",
                "give a Hugging Face model folder",
            )),
            Place::Hub(_) | Place::Folder(_) | Place::Stored { .. } => {}
        }
        if let (Place::Folder(_) | Place::Stored { .. }, Some(revision)) = (self.place, self.revision) {
            problems.push(problem(
                format!("revision {revision}"),
                "a folder has no revisions",
                "drop with_revision, or name the hub id",
            ));
        }
        problems
    }
}

impl fmt::Display for Model {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())?;
        self.revision.map_or(Ok(()), |revision| write!(out, "@{revision}"))
    }
}

/// The longest sequence a model's `config.json` allows; `None` where the file does not say.
pub(super) fn context_length(folder: &Path) -> Option<usize> {
    let text = std::fs::read(folder.join("config.json")).ok()?;
    let config: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let length =
        config.get("max_position_embeddings").or_else(|| config.get("text_config")?.get("max_position_embeddings"));
    usize::try_from(length?.as_u64()?).ok().filter(|length| *length > 0)
}

fn kept(text: &str) -> &'static str {
    static TEXTS: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = texts.get(text) {
        return text;
    }
    let text: &'static str = Box::leak(text.into());
    texts.insert(text);
    text
}

fn kept_path(path: PathBuf) -> &'static Path {
    static PATHS: LazyLock<Mutex<HashSet<&'static Path>>> = LazyLock::new(Mutex::default);
    let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = paths.get(path.as_path()) {
        return path;
    }
    let path: &'static Path = Box::leak(path.into_boxed_path());
    paths.insert(path);
    path
}
