//! `prompt_template`: a text with columns in it.

use std::str::FromStr;

use super::Error;

/// A parsed template. `{name}` is a column, `{prompt}` the input column's text; `{{` and `}}` are
/// braces, and so is `{}`, since `\boxed{}` is what such templates are full of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Column(String),
}

impl FromStr for Template {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |rule| Error::Setting { setting: "prompt_template", given: text.to_owned(), rule };
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let found = &rest[at..];
            let literal = ["{{", "}}", "{}"].into_iter().find(|literal| found.starts_with(literal));
            if let Some(literal) = literal {
                plain.push_str(if literal == "{}" { literal } else { &literal[1..] });
                rest = &found[2..];
                continue;
            }
            let name = found.strip_prefix('{').and_then(|inner| inner.split_once('}')).map(|parts| parts.0.trim());
            let Some(name) = name.filter(|name| !name.is_empty() && !name.contains('{')) else {
                return Err(bad("a brace stands alone: write `{{` or `}}` for a brace, `{column}` for a column"));
            };
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Column(name.to_owned()));
            rest = &found[found.find('}').map_or(found.len(), |end| end + 1)..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        if !pieces.iter().any(|piece| matches!(piece, Piece::Column(_))) {
            return Err(bad(
                "it uses no column, so all prompts would be the same: write `{prompt}` where the prompt goes",
            ));
        }
        Ok(Self { pieces })
    }
}

impl Template {
    /// Fills the template; `column` gives a column's text.
    pub(super) fn fill(&self, column: impl Fn(&str) -> Result<String, Error>) -> Result<String, Error> {
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(plain) => text.push_str(plain),
                Piece::Column(name) => text.push_str(&column(name)?),
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str) -> Result<String, Error> {
        text.parse::<Template>()?.fill(|name| Ok(format!("<{name}>")))
    }

    #[test]
    fn columns_and_braces() {
        assert_eq!(fill("Q: {prompt}\nUse \\boxed{}.").unwrap(), "Q: <prompt>\nUse \\boxed{}.");
        assert_eq!(fill("{a}{ b.c }{{x}}").unwrap(), "<a><b.c>{x}");
        for (bad, why) in [
            ("no column", "no column"),
            ("{prompt", "stands alone"),
            ("{prompt} }", "stands alone"),
            ("{a{b}}", "alone"),
        ] {
            let error = fill(bad).unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
