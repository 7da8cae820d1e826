//! Reading a request's fields: a wrong type or a value out of range is named; a field nobody knows
//! is left alone, as OpenAI does.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;

/// A JSON object of a request, and where it is in the body.
#[derive(Clone, Debug)]
pub(super) struct Fields {
    path: String,
    map: Map<String, Value>,
}

/// A range a number must be in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) low: f64,
    pub(super) high: f64,
    /// `low` itself is out.
    pub(super) open: bool,
}

impl Bounds {
    pub(super) const fn closed(low: f64, high: f64) -> Self {
        Self { low, high, open: false }
    }

    pub(super) const fn open_below(low: f64, high: f64) -> Self {
        Self { low, high, open: true }
    }

    pub(super) fn hold(self, value: f64) -> bool {
        value <= self.high && if self.open { value > self.low } else { value >= self.low }
    }

    pub(super) fn text(self) -> String {
        match (self.open, self.high.is_finite()) {
            (true, true) => format!("must be in ({}, {}]", self.low, self.high),
            (false, true) => format!("must be in [{}, {}]", self.low, self.high),
            (true, false) => format!("must be > {}", self.low),
            (false, false) => format!("must be ≥ {}", self.low),
        }
    }
}

impl Fields {
    /// A request's body.
    pub(super) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { path: String::new(), map }),
            Ok(other) => Err(ApiError::bad(format!("the body must be a JSON object, not {}", kind(&other)))),
            Err(error) => Err(ApiError::bad(format!("the body is not JSON: {error}"))),
        }
    }

    fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// A refusal about one field's value.
    pub(super) fn refuse(&self, field: &str, rule: &str) -> ApiError {
        let name = self.name(field);
        let shown = self.map.get(field).map_or_else(|| "(absent)".to_owned(), excerpt);
        ApiError::field(name.clone(), format!("{name} = {shown}: {rule}"))
    }

    /// The value; null is absent.
    pub(super) fn get(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn read<'a, T>(
        &'a self,
        field: &str,
        rule: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.refuse(field, rule))
    }

    pub(super) fn flag(&self, field: &str) -> Result<Option<bool>, ApiError> {
        self.read(field, "must be true or false", Value::as_bool)
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<&str>, ApiError> {
        self.read(field, "must be a text", Value::as_str)
    }

    pub(super) fn list(&self, field: &str) -> Result<Option<&Vec<Value>>, ApiError> {
        self.read(field, "must be a list", Value::as_array)
    }

    pub(super) fn object(&self, field: &str) -> Result<Option<Self>, ApiError> {
        let map = self.read(field, "must be an object", |value| value.as_object().cloned())?;
        Ok(map.map(|map| Self { path: self.name(field), map }))
    }

    /// The object itself.
    pub(super) fn into_map(self) -> Map<String, Value> {
        self.map
    }

    pub(super) fn number(&self, field: &str, bounds: Bounds) -> Result<Option<f64>, ApiError> {
        let number = self.read(field, "must be a number", Value::as_f64)?;
        match number {
            Some(value) if !bounds.hold(value) => Err(self.refuse(field, &bounds.text())),
            other => Ok(other),
        }
    }

    pub(super) fn integer(&self, field: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(number) = self.read(field, "must be a whole number", whole)? else { return Ok(None) };
        match within(number, &range) {
            Some(number) => Ok(Some(number)),
            None => Err(self.refuse(field, &range_text(&range))),
        }
    }

    /// 64 bits of any sign: a negative seed counts as its two's complement.
    pub(super) fn seed(&self, field: &str) -> Result<Option<u64>, ApiError> {
        let Some(number) = self.read(field, "must be a whole number", whole)? else { return Ok(None) };
        let bits = u64::try_from(number).ok().or_else(|| i64::try_from(number).ok().map(i64::cast_unsigned));
        bits.map(Some).ok_or_else(|| self.refuse(field, "must be in [-2^63, 2^64)"))
    }

    /// A text, or a list of texts.
    pub(super) fn texts(&self, field: &str) -> Result<Option<Vec<String>>, ApiError> {
        self.read(field, "must be a text or a list of texts", |value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(list) => list.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
            _ => None,
        })
    }

    /// A list of token ids.
    pub(super) fn ids(&self, field: &str) -> Result<Option<Vec<i64>>, ApiError> {
        self.read(field, "must be a list of token ids", ids)
    }
}

/// A list of token ids.
pub(super) fn ids(value: &Value) -> Option<Vec<i64>> {
    value.as_array()?.iter().map(|id| i64::try_from(whole(id)?).ok()).collect()
}

/// A whole number; `2.0` is one, as in JSON there is one kind of number. Wide enough that nothing
/// wraps: what JSON writes beyond 128 bits is the nearest there is.
pub(super) fn whole(value: &Value) -> Option<i128> {
    let float = || value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i128);
    value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from)).or_else(float)
}

/// The number, if it lies in the range.
pub(super) fn within(number: i128, range: &RangeInclusive<i64>) -> Option<i64> {
    i64::try_from(number).ok().filter(|number| range.contains(number))
}

/// The range as a rule; one without an upper end says so.
pub(super) fn range_text(range: &RangeInclusive<i64>) -> String {
    match *range.end() {
        i64::MAX => format!("must be ≥ {}, and below 2^63", range.start()),
        end => format!("must be in [{}, {end}]", range.start()),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A value as JSON, cut where it is long.
pub(super) fn excerpt(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { text.chars().take(60).chain("…".chars()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_fields_are_named() {
        let fields =
            Fields::parse(br#"{"temperature": 3.5, "n": "x", "top_k": 2.5, "seed": 7.0, "a": {"b": []}, "z": null}"#);
        let fields = fields.unwrap();
        let said = |error: ApiError| error.body()["error"]["message"].as_str().unwrap().to_owned();
        let bounds = Bounds::closed(0.0, 2.0);
        assert_eq!(said(fields.number("temperature", bounds).unwrap_err()), "temperature = 3.5: must be in [0, 2]");
        assert_eq!(said(fields.integer("n", 0..=2).unwrap_err()), "n = \"x\": must be a whole number");
        assert_eq!(said(fields.integer("top_k", 0..=2).unwrap_err()), "top_k = 2.5: must be a whole number");
        assert_eq!(fields.integer("seed", 0..=i64::MAX).unwrap(), Some(7));
        assert_eq!(fields.flag("z").unwrap(), None);
        let inner = fields.object("a").unwrap().unwrap();
        assert_eq!(said(inner.flag("b").unwrap_err()), "a.b = []: must be true or false");
        assert_eq!(said(Fields::parse(b"[1]").unwrap_err()), "the body must be a JSON object, not a list");
        assert!(said(Fields::parse(b"{").unwrap_err()).starts_with("the body is not JSON"));
        assert_eq!(Bounds::open_below(0.0, 1.0).text(), "must be in (0, 1]");
    }
    #[test]
    fn integers_at_their_extremes_keep_their_value() {
        let fields = Fields::parse(
            br#"{"a": 9223372036854775808, "b": -1e19, "c": 18446744073709551615, "d": 1e300,
                "e": 9223372036854775807, "f": -1, "g": 18446744073709551616, "ids": [1, 9223372036854775808]}"#,
        );
        let fields = fields.unwrap();
        let said = |error: ApiError| error.body()["error"]["message"].as_str().unwrap().to_owned();
        let text = said(fields.integer("a", -1..=i64::MAX).unwrap_err());
        assert_eq!(text, "a = 9223372036854775808: must be ≥ -1, and below 2^63");
        assert_eq!(said(fields.integer("c", 0..=9).unwrap_err()), "c = 18446744073709551615: must be in [0, 9]");
        for name in ["b", "c", "d"] {
            let text = said(fields.integer(name, i64::MIN..=9).unwrap_err());
            assert!(text.starts_with(&format!("{name} = ")) && text.ends_with("must be in [-9223372036854775808, 9]"));
        }
        assert_eq!(fields.integer("e", 0..=i64::MAX).unwrap(), Some(i64::MAX));
        assert_eq!((fields.seed("c").unwrap(), fields.seed("f").unwrap()), (Some(u64::MAX), Some(u64::MAX)));
        for name in ["d", "g"] {
            assert!(said(fields.seed(name).unwrap_err()).ends_with("must be in [-2^63, 2^64)"));
        }
        assert!(said(fields.ids("ids").unwrap_err()).contains("must be a list of token ids"));
    }
}
