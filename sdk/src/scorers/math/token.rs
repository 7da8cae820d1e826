//! A cleaned answer in pieces.

use super::Reason;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Number(String),
    Letter(char),
    Command(String),
    Text(String),
    Symbol(char),
}

/// The pieces, without white space.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, Reason> {
    const DRESSED: [&str; 7] = ["text", "mathrm", "mbox", "textbf", "textrm", "mathbf", "operatorname"];
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let taken = if c.is_whitespace() {
            c.len_utf8()
        } else if c.is_ascii_digit() || (c == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit())) {
            let mut points = 0;
            let end = rest
                .find(|c: char| {
                    points += usize::from(c == '.');
                    !(c.is_ascii_digit() || (c == '.' && points == 1))
                })
                .unwrap_or(rest.len());
            let end = end + exponent(&rest[end..]);
            // The point before a period of digits is the number's.
            let keeps_point = rest[end..].starts_with(r"\overline");
            let number = if keeps_point { &rest[..end] } else { rest[..end].trim_end_matches('.') };
            tokens.push(Token::Number(number.to_owned()));
            end
        } else if let Some(after) = rest.strip_prefix('\\') {
            let name = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
            if name == 0 {
                let symbol = after.chars().next().ok_or(Reason::NotUnderstood)?;
                tokens.push(Token::Command(symbol.to_string()));
                1 + symbol.len_utf8()
            } else if DRESSED.contains(&&after[..name]) && after[name..].trim_start().starts_with('{') {
                let open = name + after[name..].find('{').ok_or(Reason::NotUnderstood)?;
                let close = open + after[open..].find('}').ok_or(Reason::NotUnderstood)?;
                tokens.push(Token::Text(after[open + 1..close].trim().to_owned()));
                close + 2
            } else {
                tokens.push(Token::Command(after[..name].to_owned()));
                name + 1
            }
        } else if c.is_ascii_alphabetic() {
            let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
            word(&rest[..end], &mut tokens);
            end
        } else {
            tokens.push(Token::Symbol(c));
            c.len_utf8()
        };
        rest = &rest[taken..];
    }
    Ok(tokens)
}

/// The length of an exponent at the beginning of a text: `e3`, `E-12`.
fn exponent(text: &str) -> usize {
    let Some(after) = text.strip_prefix(['e', 'E']) else { return 0 };
    let unsigned = after.trim_start_matches(['+', '-']);
    let digits = unsigned.find(|c: char| !c.is_ascii_digit()).unwrap_or(unsigned.len());
    if digits == 0 || after.len() - unsigned.len() > 1 { 0 } else { 1 + after.len() - unsigned.len() + digits }
}

/// Letters without a backslash: a function's name, `and`, or a product of letters.
fn word(word: &str, tokens: &mut Vec<Token>) {
    const NAMES: [&str; 12] =
        ["sqrt", "pi", "sin", "cos", "tan", "log", "ln", "exp", "infinity", "inf", "theta", "alpha"];
    let lower = word.to_lowercase();
    if lower == "and" || lower == "or" {
        tokens.push(Token::Text(lower));
    } else if NAMES.contains(&lower.as_str()) {
        tokens.push(Token::Command(if lower.starts_with("inf") { "infty".to_owned() } else { lower }));
    } else if word.len() > 3 {
        tokens.push(Token::Text(lower));
    } else {
        tokens.extend(word.chars().map(Token::Letter));
    }
}
