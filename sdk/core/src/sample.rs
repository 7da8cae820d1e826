//! One prompt as it is stored, and one scored response as a reward function sees it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A chat message. Keys beside `role` and `content` (`reasoning_content`, `tool_calls`, …) are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text; null for a turn that only calls tools.
    #[serde(default)]
    pub content: Value,
    /// Whatever else the message carries, handed to the chat template as it is.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Value::String(content.into()), extra: Map::new() }
    }

    /// A user's message.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// A system message.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }
}

/// What the model is asked: text as it is, or messages for the chat template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Raw text.
    Text(String),
    /// Chat messages.
    Messages(Vec<Message>),
}

/// One materialised dataset row: a line of the object a [`crate::spec::RowsRef`] names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The prompt, after `prompt_template` and `system_prompt`.
    pub prompt: Prompt,
    /// The label as text; empty where the dataset has none. A number is written as Python's `str`.
    #[serde(default)]
    pub label: String,
    /// The row's other columns.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// Why a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end token or a stop text.
    Stop,
    /// The length limit: the response is truncated.
    Length,
    /// Given up by the caller.
    Abort,
}

/// One response, as a reward function sees it. What the function writes to `score` and
/// `metadata` comes back in the rollout record; changes to the other fields are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Which sample of the step: `group_index · n_samples_per_prompt + i`.
    pub index: u64,
    /// Which prompt of the step.
    pub group_index: u64,
    /// Which row of the dataset.
    pub row: u64,
    /// The rollout step, from 1.
    pub step: u64,
    /// The prompt as in the dataset.
    pub prompt: Prompt,
    /// The response's text, special tokens left out.
    pub response: String,
    /// Prompt ids, then response ids.
    pub tokens: Vec<i64>,
    /// How many of `tokens` are the response.
    pub response_length: usize,
    /// The row's label.
    pub label: String,
    /// Why the response ended.
    pub finish_reason: FinishReason,
    /// The score a reward function gave, if any.
    #[serde(default)]
    pub score: Option<f64>,
    /// The row's other columns, and whatever a reward function adds.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

impl Sample {
    /// A sample for a unit test of a reward function: a user's prompt, a finished response, a label.
    pub fn for_test(prompt: &str, response: &str, label: &str) -> Self {
        Self {
            index: 0,
            group_index: 0,
            row: 0,
            step: 1,
            prompt: Prompt::Messages(vec![Message::user(prompt)]),
            response: response.to_owned(),
            tokens: Vec::new(),
            response_length: 0,
            label: label.to_owned(),
            finish_reason: FinishReason::Stop,
            score: None,
            metadata: Map::new(),
        }
    }
}
