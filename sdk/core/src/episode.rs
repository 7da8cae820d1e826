//! A response of several turns: what the model said, and what the world said back.
//!
//! ```text
//! prompt ─► turn 1 ─► observation ─► turn 2 ─► observation ─► … ─► reward
//!           (model)   (environment)
//! ```

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::sample::{Message, Prompt};
use crate::tool_call::{ToolCall, ToolFormat, parse};

/// Stands where a text was cut.
const CUT: &str = "...(truncated)";

/// What an environment is made from: a row of the dataset, and which sample of which step it is for.
///
/// An environment that lost its process is made again and stepped through the same turns, so it should be
/// a function of this and of the turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// The rollout step, from 1.
    pub step: u64,
    /// Which sample of the step: `group_index · n_samples_per_prompt + i`.
    pub index: u64,
    /// Which prompt of the step.
    pub group_index: u64,
    /// Which row of the dataset.
    pub row: u64,
    /// Whether it is part of an evaluation inside the run.
    pub evaluation: bool,
    /// Differs between samples, and is the same for the same sample of the same run.
    pub seed: u64,
    /// The prompt as in the dataset.
    pub prompt: Prompt,
    /// The row's label.
    pub label: String,
    /// The row's other columns.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

impl Episode {
    /// An episode for a unit test of an environment.
    pub fn for_test(prompt: &str, label: &str) -> Self {
        Self {
            step: 1,
            index: 0,
            group_index: 0,
            row: 0,
            evaluation: false,
            seed: 0,
            prompt: Prompt::Messages(vec![Message::user(prompt)]),
            label: label.to_owned(),
            metadata: Map::new(),
        }
    }
}

/// One turn of the model, as an environment sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// All it said; the token that ended it is left out.
    pub text: String,
    /// What it said outside of reasoning and tool calls, trimmed.
    pub content: String,
    /// The tools it calls, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// What is wrong with each call that is not well formed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub malformed: Vec<String>,
}

impl Turn {
    /// Parses a turn; a call may be malformed, a turn is never an error.
    pub fn parse(text: &str, format: ToolFormat) -> Self {
        let parsed = parse(text, format);
        Self { text: text.to_owned(), content: parsed.content, tool_calls: parsed.calls, malformed: parsed.malformed }
    }
}

/// What an environment says to a turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// What the model is told next. Not empty, unless the episode is over.
    #[serde(default)]
    pub messages: Vec<Message>,
    /// Whether the episode is over. Then nobody is told the messages.
    #[serde(default)]
    pub done: bool,
}

impl Observation {
    /// A tool's answer; the episode goes on.
    pub fn tool(content: impl Into<String>) -> Self {
        Self::of(Message::new("tool", content))
    }

    /// A user's words; the episode goes on.
    pub fn user(content: impl Into<String>) -> Self {
        Self::of(Message::user(content))
    }

    /// A message; the episode goes on.
    pub fn of(message: Message) -> Self {
        Self { messages: vec![message], done: false }
    }

    /// The end of the episode.
    pub fn done() -> Self {
        Self { messages: Vec::new(), done: true }
    }

    /// With another message behind the others: the answer to the turn's next tool call.
    #[must_use]
    pub fn and(mut self, message: Message) -> Self {
        self.messages.push(message);
        self
    }

    /// With at most `limit` characters over all its messages: the text that passes them is cut and says
    /// so, what comes behind it is left out, and so are keys beside `role` and `content` that are longer.
    #[must_use]
    pub fn limited(mut self, limit: usize) -> Self {
        let mut left = limit;
        let mut kept = Vec::new();
        for mut message in self.messages {
            if left == 0
                && let Some(last) = kept.last_mut()
            {
                marked(last);
                break;
            }
            let text = match &message.content {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                other => other.to_string(),
            };
            let (length, cut) = match text.char_indices().nth(left) {
                None => (text.chars().count(), None),
                Some((at, _)) => (left, Some(format!("{}{CUT}", &text[..at]))),
            };
            left -= length;
            if let Some(cut) = cut {
                message.content = cut.into();
            }
            if longer(&message.extra, limit) {
                message.extra.clear();
            }
            if message.role.chars().nth(ROLE).is_some() {
                message.role = message.role.chars().take(ROLE).collect();
            }
            kept.push(message);
        }
        self.messages = kept;
        self
    }
}

/// Characters a role may have.
const ROLE: usize = 64;

/// Says that more was to come.
fn marked(message: &mut Message) {
    if let Value::String(text) = &mut message.content
        && !text.ends_with(CUT)
    {
        text.push_str(CUT);
    }
}

fn longer(extra: &Map<String, Value>, limit: usize) -> bool {
    !extra.is_empty() && serde_json::to_string(extra).map_or(true, |text| text.len() > limit)
}

/// Why an episode is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum EpisodeEnd {
    /// The environment said so.
    Environment,
    /// `max_assistant_turns` were taken.
    Turns,
    /// The next words did not fit into `rollout_max_response_len`, or the turn itself did not.
    Length,
    /// The environment failed, and with it the sample's grade.
    Failed {
        /// How.
        reason: String,
    },
}

/// One turn, as it is recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// Tokens the model drew.
    pub drawn: usize,
    /// Tokens behind them that it did not draw: what it was told, and the template around it.
    pub told: usize,
    /// What the model said.
    pub turn: Turn,
    /// What the environment said, where it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observation: Option<Observation>,
}

/// A response of several turns, as it is recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodeRecord {
    /// The turns, in order.
    pub turns: Vec<TurnRecord>,
    /// Why there are no more.
    pub end: EpisodeEnd,
}

impl EpisodeRecord {
    /// What the model said, in order, as far as the environment was asked about it.
    pub fn steps(&self) -> Vec<Turn> {
        self.turns.iter().filter(|turn| turn.observation.is_some()).map(|turn| turn.turn.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_is_cut_by_characters_and_says_so() {
        let long = Observation::tool("é".repeat(1 << 20)).and(Message::user("never"));
        let cut = long.limited(3);
        assert_eq!(cut.messages, [Message::new("tool", format!("ééé{CUT}"))]);
        let fits = Observation::tool("abc").and(Message::new("tool", "de"));
        assert_eq!(fits.clone().limited(5), fits);
        assert_eq!(fits.limited(4).messages[1], Message::new("tool", format!("d{CUT}")));
        let mut keys = Message::user("x");
        keys.extra.insert("blob".into(), "y".repeat(100).into());
        keys.role = "r".repeat(1000);
        keys.content = serde_json::json!([1, 2, 3]);
        let limited = Observation::of(keys).limited(3).messages.remove(0);
        assert_eq!((limited.role.len(), limited.extra.len()), (ROLE, 0));
        assert_eq!(limited.content, format!("[1,{CUT}"));
        let exact = Observation::user("abcd").and(Message::new("tool", "gone"));
        assert_eq!(exact.limited(4).messages, [Message::new("user", format!("abcd{CUT}"))]);
        assert_eq!(Observation::user("").limited(0).messages, [Message::user("")]);
    }

    #[test]
    fn a_turn_is_what_was_said_and_what_was_called() {
        let turn = Turn::parse("go <tool_call>{\"name\": \"f\"}</tool_call>", ToolFormat::Hermes);
        assert_eq!((turn.content.as_str(), turn.tool_calls.len()), ("go", 1));
        assert_eq!(Turn::parse("guess 7", ToolFormat::Json).content, "guess 7");
    }
}
