//! Special tokens and end tokens, from whichever file of the folder names them.

use std::path::Path;

use serde_json::{Map, Value};

use super::{Error, read_object};

/// The attributes a tokenizer config names special tokens by, as templates see them.
const ATTRIBUTES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A token that a config declares beside `tokenizer.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredToken {
    /// Its id.
    pub id: i64,
    /// Its text.
    pub content: String,
    /// Left out of text when special tokens are skipped.
    pub special: bool,
}

/// What `tokenizer_config.json` and `special_tokens_map.json` say.
#[derive(Clone, Debug, Default)]
pub struct SpecialTokens {
    /// By attribute (`bos_token`, …): the texts, and `additional_special_tokens` as a list.
    named: Map<String, Value>,
    /// `added_tokens_decoder`, in id order.
    pub declared: Vec<DeclaredToken>,
    /// `add_bos_token`, where the config says so.
    pub add_bos_token: Option<bool>,
}

impl SpecialTokens {
    /// Reads the folder's files; absent ones say nothing.
    ///
    /// # Errors
    /// When a file cannot be read or is not a JSON object.
    pub fn from_folder(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("tokenizer_config.json");
        let config = read_object(&path)?.unwrap_or_default();
        let map = read_object(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
        let mut named = Map::new();
        for attribute in ATTRIBUTES {
            let found = config.get(attribute).and_then(token_text).or_else(|| map.get(attribute).and_then(token_text));
            if let Some(text) = found {
                named.insert(attribute.to_owned(), Value::from(text));
            }
        }
        for source in [&config, &map] {
            let list = source.get("additional_special_tokens").and_then(Value::as_array);
            if let Some(list) = list.filter(|list| !list.is_empty()) {
                let texts: Vec<Value> = list.iter().filter_map(token_text).map(Value::from).collect();
                named.entry("additional_special_tokens").or_insert(Value::Array(texts));
            }
        }
        let mut declared = Vec::new();
        for (id, token) in config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten() {
            let parsed = id.parse().ok().zip(token_text(token));
            let Some((id, content)) = parsed else {
                let reason = format!("added_tokens_decoder has an entry `{id}` that is not an id with a `content`");
                return Err(Error::Invalid { path, reason });
            };
            let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
            declared.push(DeclaredToken { id, content, special });
        }
        declared.sort_by_key(|token| token.id);
        Ok(Self { named, declared, add_bos_token: config.get("add_bos_token").and_then(Value::as_bool) })
    }

    /// The text of `bos_token`, `eos_token`, ….
    pub fn get(&self, attribute: &str) -> Option<&str> {
        self.named.get(attribute).and_then(Value::as_str)
    }

    /// The variables a chat template sees.
    pub fn variables(&self) -> &Map<String, Value> {
        &self.named
    }
}

/// A token is written as its text, or as an object with `content`.
fn token_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(token) => token.get("content").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    }
}

/// End tokens from `generation_config.json`, else `config.json` (its `text_config` too); empty
/// where neither names any.
///
/// # Errors
/// When a file is malformed, or names ids that are not ids.
pub fn end_ids(folder: &Path) -> Result<Vec<i64>, Error> {
    for name in ["generation_config.json", "config.json"] {
        let path = folder.join(name);
        let Some(config) = read_object(&path)? else { continue };
        let nested = config.get("text_config").and_then(|text| text.get("eos_token_id"));
        let Some(found) = config.get("eos_token_id").filter(|id| !id.is_null()).or(nested) else { continue };
        let ids = match found {
            Value::Null => continue,
            Value::Array(ids) => ids.iter().map(Value::as_i64).collect::<Option<Vec<_>>>(),
            id => id.as_i64().map(|id| vec![id]),
        };
        let ids = ids.ok_or_else(|| Error::Invalid {
            path,
            reason: format!("eos_token_id = {found}: must be an id or a list of ids"),
        })?;
        if !ids.is_empty() {
            return Ok(ids);
        }
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write(
            "tokenizer_config.json",
            r#"{"eos_token": {"content": "<e>", "lstrip": false}, "bos_token": null, "add_bos_token": false,
                "added_tokens_decoder": {"7": {"content": "<e>", "special": true}, "3": {"content": "<x>"}}}"#,
        );
        write(
            "special_tokens_map.json",
            r#"{"bos_token": "<b>", "additional_special_tokens": ["<x>", {"content": "<y>"}]}"#,
        );
        let tokens = SpecialTokens::from_folder(folder.path()).unwrap();
        assert_eq!((tokens.get("eos_token"), tokens.get("bos_token")), (Some("<e>"), Some("<b>")));
        assert_eq!(tokens.variables()["additional_special_tokens"], serde_json::json!(["<x>", "<y>"]));
        assert_eq!(tokens.declared.iter().map(|t| (t.id, t.special)).collect::<Vec<_>>(), [(3, false), (7, true)]);
        assert_eq!(tokens.add_bos_token, Some(false));

        assert!(end_ids(folder.path()).unwrap().is_empty());
        write("config.json", r#"{"eos_token_id": null, "text_config": {"eos_token_id": 5}}"#);
        assert_eq!(end_ids(folder.path()).unwrap(), [5]);
        write("generation_config.json", r#"{"eos_token_id": [1, 2]}"#);
        assert_eq!(end_ids(folder.path()).unwrap(), [1, 2]);
        write("generation_config.json", r#"{"eos_token_id": "x"}"#);
        assert!(end_ids(folder.path()).unwrap_err().to_string().contains("eos_token_id"));
        write("generation_config.json", "[");
        assert!(end_ids(folder.path()).unwrap_err().to_string().contains("generation_config.json"));
    }
}
