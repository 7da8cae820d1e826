//! The `configs` of a dataset card: the YAML at the head of a README.md.
//!
//! Only that section is read, and only the YAML such sections are written in: block maps and
//! lists, plain and quoted scalars, one-line `[a, b]` lists. Anything else is an error with its
//! line, since a guess would pick the wrong files.

use serde_json::{Map, Value};

/// A line that was not understood, from 1, and why.
pub(super) type Problem = (usize, String);

/// One configuration of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CardConfig {
    pub(super) name: String,
    pub(super) is_default: bool,
    /// The folder its files are looked for in; empty is the repository.
    pub(super) folder: String,
    /// Patterns by split; `None` means the name patterns decide.
    pub(super) files: Option<Vec<(String, Vec<String>)>>,
}

#[derive(Clone, Debug)]
struct Line {
    number: usize,
    indent: usize,
    text: String,
}

/// The configurations a card lists; none where it has no such section.
pub(super) fn configs(card: &str) -> Result<Vec<CardConfig>, Problem> {
    let lines = section(card);
    let Some(first) = lines.first().map(|line| line.number) else { return Ok(Vec::new()) };
    let mut reader = Reader { lines, at: 0 };
    let indent = reader.lines[0].indent;
    let value = reader.block(indent)?;
    if let Some(line) = reader.lines.get(reader.at) {
        return Err((line.number, format!("`{}` is indented in a way not understood", line.text)));
    }
    let Value::Array(items) = value else { return Err((first, "`configs` is not a list".to_owned())) };
    items.iter().map(|item| config(item).map_err(|problem| (first, problem))).collect()
}

/// The lines below `configs:` in the front matter, comments and blank lines left out.
fn section(card: &str) -> Vec<Line> {
    let mut lines = card.strip_prefix('\u{feff}').unwrap_or(card).lines().enumerate();
    if lines.next().is_none_or(|(_, first)| first.trim_end() != "---") {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut inside = false;
    for (index, line) in lines.take_while(|(_, line)| line.trim_end() != "---") {
        let text = uncomment(line);
        let indent = text.len() - text.trim_start().len();
        if text.trim().is_empty() {
            continue;
        }
        if indent == 0 && !text.starts_with("- ") && text != "-" {
            inside = text.starts_with("configs:");
            if !inside || text == "configs:" {
                continue;
            }
            // `configs: []` and the like: read what stands behind the colon.
            let rest = text["configs:".len()..].trim().to_owned();
            found.push(Line { number: index + 1, indent: 0, text: rest });
            continue;
        }
        if inside {
            found.push(Line { number: index + 1, indent, text: text.trim().to_owned() });
        }
    }
    found
}

/// A line without its comment and trailing blanks.
fn uncomment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') && matches!(before, ' ' | '[' | ',' | ':') => quote = Some(c),
            None if c == '#' && before.is_whitespace() => return line[..at].trim_end(),
            None => {}
        }
        before = c;
    }
    line.trim_end()
}

struct Reader {
    lines: Vec<Line>,
    at: usize,
}

impl Reader {
    fn peek(&self, indent: usize) -> Option<Line> {
        self.lines.get(self.at).filter(|line| line.indent == indent).cloned()
    }

    /// The value whose lines begin at `indent`.
    fn block(&mut self, indent: usize) -> Result<Value, Problem> {
        let Some(line) = self.peek(indent) else {
            let line = &self.lines[self.at.min(self.lines.len() - 1)];
            return Err((line.number, "the indentation is not understood".to_owned()));
        };
        if is_item(&line.text) {
            return self.list(indent);
        }
        if key_of(&line.text).is_some() {
            return self.map(indent);
        }
        self.at += 1;
        scalar(&line)
    }

    fn list(&mut self, indent: usize) -> Result<Value, Problem> {
        let mut items = Vec::new();
        while let Some(line) = self.peek(indent).filter(|line| is_item(&line.text)) {
            let rest = line.text[1..].trim_start();
            if rest.is_empty() {
                self.at += 1;
                items.push(self.nested(indent + 1)?);
                continue;
            }
            // `- key: value` begins a map whose other keys stand under `key`.
            let deeper = indent + line.text.len() - rest.len();
            self.lines[self.at] = Line { number: line.number, indent: deeper, text: rest.to_owned() };
            items.push(self.block(deeper)?);
        }
        Ok(Value::Array(items))
    }

    fn map(&mut self, indent: usize) -> Result<Value, Problem> {
        let mut map = Map::new();
        while let Some(line) = self.peek(indent).filter(|line| !is_item(&line.text)) {
            let Some((key, rest)) = key_of(&line.text) else {
                return Err((line.number, format!("`{}` is not `key: value`", line.text)));
            };
            self.at += 1;
            let value = if rest.is_empty() {
                // A list may stand at its key's own indentation.
                let same = self.peek(indent).is_some_and(|next| is_item(&next.text));
                self.nested(if same { indent } else { indent + 1 })?
            } else {
                scalar(&Line { text: rest.to_owned(), ..line.clone() })?
            };
            if map.insert(key.clone(), value).is_some() {
                return Err((line.number, format!("`{key}` stands twice")));
            }
        }
        Ok(Value::Object(map))
    }

    /// The block that follows, if it is indented by at least `least`; otherwise null.
    fn nested(&mut self, least: usize) -> Result<Value, Problem> {
        match self.lines.get(self.at).map(|line| line.indent) {
            Some(indent) if indent >= least => self.block(indent),
            _ => Ok(Value::Null),
        }
    }
}

fn is_item(text: &str) -> bool {
    text == "-" || text.starts_with("- ")
}

/// The key and the rest of `key: rest`.
fn key_of(text: &str) -> Option<(String, &str)> {
    if text.starts_with(['[', '{']) {
        return None;
    }
    if let Some(quote) = text.chars().next().filter(|c| matches!(c, '"' | '\'')) {
        let (key, rest) = text[1..].split_once(quote)?;
        return rest.strip_prefix(':').map(|rest| (key.to_owned(), rest.trim_start()));
    }
    let (key, rest) = text.split_once(": ").or_else(|| text.strip_suffix(':').map(|key| (key, "")))?;
    Some((key.trim_end().to_owned(), rest.trim_start()))
}

fn scalar(line: &Line) -> Result<Value, Problem> {
    let text = line.text.as_str();
    let bad = |what: &str| Err((line.number, format!("`{text}` is {what}")));
    if let Some(inner) = text.strip_prefix('[') {
        let Some(inner) = inner.strip_suffix(']') else { return bad("a list over several lines, which is not read") };
        let parts = inner.split(',').map(str::trim).filter(|part| !part.is_empty());
        let items: Result<Vec<_>, _> =
            parts.map(|part| scalar(&Line { text: part.to_owned(), ..line.clone() })).collect();
        return Ok(Value::Array(items?));
    }
    if text.starts_with(['{', '|', '>', '&', '*', '!', '%', '@']) && !text.starts_with("**") && !text.starts_with("*.")
    {
        return bad("YAML of a kind that is not read here");
    }
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote) {
            let Some(inner) = inner.strip_suffix(quote) else { return bad("a quoted text without its end") };
            if quote == '"' && inner.contains('\\') {
                return bad("a quoted text with escapes, which are not read");
            }
            return Ok(Value::String(if quote == '\'' { inner.replace("''", "'") } else { inner.to_owned() }));
        }
    }
    Ok(match text {
        "true" | "True" => Value::Bool(true),
        "false" | "False" => Value::Bool(false),
        "null" | "~" => Value::Null,
        _ => Value::String(text.to_owned()),
    })
}

fn config(item: &Value) -> Result<CardConfig, String> {
    let Value::Object(item) = item else { return Err("an entry of `configs` is not a map".to_owned()) };
    let name = item.get("config_name").and_then(Value::as_str).unwrap_or("default").to_owned();
    let folder = match item.get("data_dir") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(folder)) => folder.trim_start_matches("./").trim_matches('/').to_owned(),
        Some(_) => return Err(format!("`data_dir` of `{name}` is not a text")),
    };
    let is_default = item.get("default") == Some(&Value::Bool(true));
    let files = match item.get("data_files") {
        None | Some(Value::Null) => None,
        Some(files) => Some(data_files(files).map_err(|problem| format!("`data_files` of `{name}`: {problem}"))?),
    };
    Ok(CardConfig { name, is_default, folder, files })
}

/// Text, list of texts, list of `{split, path}`, or map from split to path: all are allowed.
fn data_files(value: &Value) -> Result<Vec<(String, Vec<String>)>, String> {
    let train = |paths| vec![("train".to_owned(), paths)];
    match value {
        Value::String(path) => Ok(train(vec![path.clone()])),
        Value::Object(map) => map.iter().map(|(split, path)| Ok((split.clone(), paths(path)?))).collect(),
        Value::Array(items) if items.iter().all(Value::is_string) => Ok(train(paths(value)?)),
        Value::Array(items) => {
            let mut splits: Vec<(String, Vec<String>)> = Vec::new();
            for item in items {
                let split = item.get("split").and_then(Value::as_str).ok_or("an entry has no `split`")?;
                let path = item.get("path").ok_or_else(|| format!("split `{split}` has no `path`"))?;
                if splits.iter().any(|known| known.0 == split) {
                    return Err(format!("split `{split}` stands twice"));
                }
                splits.push((split.to_owned(), paths(path)?));
            }
            Ok(splits)
        }
        _ => Err("it is neither a path, a list nor a map".to_owned()),
    }
}

fn paths(value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::String(path) => Ok(vec![path.clone()]),
        Value::Array(items) => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or("a path is not a text".to_owned())).collect()
        }
        _ => Err("a path is not a text".to_owned()),
    }
}
