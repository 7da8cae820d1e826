//! Renders every row of `golden/chat_templates/renders.jsonl` and compares exactly. The rows were made
//! by transformers.

mod golden_files;

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use training_gym_runtime::text::{ChatTemplate, RenderOptions};

fn rendered(template: &ChatTemplate, row: &Value) -> Result<String, String> {
    let empty = Map::new();
    let options = RenderOptions {
        tools: row["tools"].as_array().map(Vec::as_slice),
        add_generation_prompt: row["kwargs"]["add_generation_prompt"].as_bool().unwrap_or(false),
        kwargs: Some(row["kwargs"].as_object().unwrap_or(&empty)),
    };
    let messages = row["messages"].as_array().expect("messages are a list");
    template.render_values(messages, &options).map_err(|e| match e {
        training_gym_runtime::text::Error::Template { message, .. } => message,
        other => other.to_string(),
    })
}

/// What is wrong with a row, if anything.
fn complaint(template: &ChatTemplate, row: &Value) -> Option<String> {
    match (rendered(template, row), row["expected"].as_str(), row["error"].as_str()) {
        (Ok(text), Some(expected), _) if text == expected => None,
        (Ok(text), Some(expected), _) => Some(format!("rendered {text:?}\n   expected {expected:?}")),
        (Err(message), Some(_), _) => Some(format!("failed: {message}")),
        (Ok(text), None, error) => Some(format!("rendered {text:?}, but Python raised {error:?}")),
        (Err(message), None, Some(error)) => match error.strip_prefix("TemplateError: ") {
            Some(raised) if raised != message => Some(format!("raised {message:?}, not {raised:?}")),
            _ => None,
        },
        (Err(_), None, None) => Some("has neither `expected` nor `error`".into()),
    }
}

#[test]
fn golden_templates() {
    let Some(path) = golden_files::golden_file("chat_templates/renders.jsonl") else { return };
    let rows = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let folder = path.parent().expect("a file lies in a folder");
    let mut templates: BTreeMap<String, (ChatTemplate, usize, usize)> = BTreeMap::new();
    let mut complaints = Vec::new();
    for (number, line) in rows.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let row: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("row {}: {e}", number + 1));
        let name = row["template"].as_str().expect("a row names its template");
        let (template, equal, total) = templates.entry(name.to_owned()).or_insert_with(|| {
            let source = std::fs::read_to_string(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            (ChatTemplate::from_source(name, &source).unwrap_or_else(|e| panic!("{e}")), 0, 0)
        });
        *total += 1;
        match complaint(template, &row) {
            None => *equal += 1,
            Some(text) => complaints.push(format!("row {} ({name}, {}): {text}", number + 1, row["tag"])),
        }
    }
    for (name, (_, equal, total)) in &templates {
        println!("golden_templates: {name}: {equal} of {total} equal");
    }
    let checked: usize = templates.values().map(|(_, _, total)| total).sum();
    println!("golden_templates: {} templates, {checked} rows, {} differ", templates.len(), complaints.len());
    assert!(checked > 0, "{} has no rows", folder.join("renders.jsonl").display());
    let shown: Vec<String> = complaints.iter().take(8).cloned().collect();
    assert!(complaints.is_empty(), "{} rows differ; the first:\n{}", complaints.len(), shown.join("\n"));
}
