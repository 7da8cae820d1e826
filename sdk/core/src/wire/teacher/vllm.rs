//! vLLM's `/v1/completions` with `prompt_logprobs`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::json::{self, Number};
use super::{Answer, Asked, Item, Sequence, TeacherFault, read_items};

const FIELD: &str = "prompt_logprobs";

/// vLLM draws at least one token (`max_tokens` 1) and always scores the whole prompt. With
/// `prompt_logprobs` k a position holds its own id and the k likeliest ones, which may include it.
pub(super) fn request(sequences: &[Sequence<'_>], model: Option<&str>, top: usize) -> Value {
    let prompts: Vec<&[i64]> = sequences.iter().map(|sequence| sequence.tokens).collect();
    let mut body = json!({
        "prompt": prompts,
        "max_tokens": 1,
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": [],
        "stop_token_ids": [],
        "stream": false,
        "add_special_tokens": false,
        "prompt_logprobs": top.max(1),
    });
    if let Some(model) = model {
        body["model"] = model.into();
    }
    body
}

#[derive(Deserialize)]
struct Reply {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    index: usize,
    #[serde(default)]
    prompt_logprobs: Option<Vec<Option<BTreeMap<String, Entry>>>>,
}

#[derive(Deserialize)]
struct Entry {
    logprob: Number,
}

pub(super) fn parse(
    sequences: &[Sequence<'_>],
    top: usize,
    body: &[u8],
) -> Result<Vec<Result<Answer, TeacherFault>>, TeacherFault> {
    let mut reply: Reply = json::read(body).map_err(|source| TeacherFault::Malformed {
        dialect: "vLLM `/v1/completions`",
        excerpt: json::excerpt(body),
        source,
    })?;
    // Choices may come in any order; each index once.
    reply.choices.sort_by_key(|choice| choice.index);
    let complete = reply.choices.iter().map(|choice| choice.index).eq(0..sequences.len());
    if !complete {
        return Err(TeacherFault::ReplyCount { sent: sequences.len(), received: reply.choices.len() });
    }
    Ok(sequences
        .iter()
        .zip(reply.choices)
        .map(|(&sequence, choice)| read(Asked { sequence, start: 0, top }, choice))
        .collect())
}

fn read(asked: Asked<'_>, choice: Choice) -> Result<Answer, TeacherFault> {
    let positions = choice.prompt_logprobs.ok_or(TeacherFault::NoLogprobs { field: FIELD })?;
    let sent = asked.sequence.tokens.iter().map(Some).chain(std::iter::repeat(None));
    let items: Vec<Item> =
        positions.into_iter().zip(sent).map(|(entries, sent)| item(entries, sent, asked.top > 0)).collect();
    read_items(asked, items.into_iter())
}

/// The entry of the id that was sent. vLLM names the ids it scored by the entries' keys.
fn item(entries: Option<BTreeMap<String, Entry>>, sent: Option<&i64>, all: bool) -> Item {
    let Some(entries) = entries else { return Item { logprob: None, scored: Ok(()), named: Vec::new() } };
    match sent.and_then(|id| entries.get(&id.to_string())) {
        Some(entry) => {
            // A key that is no id names no token: it is missed where the tokens are counted.
            let named = entries.iter().filter(|_| all);
            let named = named.filter_map(|(id, entry)| Some((id.parse().ok()?, entry.logprob.0))).collect();
            Item { logprob: entry.logprob.0, scored: Ok(()), named }
        }
        None => {
            let received = entries.into_keys().collect::<Vec<_>>().join(" or ");
            Item { logprob: None, scored: Err(received), named: Vec::new() }
        }
    }
}
