//! A conversation with a deployment: OpenAI's `/v1/chat/completions`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use training_gym_core::sample::{FinishReason, Message};

use super::{Deployment, Error, requests};

const PATH: &str = "/v1/chat/completions";

/// How a reply is made. What is unset is the server's to choose; ours reads the model's own
/// `generation_config.json`.
///
/// ```
/// use training_gym::deploy::ChatOptions;
/// let _ = ChatOptions { temperature: Some(0.0), max_tokens: Some(512), ..ChatOptions::default() }
///     .chat_template_kwarg("enable_thinking", true);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatOptions {
    /// 0 is greedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus mass in (0, 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// The k most likely; −1 is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// Share of the likeliest token's probability, in [0, 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    /// Tokens the reply may have, reasoning included. Unset: what fits the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// Texts that end the reply.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Ids that end the reply, beside the model's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop_token_ids: Vec<i64>,
    /// Seed of the reply's noise: the same seed, the same reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Variables of the model's chat template, such as `enable_thinking`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub chat_template_kwargs: Map<String, Value>,
    /// How long the reply may take. Default 1 hour: a long thought on a CPU takes its time.
    #[serde(skip)]
    pub timeout: Duration,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            temperature: None,
            top_p: None,
            top_k: None,
            min_p: None,
            max_tokens: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            seed: None,
            chat_template_kwargs: Map::new(),
            timeout: Duration::from_secs(3600),
        }
    }
}

impl ChatOptions {
    /// Sets one variable of the chat template.
    #[must_use]
    pub fn chat_template_kwarg(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.chat_template_kwargs.insert(name.into(), value.into());
        self
    }
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatReply {
    /// What the model says: empty where it never got beyond thinking.
    pub content: String,
    /// What it thought; `None` where it did not.
    pub reasoning_content: Option<String>,
    /// Why it ended: [`FinishReason::Length`] is a truncated reply.
    pub finish_reason: FinishReason,
    /// Tokens it took.
    pub usage: Usage,
}

/// Tokens of one exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the messages, as the chat template wrote them.
    pub prompt_tokens: u64,
    /// Of the reply, reasoning included.
    pub completion_tokens: u64,
}

impl ChatReply {
    /// What is graded: what the model says, or what it thought where a thought that never ended is all
    /// there is.
    pub fn said(&self) -> &str {
        said(&self.content, self.reasoning_content.as_deref())
    }
}

/// As [`ChatReply::said`].
pub(crate) fn said<'a>(content: &'a str, reasoning: Option<&'a str>) -> &'a str {
    reasoning.filter(|_| content.is_empty()).unwrap_or(content)
}

/// A request.
#[derive(Serialize)]
pub(crate) struct Body<'a> {
    pub(crate) model: &'a str,
    pub(crate) messages: &'a [Message],
    #[serde(flatten)]
    pub(crate) options: &'a ChatOptions,
}

#[derive(Deserialize)]
struct Answer {
    choices: Vec<Choice>,
    usage: Usage,
}

#[derive(Deserialize)]
struct Choice {
    message: Said,
    finish_reason: FinishReason,
}

#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
}

impl Deployment {
    /// Asks for one reply to `messages`. A deployment that is still starting is waited for.
    ///
    /// Reasoning is split from content by the server, or, where it leaves that to its clients, by
    /// the habits of the model's family.
    ///
    /// # Errors
    /// [`Error::Refused`] with the server's words; [`Error::Died`] when its process has ended;
    /// [`Error::Unreachable`]; [`Error::Unreadable`].
    pub async fn chat(&self, messages: &[Message], options: &ChatOptions) -> Result<ChatReply, Error> {
        let body = Body { model: self.served_model_name(), messages, options };
        let answer: Answer = requests::post(self, PATH, &body, options.timeout).await?;
        let choice = answer.choices.into_iter().next();
        let choice = choice.ok_or_else(|| requests::unreadable(self, PATH, "it has no choices"))?;
        let content = choice.message.content.unwrap_or_default();
        let (content, reasoning_content) = match choice.message.reasoning_content {
            Some(reasoning) => (content, Some(reasoning).filter(|text| !text.is_empty())),
            // Text that no tag marks as reasoning stays content: the server may have split it already.
            None => {
                let parsed = self.model().parse_response(&content);
                (parsed.content, parsed.reasoning_content)
            }
        };
        Ok(ChatReply { content, reasoning_content, finish_reason: choice.finish_reason, usage: answer.usage })
    }
}
