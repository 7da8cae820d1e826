//! How many tokens a prompt has, by the model's own tokenizer: asked of `gym-runtime`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Error, Preparation};
use crate::backend::{Question, RowsQuestion};
use crate::config::{Model, ModelSource};
use crate::gym::Gym;
use crate::hub::{Repo, local_model};

#[derive(Deserialize)]
struct Counted {
    tokens: Vec<u32>,
}

/// Whoever counts.
pub(super) struct Counter {
    gym: Gym,
    folder: PathBuf,
}

impl Counter {
    /// With the files of the model that describe it and its text; its weights are not fetched.
    pub(super) async fn new(gym: Option<Gym>, model: Model) -> Result<Self, Error> {
        let gym = gym.map_or_else(Gym::from_env, Ok)?;
        let folder = match model.source() {
            ModelSource::Folder(path) => local_model(path)?,
            ModelSource::Stored(url) => {
                let rule = "its tokenizer is read from this machine or the hub: name such a model".to_owned();
                return Err(Error::Setting { setting: "tokenizer", given: url.to_owned(), rule });
            }
            ModelSource::Hub { repo, revision } => {
                let listing = gym.hub().files(&Repo::model(repo)?, revision).await?;
                let text = |name: &str| {
                    let kinds = [".json", ".txt", ".jinja", ".model", ".tiktoken"];
                    !name.contains('/') && kinds.iter().any(|kind| name.ends_with(kind))
                };
                let files: Vec<String> =
                    listing.files.iter().map(|file| file.path.clone()).filter(|path| text(path)).collect();
                gym.hub().download(&listing, &files).await?
            }
        };
        Ok(Self { gym, folder })
    }

    /// The tokens of each row of a file, in order.
    pub(super) async fn count(&self, asked: &Preparation, rows: &Path, name: &str) -> Result<Vec<u32>, Error> {
        let question = Question::Lengths(RowsQuestion {
            model: self.folder.clone(),
            rows: rows.to_owned(),
            raw: false,
            chat_template_kwargs: asked.chat_template_kwargs.clone(),
            max_prompt_len: asked.max_prompt_len,
        });
        let counted = self.gym.backend().ask(question).await?.json::<Counted>()?;
        let source_name = name.to_owned();
        counted.map(|counted| counted.tokens).map_err(|said| Error::Lengths { source_name, said })
    }
}
