//! The model's own chat template.

use std::path::Path;

use minijinja::Environment;
use serde_json::{Map, Value};
use training_gym_core::sample::Message;

use super::special::SpecialTokens;
use super::{Error, jinja, read_object, read_optional};

/// What a template is given beside the messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenderOptions<'a> {
    /// Tool declarations, as JSON schema; `None` is Python's `None`.
    pub tools: Option<&'a [Value]>,
    /// End with the opening of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Variables of the template, such as `enable_thinking`. They win over the model's own
    /// (`bos_token`, …).
    pub kwargs: Option<&'a Map<String, Value>>,
}

/// A chat template, compiled.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    /// Names in `env`; the first is the default.
    names: Vec<String>,
    /// What errors call the template: its file, in the model's folder.
    origin: String,
    special: Map<String, Value>,
}

impl ChatTemplate {
    /// Reads `chat_template.jinja` (and `additional_chat_templates/*.jinja`), else
    /// `chat_template.json`, else `chat_template` of `tokenizer_config.json`, a text or a list of
    /// named ones. `None` where the folder has no template. Errors call it by its file in the folder.
    ///
    /// # Errors
    /// When a file cannot be read, or a template does not parse.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>, Error> {
        let Some((origin, templates)) = find(folder)? else { return Ok(None) };
        // With its folder: that is what tells the student's template from the teacher's.
        let origin = folder.join(origin).display().to_string();
        let special = SpecialTokens::from_folder(folder)?.variables().clone();
        Self::compile(origin, templates, special).map(Some)
    }

    /// Compiles one template; `name` is what errors call it.
    ///
    /// # Errors
    /// When it does not parse.
    pub fn from_source(name: &str, source: &str) -> Result<Self, Error> {
        Self::compile(name.to_owned(), vec![("default".to_owned(), source.to_owned())], Map::new())
    }

    fn compile(origin: String, templates: Vec<(String, String)>, special: Map<String, Value>) -> Result<Self, Error> {
        let mut env = jinja::environment();
        let mut names = Vec::new();
        for (name, source) in templates {
            env.add_template_owned(name.clone(), jinja::source(&source)).map_err(|e| failure(&origin, &e))?;
            names.push(name);
        }
        if let Some(at) = names.iter().position(|name| name == "default") {
            names.swap(0, at);
        }
        Ok(Self { env, names, origin, special })
    }

    /// Renders `messages`. A message's reasoning (`reasoning_content`, `thinking` or `reasoning`) is
    /// visible under the first two names.
    ///
    /// # Errors
    /// When the template raises, or fails on these messages: with its line and words.
    pub fn render(&self, messages: &[Message], options: &RenderOptions<'_>) -> Result<String, Error> {
        let values: Vec<Value> = messages
            .iter()
            .map(|message| {
                let mut object = Map::new();
                object.insert("role".into(), message.role.clone().into());
                object.insert("content".into(), message.content.clone());
                object.extend(message.extra.clone());
                Value::Object(object)
            })
            .collect();
        self.render_values(&values, options)
    }

    /// As [`render`](Self::render), for messages as they came: an absent `content` stays absent.
    ///
    /// # Errors
    /// As there.
    pub fn render_values(&self, messages: &[Value], options: &RenderOptions<'_>) -> Result<String, Error> {
        let messages: Vec<Value> = messages.iter().map(with_reasoning).collect();
        let mut context = self.special.clone();
        context.insert("tools".into(), options.tools.map_or(Value::Null, |tools| tools.to_vec().into()));
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        context.extend(options.kwargs.cloned().unwrap_or_default());
        context.insert("messages".into(), messages.into());

        let tool_template = self.names.iter().find(|name| options.tools.is_some() && *name == "tool_use");
        let name = tool_template.unwrap_or(&self.names[0]);
        let template = self.env.get_template(name).map_err(|e| failure(&self.origin, &e))?;
        template.render(jinja::value(&Value::Object(context))).map_err(|e| failure(&self.origin, &e))
    }
}

fn failure(origin: &str, error: &minijinja::Error) -> Error {
    let (line, message) = jinja::explain(error);
    Error::Template { name: origin.to_owned(), line, message }
}

/// Puts the reasoning of a message under both names that templates look for.
fn with_reasoning(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(object) = message.as_object_mut() {
        let found = ["reasoning_content", "thinking", "reasoning"].iter().filter_map(|name| object.get(*name));
        if let Some(reasoning) = found.into_iter().find(|value| !value.is_null()).cloned() {
            object.insert("reasoning_content".into(), reasoning.clone());
            object.insert("thinking".into(), reasoning);
        }
    }
    message
}

type Named = Vec<(String, String)>;

fn find(folder: &Path) -> Result<Option<(String, Named)>, Error> {
    if let Some(source) = read_optional(&folder.join("chat_template.jinja"))? {
        let mut templates = vec![("default".to_owned(), source)];
        templates.extend(additional(&folder.join("additional_chat_templates"))?);
        return Ok(Some(("chat_template.jinja".into(), templates)));
    }
    for name in ["chat_template.json", "tokenizer_config.json"] {
        let path = folder.join(name);
        let Some(config) = read_object(&path)? else { continue };
        let templates = match config.get("chat_template") {
            None | Some(Value::Null) => continue,
            Some(Value::String(source)) => vec![("default".to_owned(), source.clone())],
            Some(Value::Array(list)) => list
                .iter()
                .map(|entry| {
                    Some((entry.get("name")?.as_str()?.to_owned(), entry.get("template")?.as_str()?.to_owned()))
                })
                .collect::<Option<Named>>()
                .unwrap_or_default(),
            Some(_) => Vec::new(),
        };
        if templates.is_empty() {
            let reason = "chat_template must be a text, or a list of {\"name\", \"template\"}".into();
            return Err(Error::Invalid { path, reason });
        }
        return Ok(Some((name.to_owned(), templates)));
    }
    Ok(None)
}

fn additional(folder: &Path) -> Result<Named, Error> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut templates = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "jinja")
            && let Some(name) = path.file_stem().and_then(|stem| stem.to_str())
            && let Some(source) = read_optional(&path)?
        {
            templates.push((name.to_owned(), source));
        }
    }
    templates.sort();
    Ok(templates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    fn render(folder: &Path, tools: Option<&[Value]>) -> String {
        let template = ChatTemplate::from_folder(folder).unwrap().unwrap();
        let options = RenderOptions { tools, add_generation_prompt: true, kwargs: None };
        template.render(&[Message::user("hi")], &options).unwrap()
    }

    #[test]
    fn every_layout_is_found() {
        assert!(ChatTemplate::from_folder(folder(&[]).path()).unwrap().is_none());
        let config = r#"{"eos_token": "<e>", "chat_template": "c{{ eos_token }}{{ messages[0].content }}"}"#;
        assert_eq!(render(folder(&[("tokenizer_config.json", config)]).path(), None), "c<e>hi");
        let list =
            r#"{"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}"#;
        let dir = folder(&[("tokenizer_config.json", list)]);
        assert_eq!((render(dir.path(), None), render(dir.path(), Some(&[]))), ("D".into(), "T".into()));
        let dir = folder(&[
            ("tokenizer_config.json", config),
            ("chat_template.jinja", "J{{ add_generation_prompt }}"),
            ("additional_chat_templates/tool_use.jinja", "A"),
        ]);
        assert_eq!((render(dir.path(), None), render(dir.path(), Some(&[]))), ("JTrue".into(), "A".into()));
    }

    #[test]
    fn errors_name_template_line_and_words() {
        let dir = folder(&[("chat_template.jinja", "a\n{% if %}")]);
        let error = ChatTemplate::from_folder(dir.path()).unwrap_err().to_string();
        let begins = |file: &str| format!("chat template `{}`, line 2: ", dir.path().join(file).display());
        assert!(error.starts_with(&begins("chat_template.jinja")), "{error}");
        // Which model it is of is told when messages meet it, too.
        let config = serde_json::json!({"chat_template": "a\n{{ raise_exception('no system role') }}"});
        std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        std::fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
        let template = ChatTemplate::from_folder(dir.path()).unwrap().unwrap();
        let error = template.render(&[Message::user("hi")], &RenderOptions::default()).unwrap_err().to_string();
        assert_eq!(error, begins("tokenizer_config.json") + "no system role");
        let template = ChatTemplate::from_source("t", "\n\n{{ raise_exception('only users') }}").unwrap();
        let error = template.render(&[], &RenderOptions::default()).unwrap_err().to_string();
        assert_eq!(error, "chat template `t`, line 3: only users");
    }

    #[test]
    fn reasoning_is_visible_under_both_names() {
        let template = ChatTemplate::from_source(
            "t",
            "{% for m in messages %}{{ m.reasoning_content }}-{{ m.thinking }};{% endfor %}",
        );
        let messages = serde_json::json!([
            {"role": "assistant", "reasoning": "r"},
            {"role": "assistant", "reasoning_content": null, "thinking": "t", "reasoning": "r"},
            {"role": "assistant"}
        ]);
        let text = template.unwrap().render_values(messages.as_array().unwrap(), &RenderOptions::default()).unwrap();
        assert_eq!(text, "r-r;t-t;-;");
    }
}
