//! How Python writes values: `str`, `repr` and `json.dumps`, over minijinja's values.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// `repr(float)`: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
    } else {
        format!("{value:?}")
    }
}

/// `str(value)`; undefined is empty, as Jinja prints it.
pub(super) fn str(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        ValueKind::Undefined => String::new(),
        _ => repr(value),
    }
}

/// `repr(value)`.
pub(super) fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
        }
        ValueKind::Seq => {
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(|item| repr(&item)).collect();
            match (value.is_tuple(), items.len()) {
                (false, _) => format!("[{}]", items.join(", ")),
                (true, 1) => format!("({},)", items[0]),
                (true, _) => format!("({})", items.join(", ")),
            }
        }
        ValueKind::Map => {
            let items: Vec<String> = pairs(value).map(|(k, v)| format!("{}: {}", repr(&k), repr(&v))).collect();
            format!("{{{}}}", items.join(", "))
        }
        _ => format!("{value:?}"),
    }
}

fn pairs(value: &Value) -> impl Iterator<Item = (Value, Value)> {
    value
        .try_iter()
        .into_iter()
        .flatten()
        .map(|key| {
            let item = value.get_item(&key).unwrap_or_default();
            (key, item)
        })
        .collect::<Vec<_>>()
        .into_iter()
}

/// The keyword arguments of `json.dumps` that templates use.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonStyle {
    /// Escape non-ASCII characters as `\u` and four digits.
    pub(super) ensure_ascii: bool,
    /// Text of one level of indentation; `None` is one line.
    pub(super) indent: Option<String>,
    /// Between items, between key and value.
    pub(super) separators: Option<(String, String)>,
    /// Order keys by code point.
    pub(super) sort_keys: bool,
}

/// `json.dumps(value)`.
///
/// # Errors
/// For values JSON has no form for: undefined, functions.
pub(super) fn json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut writer = JsonWriter { out: String::new(), style };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct JsonWriter<'a> {
    out: String,
    style: &'a JsonStyle,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > 200 {
            return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply for tojson"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&json_number(value)),
            ValueKind::String => {
                json_string(&mut self.out, value.as_str().unwrap_or_default(), self.style.ensure_ascii)
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.items(depth, ('[', ']'), &items, |this, item| this.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut items: Vec<(String, Value)> =
                    pairs(value).map(|(k, v)| Ok((json_key(&k)?, v))).collect::<Result<_, Error>>()?;
                if self.style.sort_keys {
                    items.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.items(depth, ('{', '}'), &items, |this, (key, item)| {
                    json_string(&mut this.out, key, this.style.ensure_ascii);
                    this.out.push_str(this.style.separators.as_ref().map_or(": ", |separators| &separators.1));
                    this.value(item, depth + 1)
                })?;
            }
            kind => {
                let text = format!("Object of type {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, text));
            }
        }
        Ok(())
    }

    fn items<T>(
        &mut self,
        depth: usize,
        (open, close): (char, char),
        items: &[T],
        write: impl Fn(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let style = self.style;
        let comma = match (&style.separators, &style.indent) {
            (Some(separators), _) => separators.0.as_str(),
            (None, Some(_)) => ",",
            (None, None) => ", ",
        };
        self.out.push(open);
        for (position, item) in items.iter().enumerate() {
            if position > 0 {
                self.out.push_str(comma);
            }
            self.line_break(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.line_break(depth);
        }
        self.out.push(close);
        Ok(())
    }

    /// Where there is indentation: a new line of `depth` levels.
    fn line_break(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }
}

fn json_number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(number) if number.is_nan() => "NaN".into(),
        Ok(number) if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        Ok(number) => float(number),
        Err(_) => value.to_string(),
    }
}

fn json_key(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".into(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
        ValueKind::Number => json_number(key),
        kind => {
            let text = format!("keys must be str, int, float, bool or None, not {kind}");
            return Err(Error::new(ErrorKind::InvalidOperation, text));
        }
    })
}

fn json_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ensure_ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            // DEL is ASCII, and Python writes it as it is.
            c => out.push(c),
        }
    }
    out.push('"');
}

/// What `str.isspace` and `str.strip` take for white space: Unicode's, and the four separators
/// U+001C to U+001F.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        for (value, text) in [
            (1.0, "1.0"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (2.5e-7, "2.5e-07"),
            (1e21, "1e+21"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e300, "1.5e+300"),
            (0.1, "0.1"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn json_is_written_as_python_does() {
        let value = Value::from_pairs([
            ("b", Value::from(vec![Value::from(1), Value::from("é\u{1}\u{7f}\"<&>")])),
            ("a", Value::from_pairs([("x", Value::from(1e21))])),
            ("e", Value::from(Vec::<Value>::new())),
        ]);
        let plain = JsonStyle::default();
        assert_eq!(
            json(&value, &plain).unwrap(),
            "{\"b\": [1, \"é\\u0001\u{7f}\\\"<&>\"], \"a\": {\"x\": 1e+21}, \"e\": []}"
        );
        let style = JsonStyle { ensure_ascii: true, indent: Some("  ".into()), sort_keys: true, separators: None };
        assert_eq!(
            json(&value, &style).unwrap(),
            "{\n  \"a\": {\n    \"x\": 1e+21\n  },\n  \"b\": [\n    1,\n    \"\\u00e9\\u0001\u{7f}\\\"<&>\"\n  ],\n  \"e\": []\n}"
        );
        assert!(json(&Value::UNDEFINED, &plain).is_err());
    }

    #[test]
    fn reprs_are_written_as_python_does() {
        let value = Value::from_pairs([
            ("a", Value::from(true)),
            ("b", Value::from(())),
            ("c", Value::from(vec![Value::from("it's"), Value::from(1.0)])),
        ]);
        assert_eq!(str(&value), "{'a': True, 'b': None, 'c': [\"it's\", 1.0]}");
        assert_eq!(str(&Value::from("x")), "x");
    }
}
