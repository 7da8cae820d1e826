//! Where two documents first differ: what a refusal names.

use serde_json::Value;

/// A field that is not the same in two documents.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Difference {
    /// The field's path, such as `update.optimizer.lr`.
    pub(crate) field: String,
    /// Its value in the first document; `absent` where it has none.
    pub(crate) first: String,
    /// Its value in the second.
    pub(crate) second: String,
}

/// The first field, in the first document's order, whose value differs.
pub(crate) fn first_difference(first: &Value, second: &Value) -> Option<Difference> {
    search(String::new(), Some(first), Some(second))
}

fn search(path: String, first: Option<&Value>, second: Option<&Value>) -> Option<Difference> {
    match (first, second) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let only_second = b.keys().filter(|key| !a.contains_key(*key));
            a.keys().chain(only_second).find_map(|key| {
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                search(below, a.get(key), b.get(key))
            })
        }
        _ if first == second => None,
        _ => Some(Difference { field: path, first: show(first), second: show(second) }),
    }
}

fn show(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), Value::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_differing_field_is_named_by_its_path() {
        let old = json!({"seed": 1, "update": {"lr": 0.1, "clip": null}, "stop": ["a"]});
        assert_eq!(first_difference(&old, &old), None);
        let new = json!({"seed": 1, "update": {"lr": 0.2, "clip": null}, "stop": ["b"]});
        let found = first_difference(&old, &new).unwrap();
        assert_eq!((found.field.as_str(), found.first.as_str(), found.second.as_str()), ("update.lr", "0.1", "0.2"));
        let more = json!({"seed": 1, "update": {"lr": 0.1, "clip": null}, "stop": ["a"], "extra": true});
        let found = first_difference(&old, &more).unwrap();
        assert_eq!((found.field.as_str(), found.first.as_str()), ("extra", "absent"));
    }
}
