//! Responses of several turns.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::tool_call::ToolFormat;

/// The person's environment, and how long a response in it may go on. Its name, program and limits are
/// those of the run's [`RewardSpec`](super::RewardSpec): `function` names the environment then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentSpec {
    /// Turns the model may take, ≥ 1.
    pub max_assistant_turns: usize,
    /// Characters the model is told after one turn, ≥ 1; the rest is cut.
    pub max_tool_response_length: usize,
    /// How the model writes tool calls.
    pub tool_format: ToolFormat,
    /// What the chat template is told of the tools, each as its JSON schema.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
}
