//! What a launch asks the runtime before it starts anything.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::Error;

/// A question to `gym-runtime check`. Its files are this machine's.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// Whether the model of this `config.json` is one that it computes.
    Computes {
        /// The file.
        config: PathBuf,
    },
    /// Whether a model, its tokenizer and rows fit.
    Rows(RowsQuestion),
    /// How many tokens each row's prompt has.
    Lengths(RowsQuestion),
}

/// Whether a model, its tokenizer and rows fit.
#[derive(Clone, Debug, PartialEq)]
pub struct RowsQuestion {
    /// The model's folder.
    pub model: PathBuf,
    /// JSON lines of rows.
    pub rows: PathBuf,
    /// Whether prompts are raw text instead of conversations.
    pub raw: bool,
    /// Variables of the chat template.
    pub chat_template_kwargs: serde_json::Map<String, serde_json::Value>,
    /// Prompts of more tokens are counted.
    pub max_prompt_len: usize,
}

impl Question {
    /// The command line, with the files at these places.
    pub(crate) fn arguments(&self, place: impl Fn(&Path) -> PathBuf) -> Vec<OsString> {
        match self {
            Self::Computes { config } => vec!["check".into(), "--config".into(), place(config).into()],
            Self::Rows(asked) | Self::Lengths(asked) => {
                let kwargs = serde_json::Value::from(asked.chat_template_kwargs.clone()).to_string();
                let mut arguments: Vec<OsString> = vec!["check".into(), "--model".into(), place(&asked.model).into()];
                arguments.extend(["--rows".into(), place(&asked.rows).into()]);
                arguments.extend(["--chat-template-kwargs".into(), kwargs.into()]);
                arguments.extend(["--max-prompt-len".into(), asked.max_prompt_len.to_string().into()]);
                if asked.raw {
                    arguments.push("--raw".into());
                }
                if matches!(self, Self::Lengths(_)) {
                    arguments.push("--each".into());
                }
                arguments
            }
        }
    }
}

/// What `gym-runtime` answered to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It succeeded.
    Printed {
        /// The program that was asked.
        program: PathBuf,
        /// Its standard output.
        stdout: Vec<u8>,
    },
    /// It failed, with these words.
    Refused(String),
}

impl Answer {
    /// The JSON document it printed, or its refusal.
    pub(crate) fn json<T: serde::de::DeserializeOwned>(self) -> Result<Result<T, String>, Error> {
        match self {
            Self::Refused(said) => Ok(Err(said)),
            Self::Printed { program, stdout } => serde_json::from_slice(&stdout).map(Ok).map_err(|error| {
                let what = format!("its answer to `check` cannot be read ({error})");
                Error::NotRuntime { program, what }
            }),
        }
    }
}
