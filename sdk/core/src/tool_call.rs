//! Tool calls as models write them: one parser for both sides.
//!
//! | format | what a call looks like |
//! |---|---|
//! | [`ToolFormat::Hermes`] | `<tool_call>{"name": "f", "arguments": {…}}</tool_call>`, any number of them, text around them (NousResearch's Hermes 2 Pro, and Qwen since 2.5) |
//! | [`ToolFormat::Json`] | the whole turn is one such object or a list of them, alone or in a fenced block; `parameters` for `arguments`, as Llama 3.1 writes |
//!
//! What stands in `<think>…</think>` calls nothing. A call that is not well formed is kept with what
//! is wrong with it: an environment tells the model so, or punishes it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToolFormat {
    /// `<tool_call>…</tool_call>` around a JSON object, as Hermes and Qwen write.
    #[default]
    Hermes,
    /// A turn that is JSON and nothing else.
    Json,
}

impl std::str::FromStr for ToolFormat {
    type Err = String;

    /// `hermes` or `json`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "hermes" => Ok(Self::Hermes),
            "json" => Ok(Self::Json),
            other => Err(format!("`{other}` is no tool format: hermes or json")),
        }
    }
}

/// One call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// What it is called with; empty where the model gave nothing.
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

/// What a turn says beside its calls, and what it calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parsed {
    /// The text outside of reasoning and calls, trimmed.
    pub content: String,
    /// The calls, in order.
    pub calls: Vec<ToolCall>,
    /// What is wrong with each call that is none.
    pub malformed: Vec<String>,
}

/// Parses one turn. No text is an error: what is wrong is in [`Parsed::malformed`].
pub fn parse(text: &str, format: ToolFormat) -> Parsed {
    let text = without_reasoning(text);
    match format {
        ToolFormat::Hermes => hermes(text),
        ToolFormat::Json => json(text),
    }
}

/// Behind the last `</think>`; what is inside an open `<think>` is not said at all.
fn without_reasoning(text: &str) -> &str {
    let said = text.rfind("</think>").map_or(text, |at| &text[at + "</think>".len()..]);
    said.find("<think>").map_or(said, |at| &said[..at])
}

fn hermes(text: &str) -> Parsed {
    const OPEN: &str = "<tool_call>";
    const CLOSE: &str = "</tool_call>";
    let mut parsed = Parsed::default();
    let (mut content, mut rest) = (String::new(), text);
    while let Some(start) = rest.find(OPEN) {
        content.push_str(&rest[..start]);
        rest = &rest[start + OPEN.len()..];
        let Some(end) = rest.find(CLOSE) else {
            parsed.malformed.push(format!("{OPEN} is not closed by {CLOSE}"));
            rest = "";
            break;
        };
        match serde_json::from_str(rest[..end].trim()).map_err(|error| error.to_string()).and_then(call) {
            Ok(call) => parsed.calls.push(call),
            Err(why) => parsed.malformed.push(why),
        }
        rest = &rest[end + CLOSE.len()..];
    }
    content.push_str(rest);
    parsed.content = content.trim().to_owned();
    parsed
}

fn json(text: &str) -> Parsed {
    let text = text.trim();
    let body = fenced(text).unwrap_or(text);
    let mut parsed = Parsed::default();
    match serde_json::from_str::<Value>(body) {
        Ok(Value::Array(calls)) if !calls.is_empty() && calls.iter().all(Value::is_object) => {
            for found in calls.into_iter().map(call) {
                match found {
                    Ok(call) => parsed.calls.push(call),
                    Err(why) => parsed.malformed.push(why),
                }
            }
        }
        Ok(object @ Value::Object(_)) => match call(object) {
            Ok(call) => parsed.calls.push(call),
            Err(why) => parsed.malformed.push(why),
        },
        Err(error) if body.starts_with('{') => parsed.malformed.push(error.to_string()),
        _ => text.clone_into(&mut parsed.content),
    }
    parsed
}

/// The inside of a text that is one fenced block.
fn fenced(text: &str) -> Option<&str> {
    let inside = text.strip_prefix("```")?.strip_suffix("```")?;
    let (language, body) = inside.split_once('\n')?;
    language.chars().all(char::is_alphanumeric).then(|| body.trim())
}

fn call(value: Value) -> Result<ToolCall, String> {
    let Value::Object(mut object) = value else { return Err("a call is a JSON object".to_owned()) };
    let Some(Value::String(name)) = object.remove("name") else {
        return Err("a call needs a `name` that is a text".to_owned());
    };
    let arguments = match object.remove("arguments").or_else(|| object.remove("parameters")) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        // Some models write the arguments as the text of an object.
        Some(Value::String(text)) => serde_json::from_str(&text)
            .map_err(|error| format!("the arguments of `{name}` are a text that is no JSON object: {error}"))?,
        Some(_) => return Err(format!("the arguments of `{name}` are no JSON object")),
    };
    Ok(ToolCall { name, arguments })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn called(name: &str, arguments: Value) -> ToolCall {
        ToolCall { name: name.to_owned(), arguments: arguments.as_object().unwrap().clone() }
    }

    #[test]
    fn hermes_calls_are_found_in_order_beside_the_text() {
        let text = "Let me see.\n<tool_call>\n{\"name\": \"sql\", \"arguments\": {\"query\": \"SELECT '</s>'\"}}\n</tool_call>\n\
                    <tool_call>{\"arguments\": \"{\\\"n\\\": 2}\", \"name\": \"add\"}</tool_call> and <tool_call>{\"name\": \"now\"}</tool_call>.";
        let parsed = parse(text, ToolFormat::Hermes);
        assert_eq!(parsed.content, "Let me see.\n\n and .");
        assert_eq!(parsed.malformed, Vec::<String>::new());
        let expected = [
            called("sql", json!({"query": "SELECT '</s>'"})),
            called("add", json!({"n": 2})),
            called("now", json!({})),
        ];
        assert_eq!(parsed.calls, expected);
    }

    #[test]
    fn reasoning_calls_nothing() {
        let text =
            "<think>I could <tool_call>{\"name\": \"a\"}</tool_call></think><tool_call>{\"name\": \"b\"}</tool_call>";
        assert_eq!(parse(text, ToolFormat::Hermes).calls, [called("b", json!({}))]);
        let open = parse("yes <think>hm <tool_call>{\"name\": \"a\"}</tool_call>", ToolFormat::Hermes);
        assert_eq!((open.content.as_str(), open.calls.len()), ("yes", 0));
        // A template that opens the reasoning leaves only its end in the response.
        assert_eq!(parse("hm</think>{\"name\": \"b\"}", ToolFormat::Json).calls.len(), 1);
    }

    #[test]
    fn what_is_malformed_says_why_and_hides_no_other_call() {
        let deep = "[".repeat(100_000);
        for (text, words) in [
            ("<tool_call>{\"name\": \"a\"", "not closed"),
            ("<tool_call>{\"name\": }</tool_call>", "expected value"),
            ("<tool_call>[1]</tool_call>", "JSON object"),
            ("<tool_call>{\"arguments\": {}}</tool_call>", "`name`"),
            ("<tool_call>{\"name\": \"a\", \"arguments\": 3}</tool_call>", "no JSON object"),
            ("<tool_call>{\"name\": \"a\", \"arguments\": \"x\"}</tool_call>", "no JSON object"),
            (&format!("<tool_call>{deep}</tool_call>"), "recursion"),
        ] {
            let parsed = parse(&format!("<tool_call>{{\"name\": \"b\"}}</tool_call>{text}"), ToolFormat::Hermes);
            assert_eq!(parsed.calls, [called("b", json!({}))]);
            assert!(parsed.malformed.len() == 1 && parsed.malformed[0].contains(words), "{parsed:?}");
        }
    }

    #[test]
    fn a_turn_of_json_is_a_call_or_several_and_other_text_is_text() {
        let one = called("f", json!({"x": [1, {"y": null}]}));
        let text = r#"{"name": "f", "parameters": {"x": [1, {"y": null}]}}"#;
        for text in [text.to_owned(), format!("\n```json\n{text}\n```\n"), format!("[{text}]")] {
            assert_eq!(parse(&text, ToolFormat::Json).calls, std::slice::from_ref(&one), "{text}");
        }
        for text in ["higher", "[1, 2]", "7", "", "```\nno\n```"] {
            let parsed = parse(text, ToolFormat::Json);
            assert_eq!((parsed.content.as_str(), parsed.calls.len(), parsed.malformed.len()), (text, 0, 0), "{text}");
        }
        assert_eq!(parse(r#"{"name": "f""#, ToolFormat::Json).malformed.len(), 1);
        assert_eq!(parse(r#"[{"name": "f"}, {}]"#, ToolFormat::Json).malformed.len(), 1);
    }
}
