//! Where a response states its answer.

use std::sync::LazyLock;

use regex::Regex;

use crate::scorers::pattern;

/// Last bytes of a response in which a line with an answer is looked for.
const LOOKED_AT: usize = 1 << 16;

/// The answer a response states last, by how deliberately: a box, `<answer>`, `Answer:`, `####`.
pub(super) fn stated(response: &str) -> Option<&str> {
    let answer = last_box(response).or_else(|| last_tag(response)).or_else(|| last_line(end_of(response)))?;
    let answer = answer.trim();
    (!answer.is_empty()).then_some(answer)
}

/// What is in the last `\boxed{…}` or `\fbox{…}` whose braces close.
fn last_box(text: &str) -> Option<&str> {
    let at = [r"\boxed", r"\fbox"].iter().filter_map(|name| Some((text.rfind(name)?, name.len()))).max()?;
    let rest = text[at.0 + at.1..].trim_start();
    let Some(inner) = rest.strip_prefix('{') else {
        // `\boxed 5`: up to the end of the formula or line.
        return rest.split(['$', '\n']).next();
    };
    let mut depth = 1_usize;
    let mut escaped = false;
    for (at, c) in inner.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&inner[..at]);
        }
    }
    None
}

/// The last [`LOOKED_AT`] bytes.
fn end_of(text: &str) -> &str {
    let mut start = text.len().saturating_sub(LOOKED_AT);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// What is in the last `<answer>…</answer>`.
fn last_tag(text: &str) -> Option<&str> {
    let end = text.rfind("</answer>")?;
    let start = text[..end].rfind("<answer>")? + "<answer>".len();
    Some(&text[start..end])
}

/// What follows the last `Answer:`, `answer is`, `答案：` or `####` on its line, or on the next after a bare
/// heading.
fn last_line(text: &str) -> Option<&str> {
    static STATED: LazyLock<Regex> = LazyLock::new(|| {
        pattern(concat!(
            r"(?i)(?:\banswer[*_\s]*(?:[:：]|\bis\b\s*:?)|\bfinal\s+answer[*_#]*[ \t]*\r?\n",
            r"|答案[*_\s]*(?:[:：]|是|为)|####)[*_:：\s]*([^\n]+)"
        ))
    });
    STATED.captures_iter(text).last()?.get(1).map(|found| found.as_str())
}
