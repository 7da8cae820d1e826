//! OpenAI's and SGLang's HTTP on one engine.
//!
//! | route | |
//! |---|---|
//! | `POST /v1/chat/completions`, `POST /v1/completions` | OpenAI's, streams too; extensions `top_k`, `min_p`, `stop_token_ids`, `ignore_eos`, `chat_template_kwargs`, `separate_reasoning` |
//! | `GET /v1/models`, `GET /v1/models/{name}` | OpenAI's |
//! | `POST /generate` | SGLang's: ids or text in, ids and log-probabilities out; `max_new_tokens = 0` only scores |
//! | `POST /update_weights_from_disk`, `POST /flush_cache`, `GET /get_model_info` | SGLang's |
//! | `GET /health` | open to everyone; says whether, not why |
//! | `GET /metrics` | Prometheus |
//!
//! Every other route wants the bearer token; without one there is no `/update_weights_from_disk`. **Sampling defaults**: the OpenAI routes take
//! `temperature`, `top_p`, `top_k` and `min_p` from the model's `generation_config.json` where a
//! request leaves them out (as vLLM and SGLang do), else OpenAI's (temperature 1, nothing cut);
//! `/generate` has SGLang's fixed defaults. A request without a seed gets a random one.
//!
//! **Reasoning.** In chat answers `<think>…</think>` comes out as `reasoning_content`, in stream
//! deltas too; an answer whose prompt ends with an opened `<think>` begins inside.
//!
//! [`app`] is everything apart from binding; [`run`] binds, writes the ready file, and stops on
//! SIGTERM or SIGINT.

mod admin;
mod auth;
mod error;
mod fields;
mod generation;
mod metrics;
mod openai;
mod reasoning;
mod run;
mod sampling;
mod service;
mod sglang;
mod waiting;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Router, http::StatusCode};

pub use auth::TokenDigest;
pub use error::ApiError;
pub use run::{Error, run};
pub use sampling::SamplingDefaults;
pub use service::Service;

/// The longest body: a batch of 64 sequences of 32k ids fits.
const BODY_LIMIT: usize = 64 << 20;

const ROUTES: [&str; 9] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/generate",
    "/update_weights_from_disk",
    "/flush_cache",
    "/get_model_info",
    "/health",
    "/metrics",
];

/// All routes over `service`.
pub fn app(service: Service) -> Router {
    let weighed = Router::new()
        .route("/v1/chat/completions", post(openai::chat))
        .route("/v1/completions", post(openai::completions))
        .route("/generate", post(sglang::generate))
        .layer(middleware::from_fn_with_state(service.clone(), waiting::weigh));
    let guarded = Router::new()
        .merge(weighed)
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{*name}", get(openai::one_model))
        .route("/update_weights_from_disk", post(admin::update_weights))
        .route("/flush_cache", any(admin::flush_cache))
        .route("/get_model_info", get(admin::model_info))
        .route("/metrics", get(admin::metrics))
        .fallback(|| async { ApiError::absent("unknown_url", "this server has no such path") })
        .layer(middleware::from_fn_with_state(service.clone(), auth::require));
    Router::new()
        .route("/health", get(admin::health))
        .merge(guarded)
        .method_not_allowed_fallback(|| async { ApiError::method() })
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .layer(middleware::from_fn_with_state(service.clone(), observe))
        .with_state(service)
}

/// Counts requests, and gives the framework's own refusals (a body too long) our body.
async fn observe(State(service): State<Service>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let route = ROUTES
        .into_iter()
        .find(|&known| path == known || path.strip_prefix(known).is_some_and(|rest| rest.starts_with('/')));
    let mut response = next.run(request).await;
    if response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        response = ApiError::too_large(BODY_LIMIT).into_response();
    }
    service.metrics().request(route.unwrap_or("other"), response.status().as_u16());
    response
}
