//! SGLang's `/generate` with `return_logprob`.

use serde::Deserialize;
use serde_json::Value;

use super::json::{self, Number};
use super::{Answer, Asked, Item, Sequence, TeacherFault, read_items};
use crate::wire::{GenerateRequest, OneOrMany, SamplingParams};

const FIELD: &str = "input_token_logprobs";
const TOP_FIELD: &str = "input_top_logprobs";

/// Nothing is drawn (`max_new_tokens` 0) and nothing is left to the server's defaults, which may
/// come from the model's generation config.
pub(super) fn request(sequences: &[Sequence<'_>], top: usize) -> Value {
    let starts: Vec<i64> = sequences.iter().map(|sequence| sequence.start() as i64).collect();
    let start = match starts.first() {
        Some(&first) if starts.iter().all(|&start| start == first) => OneOrMany::One(first),
        _ => OneOrMany::Many(starts),
    };
    let request = GenerateRequest {
        text: None,
        input_ids: Some(OneOrMany::Many(sequences.iter().map(|sequence| sequence.tokens.to_vec()).collect())),
        sampling_params: SamplingParams {
            max_new_tokens: 0,
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            min_p: 0.0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            skip_special_tokens: false,
            n: 1,
            sampling_seed: None,
        },
        return_logprob: true,
        logprob_start_len: start,
        top_logprobs_num: top,
        stream: false,
    };
    // Plain structs with text keys: serialisation has no way to fail.
    serde_json::to_value(request).unwrap_or_default()
}

/// `[log-probability or null, token id, text or null]`.
type Named = (Number, i64, serde::de::IgnoredAny);

#[derive(Deserialize)]
struct Reply {
    meta_info: Meta,
}

#[derive(Deserialize)]
struct Meta {
    input_token_logprobs: Option<Vec<Named>>,
    #[serde(default)]
    input_top_logprobs: Option<Vec<Option<Vec<Named>>>>,
    #[serde(default)]
    finish_reason: Option<Value>,
}

pub(super) fn parse(
    sequences: &[Sequence<'_>],
    top: usize,
    body: &[u8],
) -> Result<Vec<Result<Answer, TeacherFault>>, TeacherFault> {
    // A list for a list; a server that unpacks a list of one is understood too. (Chosen by the
    // first byte rather than tried in turn, so that an error says what is really wrong.)
    let list = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let replies = if list { json::read::<Vec<Reply>>(body) } else { json::read(body).map(|reply| vec![reply]) };
    let replies = replies.map_err(|source| TeacherFault::Malformed {
        dialect: "SGLang `/generate`",
        excerpt: json::excerpt(body),
        source,
    })?;
    if replies.len() != sequences.len() {
        return Err(TeacherFault::ReplyCount { sent: sequences.len(), received: replies.len() });
    }
    Ok(sequences
        .iter()
        .zip(replies)
        .map(|(&sequence, reply)| read(Asked { sequence, start: sequence.start(), top }, reply.meta_info))
        .collect())
}

fn read(asked: Asked<'_>, meta: Meta) -> Result<Answer, TeacherFault> {
    if let Some(reason) = meta.finish_reason.filter(|reason| reason["type"] == "abort") {
        let message = reason["message"].as_str().unwrap_or("it gave no reason").to_owned();
        return Err(TeacherFault::Aborted { message });
    }
    let items = meta.input_token_logprobs.ok_or(TeacherFault::NoLogprobs { field: FIELD })?;
    let mut named: Vec<Vec<(i64, Option<f64>)>> = vec![Vec::new(); items.len()];
    if asked.top > 0 {
        let tops = meta.input_top_logprobs.ok_or(TeacherFault::NoLogprobs { field: TOP_FIELD })?;
        if tops.len() != items.len() {
            return Err(TeacherFault::PositionCount {
                start: asked.start,
                expected: items.len(),
                received: tops.len(),
            });
        }
        let rows = tops.into_iter().map(|row| row.unwrap_or_default());
        named = rows.map(|row| row.into_iter().map(|(logprob, id, _)| (id, logprob.0)).collect()).collect();
    }
    // A count that differs is reported before ids are compared, so a missing sent id is never met.
    let sent = asked.sequence.tokens[asked.start..].iter().map(|&id| Some(id)).chain(std::iter::repeat(None));
    let items: Vec<Item> = items
        .into_iter()
        .zip(named)
        .zip(sent)
        .map(|(((logprob, id, _), named), sent)| Item {
            logprob: logprob.0,
            scored: if sent == Some(id) { Ok(()) } else { Err(id.to_string()) },
            named,
        })
        .collect();
    read_items(asked, items.into_iter())
}

/// As [`parse`] of one reply whose items begin at `start`.
#[cfg(test)]
pub(super) fn parse_from(sequence: Sequence<'_>, start: usize, items: &Value) -> super::Scored {
    let meta = serde_json::json!({"input_token_logprobs": items});
    let asked = Asked { sequence, start, top: 0 };
    read(asked, serde_json::from_value(meta).unwrap()).map(|answer| answer.logprobs)
}
