//! The words of the problems, and the tokenizer whose pieces they are.
//!
//! A model of a few hundred thousand weights pays for each token, so every fixed phrase is one
//! piece; numbers are digits, and any other printable ASCII text falls back to its characters.

use serde_json::{Value, json};

/// DAPO's request, before the problem.
pub(super) const REQUEST: &str = "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n";
/// DAPO's reminder, after it.
pub(super) const REMINDER: &str = "\n\nRemember to put your answer on its own line after \"Answer:\".";
/// Who has something.
pub(super) const NAMES: [&str; 6] = ["Mia", "Tom", "Ana", "Ben", "Eva", "Sam"];
/// What they have.
pub(super) const ITEMS: [&str; 6] = [" apples", " books", " cards", " coins", " pens", " shells"];
/// How it grows.
pub(super) const ADDING: [&str; 3] = [", buys ", ", finds ", ", wins "];
/// How it shrinks.
pub(super) const SUBTRACTING: [&str; 3] = [", loses ", ", sells ", ", gives away "];

/// The end of text, and padding.
pub(super) const END_OF_TEXT: &str = "<|endoftext|>";
/// The start of a message.
pub(super) const MESSAGE_START: &str = "<|im_start|>";
/// The end of a message: what ends a response.
pub(super) const MESSAGE_END: &str = "<|im_end|>";
const UNKNOWN: &str = "<unk>";

const PHRASES: [&str; 17] = [
    "system\n",
    "user\n",
    "assistant\n",
    "Answer: ",
    " + ",
    " - ",
    " * ",
    " = ",
    "What is ",
    "((",
    "(((",
    " has ",
    ", then has ",
    " times as many",
    ". How many",
    " are there now?",
    ", ",
];

/// ChatML, as Qwen's.
pub(super) const CHAT_TEMPLATE: &str = "\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
";

/// All pieces, by id; special ones first.
pub(super) fn pieces() -> Vec<String> {
    let mut pieces: Vec<String> = [UNKNOWN, END_OF_TEXT, MESSAGE_START, MESSAGE_END].map(String::from).into();
    pieces.push("\n".into());
    pieces.extend((' '..='~').map(String::from));
    let words = [&PHRASES[..], &[REQUEST, REMINDER], &NAMES, &ITEMS, &ADDING, &SUBTRACTING];
    pieces.extend(words.concat().into_iter().map(String::from));
    pieces
}

/// The id of a piece.
///
/// # Panics
/// When there is no such piece.
pub(super) fn id_of(piece: &str) -> usize {
    pieces().iter().position(|other| other == piece).expect("a piece of the vocabulary")
}

/// `tokenizer.json`. Each piece has the score −1 in a unigram model, so a text is cut into the
/// fewest pieces; the decoder puts them back to back.
pub(super) fn tokenizer_json() -> Value {
    let special = [UNKNOWN, END_OF_TEXT, MESSAGE_START, MESSAGE_END].map(|content| {
        json!({
            "id": id_of(content), "content": content, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    });
    let vocabulary: Vec<Value> = pieces().into_iter().map(|piece| json!([piece, -1.0])).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": special,
        "normalizer": null,
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": { "type": "Fuse" },
        "model": { "type": "Unigram", "unk_id": id_of(UNKNOWN), "vocab": vocabulary, "byte_fallback": false },
    })
}

/// `tokenizer_config.json`.
pub(super) fn tokenizer_config_json(context_length: usize) -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": false,
        "add_bos_token": false,
        "bos_token": null,
        "eos_token": MESSAGE_END,
        "pad_token": END_OF_TEXT,
        "unk_token": UNKNOWN,
        "chat_template": CHAT_TEMPLATE,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn pieces_are_distinct_and_cover_ascii() {
        let pieces = pieces();
        let distinct: HashSet<&String> = pieces.iter().collect();
        assert_eq!(distinct.len(), pieces.len());
        assert!((' '..='~').all(|letter| distinct.contains(&letter.to_string())));
        assert!(pieces.len() <= 160, "{}", pieces.len());
    }
}
