//! Tokenizer and template of one model, behind one type.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};
use training_gym_core::sample::{Message, Prompt};

use super::{ChatTemplate, Error, RenderOptions, StopWatcher, Tokenizer};

/// A model's tokenizer and chat template. Cloning shares them.
#[derive(Clone, Debug)]
pub struct TextPipeline {
    tokenizer: Tokenizer,
    template: Option<Arc<ChatTemplate>>,
    folder: Arc<PathBuf>,
}

impl TextPipeline {
    /// Reads both from a model folder. A model without a template takes raw text only.
    ///
    /// # Errors
    /// When a file is absent that must be there, unreadable or malformed.
    pub fn from_folder(folder: &Path) -> Result<Self, Error> {
        Ok(Self {
            tokenizer: Tokenizer::from_folder(folder)?,
            template: ChatTemplate::from_folder(folder)?.map(Arc::new),
            folder: Arc::new(folder.to_owned()),
        })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// As [`Tokenizer::decode`].
    pub fn decode(&self, ids: &[i64], skip_special_tokens: bool) -> String {
        self.tokenizer.decode(ids, skip_special_tokens)
    }

    /// As [`Tokenizer::vocab_size`].
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    /// As [`Tokenizer::vocab_sha256`].
    pub fn vocab_sha256(&self) -> String {
        self.tokenizer.vocab_sha256()
    }

    /// As [`Tokenizer::eos_token_ids`].
    pub fn eos_token_ids(&self) -> &[i64] {
        self.tokenizer.eos_token_ids()
    }

    /// A watcher of one response for stop texts.
    pub fn stop_watcher(&self, stops: &[String], skip_special_tokens: bool) -> StopWatcher {
        self.tokenizer.stop_watcher(stops, skip_special_tokens)
    }

    /// The text of a response, special tokens left out, cut before the first of `stops`.
    pub fn response_text(&self, ids: &[i64], stops: &[String]) -> String {
        if stops.is_empty() {
            return self.decode(ids, true);
        }
        let mut watcher = self.stop_watcher(stops, true);
        let mut text: String = ids.iter().map(|&id| watcher.push_text(id)).collect();
        text.push_str(&watcher.finish());
        text
    }

    /// The template.
    ///
    /// # Errors
    /// When the model has none.
    pub fn template(&self) -> Result<&ChatTemplate, Error> {
        self.template.as_deref().ok_or_else(|| Error::NoTemplate { folder: self.folder.as_ref().clone() })
    }

    /// The ids of a prompt. With `apply_chat_template`, text becomes one user message, the template
    /// opens the assistant's turn, and no special token is added to what it wrote; otherwise text
    /// is tokenised as it is, begin token included where the model wants one.
    ///
    /// # Errors
    /// When messages are given without `apply_chat_template`, the model has no template, or it
    /// refuses the messages.
    pub fn prompt_ids(
        &self,
        prompt: &Prompt,
        apply_chat_template: bool,
        kwargs: &Map<String, Value>,
    ) -> Result<Vec<i64>, Error> {
        let text = self.prompt_text(prompt, apply_chat_template, kwargs)?;
        let raw = matches!(prompt, Prompt::Text(_)) && !apply_chat_template;
        self.tokenizer.encode(&text, raw)
    }

    /// The text [`prompt_ids`](Self::prompt_ids) tokenises. Messages are always rendered.
    ///
    /// # Errors
    /// As there.
    pub fn prompt_text(
        &self,
        prompt: &Prompt,
        apply_chat_template: bool,
        kwargs: &Map<String, Value>,
    ) -> Result<String, Error> {
        let options = RenderOptions { tools: None, add_generation_prompt: true, kwargs: Some(kwargs) };
        match prompt {
            Prompt::Messages(messages) => self.template()?.render(messages, &options),
            Prompt::Text(text) if apply_chat_template => {
                self.template()?.render(&[Message::user(text.as_str())], &options)
            }
            Prompt::Text(text) => Ok(text.clone()),
        }
    }
}
