//! Maps a person may write in several ways.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Variables of the chat template, from a JSON text or a map.
///
/// ```
/// use serde_json::json;
/// use training_gym::config::ChatTemplateKwargs;
///
/// let text = ChatTemplateKwargs::from(r#"{"enable_thinking": true}"#);
/// assert_eq!(text, json!({"enable_thinking": true}).into());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ChatTemplateKwargs(Result<Map<String, Value>, NotAnObject>);

/// A text or value that was to be a JSON object; `check()` reports it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NotAnObject {
    pub(super) given: String,
    pub(super) why: String,
}

impl ChatTemplateKwargs {
    pub(super) fn map(&self) -> Result<&Map<String, Value>, &NotAnObject> {
        self.0.as_ref()
    }
}

impl From<&str> for ChatTemplateKwargs {
    fn from(text: &str) -> Self {
        let not = |why: String| NotAnObject { given: text.to_owned(), why };
        match serde_json::from_str(text) {
            Ok(value @ Value::Object(_)) => Self::from(value),
            Ok(_) => Self(Err(not("it is JSON, but not an object".to_owned()))),
            Err(error) => Self(Err(not(format!("it is not JSON ({error})")))),
        }
    }
}

impl From<String> for ChatTemplateKwargs {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<Map<String, Value>> for ChatTemplateKwargs {
    fn from(map: Map<String, Value>) -> Self {
        Self(Ok(map))
    }
}

impl From<Value> for ChatTemplateKwargs {
    fn from(value: Value) -> Self {
        match value {
            Value::Object(map) => Self(Ok(map)),
            Value::String(text) => Self::from(text),
            other => {
                Self(Err(NotAnObject { given: other.to_string(), why: "it is JSON, but not an object".to_owned() }))
            }
        }
    }
}

/// Variables a job is started with. They are part of the stored spec: no secrets.
///
/// ```
/// use training_gym::config::Environment;
/// let _ = Environment::from([("NCCL_NVLS_ENABLE", "1")]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(pub BTreeMap<String, String>);

impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(pairs: [(&str, &str); N]) -> Self {
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

impl From<BTreeMap<String, String>> for Environment {
    fn from(map: BTreeMap<String, String>) -> Self {
        Self(map)
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

/// Keys of the engine beyond the recipe's own fields: see [`super::recipe::Recipe::extra_config`].
///
/// ```
/// use training_gym::config::ExtraConfig;
/// let _ = ExtraConfig::from([("max_running_requests", 128)]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtraConfig(pub BTreeMap<String, Value>);

impl<V: Into<Value>, const N: usize> From<[(&str, V); N]> for ExtraConfig {
    fn from(pairs: [(&str, V); N]) -> Self {
        Self(pairs.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect())
    }
}

impl From<Map<String, Value>> for ExtraConfig {
    fn from(map: Map<String, Value>) -> Self {
        Self(map.into_iter().collect())
    }
}
