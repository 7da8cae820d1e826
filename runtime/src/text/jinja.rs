//! The environment chat templates are rendered in: transformers' own
//! (`transformers.utils.chat_template_utils._compile_jinja_template`), in minijinja.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, Value, escape_formatter};
use minijinja_contrib::pycompat;

use super::python::{self, JsonStyle};
use super::{clock, generation_tag};

/// The marker before a message that `raise_exception` raised, so that it comes out alone.
const RAISED: &str = "raise_exception: ";

/// An environment without templates.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    if let Ok(syntax) = syntax.build() {
        env.set_syntax(syntax);
    }
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(method);
    env.set_formatter(|out, state, value| match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            out.write_str(&python::str(value)).map_err(|_| Error::from(ErrorKind::WriteFailure))
        }
        _ => escape_formatter(out, state, value),
    });
    env.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{}", python::str(message))))
    });
    env.add_function("strftime_now", |format: &str| clock::strftime_now(format));
    env.add_filter("tojson", tojson);
    env.add_filter("string", |value: &Value| match value.kind() {
        ValueKind::String => value.clone(),
        _ => Value::from(python::str(value)),
    });
    env.add_filter("trim", |value: &Value, chars: Option<&str>| {
        strip(&python::str(value), chars, true, true).to_owned()
    });
    env.add_filter("join", join);
    // Python's rules: a string or a mapping has a length and items, so it is a sequence too.
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Bytes)
            || value.is_undefined()
    });
    env.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Bytes | ValueKind::Iterable
        ) || value.is_undefined()
    });
    env
}

/// Reads a template's source as Jinja2 does: universal newlines, `generation` tags rendered.
pub(super) fn source(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    generation_tag::to_with(&text).into_owned()
}

/// The line and the words of a template error.
pub(super) fn explain(error: &Error) -> (Option<usize>, String) {
    let line = error.line();
    let detail = error.detail().unwrap_or_default();
    if let Some(raised) = detail.strip_prefix(RAISED) {
        return (line, raised.to_owned());
    }
    let message = match detail {
        "" => error.kind().to_string(),
        detail => format!("{}: {detail}", error.kind()),
    };
    let mut cause = std::error::Error::source(error);
    let mut message = message;
    while let Some(inner) = cause {
        message = format!("{message}: {inner}");
        cause = inner.source();
    }
    (line, message)
}

/// minijinja's value of a JSON value, in the same order.
pub(super) fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value).collect(),
        Json::Object(items) => Value::from_pairs(items.iter().map(|(k, v)| (k.as_str(), value(v)))),
    }
}

/// transformers' `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson(value: &Value, positional: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let named = |name: &str, place: usize| -> Result<Option<Value>, Error> {
        let found: Option<Value> = kwargs.get(name)?;
        Ok(found.or_else(|| positional.get(place).cloned()).filter(|value| !value.is_none()))
    };
    let style = JsonStyle {
        ensure_ascii: named("ensure_ascii", 0)?.is_some_and(|value| value.is_true()),
        indent: match named("indent", 1)? {
            None => None,
            Some(text) if text.kind() == ValueKind::String => text.as_str().map(str::to_owned),
            Some(count) => Some(" ".repeat(usize::try_from(count)?.min(64))),
        },
        separators: match named("separators", 2)? {
            None => None,
            Some(pair) => {
                let parts: Vec<String> = pair.try_iter()?.map(|part| python::str(&part)).collect();
                let [item, key] = <[String; 2]>::try_from(parts)
                    .map_err(|_| Error::new(ErrorKind::InvalidOperation, "separators of tojson are a pair of texts"))?;
                Some((item, key))
            }
        },
        sort_keys: named("sort_keys", 3)?.is_some_and(|value| value.is_true()),
    };
    kwargs.assert_all_used()?;
    python::json(value, &style).map(Value::from_safe_string)
}

/// Jinja2's `join(value, d='', attribute=None)`, of items as Python writes them.
fn join(value: &Value, positional: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let between: Option<Value> = kwargs.get("d")?;
    let attribute: Option<Value> = kwargs.get("attribute")?;
    kwargs.assert_all_used()?;
    let between = between.or_else(|| positional.first().cloned()).map_or_else(String::new, |text| python::str(&text));
    let attribute = attribute.or_else(|| positional.get(1).cloned());
    if value.is_undefined() {
        return Ok(String::new());
    }
    let items = value.try_iter()?.map(|item| match attribute.as_ref().map(python::str) {
        None => Ok(python::str(&item)),
        Some(path) => path.split('.').try_fold(item, |item, name| item.get_attr(name)).map(|found| python::str(&found)),
    });
    Ok(items.collect::<Result<Vec<String>, Error>>()?.join(&between))
}

fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let matches = |c: char| chars.map_or_else(|| python::is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(matches) } else { text };
    if end { text.trim_end_matches(matches) } else { text }
}

/// Python's methods on primitives: those of minijinja-contrib, and the ones below that it lacks or
/// that treat white space otherwise than Python.
fn method(state: &mut State, target: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = target.as_str() else {
        return pycompat::unknown_method_callback(state, target, name, args);
    };
    let argument = |place: usize| args.get(place).and_then(Value::as_str);
    let needed = |place: usize| {
        argument(place).filter(|text| !text.is_empty()).ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, format!("str.{name} needs a text that is not empty"))
        })
    };
    Ok(match name {
        "strip" => Value::from(strip(text, argument(0), true, true)),
        "lstrip" => Value::from(strip(text, argument(0), true, false)),
        "rstrip" => Value::from(strip(text, argument(0), false, true)),
        "removeprefix" => Value::from(text.strip_prefix(argument(0).unwrap_or_default()).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(argument(0).unwrap_or_default()).unwrap_or(text)),
        "partition" => {
            let by = needed(0)?;
            let (head, tail) = text.split_once(by).map_or((text, None), |(head, tail)| (head, Some(tail)));
            [head, if tail.is_some() { by } else { "" }, tail.unwrap_or_default()].into_iter().collect()
        }
        "rpartition" => {
            let by = needed(0)?;
            let (head, tail) = text.rsplit_once(by).map_or((None, text), |(head, tail)| (Some(head), tail));
            [head.unwrap_or_default(), if head.is_some() { by } else { "" }, tail].into_iter().collect()
        }
        "rsplit" if argument(0).is_some() => {
            let by = needed(0)?;
            let limit = args.get(1).and_then(Value::as_i64).filter(|&limit| limit >= 0);
            let mut parts: Vec<&str> = match limit {
                Some(limit) => text.rsplitn(limit as usize + 1, by).collect(),
                None => text.rsplit(by).collect(),
            };
            parts.reverse();
            parts.into_iter().collect()
        }
        "index" => {
            let by = argument(0).unwrap_or_default();
            let at = text.find(by).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        _ => return pycompat::unknown_method_callback(state, target, name, args),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, context: &serde_json::Value) -> String {
        environment().render_str(&source(template), value(context)).unwrap()
    }

    #[test]
    fn templates_behave_as_in_python() {
        let context = serde_json::json!({
            "f": 2.5e-7, "n": null, "t": true, "s": "\u{1c} x\u{a0}", "m": {"b": 1, "a": [1.0, "é"]}, "big": 12345678901234567890_u64,
        });
        for (template, expected) in [
            ("{{ f }}|{{ n }}|{{ t }}|{{ missing }}|{{ big }}", "2.5e-07|None|True||12345678901234567890"),
            ("[{{ s|trim }}][{{ s.strip() }}][{{ s.rstrip() }}]", "[x][x][\u{1c} x]"),
            ("{{ m|tojson }}", "{\"b\": 1, \"a\": [1.0, \"é\"]}"),
            ("{{ m|tojson(separators=(',', ':'), sort_keys=true) }}", "{\"a\":[1.0,\"é\"],\"b\":1}"),
            ("{{ m|tojson(ensure_ascii=true) }}", "{\"b\": 1, \"a\": [1.0, \"\\u00e9\"]}"),
            ("{{ m }}", "{'b': 1, 'a': [1.0, 'é']}"),
            ("{{ 'x' is sequence }}{{ m is sequence }}{{ 1 is iterable }}", "TrueTrueFalse"),
            ("{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
            ("{%- generation -%} {% set z = 1 %}in {{ z }} {%- endgeneration %}{{ z }}", "in 1"),
            ("{{ 'a-b-c'.rsplit('-', 1) }}{{ 'a-b'.partition('-')[2] }}{{ 'ab'.removeprefix('a') }}", "['a-b', 'c']bb"),
            ("{{ '%s=%d' | format('a', 3) }}", "a=3"),
            ("{{ f|string + 'x' }}{{ f|trim }}{{ [f, n, 'a']|join(', ') }}", "2.5e-07x2.5e-072.5e-07, None, a"),
            ("{{ [{'a': {'b': 1.0}}, {'a': {'b': 2}}]|join('-', attribute='a.b') }}{{ m|join }}", "1.0-2ba"),
            ("a\r\n  {% if t %}\r\nb\r\n{% endif %}\r\n", "a\nb\n"),
        ] {
            assert_eq!(render(template, &context), expected, "{template}");
        }
    }

    #[test]
    fn errors_keep_line_and_words() {
        let env = environment();
        let error = env.render_str("a\nb {{ raise_exception('Stop: it') }}", ()).unwrap_err();
        assert_eq!(explain(&error), (Some(2), "Stop: it".to_owned()));
        let error = env.render_str("{{ x.y.z }}", ()).unwrap_err();
        assert!(explain(&error).1.contains("undefined"), "{:?}", explain(&error));
    }
}
