//! OpenAI's routes: chat, completions, models.

mod chat;
mod completions;
mod logprobs;
mod stream;

use std::ops::RangeInclusive;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::{Extension, Json};
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::Fields;
use super::service::Service;
use super::waiting::Held;

/// `POST /v1/chat/completions`.
pub(super) async fn chat(
    State(service): State<Service>,
    Extension(held): Extension<Held>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let fields = Fields::parse(&body)?;
    drop(body);
    chat::answer(&service, fields, &held).await
}

/// `POST /v1/completions`.
pub(super) async fn completions(
    State(service): State<Service>,
    Extension(held): Extension<Held>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let fields = Fields::parse(&body)?;
    drop(body);
    completions::answer(&service, fields, &held).await
}

/// `GET /v1/models`.
pub(super) async fn models(State(service): State<Service>) -> Json<Value> {
    Json(json!({"object": "list", "data": [model(&service)]}))
}

/// `GET /v1/models/{name}`.
pub(super) async fn one_model(
    State(service): State<Service>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    service.check_name(Some(&name))?;
    Ok(Json(model(&service)))
}

fn model(service: &Service) -> Value {
    json!({
        "id": service.name(),
        "object": "model",
        "created": service.created(),
        "owned_by": "training-gym",
        "root": service.folder().display().to_string(),
        "max_model_len": service.engine().context_length(),
    })
}

/// What the answers of one request have in common.
#[derive(Clone, Debug)]
struct Envelope {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
}

impl Envelope {
    fn new(service: &Service, prefix: &str, object: &'static str) -> Self {
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let id = format!("{prefix}-{:016x}", service.fresh());
        Self { id, object, created, model: service.name().to_owned() }
    }

    fn wrap(&self, choices: Value, usage: Option<Value>) -> Value {
        let mut body = json!({
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if let Some(usage) = usage {
            body["usage"] = usage;
        }
        body
    }
}

fn usage(prompt: usize, completion: usize) -> Value {
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
}

/// How the answer comes: at once, or as a stream with or without usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Delivery {
    stream: bool,
    include_usage: bool,
}

impl Delivery {
    fn read(fields: &Fields) -> Result<Self, ApiError> {
        let stream = fields.flag("stream")?.unwrap_or(false);
        let options = fields.object("stream_options")?;
        if options.is_some() && !stream {
            return Err(fields.refuse("stream_options", "is only allowed when stream = true"));
        }
        let include_usage = match &options {
            Some(options) => options.flag("include_usage")?.unwrap_or(false),
            None => false,
        };
        Ok(Self { stream, include_usage })
    }
}

/// `top_logprobs` and the like: how many alternatives to report, at most.
const MOST_LOGPROBS: RangeInclusive<i64> = 0..=20;
