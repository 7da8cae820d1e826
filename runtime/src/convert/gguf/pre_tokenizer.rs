//! How text is cut before byte pairs are merged, by the kind that `tokenizer.ggml.pre` names.
//!
//! Patterns are those of the models' own `tokenizer.json`.

use serde_json::{Value, json};

use crate::convert::error::{Problem, unsupported};

/// A kind of pre-tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreTokenizer {
    /// GPT-2's pattern.
    Gpt2,
    /// Single digits, then GPT-2's pattern (SmolLM, StarCoder).
    Digits,
    /// Llama 3's: digits in threes, case-blind contractions; a word of the vocabulary is one token.
    Llama3,
    /// Qwen2's and Qwen3's: single digits; text in NFC.
    Qwen2,
}

const KINDS: [(&str, PreTokenizer); 13] = [
    ("gpt-2", PreTokenizer::Gpt2),
    ("default", PreTokenizer::Gpt2),
    ("phi-2", PreTokenizer::Gpt2),
    ("mpt", PreTokenizer::Gpt2),
    ("olmo", PreTokenizer::Gpt2),
    ("smollm", PreTokenizer::Digits),
    ("starcoder", PreTokenizer::Digits),
    ("refact", PreTokenizer::Digits),
    ("llama-bpe", PreTokenizer::Llama3),
    ("llama3", PreTokenizer::Llama3),
    ("llama-v3", PreTokenizer::Llama3),
    ("qwen2", PreTokenizer::Qwen2),
    ("deepseek-r1-qwen", PreTokenizer::Qwen2),
];

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
impl PreTokenizer {
    /// The kind of a name.
    ///
    /// # Errors
    /// By name, with those supported.
    pub(super) fn of(name: &str) -> Result<Self, Problem> {
        let known = KINDS.iter().find(|kind| kind.0 == name);
        known.map_or_else(
            || {
                let supported: Vec<&str> = KINDS.iter().map(|kind| kind.0).collect();
                unsupported(format!(
                    "pre-tokenizer `{name}` (tokenizer.ggml.pre); supported: {}; --pre KIND takes one of them instead",
                    supported.join(", ")
                ))
            },
            |kind| Ok(kind.1),
        )
    }

    /// `normalizer` of `tokenizer.json`.
    pub(super) fn normalizer(self) -> Value {
        match self {
            Self::Qwen2 => json!({"type": "NFC"}),
            Self::Gpt2 | Self::Digits | Self::Llama3 => Value::Null,
        }
    }

    /// `pre_tokenizer` of `tokenizer.json`.
    pub(super) fn json(self) -> Value {
        let bytes = |pattern: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": pattern});
        let split = |pattern: &str| {
            let split = json!({
                "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false,
            });
            json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]})
        };
        match self {
            Self::Gpt2 => bytes(true),
            Self::Digits => {
                let digits = json!({"type": "Digits", "individual_digits": true});
                json!({"type": "Sequence", "pretokenizers": [digits, bytes(true)]})
            }
            Self::Llama3 => split(LLAMA3),
            Self::Qwen2 => split(QWEN2),
        }
    }

    /// Whether a word that is in the vocabulary is a token, however its pairs merge.
    pub(super) fn ignores_merges(self) -> bool {
        self == Self::Llama3
    }

    /// Whether texts begin with a begin token where the file does not say.
    pub(super) fn adds_bos(self) -> bool {
        self == Self::Llama3
    }
}
