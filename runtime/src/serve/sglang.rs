//! SGLang's `/generate`: ids in, ids and log-probabilities out.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::{Value, json};
use training_gym_core::wire::{GenerateReply, MetaInfo, TokenLogprob};

use super::error::ApiError;
use super::fields::{Fields, excerpt, ids, whole, within};
use super::generation::{self, Generation, MOST_TOKENS, Wanted, check_count};
use super::sampling::Sampling;
use super::service::Service;
use super::waiting::Held;
use crate::rollout::{ScoreRequest, TokenScore};

/// One prompt of a request.
#[derive(Clone, Debug)]
struct Item {
    prompt_ids: Arc<Vec<i64>>,
    sampling: Arc<Sampling>,
    return_logprob: bool,
    /// First prompt position that is returned.
    start: usize,
    top_logprobs: usize,
}

impl Item {
    /// Its responses.
    fn wanted(&self) -> impl Iterator<Item = Wanted> {
        // What is not returned is not kept.
        let top_logprobs = if self.return_logprob { self.top_logprobs } else { 0 };
        Wanted::all(&self.prompt_ids, &self.sampling, top_logprobs)
    }
}

/// What is returned about a prompt: one entry a position from `start` on, the first one null.
#[derive(Clone, Debug, Default)]
struct InputScores {
    logprobs: Vec<TokenLogprob>,
    top: Vec<Option<Vec<TokenLogprob>>>,
}

/// A prompt and what is returned about it: what all of its responses share.
#[derive(Clone, Debug)]
struct Prompt {
    item: Item,
    input: InputScores,
}

/// A response, as far as it is there.
#[derive(Clone, Debug, Default)]
struct Output {
    text: String,
    scores: Vec<TokenScore>,
    /// SGLang's `finish_reason`; null before the end.
    finish_reason: Value,
}

/// `POST /generate`. One prompt gives an object; a batch, or `n` > 1, a list in order: the prompts'
/// order, and `n` responses of each.
///
/// All prompts of one request that need scoring are scored together, apart from whatever else
/// runs: the numbers depend on the request alone.
pub(super) async fn generate(
    State(service): State<Service>,
    Extension(held): Extension<Held>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let fields = Fields::parse(&body)?;
    drop(body);
    let stream = fields.flag("stream")?.unwrap_or(false);
    let (items, batched) = items(&service, &fields)?;
    let only_scores = |item: &Item| item.sampling.max_new_tokens == Some(0);
    if items.iter().any(only_scores) && (stream || !items.iter().all(only_scores)) {
        let rule = "max_new_tokens = 0 only scores: not as a stream, nor in a batch that also generates";
        return Err(ApiError::field("sampling_params.max_new_tokens", rule));
    }
    // Many times the ids it held.
    drop(fields);
    let wanted: Vec<Wanted> = items.iter().filter(|item| !only_scores(item)).flat_map(Item::wanted).collect();
    generation::check(&service, &wanted)?;
    let inputs = score(&service, &items).await?;
    let prompts: Vec<Arc<Prompt>> =
        items.into_iter().zip(inputs).map(|(item, input)| Arc::new(Prompt { item, input })).collect();
    // One entry a response.
    let asked: Vec<Arc<Prompt>> =
        prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt, prompt.item.sampling.n).map(Arc::clone)).collect();
    let listed = batched || asked.len() > 1;
    if asked.iter().all(|prompt| only_scores(&prompt.item)) {
        let finish_reason = json!({"type": "length", "length": 0});
        let output = Output { finish_reason, ..Output::default() };
        return Ok(deliver(asked.iter().map(|prompt| reply(&service, prompt, &output)).collect(), listed));
    }
    let generations = generation::start(&service, wanted, &held).await?;
    if stream {
        return Ok(streamed(&service, generations.into_iter().zip(asked), listed));
    }
    let complete = generation::complete(generations).await?;
    let replies = complete.into_iter().zip(&asked).map(|(complete, prompt)| {
        let finish_reason = complete.end.sglang();
        reply(&service, prompt, &Output { text: complete.text, scores: complete.scores, finish_reason })
    });
    Ok(deliver(replies.collect(), listed))
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
    check_count(count)?;
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
        let integer = |field: &str, value: &Option<Value>, default: i128| match value {
            None | Some(Value::Null) => Ok(default),
            Some(value) => whole(value).ok_or_else(|| typed(field, "must be a whole number")),
        };
        let length = prompt_ids.len();
        let scoring = sampling.max_new_tokens == Some(0);
        let start = match integer("logprob_start_len", &starts[at], -1)? {
            // Output only; a request that generates still names the prompt's last token.
            -1 if scoring => length,
            -1 => length.saturating_sub(1),
            start if (0..length as i128).contains(&start) => start as usize,
            _ => {
                let given = starts[at].as_ref().map(excerpt).unwrap_or_default();
                let rule = format!("logprob_start_len = {given}: must be -1, or in [0, {length}) for this prompt");
                return Err(ApiError::field("logprob_start_len", rule));
            }
        };
        let top_logprobs = within(integer("top_logprobs_num", &tops[at], 0)?, &(0..=1024))
            .ok_or_else(|| typed("top_logprobs_num", "must be in [0, 1024]"))? as usize;
        let (prompt_ids, sampling) = (Arc::new(prompt_ids), Arc::new(sampling));
        Ok(Item { prompt_ids, sampling, return_logprob, start, top_logprobs })
    });
    let items = items.collect::<Result<Vec<_>, ApiError>>()?;
    check_count(items.iter().map(|item| item.sampling.n).sum())?;
    check_reported(&items)?;
    Ok((items, batched))
}

/// Refuses a request whose prompts' log-probabilities no answer can hold.
fn check_reported(items: &[Item]) -> Result<(), ApiError> {
    let of = |item: &Item| (item.prompt_ids.len() - item.start) * (1 + item.top_logprobs) * item.sampling.n;
    let reported: usize = items.iter().filter(|item| item.return_logprob).map(of).sum();
    if reported <= MOST_TOKENS {
        return Ok(());
    }
    let rule = format!(
        "the request asks for {reported} log-probabilities of prompt tokens, one request may for {MOST_TOKENS}: \
         raise logprob_start_len, lower top_logprobs_num or n, or split the batch"
    );
    Err(ApiError::field("return_logprob", rule))
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
        input_ids: item.prompt_ids.to_vec(),
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

fn reply(service: &Service, prompt: &Prompt, output: &Output) -> GenerateReply {
    let Prompt { item, input } = prompt;
    let Output { text, scores, finish_reason } = output;
    let logprob = item.return_logprob;
    let with_top = logprob && item.top_logprobs > 0;
    GenerateReply {
        text: text.clone(),
        output_ids: scores.iter().map(|score| score.token).collect(),
        meta_info: MetaInfo {
            id: format!("{:016x}", service.fresh()),
            finish_reason: Some(finish_reason.clone()).filter(|reason| !reason.is_null()),
            prompt_tokens: item.prompt_ids.len(),
            completion_tokens: scores.len(),
            weight_version: Some(service.engine().stats().weight_version.to_string()),
            input_token_logprobs: logprob.then(|| input.logprobs.clone()),
            output_token_logprobs: logprob.then(|| scores.iter().map(token_logprob).collect()),
            input_top_logprobs: with_top.then(|| input.top.clone()),
            output_top_logprobs: with_top.then(|| scores.iter().map(|score| Some(top(score))).collect()),
        },
    }
}

/// One response of a stream.
struct Streaming {
    service: Service,
    generation: Generation,
    prompt: Arc<Prompt>,
    output: Output,
    /// Its place in the list, where there is one.
    index: Option<usize>,
}

impl Streaming {
    /// The next event, and itself if more follow.
    async fn next(mut self) -> Option<(String, Option<Self>)> {
        let piece = match self.generation.next().await {
            Ok(piece) => piece?,
            Err(error) => return Some((error.body().to_string(), None)),
        };
        self.output.text.push_str(&piece.text);
        self.output.scores.extend(piece.score);
        self.output.finish_reason = piece.end.as_ref().map_or(Value::Null, |end| end.sglang());
        let mut body = serde_json::to_value(reply(&self.service, &self.prompt, &self.output)).unwrap_or_default();
        if let Some(index) = self.index {
            body["index"] = index.into();
        }
        Some((body.to_string(), Some(self)))
    }
}

/// Server-sent events: each holds the whole reply so far, with `index` in a batch.
fn streamed(service: &Service, responses: impl Iterator<Item = (Generation, Arc<Prompt>)>, listed: bool) -> Response {
    let replies: Vec<BoxStream<'static, String>> = responses
        .enumerate()
        .map(|(index, (generation, prompt))| {
            let (service, index) = (service.clone(), listed.then_some(index));
            let one = Streaming { service, generation, prompt, output: Output::default(), index };
            stream::unfold(Some(one), |one| async move { one?.next().await }).boxed()
        })
        .collect();
    let events = stream::select_all(replies)
        .chain(stream::once(async { "[DONE]".to_owned() }))
        .map(|text| Ok::<_, std::convert::Infallible>(Event::default().data(text)));
    Sse::new(events).into_response()
}
