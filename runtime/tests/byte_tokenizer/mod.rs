//! A tokenizer that tests make for themselves.

use std::path::Path;

use serde_json::{Map, json};

/// Writes a byte-level tokenizer of 512 ids into `folder`: one id a byte (its value), fillers
/// `<filler_N>`, `<think>` (508), `</think>` (509), and the special `<|end|>` (510), `<|begin|>` (511).
pub(crate) fn write_byte_tokenizer(folder: &Path) {
    let mut vocab = Map::new();
    for (id, symbol) in byte_symbols().into_iter().enumerate() {
        vocab.insert(symbol.to_string(), id.into());
    }
    for filler in 256..508 {
        vocab.insert(format!("<filler_{filler}>"), filler.into());
    }
    vocab.insert("<think>".into(), 508.into());
    vocab.insert("</think>".into(), 509.into());
    let special = |id: i64, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let file = json!({
        "version": "1.0",
        "added_tokens": [special(510, "<|end|>"), special(511, "<|begin|>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [511], "tokens": ["<|begin|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    std::fs::write(folder.join("tokenizer.json"), file.to_string()).unwrap();
    let config = json!({"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"},
        "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"});
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
}

/// GPT-2's printable symbol of each byte, in the order ByteLevel knows them.
fn byte_symbols() -> Vec<char> {
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut next = 256;
    (0..256)
        .map(|byte| {
            let code = if printable(byte) {
                byte
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap()
        })
        .collect()
}
