//! `{% generation %}`: transformers' tag around what an assistant wrote. It renders its body; the
//! marks it makes are for training masks, which come from token ids here.

use std::borrow::Cow;

/// Replaces `{% generation %}…{% endgeneration %}` by `{% with %}…{% endwith %}`, which renders
/// its body in a scope of its own as well. Line numbers stay; comments, raw blocks and strings are
/// left alone.
pub(super) fn to_with(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = match rest.as_bytes().get(1) {
            Some(b'#') => rest.find("#}").map_or(rest.len(), |at| at + 2),
            Some(b'{') => code_end(rest, "}}"),
            Some(b'%') => code_end(rest, "%}"),
            _ => 1,
        };
        let (tag, after) = rest.split_at(end);
        match tag_name(tag) {
            Some("raw") => {
                let close = raw_end(after);
                out.push_str(tag);
                out.push_str(&after[..close]);
                rest = &after[close..];
            }
            Some("generation") => {
                out.push_str(&tag.replacen("generation", "with", 1));
                rest = after;
            }
            Some("endgeneration") => {
                out.push_str(&tag.replacen("endgeneration", "endwith", 1));
                rest = after;
            }
            _ => {
                out.push_str(tag);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The first word of a block tag; for `generation` tags, only if it is the only word.
fn tag_name(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    Some(inner.trim())
}

/// Where a `{{` or `{%` tag ends: its closing mark outside strings and braces.
fn code_end(text: &str, close: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut quote) = (2, 0_usize, None);
    while at < bytes.len() {
        let byte = bytes[at];
        match quote {
            Some(_) if byte == b'\\' => at += 1,
            Some(open) if byte == open => quote = None,
            Some(_) => {}
            None if depth == 0 && bytes[at..].starts_with(close.as_bytes()) => return at + 2,
            None => match byte {
                b'\'' | b'"' => quote = Some(byte),
                b'{' => depth += 1,
                b'}' => depth = depth.saturating_sub(1),
                _ => {}
            },
        }
        at += 1;
    }
    text.len()
}

/// Where the text of a raw block ends: at its `{% endraw %}`.
fn raw_end(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text[from..].find("{%").map(|at| from + at) {
        let end = text[at..].find("%}").map_or(text.len(), |end| at + end + 2);
        if tag_name(&text[at..end]) == Some("endraw") {
            return at;
        }
        from = at + 2;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::to_with;

    #[test]
    fn only_tags_are_replaced() {
        let cases = [
            ("a{%- generation -%}b{% endgeneration %}c", "a{%- with -%}b{% endwith %}c"),
            ("{# {% generation %} #}", "{# {% generation %} #}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            ("{{ {'a': {'%}': '}}'}} }}{% generation %}", "{{ {'a': {'%}': '}}'}} }}{% with %}"),
            ("{% raw %}{% generation %}{% endraw %}{%generation%}", "{% raw %}{% generation %}{% endraw %}{%with%}"),
            (
                "{% if add_generation_prompt %}generation{% endif %}",
                "{% if add_generation_prompt %}generation{% endif %}",
            ),
            ("{% set generation = '%}' %}{ é {% generation", "{% set generation = '%}' %}{ é {% generation"),
        ];
        for (source, expected) in cases {
            assert_eq!(to_with(source), expected);
        }
    }
}
