//! From a file's columns to a typed row: prompt, label, everything else.

use serde_json::Value;
use training_gym_core::sample::{Message, Prompt, Row};

use super::table::{Columns, kind};
use super::template::Template;
use super::{Error, python};

/// How columns become rows.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) dataset: String,
    pub(super) input_key: String,
    /// `None`: the column `label`, where there is one.
    pub(super) label_key: Option<String>,
    pub(super) system_prompt: Option<String>,
    pub(super) template: Option<Template>,
    pub(super) apply_chat_template: bool,
}

/// A row, and whether its own system message gave way to `system_prompt`.
pub(super) struct Shaped {
    pub(super) row: Row,
    pub(super) system_replaced: bool,
}

impl Shape {
    /// Makes the row of number `index` (from 0, for messages).
    pub(super) fn row(&self, index: u64, mut columns: Columns) -> Result<Shaped, Error> {
        let input = pick(&columns, &self.input_key)
            .ok_or_else(|| self.lacks("input_key", &self.input_key, index, &columns))?
            .clone();
        let prompt = self.prompt(index, &input, &columns)?;
        let (prompt, system_replaced) = self.with_system(index, prompt)?;
        let label = self.label(index, &columns)?;
        let label_key = self.label_key.as_deref().unwrap_or("label");
        // Order is kept: what a person sees in the file is what they see in a rollout.
        columns.shift_remove(&self.input_key);
        columns.shift_remove(label_key);
        Ok(Shaped { row: Row { prompt, label, metadata: columns }, system_replaced })
    }

    fn prompt(&self, index: u64, input: &Value, columns: &Columns) -> Result<Prompt, Error> {
        match input {
            Value::String(text) => {
                let text = self.filled(index, text, columns)?;
                if text.trim().is_empty() {
                    return Err(self.wrong(index, &self.input_key, "the prompt is empty"));
                }
                Ok(match self.apply_chat_template {
                    true => Prompt::Messages(vec![Message::user(text)]),
                    false => Prompt::Text(text),
                })
            }
            Value::Array(items) => {
                if !self.apply_chat_template {
                    let problem = "the prompt is a list of chat messages: set `.apply_chat_template(true)`";
                    return Err(self.wrong(index, &self.input_key, problem));
                }
                let messages: Result<Vec<_>, _> = items.iter().map(message).collect();
                let mut messages = messages.map_err(|problem| self.wrong(index, &self.input_key, &problem))?;
                self.fill_messages(index, &mut messages, columns)?;
                Ok(Prompt::Messages(messages))
            }
            other => {
                let problem = format!("a prompt is a text or a list of chat messages, and this is {}", kind(other));
                Err(self.wrong(index, &self.input_key, &problem))
            }
        }
    }

    /// Applies the template to the last message of the user.
    fn fill_messages(&self, index: u64, messages: &mut [Message], columns: &Columns) -> Result<(), Error> {
        if messages.is_empty() {
            return Err(self.wrong(index, &self.input_key, "the list of chat messages is empty"));
        }
        if self.template.is_none() {
            return Ok(());
        }
        let last = messages.iter_mut().rev().find(|message| message.role == "user");
        let Some((last, text)) =
            last.and_then(|last| last.content.as_str().map(str::to_owned).map(|text| (last, text)))
        else {
            let problem = "`prompt_template` needs a message of the user whose content is a text";
            return Err(self.wrong(index, &self.input_key, problem));
        };
        last.content = Value::String(self.filled(index, &text, columns)?);
        Ok(())
    }

    fn filled(&self, index: u64, prompt: &str, columns: &Columns) -> Result<String, Error> {
        let Some(template) = &self.template else { return Ok(prompt.to_owned()) };
        template.fill(|name| match pick(columns, name) {
            _ if name == "prompt" => Ok(prompt.to_owned()),
            Some(value) => Ok(python::text(value).unwrap_or_else(|| "None".to_owned())),
            // What the Python gym calls the input column.
            None if name == "input" => Ok(prompt.to_owned()),
            None => Err(self.lacks("prompt_template", name, index, columns)),
        })
    }

    fn with_system(&self, index: u64, prompt: Prompt) -> Result<(Prompt, bool), Error> {
        let Some(system) = &self.system_prompt else { return Ok((prompt, false)) };
        let Prompt::Messages(mut messages) = prompt else {
            let problem = "`system_prompt` needs chat messages: set `.apply_chat_template(true)`";
            return Err(self.wrong(index, &self.input_key, problem));
        };
        let replaces = messages.first().is_some_and(|first| first.role == "system");
        if replaces {
            messages.remove(0);
        }
        messages.insert(0, Message::system(system.as_str()));
        Ok((Prompt::Messages(messages), replaces))
    }

    fn label(&self, index: u64, columns: &Columns) -> Result<String, Error> {
        let (key, value) = match &self.label_key {
            None => match columns.get("label") {
                None => return Ok(String::new()),
                Some(value) => ("label", value),
            },
            Some(key) => {
                (key.as_str(), pick(columns, key).ok_or_else(|| self.lacks("label_key", key, index, columns))?)
            }
        };
        python::text(value).ok_or_else(|| self.wrong(index, key, "the label is null: leave such rows out of the file"))
    }

    fn lacks(&self, setting: &'static str, key: &str, row: u64, columns: &Columns) -> Error {
        let columns = columns.keys().cloned().collect();
        Error::NoColumn { setting, key: key.to_owned(), row, dataset: self.dataset.clone(), columns }
    }

    fn wrong(&self, row: u64, key: &str, problem: &str) -> Error {
        Error::Value { row, dataset: self.dataset.clone(), key: key.to_owned(), problem: problem.to_owned() }
    }
}

/// The column `key`, or the value at the dotted path `key` inside a column.
pub(super) fn pick<'a>(columns: &'a Columns, key: &str) -> Option<&'a Value> {
    if let Some(value) = columns.get(key) {
        return Some(value);
    }
    let (column, path) = key.split_once('.')?;
    path.split('.').try_fold(columns.get(column)?, |value, step| match value {
        Value::Object(map) => map.get(step),
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        _ => None,
    })
}

fn message(value: &Value) -> Result<Message, String> {
    let Value::Object(map) = value else {
        return Err(format!("a chat message is an object with `role` and `content`, and this is {}", kind(value)));
    };
    let mut map = map.clone();
    let Some(Value::String(role)) = map.shift_remove("role") else {
        let keys = map.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        return Err(format!("a chat message has no `role` that is a text; its keys are {keys}"));
    };
    let content = map.shift_remove("content").ok_or("a chat message has no `content`")?;
    // Columnar files pad every message with every key: what is null was not there.
    map.retain(|_, value| !value.is_null());
    Ok(Message { role, content, extra: map })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shape() -> Shape {
        Shape {
            dataset: "d".to_owned(),
            input_key: "prompt".to_owned(),
            label_key: None,
            system_prompt: None,
            template: None,
            apply_chat_template: true,
        }
    }

    fn row(shape: &Shape, columns: Value) -> Result<Row, Error> {
        let Value::Object(columns) = columns else { panic!("a row is an object") };
        shape.row(3, columns).map(|shaped| shaped.row)
    }

    #[test]
    fn prompts_are_texts_or_messages() {
        let text = row(&shape(), json!({"prompt": "2+2?", "label": 4, "id": "a"})).unwrap();
        assert_eq!(text.prompt, Prompt::Messages(vec![Message::user("2+2?")]));
        assert_eq!((text.label.as_str(), text.metadata["id"].as_str()), ("4", Some("a")));
        assert_eq!(text.metadata.len(), 1);
        let raw = Shape { apply_chat_template: false, ..shape() };
        assert_eq!(row(&raw, json!({"prompt": "2+2="})).unwrap().prompt, Prompt::Text("2+2=".to_owned()));
        let chat = json!({"prompt": [{"role": "user", "content": "hi", "tool_calls": null}], "label": 1.0});
        let chat = row(&shape(), chat).unwrap();
        assert_eq!(chat.prompt, Prompt::Messages(vec![Message::user("hi")]));
        assert_eq!(chat.label, "1.0");
    }

    #[test]
    fn dotted_keys_reach_into_columns() {
        let nested = Shape { label_key: Some("reward_model.ground_truth".to_owned()), ..shape() };
        let made =
            row(&nested, json!({"prompt": "q", "reward_model": {"ground_truth": "34", "style": "rule"}})).unwrap();
        assert_eq!(made.label, "34");
        assert_eq!(made.metadata["reward_model"]["style"], "rule");
    }

    #[test]
    fn system_prompt_and_template_are_applied() {
        let template = Some("{prompt} ({id}) \\boxed{}".parse().unwrap());
        let dressed = Shape { system_prompt: Some("Be brief.".to_owned()), template, ..shape() };
        let made = dressed.row(0, json!({"prompt": "q", "id": 7}).as_object().unwrap().clone()).unwrap();
        let expected = vec![Message::system("Be brief."), Message::user("q (7) \\boxed{}")];
        assert_eq!(made.row.prompt, Prompt::Messages(expected.clone()));
        assert!(!made.system_replaced);
        let own = json!({"prompt": [{"role": "system", "content": "old"}, {"role": "user", "content": "q"}], "id": 7});
        let made = dressed.row(0, own.as_object().unwrap().clone()).unwrap();
        assert_eq!(made.row.prompt, Prompt::Messages(expected));
        assert!(made.system_replaced);
    }

    #[test]
    fn wrong_columns_and_values_are_named() {
        let message = |shape: &Shape, columns| row(shape, columns).unwrap_err().to_string();
        let text = message(&shape(), json!({"question": "q", "answer": 1}));
        assert!(text.contains("input_key = `prompt`") && text.contains("`question`, `answer`"), "{text}");
        let labelled = Shape { label_key: Some("gold".to_owned()), ..shape() };
        let text = message(&labelled, json!({"prompt": "q", "answer": 1}));
        assert!(text.contains("label_key = `gold`") && text.contains("`prompt`, `answer`"), "{text}");
        let template = Shape { template: Some("{prompt} {nope}".parse().unwrap()), ..shape() };
        let text = message(&template, json!({"prompt": "q", "answer": 1}));
        assert!(text.contains("prompt_template = `nope`") && text.contains("`answer`"), "{text}");
        for (columns, why) in [
            (json!({"prompt": 7}), "a text or a list of chat messages, and this is a number"),
            (json!({"prompt": ""}), "empty"),
            (json!({"prompt": []}), "empty"),
            (json!({"prompt": [{"from": "human", "value": "q"}]}), "`from`, `value`"),
            (json!({"prompt": ["q"]}), "an object with `role`"),
            (json!({"prompt": "q", "label": null}), "null"),
        ] {
            let text = message(&shape(), columns);
            assert!(text.contains(why) && text.contains("row 3"), "{text}");
        }
        let raw = Shape { apply_chat_template: false, ..shape() };
        assert!(
            message(&raw, json!({"prompt": [{"role": "user", "content": "q"}]})).contains("apply_chat_template(true)")
        );
        let raw = Shape { system_prompt: Some("s".to_owned()), ..raw };
        assert!(message(&raw, json!({"prompt": "q"})).contains("apply_chat_template(true)"));
    }
}
