//! Values as Python's `str` writes them: labels are compared with what Python tools wrote.

use serde_json::{Number, Value};

/// `str(value)` of a scalar; a list or object is written as JSON. `None` for null.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Bool(true) => Some("True".to_owned()),
        Value::Bool(false) => Some("False".to_owned()),
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number_text(number)),
        Value::Array(_) | Value::Object(_) => Some(value.to_string()),
    }
}

fn number_text(number: &Number) -> String {
    match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(whole), _, _) => whole.to_string(),
        (_, Some(whole), _) => whole.to_string(),
        (_, _, Some(real)) => float_text(real),
        _ => number.to_string(),
    }
}

/// `repr` of a finite float: the shortest digits that round-trip, with an exponent below 1e-4 and
/// from 1e16 on.
fn float_text(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = value.to_string();
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_read_as_in_python() {
        // Each pair is (JSON, what `str(json.loads(…))` prints).
        let table = [
            ("34", "34"),
            ("-7", "-7"),
            ("1.0", "1.0"),
            ("-0.0", "-0.0"),
            ("0.1", "0.1"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.5e-7", "1.5e-07"),
            ("1e15", "1000000000000000.0"),
            ("123456789012345680.0", "1.2345678901234568e+17"),
            ("1e16", "1e+16"),
            ("1e21", "1e+21"),
            ("1e100", "1e+100"),
            ("18446744073709551615", "18446744073709551615"),
            ("true", "True"),
            ("\"\\\\frac{1}{2}\"", "\\frac{1}{2}"),
        ];
        for (json, expected) in table {
            let value: Value = serde_json::from_str(json).unwrap();
            assert_eq!(text(&value).as_deref(), Some(expected), "{json}");
        }
        assert_eq!(text(&Value::Null), None);
        assert_eq!(text(&serde_json::json!(["a", 1])).as_deref(), Some("[\"a\",1]"));
    }
}
