//! Which rooms a file imports, however it writes it: `crate::a`, `use crate::{a::{b}, c}`,
//! `super::super::a`, a path in the middle of a function; not in comments and texts.

/// A piece of a source file, as far as paths need it.
#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    /// `::`
    Path,
    Open,
    Close,
    Comma,
    Other,
}

/// The rooms that the file `relative` (below `src/`) imports, in order, each time it does.
pub(crate) fn imports(relative: &str, text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let mut scan = Scan { tokens: &tokens, rooms: Vec::new() };
    scan.file(depth(relative));
    scan.rooms
}

/// How many modules deep a file's own module is: 0 is the crate's root.
fn depth(relative: &str) -> usize {
    let path = relative.strip_suffix(".rs").unwrap_or(relative);
    let parts: Vec<&str> = path.split('/').collect();
    match parts.last() {
        Some(&"mod") => parts.len() - 1,
        Some(&("lib" | "main")) if parts.len() == 1 => 0,
        _ => parts.len(),
    }
}

struct Scan<'a> {
    tokens: &'a [Token],
    rooms: Vec<String>,
}

impl Scan<'_> {
    fn word(&self, at: usize) -> Option<&str> {
        match self.tokens.get(at) {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn is(&self, at: usize, token: &Token) -> bool {
        self.tokens.get(at) == Some(token)
    }

    /// Finds every path, and how many inline modules it lies in.
    fn file(&mut self, depth: usize) {
        let (mut at, mut braces, mut modules) = (0, 0, Vec::new());
        while at < self.tokens.len() {
            let begins = at == 0 || !self.is(at - 1, &Token::Path);
            match &self.tokens[at] {
                Token::Open => braces += 1,
                Token::Close => {
                    braces -= 1;
                    modules.pop_if(|outer| *outer == braces);
                }
                Token::Word(word) if word == "mod" && self.is(at + 2, &Token::Open) => modules.push(braces),
                Token::Word(word) if begins && self.is(at + 1, &Token::Path) => {
                    let here = (depth + modules.len()) as isize;
                    let level = match word.as_str() {
                        "crate" | "training_gym_runtime" => Some(0),
                        "super" => Some(here - 1),
                        "self" => Some(here),
                        _ => None,
                    };
                    if let Some(level) = level {
                        at = self.tree(at + 2, level);
                        continue;
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Reads what follows a path that has come to a module `level` deep; returns the place behind it.
    fn tree(&mut self, at: usize, level: isize) -> usize {
        if self.is(at, &Token::Open) {
            let mut at = at + 1;
            while at < self.tokens.len() && !self.is(at, &Token::Close) {
                at = if self.is(at, &Token::Comma) { at + 1 } else { self.tree(at, level) };
            }
            return at + 1;
        }
        let Some(word) = self.word(at) else { return at + 1 };
        let next = match word {
            "super" => level - 1,
            "self" => level,
            _ => {
                if level == 0 {
                    self.rooms.push(word.to_owned());
                }
                // Below the root no path comes back to it.
                isize::MAX / 2
            }
        };
        if self.is(at + 1, &Token::Path) { self.tree(at + 2, next) } else { self.behind_alias(at + 1) }
    }

    /// Steps over `as NAME`.
    fn behind_alias(&self, at: usize) -> usize {
        if self.word(at) == Some("as") { at + 2 } else { at }
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let mut rest = text;
    let mut tokens = Vec::new();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => block_comment(rest),
            _ if rest.starts_with("::") => {
                tokens.push(Token::Path);
                2
            }
            '"' => {
                tokens.push(Token::Other);
                quoted(rest)
            }
            '\'' => {
                tokens.push(Token::Other);
                character(rest)
            }
            'r' | 'b' | 'c' if raw_text(rest).is_some() => {
                tokens.push(Token::Other);
                raw_text(rest).unwrap_or(1)
            }
            _ if first.is_alphanumeric() || first == '_' => {
                let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                tokens.push(Token::Word(rest[..length].to_owned()));
                length
            }
            _ if first.is_whitespace() => first.len_utf8(),
            _ => {
                tokens.push(match first {
                    '{' => Token::Open,
                    '}' => Token::Close,
                    ',' => Token::Comma,
                    _ => Token::Other,
                });
                first.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    tokens
}

/// Bytes of the block comment (they nest) that `text` begins with.
fn block_comment(text: &str) -> usize {
    let (mut at, mut open) = (0, 0);
    while at < text.len() {
        let step = match &text[at..] {
            rest if rest.starts_with("/*") => {
                open += 1;
                2
            }
            rest if rest.starts_with("*/") => {
                open -= 1;
                2
            }
            rest => rest.chars().next().map_or(1, char::len_utf8),
        };
        at += step;
        if open == 0 {
            return at;
        }
    }
    text.len()
}

/// Bytes of the text in quotes that `text` begins with.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Bytes of the character that `text` begins with; of a lifetime's tick, 1.
fn character(text: &str) -> usize {
    let mut inside = text.char_indices().skip(1);
    match inside.next() {
        Some((_, '\\')) => text[3..].find('\'').map_or(text.len(), |end| end + 4),
        Some(_) => match inside.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
        None => 1,
    }
}

/// Bytes of the raw text that `text` begins with, if it does: `r"…"`, `br#"…"#`.
fn raw_text(text: &str) -> Option<usize> {
    let marked = text.trim_start_matches(['b', 'c']).strip_prefix('r')?;
    let hashes = marked.len() - marked.trim_start_matches('#').len();
    let body = marked[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(text.len() - body.len() + length)
}

#[test]
fn every_form_of_import_is_seen() {
    let one = |text: &str| imports("room/inner.rs", text);
    assert_eq!(one("use crate::batch::X;\nfn f() { crate::update::g() }"), ["batch", "update"]);
    assert_eq!(one("use crate::{model, text::T, a::{b::{c, d}, e as f}, g};"), ["model", "text", "a", "g"]);
    assert_eq!(one("use crate::{\n    a::{b},\n    c,\n};\nuse training_gym_runtime::d;"), ["a", "c", "d"]);
    assert_eq!(one("pub(in crate::a) fn x(y: &crate::b::C) -> crate::d::E {}"), ["a", "b", "d"]);
    assert_eq!(one("macro_rules! m { () => { $crate::a::f() } }"), ["a"]);
    assert_eq!(one("use super::super::model::X;"), ["model"]);
    assert_eq!(one("use super::super::{a, b::{c}}; use super::{own, super::d};"), ["a", "b", "d"]);
    assert_eq!(one("use self::super::super::a;"), ["a"]);
    assert!(one("use super::own::X; use super::Y; use std::super_fast::Z; use other::crate_::w;").is_empty());
}

#[test]
fn the_depth_of_files_and_inline_modules_counts() {
    let text =
        "use super::a; mod tests { use super::super::b; mod deeper { use super::super::super::c; } } use super::d;";
    assert_eq!(imports("room/mod.rs", text), ["a", "b", "c", "d"]);
    assert_eq!(imports("room.rs", text), ["a", "b", "c", "d"]);
    assert!(imports("room/inner.rs", text).is_empty());
    assert_eq!(imports("room/inner/tests.rs", "use super::super::super::a; use super::super::b;"), ["a"]);
    assert_eq!(imports("main.rs", "use training_gym_runtime::{a, b}; use self::c::D;"), ["a", "b", "c"]);
    assert_eq!(depth("lib.rs"), 0);
}

#[test]
fn comments_and_texts_import_nothing() {
    let text = r####"
        // use crate::a;
        /* use crate::b; /* crate::c */ crate::d */
        const A: &str = "crate::e \" crate::f";
        const B: &str = r#"crate::g " crate::h"#;
        const C: [char; 3] = ['"', '\'', '\\']; fn f<'a>(x: &'a crate::i::X) {}
        const D: &[u8] = br"crate::j"; const E: char = '\u{1F680}'; use crate::k;
    "####;
    assert_eq!(imports("room/x.rs", text), ["i", "k"]);
}
