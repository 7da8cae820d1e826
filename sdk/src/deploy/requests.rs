//! One request to a deployment, and what its answer means.

use std::time::Duration;

use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Deployment, Error};

/// A server that is up answers `/health` at once.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest piece of an unexpected answer that is quoted.
const QUOTED: usize = 300;

/// Whether it answers `/health` with success.
pub(super) async fn healthy(deployment: &Deployment) -> bool {
    let Ok(url) = deployment.url() else { return false };
    let request = deployment.inner.client.get(format!("{url}/health")).timeout(HEALTH_TIMEOUT);
    matches!(request.send().await, Ok(answer) if answer.status().is_success())
}

/// Posts `body` as JSON and reads the answer's bytes. A deployment that is still starting is waited
/// for.
pub(super) async fn post_raw<B: Serialize + Sync>(
    deployment: &Deployment,
    path: &'static str,
    body: &B,
    timeout: Duration,
) -> Result<Vec<u8>, Error> {
    let app_name = deployment.app_name().to_string();
    let url = deployment.address(timeout).await?;
    let mut request = deployment.inner.client.request(Method::POST, format!("{url}{path}")).timeout(timeout).json(body);
    if let Some(token) = deployment.token() {
        request = request.bearer_auth(token.expose());
    }
    let unreachable = |source: reqwest::Error| Error::Unreachable {
        app_name: app_name.clone(),
        path,
        source: source.without_url().into(),
    };
    let answer = async {
        let answer = request.send().await?;
        Ok((answer.status(), answer.bytes().await?))
    };
    let (status, bytes) = match answer.await {
        Ok(answer) => answer,
        Err(error) => return Err(deployment.unanswered(unreachable(error)).await),
    };
    if !status.is_success() {
        return Err(Error::Refused { app_name, path, status: status.as_u16(), message: message(&bytes) });
    }
    Ok(bytes.into())
}

/// [`post_raw`], the answer as `T`.
pub(super) async fn post<B: Serialize + Sync, T: DeserializeOwned>(
    deployment: &Deployment,
    path: &'static str,
    body: &B,
    timeout: Duration,
) -> Result<T, Error> {
    let bytes = post_raw(deployment, path, body, timeout).await?;
    serde_json::from_slice(&bytes).map_err(|error| unreadable(deployment, path, &format!("{error}: {}", quote(&bytes))))
}

pub(super) fn unreadable(deployment: &Deployment, path: &'static str, what: &str) -> Error {
    Error::Unreadable { app_name: deployment.app_name().to_string(), path, what: what.to_owned() }
}

/// The words of an error body: OpenAI's `error.message`, FastAPI's `detail`, or the body itself.
fn message(body: &[u8]) -> String {
    let said = serde_json::from_slice::<Value>(body).ok().and_then(|value| {
        let error = value.get("error").unwrap_or(&value);
        let text = error.get("message").or_else(|| value.get("detail")).or(Some(error))?;
        text.as_str().map(str::to_owned)
    });
    said.unwrap_or_else(|| quote(body))
}

fn quote(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let mut quoted: String = text.chars().take(QUOTED).collect();
    if quoted.len() < text.len() {
        quoted.push('…');
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_body_is_read_in_each_dialect() {
        assert_eq!(message(br#"{"error": {"message": "full", "code": 429}}"#), "full");
        assert_eq!(message(br#"{"error": "full"}"#), "full");
        assert_eq!(message(br#"{"detail": "full"}"#), "full");
        assert_eq!(message(b"<html>bad gateway"), "<html>bad gateway");
        assert_eq!(message("é".repeat(400).as_bytes()).chars().count(), QUOTED + 1);
    }
}
