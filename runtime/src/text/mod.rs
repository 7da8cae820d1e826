//! Text in, ids out, and back: the tokenizer, the chat template, stops.
//!
//! | module | what it holds |
//! |---|---|
//! | [`tokenizer`] | `tokenizer.json`, encoding and decoding |
//! | [`special`] | special tokens and end tokens, from whichever file of the folder names them |
//! | [`decoder`] | ids to text, one at a time, never splitting a character |
//! | [`stop`] | stop texts over a stream of tokens |
//! | [`template`] | the model's own chat template |
//! | [`conversation`] | what stands between the turns of a model, in ids |
//! | [`prompts`] | all of it behind one type: [`TextPipeline`] |
//!
//! `jinja`, `python`, `clock` and `generation_tag` make minijinja behave as the environment that
//! transformers renders chat templates in.

#[cfg(test)]
#[path = "../../tests/byte_tokenizer/mod.rs"]
pub(crate) mod byte_tokenizer;
mod clock;
pub mod conversation;
pub mod decoder;
mod generation_tag;
mod jinja;
pub mod prompts;
mod python;
pub mod special;
pub mod stop;
pub mod template;
pub mod tokenizer;

use std::path::PathBuf;

pub use conversation::Conversation;
pub use decoder::IncrementalDecoder;
pub use prompts::TextPipeline;
pub use stop::{StopMatcher, StopWatcher};
pub use template::{ChatTemplate, RenderOptions};
pub use tokenizer::Tokenizer;

/// What can be wrong with a model's text files, or with a prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the model folder cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The folder has no fast tokenizer.
    #[error(
        "{} has no tokenizer.json; save the model with a fast tokenizer \
         (`AutoTokenizer.from_pretrained(…).save_pretrained(folder)`)",
        folder.display()
    )]
    NoTokenizer {
        /// The model folder.
        folder: PathBuf,
    },
    /// A file of the model folder is not what it should be.
    #[error("{} is not valid: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        reason: String,
    },
    /// The tokenizer refused a text.
    #[error("the text cannot be tokenised: {reason}")]
    Encode {
        /// The tokenizer's words.
        reason: String,
    },
    /// A prompt of messages for a model without a template.
    #[error(
        "the model in {} has no chat template, so chat messages cannot be rendered; \
         give raw text, or add a chat_template.jinja to the folder",
        folder.display()
    )]
    NoTemplate {
        /// The model folder.
        folder: PathBuf,
    },
    /// The chat template does not parse, or failed on these messages.
    #[error("chat template `{name}`{}: {message}", line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Template {
        /// The template's file, in the model's folder.
        name: String,
        /// The line of the template, from 1, where known.
        line: Option<usize>,
        /// What the template or the renderer said.
        message: String,
    },
    /// The chat template cannot be continued turn by turn.
    #[error(
        "the chat template cannot be continued behind turn {turn}: {why}; what a model drew could not be kept token \
         for token"
    )]
    NoExtension {
        /// The turn, from 1.
        turn: usize,
        /// What it does.
        why: &'static str,
    },
}

/// No file of a tokenizer comes near.
const LONGEST: u64 = 1 << 30;

/// Reads the bytes of a regular file where it exists. Anything else is refused before it is opened: a
/// pipe would wait for its writer, a device never end.
fn read_bytes(path: &std::path::Path) -> Result<Option<Vec<u8>>, Error> {
    let read = || {
        let refuse = |why: &str| Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, why));
        let found = std::fs::metadata(path)?;
        if !found.is_file() {
            return refuse("it is not a file");
        }
        if found.len() > LONGEST {
            return refuse("it has more than 1 GiB");
        }
        std::fs::read(path)
    };
    match read() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

/// Reads the text at `path` where it exists.
fn read_optional(path: &std::path::Path) -> Result<Option<String>, Error> {
    let Some(bytes) = read_bytes(path)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|error| Error::Read {
        path: path.to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, error.utf8_error()),
    })
}

/// Reads a JSON object from `path` where it exists.
fn read_object(path: &std::path::Path) -> Result<Option<serde_json::Map<String, serde_json::Value>>, Error> {
    let Some(text) = read_optional(path)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|e| Error::Invalid { path: path.to_owned(), reason: e.to_string() })
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    /// Opening one would wait for whoever writes into it, for ever.
    #[test]
    fn a_pipe_in_place_of_a_file_is_refused_and_not_waited_for() {
        for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
            let folder = tempfile::tempdir().unwrap();
            if name != "tokenizer.json" {
                std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
            }
            let path = folder.path().join(name);
            rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            let error = read_optional(&path).unwrap_err();
            assert!(
                matches!(&error, Error::Read { source, .. } if source.to_string() == "it is not a file"),
                "{error}"
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(matches!(Tokenizer::from_folder(folder.path()), Err(Error::Read { .. })));
    }
}
