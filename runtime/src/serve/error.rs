//! What a client is told when a request is not answered: OpenAI's error body.

use axum::Json;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::rollout::Refusal;
use crate::text;

/// Seconds after which a client may try again when the queue was full.
const RETRY_SECONDS: u64 = 1;

/// A refusal or failure as HTTP: `{"error": {"message", "type", "param", "code"}}`.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None }
    }

    /// 400: the request cannot be meant.
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 about one field.
    pub(super) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::bad(message) }
    }

    /// 401: no key, or a wrong one.
    pub(super) fn unauthorised() -> Self {
        let message = "the bearer token is missing or wrong; send `Authorization: Bearer <token of this deployment>`";
        Self { code: Some("invalid_api_key"), ..Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message) }
    }

    /// 403: what this deployment does for nobody.
    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message)
    }

    /// 404: no such model or path.
    pub(super) fn absent(code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message) }
    }

    /// 405: the path knows another method.
    pub(super) fn method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "this path does not take this method")
    }

    /// 408: the body did not arrive.
    pub(super) fn slow(patience: std::time::Duration) -> Self {
        let message = format!("the request body did not arrive within {} s; send it at once", patience.as_secs());
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// 413: the body is longer than `limit` bytes.
    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!("the request body is longer than {limit} bytes; split the batch");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// 500: ours.
    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// 503: too much waits to be answered; `what` says of what.
    pub(super) fn busy(what: &str) -> Self {
        let message = format!("{what}; try again later");
        Self { code: Some("queue_full"), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message) }
    }

    /// 503: the engine is gone, to somebody who may know no more.
    pub(super) fn unhealthy() -> Self {
        let message = "the engine has stopped; its log says why, and so does every other route";
        Self { code: Some("engine_stopped"), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message) }
    }

    /// 503: the engine is gone.
    pub(super) fn stopped(cause: &str) -> Self {
        let message = format!("the engine has stopped: {cause}; start the deployment again");
        Self { code: Some("engine_stopped"), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message) }
    }

    /// The body.
    pub(super) fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::QueueFull { .. } | Refusal::ScoringFull { .. } => {
                Self { code: Some("queue_full"), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message) }
            }
            Refusal::TooLong { .. } => Self { code: Some("context_length_exceeded"), ..Self::bad(message) },
            Refusal::Sampling { field, .. } => Self::field(field, message),
            Refusal::EngineStopped { cause } => Self::stopped(&cause),
            _ => Self::bad(message),
        }
    }
}

impl From<text::Error> for ApiError {
    fn from(error: text::Error) -> Self {
        match &error {
            text::Error::Template { .. } | text::Error::NoTemplate { .. } => Self::field("messages", error.to_string()),
            text::Error::Encode { .. } => Self::bad(error.to_string()),
            _ => Self::internal(error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.code == Some("queue_full") {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
