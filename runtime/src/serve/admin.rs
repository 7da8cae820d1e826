//! Routes about the server itself.

use std::path::PathBuf;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use training_gym_core::ids::WeightVersion;
use training_gym_core::wire::ModelInfo;

use super::error::ApiError;
use super::fields::{Fields, whole};
use super::service::Service;

/// `GET /health`: whether the engine lives. Open to everyone, who is not told what it died of.
pub(super) async fn health(State(service): State<Service>) -> Response {
    health_after(service.engine().failure())
}

fn health_after(failure: Option<String>) -> Response {
    match failure {
        None => Json(json!({"status": "ok"})).into_response(),
        Some(_) => ApiError::unhealthy().into_response(),
    }
}

/// `GET /metrics`: Prometheus' text format.
pub(super) async fn metrics(State(service): State<Service>) -> Response {
    let text = service.metrics().render(&service.engine().stats());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// `GET /get_model_info`.
pub(super) async fn model_info(State(service): State<Service>) -> Json<ModelInfo> {
    Json(service.model_info())
}

/// `POST /flush_cache`. Nothing is kept between requests here, so nothing is to be forgotten.
pub(super) async fn flush_cache() -> &'static str {
    "Cache flushed.\n"
}

/// `POST /update_weights_from_disk`: `{"model_path", "weight_version"?}`. Responses that run go on
/// under the new weights; tokenizer and template stay. One update at a time; refused where there is no
/// token, since it reads any path and changes what everyone is answered.
pub(super) async fn update_weights(State(service): State<Service>, body: Bytes) -> Result<Response, ApiError> {
    if service.token().is_none() {
        let message = "this deployment has no token, so anyone could swap its weights; deploy it with one \
                       (`.unauthenticated(false)`, or `token` in its spec), or deploy the other weights anew";
        return Err(ApiError::forbidden(message));
    }
    let fields = Fields::parse(&body)?;
    let path =
        fields.text("model_path")?.ok_or_else(|| fields.refuse("model_path", "must be a folder with weights"))?;
    let folder = PathBuf::from(path);
    // Which version is next, which weights are in, and what is said of them agree.
    let _updating = service.updating().await;
    let version = match fields.get("weight_version") {
        None => service
            .engine()
            .stats()
            .weight_version
            .0
            .checked_add(1)
            .ok_or_else(|| fields.refuse("weight_version", "the present one is the last there is; name one"))?,
        Some(given) => version(given)
            .ok_or_else(|| fields.refuse("weight_version", "must be a whole number ≥ 0, as a number or a text"))?,
    };
    let replaced = service.engine().replace_weights(folder.clone(), WeightVersion(version)).await;
    Ok(match replaced {
        Ok(()) => {
            service.set_folder(&folder);
            tracing::info!(folder = %folder.display(), version, "new weights in place");
            let message = format!("weights of {} in place, version {version}", folder.display());
            Json(json!({"success": true, "message": message})).into_response()
        }
        Err(error) => {
            let message = format!("the old weights go on: {:#}", anyhow::Error::from(error));
            tracing::warn!(folder = %folder.display(), "{message}");
            let mut body = ApiError::bad(message.clone()).body();
            body["success"] = false.into();
            body["message"] = message.into();
            (StatusCode::BAD_REQUEST, Json(body)).into_response()
        }
    })
}

fn version(given: &Value) -> Option<u64> {
    match given {
        Value::String(text) => text.parse().ok(),
        other => whole(other).and_then(|number| u64::try_from(number).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn health_says_whether_and_not_why() {
        assert_eq!(health_after(None).status(), StatusCode::OK);
        let answer = health_after(Some("a panic about /home/person/model".to_owned()));
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        let body = axum::body::to_bytes(answer.into_body(), 1 << 16).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], "engine_stopped");
        assert!(!body.to_string().contains("panic") && !body.to_string().contains("person"), "{body}");
    }
}
