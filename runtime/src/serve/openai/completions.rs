//! `/v1/completions`: raw prompts, as texts or as ids.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};

use super::stream::{Render, Shared, chunks, respond};
use super::{Delivery, Envelope, MOST_LOGPROBS, logprobs, usage};
use crate::serve::error::ApiError;
use crate::serve::fields::{Fields, ids};
use crate::serve::generation::{self, Generation, Piece, Wanted, check_count};
use crate::serve::sampling::Sampling;
use crate::serve::service::Service;
use crate::serve::waiting::Held;
use crate::text::Tokenizer;

/// OpenAI's default of `max_tokens` on this route.
const DEFAULT_TOKENS: usize = 16;

/// What a completions request comes to.
struct Completion {
    prompts: Vec<Arc<Vec<i64>>>,
    sampling: Arc<Sampling>,
    /// `None`: no log-probabilities.
    top_logprobs: Option<usize>,
}

impl Completion {
    fn read(service: &Service, fields: &Fields) -> Result<Self, ApiError> {
        let sampling = Sampling::openai(fields, service.defaults(), Some(DEFAULT_TOKENS))?;
        let top_logprobs = fields.integer("logprobs", MOST_LOGPROBS)?.map(|top| top as usize);
        let prompts = prompts(service, fields)?;
        check_count(prompts.len() * sampling.n)?;
        Ok(Self { prompts: prompts.into_iter().map(Arc::new).collect(), sampling: Arc::new(sampling), top_logprobs })
    }

    fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.len()).sum()
    }

    fn wanted(&self) -> impl Iterator<Item = Wanted> {
        let of = |prompt| Wanted::all(prompt, &self.sampling, self.top_logprobs.unwrap_or(0));
        self.prompts.iter().flat_map(of)
    }
}

pub(super) async fn answer(service: &Service, fields: Fields, held: &Held) -> Result<Response, ApiError> {
    service.check_name(fields.text("model")?)?;
    let delivery = Delivery::read(&fields)?;
    let completion = Completion::read(service, &fields)?;
    // Many times the ids it held.
    drop(fields);
    let generations = generation::start(service, completion.wanted().collect(), held).await?;
    if delivery.stream {
        Ok(streamed(service, &completion, generations, delivery))
    } else {
        whole(service, &completion, generations).await
    }
}

async fn whole(service: &Service, completion: &Completion, generations: Vec<Generation>) -> Result<Response, ApiError> {
    let envelope = Envelope::new(service, "cmpl", "text_completion");
    let tokenizer = service.text().tokenizer();
    let (mut choices, mut drawn) = (Vec::new(), 0);
    for (index, complete) in generation::complete(generations).await?.into_iter().enumerate() {
        drawn += complete.scores.len();
        let logprobs = completion.top_logprobs.map(|_| logprobs::completion(tokenizer, &complete.scores, &mut 0));
        let reason = complete.end.openai()?;
        choices.push(json!({"index": index, "text": complete.text, "logprobs": logprobs, "finish_reason": reason}));
    }
    Ok(Json(envelope.wrap(choices.into(), Some(usage(completion.prompt_tokens(), drawn)))).into_response())
}

/// A text, a list of texts, ids, or a list of ids.
fn prompts(service: &Service, fields: &Fields) -> Result<Vec<Vec<i64>>, ApiError> {
    let refuse = || fields.refuse("prompt", "must be a text, a list of texts, a list of ids, or a list of these");
    let encode = |text: &str| service.text().tokenizer().encode(text, true).map_err(ApiError::from);
    match fields.get("prompt").ok_or_else(refuse)? {
        Value::String(text) => Ok(vec![encode(text)?]),
        Value::Array(list) if list.is_empty() => Err(refuse()),
        Value::Array(list) if list.iter().all(Value::is_number) => {
            Ok(vec![ids(&Value::Array(list.clone())).ok_or_else(refuse)?])
        }
        Value::Array(list) => list
            .iter()
            .map(|prompt| match prompt {
                Value::String(text) => encode(text),
                other => ids(other).ok_or_else(refuse),
            })
            .collect(),
        _ => Err(refuse()),
    }
}

fn streamed(service: &Service, completion: &Completion, generations: Vec<Generation>, delivery: Delivery) -> Response {
    let shared = Shared::new(Envelope::new(service, "cmpl", "text_completion"));
    let (prompt_tokens, wanted) = (completion.prompt_tokens(), completion.top_logprobs.is_some());
    let choices: Vec<_> = generations
        .into_iter()
        .enumerate()
        .map(|(index, generation)| {
            let tokenizer = wanted.then(|| service.text().tokenizer().clone());
            chunks(generation, renderer(index, tokenizer, shared.clone()))
        })
        .collect();
    let last = move || delivery.include_usage.then(|| shared.usage(prompt_tokens));
    respond(stream::select_all(choices).boxed(), last)
}

/// Renders choice `index`; with a `tokenizer`, its log-probabilities too.
fn renderer(index: usize, tokenizer: Option<Tokenizer>, shared: Shared) -> Render {
    let mut offset = 0;
    Box::new(move |piece: &Piece| {
        shared.count(piece);
        let scores = piece.score.as_slice();
        let tokenizer = tokenizer.as_ref().filter(|_| !scores.is_empty());
        let logprobs = tokenizer.map(|tokenizer| logprobs::completion(tokenizer, scores, &mut offset));
        let reason = piece.end.as_ref().map(|end| end.openai()).transpose()?;
        if piece.text.is_empty() && logprobs.is_none() && reason.is_none() {
            return Ok(Vec::new());
        }
        let choice = json!({"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": reason});
        Ok(vec![shared.envelope.wrap(json!([choice]), None)])
    })
}
