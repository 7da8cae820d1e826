//! Log-probabilities as OpenAI writes them: one shape for chat, another for completions.

use serde_json::{Map, Value, json};

use crate::rollout::TokenScore;
use crate::text::Tokenizer;

/// A chat answer's `logprobs.content` of some tokens. `bytes` is null inside a character that
/// several tokens make.
pub(super) fn chat(tokenizer: &Tokenizer, scores: &[TokenScore]) -> Value {
    let entry = |token: i64, logprob: f32| json!({"token": tokenizer.token_text(token), "logprob": logprob, "bytes": tokenizer.token_bytes(token)});
    let content: Vec<Value> = scores
        .iter()
        .map(|score| {
            let mut item = entry(score.token, score.logprob.unwrap_or(f32::NAN));
            item["top_logprobs"] = score.top.iter().map(|&(token, logprob)| entry(token, logprob)).collect();
            item
        })
        .collect();
    json!({"content": content, "refusal": null})
}

/// A completion's `logprobs`: parallel lists. `offset` is the characters before the first token,
/// and is moved on.
pub(super) fn completion(tokenizer: &Tokenizer, scores: &[TokenScore], offset: &mut usize) -> Value {
    let (mut tokens, mut offsets, mut tops) = (Vec::new(), Vec::new(), Vec::new());
    for score in scores {
        let text = tokenizer.token_text(score.token);
        offsets.push(*offset);
        *offset += text.chars().count();
        tokens.push(text);
        // Two ids may share a text (parts of characters do); the likelier one is kept.
        let mut top = Map::new();
        for &(token, logprob) in &score.top {
            top.entry(tokenizer.token_text(token)).or_insert_with(|| json!(logprob));
        }
        tops.push(Value::Object(top));
    }
    let logprobs: Vec<Option<f32>> = scores.iter().map(|score| score.logprob).collect();
    json!({"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
}
