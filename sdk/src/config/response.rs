//! Reasoning split from content.

use super::Family;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// A response in its two parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedResponse {
    /// What the model says: empty where it never got beyond thinking.
    pub content: String,
    /// What it thought; `None` where it did not.
    pub reasoning_content: Option<String>,
}

/// Splits a response. `inside` says that the prompt already opened `<think>`.
///
/// - `<think>r</think>c`: reasoning `r`, content `c`; an empty block is no reasoning.
/// - `r</think>c`: the same; the prompt opened the block.
/// - `<think>r`: cut while thinking, all reasoning.
/// - several blocks: their reasonings, and the contents between, are joined by line breaks.
/// - no tag: content, or with `inside` reasoning.
///
/// Line breaks and spaces around a part that a tag delimits are dropped. Families that do not think
/// have content only, letter by letter.
pub(super) fn split(response: &str, family: Family, inside: bool) -> ParsedResponse {
    let thinks = match family {
        Family::Qwen3_5 | Family::Qwen3 | Family::Other => true,
        Family::Qwen2_5 | Family::Llama3 => false,
    };
    if !thinks || !(inside || response.contains(OPEN) || response.contains(CLOSE)) {
        return ParsedResponse { content: response.to_owned(), reasoning_content: None };
    }
    let mut reasoning = Vec::new();
    let mut content = Vec::new();
    let mut rest = response;
    // A `</think>` before any `<think>` closes a block that the prompt opened.
    let closed_first = match (rest.find(OPEN), rest.find(CLOSE)) {
        (Some(open), Some(close)) => close < open,
        (open, close) => open.is_none() && close.is_some(),
    };
    if inside || closed_first {
        let (block, after) = rest.split_once(CLOSE).unwrap_or((rest, ""));
        reasoning.push(block.trim_start().strip_prefix(OPEN).unwrap_or(block));
        rest = after;
    }
    while let Some((before, block)) = rest.split_once(OPEN) {
        content.push(before);
        let (block, after) = block.split_once(CLOSE).unwrap_or((block, ""));
        reasoning.push(block);
        rest = after;
    }
    content.push(rest);
    let reasoning = joined(&reasoning);
    ParsedResponse { content: joined(&content), reasoning_content: (!reasoning.is_empty()).then_some(reasoning) }
}

/// The parts that say something, trimmed, a blank line between.
fn joined(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()).collect();
    parts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(response: &str, content: &str, reasoning: Option<&str>) {
        let parsed = split(response, Family::Qwen3, false);
        assert_eq!(
            (parsed.content.as_str(), parsed.reasoning_content.as_deref()),
            (content, reasoning),
            "{response:?}"
        );
    }

    #[test]
    fn blocks_are_reasoning_and_the_rest_is_content() {
        check("<think>\nhm\n</think>\n\nAnswer: 4", "Answer: 4", Some("hm"));
        check("hm\n</think>\n\nAnswer: 4", "Answer: 4", Some("hm"));
        check("<think>\n\n</think>\n\nAnswer: 4", "Answer: 4", None);
        check("</think>Answer: 4", "Answer: 4", None);
        check(" Answer: 4\n", " Answer: 4\n", None);
        check("", "", None);
    }

    #[test]
    fn an_unclosed_block_is_all_reasoning() {
        check("<think>hm, Answer: 4", "", Some("hm, Answer: 4"));
        check("<think>a</think>b<think>c", "b", Some("a\n\nc"));
        check("<think>", "", None);
    }

    #[test]
    fn several_blocks_are_joined() {
        check("<think>a</think>b<think>c</think>d", "b\n\nd", Some("a\n\nc"));
        check("a</think>b<think>c</think>d", "b\n\nd", Some("a\n\nc"));
        check("<think>a</think>b</think>c", "b</think>c", Some("a"));
    }

    #[test]
    fn a_prompt_that_opened_the_block_makes_text_without_tags_reasoning() {
        let parsed = split("still thinking", Family::Qwen3_5, true);
        assert_eq!(parsed, ParsedResponse { content: String::new(), reasoning_content: Some("still thinking".into()) });
        let parsed = split("<think>a</think>b", Family::Qwen3_5, true);
        assert_eq!(parsed, ParsedResponse { content: "b".into(), reasoning_content: Some("a".into()) });
    }

    #[test]
    fn families_that_do_not_think_have_content_only() {
        let parsed = split("<think>a</think> b", Family::Llama3, false);
        assert_eq!(parsed, ParsedResponse { content: "<think>a</think> b".into(), reasoning_content: None });
    }
}
