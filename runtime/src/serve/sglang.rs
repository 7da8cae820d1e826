//! SGLang's `/generate`: ids in, ids and log-probabilities out.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::{Value, json};
use training_gym_core::wire::{GenerateReply, MetaInfo, TokenLogprob};

use super::error::ApiError;
use super::fields::{Fields, ids, whole};
use super::generation::{Complete, Generation};
use super::sampling::Sampling;
use super::service::Service;
use crate::rollout::{ScoreRequest, TokenScore};

/// One prompt of a request.
#[derive(Clone, Debug)]
struct Item {
    prompt_ids: Vec<i64>,
    sampling: Sampling,
    return_logprob: bool,
    /// First prompt position that is returned.
    start: usize,
    top_logprobs: usize,
}

/// What is returned about a prompt: one entry a position from `start` on, the first one null.
#[derive(Clone, Debug, Default)]
struct InputScores {
    logprobs: Vec<TokenLogprob>,
    top: Vec<Option<Vec<TokenLogprob>>>,
}

/// `POST /generate`. One prompt gives an object; a batch, or `n` > 1, a list in order.
///
/// All prompts of one request that need scoring are scored together, apart from whatever else
/// runs: the numbers depend on the request alone.
pub(super) async fn generate(State(service): State<Service>, body: Bytes) -> Result<Response, ApiError> {
    let fields = Fields::parse(&body)?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    let (items, batched) = items(&service, &fields)?;
    let inputs = score(&service, &items).await?;
    if items.iter().any(|item| item.sampling.max_new_tokens == Some(0)) {
        if stream || items.iter().any(|item| item.sampling.max_new_tokens != Some(0)) {
            let rule = "max_new_tokens = 0 only scores: not as a stream, nor in a batch that also generates";
            return Err(ApiError::field("sampling_params.max_new_tokens", rule));
        }
        let replies = items.iter().zip(inputs).map(|(item, input)| scored(&service, item, input));
        return Ok(deliver(replies.collect(), batched));
    }
    let mut running = Vec::new();
    for (item, input) in items.into_iter().zip(inputs) {
        for index in 0..item.sampling.n {
            let prompt = item.prompt_ids.clone();
            let generation = Generation::start(&service, prompt, &item.sampling, item.top_logprobs, index).await?;
            running.push((generation, item.clone(), input.clone()));
        }
    }
    let listed = batched || running.len() > 1;
    if stream {
        return Ok(streamed(&service, running, listed));
    }
    let mut replies = Vec::with_capacity(running.len());
    for (generation, item, input) in running {
        replies.push(reply(&service, &item, input, &generation.complete().await?));
    }
    Ok(deliver(replies, listed))
}

fn deliver(mut replies: Vec<GenerateReply>, listed: bool) -> Response {
    match listed {
        true => Json(replies).into_response(),
        false => {
            replies.pop().map_or_else(|| ApiError::internal("no reply").into_response(), |r| Json(r).into_response())
        }
    }
}

/// Reads the prompts, and whether they came as a batch.
fn items(service: &Service, fields: &Fields) -> Result<(Vec<Item>, bool), ApiError> {
    let (prompts, batched) = prompts(service, fields)?;
    let count = prompts.len();
    let list_rule = format!("must be one value, or a list of {count}, one a prompt");
    // SGLang takes one value for all, or one a prompt.
    let each = |field: &str| -> Result<Vec<Option<Value>>, ApiError> {
        match fields.get(field) {
            Some(Value::Array(list)) if list.len() == count => Ok(list.iter().cloned().map(Some).collect()),
            Some(Value::Array(_)) => Err(fields.refuse(field, &list_rule)),
            value => Ok(vec![value.cloned(); count]),
        }
    };
    let (params, logprob, starts, tops) =
        (each("sampling_params")?, each("return_logprob")?, each("logprob_start_len")?, each("top_logprobs_num")?);
    let items = prompts.into_iter().enumerate().map(|(at, prompt_ids)| {
        let sampling = Sampling::sglang(&sampling_fields(fields, params[at].as_ref())?)?;
        let typed = |field: &str, rule: &str| fields.refuse(field, rule);
        let return_logprob = match &logprob[at] {
            None | Some(Value::Null) => false,
            Some(value) => value.as_bool().ok_or_else(|| typed("return_logprob", "must be true or false"))?,
        };
        let integer = |field: &str, value: &Option<Value>, default: i64| match value {
            None | Some(Value::Null) => Ok(default),
            Some(value) => whole(value).ok_or_else(|| typed(field, "must be a whole number")),
        };
        let length = prompt_ids.len();
        let scoring = sampling.max_new_tokens == Some(0);
        let start = match integer("logprob_start_len", &starts[at], -1)? {
            // Output only; a request that generates still names the prompt's last token.
            -1 if scoring => length,
            -1 => length.saturating_sub(1),
            start if (0..length as i64).contains(&start) => start as usize,
            start => {
                let rule = format!("logprob_start_len = {start}: must be -1, or in [0, {length}) for this prompt");
                return Err(ApiError::field("logprob_start_len", rule));
            }
        };
        let top_logprobs = match integer("top_logprobs_num", &tops[at], 0)? {
            top @ 0..=1024 => top as usize,
            _ => return Err(typed("top_logprobs_num", "must be in [0, 1024]")),
        };
        Ok(Item { prompt_ids, sampling, return_logprob, start, top_logprobs })
    });
    Ok((items.collect::<Result<_, ApiError>>()?, batched))
}

fn sampling_fields(fields: &Fields, params: Option<&Value>) -> Result<Fields, ApiError> {
    match params {
        None | Some(Value::Null) => Fields::parse(b"{}"),
        Some(params @ Value::Object(_)) => {
            // Read through a body of its own, so that errors say `sampling_params.…`.
            let body = Fields::parse(json!({"sampling_params": params}).to_string().as_bytes())?;
            body.object("sampling_params")?.ok_or_else(|| ApiError::internal("sampling_params vanished"))
        }
        Some(_) => Err(fields.refuse("sampling_params", "must be an object, or a list of objects")),
    }
}

fn prompts(service: &Service, fields: &Fields) -> Result<(Vec<Vec<i64>>, bool), ApiError> {
    let encode = |text: &str| service.text().tokenizer().encode(text, true).map_err(ApiError::from);
    let (prompts, batched) = match (fields.get("text"), fields.get("input_ids")) {
        (Some(_), Some(_)) | (None, None) => {
            return Err(ApiError::field("input_ids", "give exactly one of `input_ids` and `text`"));
        }
        (Some(Value::String(text)), None) => (vec![encode(text)?], false),
        (Some(_), None) => {
            let texts = fields.texts("text")?.unwrap_or_default();
            (texts.iter().map(|text| encode(text)).collect::<Result<_, _>>()?, true)
        }
        (None, Some(given)) => {
            let refuse = || fields.refuse("input_ids", "must be a list of ids, or a list of such lists");
            let list = given.as_array().ok_or_else(refuse)?;
            if list.first().is_some_and(Value::is_array) {
                (list.iter().map(|one| ids(one).ok_or_else(refuse)).collect::<Result<_, _>>()?, true)
            } else {
                (vec![ids(given).ok_or_else(refuse)?], false)
            }
        }
    };
    if prompts.is_empty() {
        return Err(ApiError::bad("the batch has no prompt"));
    }
    Ok((prompts, batched))
}

/// Scores the prompts in one batch: each from its `start` on.
async fn score(service: &Service, items: &[Item]) -> Result<Vec<InputScores>, ApiError> {
    let wanted = |item: &&Item| item.return_logprob && item.start + 1 < item.prompt_ids.len();
    let request = |item: &Item| ScoreRequest {
        input_ids: item.prompt_ids.clone(),
        // The logits that would score position `start` are not computed, as in SGLang.
        start_len: item.start + 1,
        top_logprobs: item.top_logprobs,
    };
    let sequences: Vec<ScoreRequest> = items.iter().filter(wanted).map(request).collect();
    let mut scores = match sequences.is_empty() {
        true => Vec::new(),
        false => service.engine().score(sequences).await?,
    }
    .into_iter();
    Ok(items
        .iter()
        .map(|item| {
            let rest = if wanted(&item) { scores.next().unwrap_or_default() } else { Vec::new() };
            let first = item.prompt_ids.get(item.start).filter(|_| item.return_logprob);
            let mut input = InputScores::default();
            input.logprobs.extend(first.map(|&id| (None, id, None)));
            input.top.extend(first.map(|_| None));
            input.logprobs.extend(rest.iter().map(token_logprob));
            input.top.extend(rest.iter().map(|score| Some(top(score))));
            input
        })
        .collect())
}

fn token_logprob(score: &TokenScore) -> TokenLogprob {
    (score.logprob.map(f64::from), score.token, None)
}

fn top(score: &TokenScore) -> Vec<TokenLogprob> {
    score.top.iter().map(|&(id, logprob)| (Some(f64::from(logprob)), id, None)).collect()
}

/// The answer to a request that only scores.
fn scored(service: &Service, item: &Item, input: InputScores) -> GenerateReply {
    let end = json!({"type": "length", "length": 0});
    meta(service, item, input, &[], (String::new(), end))
}

fn reply(service: &Service, item: &Item, input: InputScores, complete: &Complete) -> GenerateReply {
    meta(service, item, input, &complete.scores, (complete.text.clone(), complete.end.sglang()))
}

fn meta(
    service: &Service,
    item: &Item,
    input: InputScores,
    scores: &[TokenScore],
    (text, finish_reason): (String, Value),
) -> GenerateReply {
    let logprob = item.return_logprob;
    let with_top = logprob && item.top_logprobs > 0;
    GenerateReply {
        text,
        output_ids: scores.iter().map(|score| score.token).collect(),
        meta_info: MetaInfo {
            id: format!("{:016x}", service.fresh()),
            finish_reason: Some(finish_reason).filter(|reason| !reason.is_null()),
            prompt_tokens: item.prompt_ids.len(),
            completion_tokens: scores.len(),
            weight_version: Some(service.engine().stats().weight_version.to_string()),
            input_token_logprobs: logprob.then_some(input.logprobs),
            output_token_logprobs: logprob.then(|| scores.iter().map(token_logprob).collect()),
            input_top_logprobs: with_top.then_some(input.top),
            output_top_logprobs: with_top.then(|| scores.iter().map(|score| Some(top(score))).collect()),
        },
    }
}

/// Server-sent events: each holds the whole reply so far, with `index` in a batch.
fn streamed(service: &Service, running: Vec<(Generation, Item, InputScores)>, listed: bool) -> Response {
    let replies: Vec<BoxStream<'static, String>> = running
        .into_iter()
        .enumerate()
        .map(|(index, (generation, item, input))| {
            let state = Some((generation, service.clone(), String::new(), Vec::new()));
            stream::unfold(state, move |state| {
                let (item, input) = (item.clone(), input.clone());
                async move {
                    let (mut generation, service, mut text, mut scores) = state?;
                    let piece = match generation.next().await {
                        Ok(piece) => piece?,
                        Err(error) => return Some((error.body().to_string(), None)),
                    };
                    text.push_str(&piece.text);
                    scores.extend(piece.score);
                    let end = piece.end.as_ref().map_or(Value::Null, |end| end.sglang());
                    let reply = meta(&service, &item, input, &scores, (text.clone(), end));
                    let mut body = serde_json::to_value(reply).unwrap_or_default();
                    if listed {
                        body["index"] = index.into();
                    }
                    Some((body.to_string(), Some((generation, service, text, scores))))
                }
            })
            .boxed()
        })
        .collect();
    let events = stream::select_all(replies)
        .chain(stream::once(async { "[DONE]".to_owned() }))
        .map(|text| Ok::<_, std::convert::Infallible>(Event::default().data(text)));
    Sse::new(events).into_response()
}
