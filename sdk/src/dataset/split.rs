//! Split expressions, by the rules of Hugging Face `datasets`.
//!
//! ```text
//! expression = part *( "+" part )
//! part       = name [ "[" [bound] ":" [bound] "]" ] [ "(" rounding ")" ]
//! bound      = ["-"] digits ["%"]              a negative bound counts from the end
//! rounding   = "closest" / "pct1_dropremainder"   of percentages only; "closest" is the default
//! ```
//!
//! One rule is stricter than there: a row bound beyond the row count is refused instead of clamped,
//! so that `train[:1000]` of 100 rows does not quietly become 100.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::Error;

/// `train[:100]+test`, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    text: String,
    parts: Vec<Part>,
}

/// One summand.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    text: String,
    name: String,
    from: Option<i64>,
    to: Option<i64>,
    unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Rows,
    /// Percent, rounded to the nearest row, halves to the even one.
    Closest,
    /// Percent, each worth the same number of rows; what remains is dropped.
    DropRemainder,
}

impl Split {
    /// All of one split.
    pub(super) fn whole(name: &str) -> Self {
        let part = Part { text: name.to_owned(), name: name.to_owned(), from: None, to: None, unit: Unit::Rows };
        Self { text: name.to_owned(), parts: vec![part] }
    }

    /// The names of the splits it draws from, each once, in order. `all` stands for every split.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for part in &self.parts {
            if !names.contains(&part.name.as_str()) {
                names.push(&part.name);
            }
        }
        names
    }

    /// Whether it is the one word `all`: every split, in order.
    pub(super) fn is_all(&self) -> bool {
        self.text == "all"
    }

    /// The rows it means, as ranges of the splits whose row counts `rows` tells.
    ///
    /// # Errors
    /// When a bound lies beyond the rows, or nothing is left.
    pub(super) fn ranges(&self, rows: impl Fn(&str) -> u64) -> Result<Vec<(&str, Range<u64>)>, Error> {
        let ranges: Result<Vec<_>, Error> =
            self.parts.iter().map(|part| Ok((part.name.as_str(), part.range(rows(&part.name))?))).collect();
        let ranges = ranges?;
        if ranges.iter().all(|(_, range)| range.is_empty()) {
            let count = self.names().into_iter().map(rows).sum();
            return Err(Error::NothingSelected { split: self.text.clone(), rows: count });
        }
        Ok(ranges)
    }
}

impl Part {
    fn range(&self, rows: u64) -> Result<Range<u64>, Error> {
        let percent = self.unit != Unit::Rows;
        if self.unit == Unit::DropRemainder && rows < 100 && (self.from.is_some() || self.to.is_some()) {
            return Err(Error::TooFewForPercent { split: self.text.clone(), rows });
        }
        let row = |bound: i64| -> Result<u64, Error> {
            let signed = match self.unit {
                Unit::Rows => bound,
                // `datasets` divides in 64-bit floats, so we do.
                Unit::Closest => (bound as f64 * rows as f64 / 100.0).round_ties_even() as i64,
                Unit::DropRemainder => bound * (rows / 100) as i64,
            };
            if !percent && signed.unsigned_abs() > rows {
                return Err(Error::OutOfRange { split: self.text.clone(), bound, rows });
            }
            Ok(if signed < 0 { rows - signed.unsigned_abs().min(rows) } else { signed as u64 })
        };
        let from = self.from.map_or(Ok(0), row)?;
        let to = self.to.map_or(Ok(rows), row)?;
        Ok(from..to.max(from))
    }
}

impl FromStr for Split {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let parts: Result<Vec<_>, _> = text.split('+').map(|part| parse_part(part.trim())).collect();
        let parts =
            parts.map_err(|(part, rule)| Error::Split { split: text.to_owned(), part: part.to_owned(), rule })?;
        if parts.len() > 1 && parts.iter().any(|part| part.name == "all") {
            let rule = "`all` stands alone: it is every split already";
            return Err(Error::Split { split: text.to_owned(), part: "all".to_owned(), rule });
        }
        if parts.len() == 1 && parts[0].name == "all" && parts[0].text != "all" {
            let rule = "`all` cannot be sliced; slice each split, as in `train[:10]+test[:10]`";
            return Err(Error::Split { split: text.to_owned(), part: text.to_owned(), rule });
        }
        Ok(Self { text: text.to_owned(), parts })
    }
}

impl fmt::Display for Split {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

type Refused<'a> = (&'a str, &'static str);

fn parse_part(text: &str) -> Result<Part, Refused<'_>> {
    let bad = |rule| Err((text, rule));
    let end = text.find(['[', '(']).unwrap_or(text.len());
    let (name, mut rest) = text.split_at(end);
    if !is_name(name) {
        return bad("begin with the split's name, of letters, digits, `_` and `.`, as in `train[:100]`");
    }
    let (mut from, mut to) = (None, None);
    if let Some(inner) = rest.strip_prefix('[') {
        let Some((slice, after)) = inner.split_once(']') else { return bad("close the slice with `]`") };
        let Some((left, right)) = slice.split_once(':') else {
            return bad("write a slice with a colon: `[100:120]`, `[:100]`, `[-5%:]`");
        };
        from = parse_bound(left).map_err(|rule| (text, rule))?;
        to = parse_bound(right).map_err(|rule| (text, rule))?;
        rest = after;
    }
    let in_percent = [from, to].into_iter().flatten().any(|bound| bound.1);
    let mut unit = if in_percent { Unit::Closest } else { Unit::Rows };
    if !rest.is_empty() {
        let Some(rounding) = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) else {
            return bad("nothing may follow the slice but `+` or a rounding such as `(pct1_dropremainder)`");
        };
        unit = match (rounding, in_percent) {
            (_, false) => return bad("a rounding belongs to a slice in percent, as in `train[:10%](closest)`"),
            ("closest", true) => Unit::Closest,
            ("pct1_dropremainder", true) => Unit::DropRemainder,
            _ => return bad("the roundings are `closest` and `pct1_dropremainder`"),
        };
    }
    // One bound in percent makes both so, as in `datasets`: `[10:20%]` is the tenth to twentieth percent.
    if in_percent && [from, to].into_iter().flatten().any(|bound| bound.0.abs() > 100) {
        return bad("a percentage lies between -100% and 100%");
    }
    let value = |bound: Option<(i64, bool)>| bound.map(|bound| bound.0);
    Ok(Part { text: text.to_owned(), name: name.to_owned(), from: value(from), to: value(to), unit })
}

/// `\w+(\.\w+)*`, as `datasets` has it.
pub(super) fn is_name(text: &str) -> bool {
    let word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
    text.split('.').all(word)
}

/// A bound and whether it is in percent.
fn parse_bound(text: &str) -> Result<Option<(i64, bool)>, &'static str> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let (digits, percent) = text.strip_suffix('%').map_or((text, false), |digits| (digits, true));
    let bare = digits.strip_prefix('-').unwrap_or(digits);
    let grouped = !bare.starts_with('_') && !bare.ends_with('_') && !bare.contains("__");
    if bare.is_empty() || !grouped || !bare.bytes().all(|c| c.is_ascii_digit() || c == b'_') {
        return Err("a bound is a whole number, as in `[100:120]`, or a whole percentage, as in `[-5%:]`");
    }
    let number = digits.replace('_', "").parse().map_err(|_| "a bound has at most 18 digits")?;
    Ok(Some((number, percent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(text: &str, rows: u64) -> Result<Vec<(String, u64, u64)>, Error> {
        let split: Split = text.parse()?;
        let ranges = split.ranges(|_| rows)?;
        Ok(ranges.into_iter().map(|(name, range)| (name.to_owned(), range.start, range.end)).collect())
    }

    #[test]
    fn expressions_select_what_datasets_selects() {
        // Expected values follow `datasets.arrow_reader`: int(round(bound * rows / 100.0)), halves to even.
        let table: &[(&str, u64, u64, u64)] = &[
            ("train", 120, 0, 120),
            ("train[:100]", 120, 0, 100),
            ("train[100:120]", 120, 100, 120),
            ("train[-20:]", 120, 100, 120),
            ("train[:-20]", 120, 0, 100),
            ("train[-30:-10]", 120, 90, 110),
            ("train[1_00:]", 120, 100, 120),
            ("train[-5%:]", 120, 114, 120),
            ("train[:10%]", 120, 0, 12),
            ("train[10%:20%]", 120, 12, 24),
            ("train[:50%]", 5, 0, 2),
            ("train[:50%]", 7, 0, 4),
            ("train[:50%]", 3, 0, 2),
            ("train[:50%]", 1001, 0, 500),
            ("train[:1%]", 150, 0, 2),
            ("train[:1%]", 250, 0, 2),
            ("train[:33%]", 999, 0, 330),
            ("train[33%:66%]", 999, 330, 659),
            ("train[-1%:]", 250, 248, 250),
            ("train[:10%](closest)", 199, 0, 20),
            ("train[:10%](pct1_dropremainder)", 199, 0, 10),
            ("train[-1%:](pct1_dropremainder)", 199, 198, 199),
            ("train[10:20%]", 200, 20, 40),
            ("train[:100%]", 9, 0, 9),
            ("validation.clean[:3]", 9, 0, 3),
        ];
        for &(text, rows, from, to) in table {
            let got = ranges(text, rows).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((got[0].1, got[0].2), (from, to), "{text} of {rows}");
        }
    }

    #[test]
    fn sums_keep_their_order() {
        let got = ranges("train[:2] + test[-1:]+train[1:3]", 10).unwrap();
        let want = [("train", 0, 2), ("test", 9, 10), ("train", 1, 3)];
        assert_eq!(got, want.map(|(name, from, to)| (name.to_owned(), from, to)));
        let split: Split = "a+b[:1]+a".parse().unwrap();
        assert_eq!(split.names(), ["a", "b"]);
    }

    #[test]
    fn what_cannot_be_selected_says_why() {
        let message = |text: &str, rows| ranges(text, rows).unwrap_err().to_string();
        let text = message("train[:200]", 120);
        assert!(text.contains("`train[:200]`") && text.contains("200") && text.contains("120 rows"), "{text}");
        assert!(message("train[121:]", 120).contains("120 rows"));
        assert!(message("train[-121:]", 120).contains("120 rows"));
        assert!(message("train[50:10]", 120).contains("selects no row"));
        assert!(message("train[120:]", 120).contains("selects no row"));
        assert!(message("train[:0]", 120).contains("selects no row"));
        assert!(message("train[:1%]", 20).contains("selects no row"));
        assert!(message("train[:10%](pct1_dropremainder)", 99).contains("100"));
    }

    #[test]
    fn malformed_expressions_are_refused_with_the_rule() {
        let table = [
            ("", "name"),
            ("train[", "close the slice"),
            ("train[5]", "colon"),
            ("train[a:b]", "whole number"),
            ("train[:1.5%]", "whole number"),
            ("train[:_1]", "whole number"),
            ("train[:101%]", "between -100% and 100%"),
            ("train[:10](closest)", "in percent"),
            ("train[:10%](floor)", "roundings are"),
            ("train[:10]x", "nothing may follow"),
            ("train+", "name"),
            ("tr ain", "name"),
            ("all[:10]", "cannot be sliced"),
            ("all+train", "stands alone"),
            ("train[:99999999999999999999]", "18 digits"),
        ];
        for (text, rule) in table {
            let error = text.parse::<Split>().unwrap_err().to_string();
            assert!(error.contains(rule), "{text:?}: {error}");
        }
    }
}
