//! An answer without what does not change its value: markdown, dollar signs, spacing, full-width forms.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use crate::scorers::{pattern, python};

/// LaTeX that only spaces or sizes; longer names before their beginnings.
const DRESS: [&str; 24] = [
    r"\displaystyle",
    r"\textstyle",
    r"\limits",
    r"\bigl",
    r"\bigr",
    r"\Bigl",
    r"\Bigr",
    r"\left",
    r"\right",
    r"\qquad",
    r"\quad",
    r"\,",
    r"\!",
    r"\;",
    r"\:",
    r"\$",
    r"\(",
    r"\)",
    r"\[",
    r"\]",
    r"\ ",
    "~",
    "$",
    "`",
];

/// Characters written another way.
const CHARACTERS: [(char, &str); 45] = [
    ('−', "-"),
    ('–', "-"),
    ('—', "-"),
    ('×', r"\times "),
    ('·', r"\cdot "),
    ('⋅', r"\cdot "),
    ('÷', "/"),
    ('∕', "/"),
    ('⁄', "/"),
    ('π', r"\pi "),
    ('√', r"\sqrt "),
    ('∞', r"\infty "),
    ('±', r"\pm "),
    ('≤', r"\le "),
    ('≥', r"\ge "),
    ('≠', r"\ne "),
    ('∪', r"\cup "),
    ('∅', r"\emptyset "),
    ('°', r"^\circ "),
    ('≈', r"\approx "),
    ('′', ""),
    ('∶', ":"),
    ('≦', r"\le "),
    ('≧', r"\ge "),
    ('、', ","),
    ('⅓', r"\frac{1}{3}"),
    ('⅔', r"\frac{2}{3}"),
    ('⅕', r"\frac{1}{5}"),
    ('⅖', r"\frac{2}{5}"),
    ('⅗', r"\frac{3}{5}"),
    ('⅘', r"\frac{4}{5}"),
    ('⅙', r"\frac{1}{6}"),
    ('⅛', r"\frac{1}{8}"),
    ('⅜', r"\frac{3}{8}"),
    ('½', r"\frac{1}{2}"),
    ('¼', r"\frac{1}{4}"),
    ('¾', r"\frac{3}{4}"),
    ('，', ","),
    ('。', "."),
    ('\u{a0}', " "),
    ('\u{3000}', " "),
    ('\u{2009}', " "),
    ('\u{202f}', " "),
    ('\u{200b}', ""),
    ('θ', r"\theta "),
];

/// Digits above and below the line, in order.
const ABOVE: &str = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const BELOW: &str = "₀₁₂₃₄₅₆₇₈₉";

/// The cleaned text.
pub(super) fn clean(text: &str) -> String {
    static SHORT: LazyLock<Regex> =
        LazyLock::new(|| pattern(r"\\(?:nice|[dtcs])frac\b|\\(?:nice|[dtcs])frac(?:[0-9{\\])"));
    // A number in another type: `\textbf{42}`, `\text{-3 and 4}`. A unit has no digits.
    static TYPE: LazyLock<Regex> = LazyLock::new(|| {
        pattern(
            r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|boldsymbol|bm|underline|mbox)\s*\{([^{}]*\d[^{}]*)\}",
        )
    });
    let ascii = in_ascii(text);
    let plain = SHORT.replace_all(&ascii, |found: &Captures<'_>| {
        let at = found[0].find("frac").unwrap_or(0);
        format!(r"\{}", &found[0][at..])
    });
    let plain = TYPE.replace_all(&plain, " $1 ");
    let plain =
        [r"\boldsymbol", r"\bm", r"\underline"].iter().fold(plain.into_owned(), |text, style| text.replace(style, ""));
    let plain = [r"\lvert", r"\rvert", r"\vert"].iter().fold(plain, |text, bar| text.replace(bar, "|"));
    let plain = plain.replace("**", "").replace("__", "").replace(r"\{", r"\lbrace ").replace(r"\}", r"\rbrace ");
    let plain = DRESS.iter().fold(plain.replace("{,}", "").replace(r"{\,}", ""), |text, dress| match *dress {
        // `\left` must not eat the beginning of `\leftarrow`, which is no answer's.
        r"\left" | r"\right" => text.replace(&format!("{dress}."), "").replace(dress, ""),
        // `\\ ` ends a matrix's row.
        r"\ " => text.replace(r"\\ ", "\u{0}").replace(dress, " ").replace('\u{0}', r"\\ "),
        _ => text.replace(dress, if dress.ends_with("quad") || [r"\,", "~"].contains(dress) { " " } else { "" }),
    });
    trimmed(&plain).to_owned()
}

/// Full-width forms, digits of every script, and signs that LaTeX has a name for.
fn in_ascii(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut level = None;
    for c in text.chars() {
        let found = [(ABOVE, '^'), (BELOW, '_')].iter().find_map(|(digits, sign)| {
            let digit = digits.chars().position(|digit| digit == c)?;
            Some((*sign, char::from(b'0' + u8::try_from(digit).unwrap_or(0))))
        });
        // Digits that stand together are one number.
        if level.is_some() && found.map(|(sign, _)| sign) != level {
            plain.push('}');
            level = None;
        }
        match (found, c) {
            (Some((sign, digit)), _) => {
                if level.is_none() {
                    plain.extend([sign, '{']);
                    level = Some(sign);
                }
                plain.push(digit);
            }
            // Full-width forms are ASCII at a fixed distance.
            (None, '\u{ff01}'..='\u{ff5e}') => plain.extend(char::from_u32(u32::from(c) - 0xfee0)),
            (None, _) => match (CHARACTERS.iter().find(|(from, _)| *from == c), python::decimal(c)) {
                (Some((_, to)), _) => plain.push_str(to),
                (None, Some(digit)) if !c.is_ascii() => plain.push(char::from(b'0' + digit)),
                (None, _) => plain.push(c),
            },
        }
    }
    if level.is_some() {
        plain.push('}');
    }
    plain
}

/// Without the sentence around it: final stops, emphasis, a closing quotation mark.
fn trimmed(text: &str) -> &str {
    let mut text = text.trim();
    loop {
        let before = text;
        text = text.trim_end_matches(['.', ',', ';', ':', '?', '*', '_', '"', '\'']).trim();
        text = text.strip_suffix(r"\\").unwrap_or(text).trim();
        text = text.trim_start_matches(['*', '"', '\'', ':', '=']).trim();
        text = text.strip_prefix(r"\approx").unwrap_or(text).trim();
        if text == before {
            return text;
        }
    }
}

/// `1,234,567` as one number, where the commas can only group digits.
pub(super) fn ungrouped(text: &str) -> Option<String> {
    static GROUPED: LazyLock<Regex> = LazyLock::new(|| pattern(r"(^|[^\d,.])(\d{1,3}(?:[, ]\d{3})+)($|[^\d,])"));
    let plain = GROUPED.replace_all(text, |found: &Captures<'_>| {
        format!("{}{}{}", &found[1], found[2].replace([',', ' '], ""), &found[3])
    });
    (plain != text).then(|| plain.into_owned())
}

/// The value before a unit, and the unit in plain lower case.
pub(super) fn without_unit(text: &str) -> Option<(String, String)> {
    static WORDS: LazyLock<Regex> = LazyLock::new(|| {
        pattern(concat!(
            r"^(?P<value>.*[\d})\]!])\s*(?P<unit>(?:\\(?:text|mathrm|mbox|textbf|textrm|rm)\s*\{[^{}]*\}",
            r"|\^\s*\{?\\circ\s*\}?\s*[CF]?|\\degree|\\%|%|[A-Za-z][A-Za-z/ .]*[A-Za-z]|\s[gmsLhKJNVWAC])",
            r"(?:\^\{?[23]\}?)?)\s*$"
        ))
    });
    let found = WORDS.captures(text)?;
    let value = found["value"].trim().to_owned();
    // `2\text{ and }3` is a list, `(1, 2)` has no unit, and a lone name is no unit of nothing.
    let unit: String = found["unit"].chars().filter(|c| c.is_alphanumeric() || matches!(c, '%' | '/')).collect();
    let unit = unit.to_lowercase();
    let unit = ["text", "mathrm", "mbox", "bf", "rm"]
        .iter()
        .fold(unit, |unit, dress| unit.strip_prefix(dress).map_or_else(|| unit.clone(), str::to_owned));
    Some((value, unit))
}

/// The value after or before a currency's sign.
pub(super) fn without_currency(text: &str) -> Option<String> {
    let bare = text.trim_start_matches(['€', '£', '¥', '₹']).trim_end_matches(['€', '£', '¥', '₹']).trim();
    (bare != text).then(|| bare.to_owned())
}

/// Words alone, in lower case (a single letter keeps its own: `x` is not `X`); `None` for anything else.
pub(super) fn words(text: &str) -> Option<String> {
    static DRESSED: LazyLock<Regex> =
        LazyLock::new(|| pattern(r"\\(?:text|mathrm|mbox|textbf|textrm|mathbf|textit|operatorname)\s*\{([^{}]*)\}"));
    let bare = DRESSED.replace_all(text, "$1");
    let bare = bare.split_whitespace().collect::<Vec<_>>().join(" ");
    let bare = bare.trim_matches(['(', ')', '.']);
    let all = !bare.is_empty() && bare.chars().all(|c| c.is_alphabetic() || matches!(c, ' ' | '-' | '\''));
    all.then(|| if bare.chars().count() == 1 { bare.to_owned() } else { bare.to_lowercase() })
}
