//! Responses of several turns.

use training_gym_core::spec::{EnvironmentSpec, ToolFormat};

use super::at_least_1;
use crate::config::ledger::{Field, Ledger, Shown, field};
use crate::config::{Facts, Recipe};

/// Turns the model may take, unless the recipe says so.
const TURNS: usize = 8;
/// What is shown of them without an environment.
const ABSENT: &str = "none";
/// Characters it is told after one.
const CHARACTERS: usize = 1024;

pub(super) const NAME: Field<String> = Field {
    name: "rollout_environment",
    of: |recipe: &Recipe| recipe.rollout_environment.map(|environment| environment.name().to_owned()),
};

pub(super) fn environment(ledger: &mut Ledger<'_>, facts: &Facts) -> Option<EnvironmentSpec> {
    let Some(name) = ledger.optional(NAME, "none: one turn") else {
        let needs =
            ("there is no rollout_environment, so it would be ignored", "set rollout_environment, or leave it unset");
        let turns = ledger.optional(field!(max_assistant_turns), ABSENT).map(|turns| turns.shown());
        let length = ledger.optional(field!(max_tool_response_length), ABSENT).map(|length| length.shown());
        let format = ledger.optional(field!(tool_format), ABSENT).map(|format| format.shown());
        let set = [("max_assistant_turns", turns), ("max_tool_response_length", length), ("tool_format", format)];
        for (name, value) in set.into_iter().filter(|(_, value)| value.is_some()) {
            ledger.refuse(name, value, needs);
        }
        return None;
    };
    if facts.chat_template == Some(false) {
        let rule = (
            "turns are put together by the chat template, and the dataset's prompts do not go through it",
            "set .apply_chat_template(true) on the dataset",
        );
        ledger.refuse(NAME.name, name, rule);
    }
    let max_assistant_turns = ledger.value(field!(max_assistant_turns), TURNS);
    at_least_1(ledger, "max_assistant_turns", max_assistant_turns, "set the turns the model may take, such as 8");
    let max_tool_response_length = ledger.value(field!(max_tool_response_length), CHARACTERS);
    let remedy = "set the characters the model is told after one turn, such as 1024";
    at_least_1(ledger, "max_tool_response_length", max_tool_response_length, remedy);
    let tool_format = ledger.value(field!(tool_format), ToolFormat::Hermes);
    let tools = ledger.recipe().rollout_environment.map(|environment| environment.tools()).unwrap_or_default();
    Some(EnvironmentSpec { max_assistant_turns, max_tool_response_length, tool_format, tools })
}
