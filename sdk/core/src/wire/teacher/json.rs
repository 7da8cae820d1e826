//! JSON as Python servers write it: with bare `NaN`, `Infinity` and `-Infinity`.

use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, Visitor};

/// Reads `body`; where strict JSON fails, once more with the numbers JSON lacks put in quotes, as
/// [`Number`] takes them.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(body).or_else(|strict| match quoted(body) {
        Some(quoted) => serde_json::from_slice(&quoted),
        None => Err(strict),
    })
}

/// `body` with every bare non-finite number quoted, or `None` where it has none.
fn quoted(body: &[u8]) -> Option<Vec<u8>> {
    let in_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let mut out = Vec::with_capacity(body.len() + 64);
    let (mut rest, mut changed) = (body, false);
    while let Some(&byte) = rest.first() {
        let length = match byte {
            b'"' => string_length(rest),
            _ => rest.iter().position(|byte| !in_word(byte)).unwrap_or(rest.len()).max(1),
        };
        let (piece, after) = rest.split_at(length);
        // `true` and `null` do not parse as numbers; `1e999` does, and overflows.
        let number = std::str::from_utf8(piece).ok().and_then(|text| text.parse::<f64>().ok());
        if byte != b'"' && number.is_some_and(|number| !number.is_finite()) {
            changed = true;
            out.extend([b"\"", piece, b"\""].concat());
        } else {
            out.extend(piece);
        }
        rest = after;
    }
    changed.then_some(out)
}

/// Bytes of the string literal `text` begins with, quotes included.
fn string_length(text: &[u8]) -> usize {
    let mut escaped = false;
    for (i, &byte) in text.iter().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return i + 1,
            _ => {}
        }
    }
    text.len()
}

/// A number, or a non-finite one in quotes, or null.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Number(pub(super) Option<f64>);

impl<'de> serde::Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NumberVisitor)
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a number or null")
    }

    fn visit_unit<E>(self) -> Result<Number, E> {
        Ok(Number(None))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Number, E> {
        Ok(Number(Some(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Number, E> {
        Ok(Number(Some(value as f64)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
        Ok(Number(Some(value as f64)))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Number, E> {
        match text.parse::<f64>() {
            Ok(value) if !value.is_finite() => Ok(Number(Some(value))),
            _ => Err(E::custom(format_args!("expected a number, found the text {text:?}"))),
        }
    }
}

/// The beginning of a body, for an error message.
pub(super) fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(800)]);
    let mut excerpt: String = text.chars().take(160).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if excerpt.len() < body.len() {
        excerpt.push('…');
    }
    excerpt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_python_numbers_are_read_and_texts_left_alone() {
        let body = br#"{"NaN": "a \"-Infinity\" NaN", "x": [NaN, -Infinity,Infinity, -1e999, -1.5e-3, 7, null]}"#;
        let read: std::collections::BTreeMap<String, serde_json::Value> = read(body).unwrap();
        assert_eq!(read["NaN"], "a \"-Infinity\" NaN");
        let numbers: Vec<Number> = serde_json::from_value(read["x"].clone()).unwrap();
        let values: Vec<f64> = numbers[1..6].iter().map(|n| n.0.unwrap()).collect();
        assert!(numbers[0].0.unwrap().is_nan());
        assert_eq!(values, [f64::NEG_INFINITY, f64::INFINITY, f64::NEG_INFINITY, -0.0015, 7.0]);
        assert_eq!(numbers[6], Number(None));
    }

    #[test]
    fn what_is_no_json_stays_an_error() {
        for body in ["", "{", "<html>NaN</html>", "[\"", "[nan"] {
            assert!(read::<serde_json::Value>(body.as_bytes()).is_err(), "{body}");
        }
        assert!(serde_json::from_str::<Number>("\"-1.5\"").is_err(), "a finite number in quotes is no number");
    }
}
