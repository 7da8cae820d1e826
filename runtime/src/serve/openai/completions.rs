//! `/v1/completions`: raw prompts, as texts or as ids.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};

use super::stream::{Render, chunks, respond};
use super::{Delivery, Envelope, MOST_LOGPROBS, logprobs, usage};
use crate::serve::error::ApiError;
use crate::serve::fields::{Fields, ids};
use crate::serve::generation::{Generation, Piece};
use crate::serve::sampling::Sampling;
use crate::serve::service::Service;

/// OpenAI's default of `max_tokens` on this route.
const DEFAULT_TOKENS: usize = 16;

pub(super) async fn answer(service: &Service, fields: &Fields) -> Result<Response, ApiError> {
    service.check_name(fields.text("model")?)?;
    let delivery = Delivery::read(fields)?;
    let sampling = Sampling::openai(fields, service.defaults(), Some(DEFAULT_TOKENS))?;
    let wanted = fields.integer("logprobs", MOST_LOGPROBS)?.map(|top| top as usize);
    let prompts = prompts(service, fields)?;
    let tokens = prompts.iter().map(Vec::len).sum();
    let mut generations = Vec::with_capacity(prompts.len() * sampling.n);
    for prompt in prompts {
        for index in 0..sampling.n {
            let top = wanted.unwrap_or(0);
            generations.push(Generation::start(service, prompt.clone(), &sampling, top, index).await?);
        }
    }
    let envelope = Envelope::new(service, "cmpl", "text_completion");
    if delivery.stream {
        return Ok(streamed((service, envelope), wanted, generations, (tokens, delivery)));
    }
    let (mut choices, mut drawn) = (Vec::new(), 0);
    for (index, generation) in generations.into_iter().enumerate() {
        let complete = generation.complete().await?;
        drawn += complete.scores.len();
        let tokenizer = service.text().tokenizer();
        let logprobs = wanted.map(|_| logprobs::completion(tokenizer, &complete.scores, &mut 0));
        let reason = complete.end.openai()?;
        choices.push(json!({"index": index, "text": complete.text, "logprobs": logprobs, "finish_reason": reason}));
    }
    Ok(Json(envelope.wrap(choices.into(), Some(usage(tokens, drawn)))).into_response())
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

fn streamed(
    (service, envelope): (&Service, Envelope),
    wanted: Option<usize>,
    generations: Vec<Generation>,
    (prompt, delivery): (usize, Delivery),
) -> Response {
    let envelope = Arc::new(envelope);
    let drawn = Arc::new(AtomicUsize::new(0));
    let choices: Vec<_> = generations
        .into_iter()
        .enumerate()
        .map(|(index, generation)| {
            let (envelope, drawn) = (Arc::clone(&envelope), Arc::clone(&drawn));
            let tokenizer = service.text().tokenizer().clone();
            let mut offset = 0;
            let render: Render = Box::new(move |piece: &Piece| {
                drawn.fetch_add(usize::from(piece.score.is_some()), Ordering::Relaxed);
                let scores = piece.score.as_slice();
                let logprobs = wanted.filter(|_| !scores.is_empty());
                let logprobs = logprobs.map(|_| logprobs::completion(&tokenizer, scores, &mut offset));
                let reason = piece.end.as_ref().map(|end| end.openai()).transpose()?;
                if piece.text.is_empty() && logprobs.is_none() && reason.is_none() {
                    return Ok(Vec::new());
                }
                let choice = json!({"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": reason});
                Ok(vec![envelope.wrap(json!([choice]), None)])
            });
            chunks(generation, render)
        })
        .collect();
    let last = move || {
        delivery.include_usage.then(|| envelope.wrap(json!([]), Some(usage(prompt, drawn.load(Ordering::Relaxed)))))
    };
    respond(stream::select_all(choices).boxed(), last)
}
