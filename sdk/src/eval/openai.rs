//! Any server that speaks OpenAI's chat protocol.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;
use training_gym_core::sample::{FinishReason, Message};

use super::{ChatError, ChatTarget, Error};
use crate::backend::Secret;
use crate::config::Model;
use crate::deploy::chat::Body;
use crate::deploy::{ChatOptions, ChatReply, Usage};

/// What a server may answer; a longer answer is given up.
const LONGEST_ANSWER: usize = 64 << 20;
/// How long the list of models may take.
const MODELS_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest piece of an unexpected answer that is quoted.
const QUOTED: usize = 300;

/// A server that answers `/v1/chat/completions`: ours, vLLM, SGLang, llama.cpp, a provider's.
///
/// Only what is set in the [`ChatOptions`] is sent, so a strict server sees no field it does not know
/// unless it was asked for.
///
/// ```no_run
/// # async fn example() -> Result<(), training_gym::eval::Error> {
/// use training_gym::eval::ChatServer;
/// let server = ChatServer::new("http://127.0.0.1:8000")?.token_from("OPENAI_API_KEY")?.find_model().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ChatServer {
    /// Without `/v1` and without a slash at its end.
    base: String,
    model: String,
    token: Option<Secret>,
    client: reqwest::Client,
}

#[derive(Deserialize)]
struct Answer {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    message: Said,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    content: Option<String>,
    /// vLLM, in some versions, says `reasoning`.
    #[serde(default, alias = "reasoning")]
    reasoning_content: Option<String>,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Served>,
}

#[derive(Deserialize)]
struct Served {
    id: String,
}

/// Why a request gave no answer; never with a token in it.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("`{path}` got no answer")]
    Unreachable {
        path: &'static str,
        #[source]
        source: reqwest::Error,
    },
    #[error("`{path}` was refused with status {status}: {said}")]
    Refused { path: &'static str, status: u16, said: String },
    #[error("`{path}` was answered with something unreadable: {what}")]
    Unreadable { path: &'static str, what: String },
}

impl Fault {
    fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            Self::Unreadable { .. } => false,
        }
    }
}

impl ChatServer {
    /// The server at a URL: its root, its `/v1`, or the whole URL of its `/v1/chat/completions`.
    ///
    /// # Errors
    /// [`Error::Setting`] where it is no `http` or `https` URL, or holds a credential.
    pub fn new(url: &str) -> Result<Self, Error> {
        let refused = |rule: &str| Error::Setting { setting: "url", given: shown(url), rule: rule.to_owned() };
        let parsed = reqwest::Url::parse(url)
            .map_err(|_| refused("is a whole URL, such as http://127.0.0.1:8000 or https://host/v1"))?;
        if !["http", "https"].contains(&parsed.scheme()) || parsed.host_str().is_none() {
            return Err(refused("begins with http:// or https://"));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() || parsed.query().is_some() {
            return Err(refused("holds no credential and no query: name the token's variable instead"));
        }
        let base = url.trim_end_matches('/').trim_end_matches("/chat/completions").trim_end_matches("/v1");
        // A proxy of the environment is for the world, not for this machine.
        let here = matches!(parsed.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        let builder = if here { reqwest::Client::builder().no_proxy() } else { reqwest::Client::builder() };
        let client = builder.build().map_err(|error| refused(&format!("no client can be made for it ({error})")))?;
        Ok(Self { base: base.trim_end_matches('/').to_owned(), model: String::new(), token: None, client })
    }

    /// What the server calls the model.
    #[must_use]
    pub fn model(mut self, name: impl Into<String>) -> Self {
        self.model = name.into();
        self
    }

    /// Sends the bearer token that this environment variable holds.
    ///
    /// # Errors
    /// [`Error::Setting`] where the variable is not set.
    pub fn token_from(mut self, variable: &str) -> Result<Self, Error> {
        let token = std::env::var(variable).ok().filter(|token| !token.trim().is_empty());
        let token = token.ok_or_else(|| Error::Setting {
            setting: "token variable",
            given: variable.to_owned(),
            rule: "is set to the server's token; export it first".to_owned(),
        })?;
        self.token = Some(Secret::new(token.trim()));
        Ok(self)
    }

    /// Takes the one model that the server lists, where [`model`](Self::model) named none.
    ///
    /// # Errors
    /// [`Error::Setting`] where it cannot be asked, or lists none or several.
    pub async fn find_model(self) -> Result<Self, Error> {
        if !self.model.is_empty() {
            return Ok(self);
        }
        let refused = |rule: String| Error::Setting { setting: "model", given: "none".to_owned(), rule };
        let request = self.client.get(format!("{}/v1/models", self.base)).timeout(MODELS_TIMEOUT);
        let listed: Models = self.answer("/v1/models", request).await.map_err(|fault| {
            refused(format!(
                "the server's list of models cannot be had ({}): name it",
                training_gym_core::chain(&fault)
            ))
        })?;
        match listed.data.as_slice() {
            [only] => {
                let name = only.id.clone();
                Ok(self.model(name))
            }
            [] => Err(refused("the server lists no model: name one".to_owned())),
            several => {
                let names: Vec<&str> = several.iter().take(20).map(|served| served.id.as_str()).collect();
                Err(refused(format!("the server has several, name one of {}", names.join(", "))))
            }
        }
    }

    async fn answer<T: serde::de::DeserializeOwned>(
        &self,
        path: &'static str,
        request: reqwest::RequestBuilder,
    ) -> Result<T, Fault> {
        let unreachable = |source: reqwest::Error| Fault::Unreachable { path, source: source.without_url() };
        let request = match &self.token {
            Some(token) => request.bearer_auth(token.expose()),
            None => request,
        };
        let mut answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > LONGEST_ANSWER {
                return Err(Fault::Unreadable { path, what: format!("it has more than {LONGEST_ANSWER} bytes") });
            }
        }
        if !status.is_success() {
            return Err(Fault::Refused { path, status: status.as_u16(), said: said(&bytes) });
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| Fault::Unreadable { path, what: format!("{error}: {}", quote(&bytes)) })
    }
}

/// A URL for a message, without what may be a credential.
fn shown(url: &str) -> String {
    let place = url.split(['?', '#']).next().unwrap_or_default();
    place.rsplit_once('@').map_or_else(|| quote(place.as_bytes()), |(_, host)| format!("…@{}", quote(host.as_bytes())))
}

/// The words of an error's body.
fn said(body: &[u8]) -> String {
    let value = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let error = value.get("error").unwrap_or(&value);
    let text = error.get("message").or_else(|| value.get("detail")).unwrap_or(error).as_str();
    text.map_or_else(|| quote(body), |text| quote(text.as_bytes()))
}

fn quote(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(4 * QUOTED)]).chars().take(QUOTED).collect()
}

impl fmt::Debug for ChatServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ChatServer").field("url", &self.base).field("model", &self.model).finish_non_exhaustive()
    }
}

#[async_trait]
impl ChatTarget for ChatServer {
    fn name(&self) -> String {
        if self.model.is_empty() { self.base.clone() } else { self.model.clone() }
    }

    async fn reply(&self, messages: &[Message], options: &ChatOptions) -> Result<ChatReply, ChatError> {
        const PATH: &str = "/v1/chat/completions";
        let body = Body { model: &self.model, messages, options };
        let request = self.client.post(format!("{}{PATH}", self.base)).timeout(options.timeout).json(&body);
        let failed = |fault: Fault| ChatError { transient: fault.is_transient(), source: fault.into() };
        let answer: Answer = self.answer(PATH, request).await.map_err(failed)?;
        let choice = answer.choices.into_iter().next();
        let choice =
            choice.ok_or_else(|| failed(Fault::Unreadable { path: PATH, what: "it has no choices".to_owned() }))?;
        let content = choice.message.content.unwrap_or_default();
        let (content, reasoning_content) = match choice.message.reasoning_content {
            Some(reasoning) => (content, Some(reasoning).filter(|text| !text.is_empty())),
            None => {
                let parsed = Model::hub(&self.model).parse_response(&content);
                (parsed.content, parsed.reasoning_content)
            }
        };
        // Some servers stop for reasons of their own; only the length limit is a truncated reply.
        let finish_reason =
            if choice.finish_reason.as_deref() == Some("length") { FinishReason::Length } else { FinishReason::Stop };
        Ok(ChatReply { content, reasoning_content, finish_reason, usage: answer.usage.unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use axum::Json;
    use axum::http::{HeaderMap, StatusCode};
    use axum::routing::{get, post};
    use serde_json::json;

    use super::*;

    async fn serve(router: axum::Router) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    async fn chat(headers: HeaderMap, Json(body): Json<Value>) -> (StatusCode, Json<Value>) {
        if body["messages"][0]["content"] == "busy" {
            return (StatusCode::TOO_MANY_REQUESTS, Json(json!({"error": {"message": "later"}})));
        }
        let key = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or("none").to_owned();
        let said = json!({"body": body, "key": key}).to_string();
        let choice = json!({"message": {"content": said, "reasoning": "hm"}, "finish_reason": "length"});
        (StatusCode::OK, Json(json!({"choices": [choice]})))
    }

    #[tokio::test]
    async fn a_foreign_server_is_asked_with_what_is_set_alone() {
        let models = || async { Json(json!({"data": [{"id": "m"}]})) };
        let url = serve(axum::Router::new().route("/v1/models", get(models)).route("/v1/chat/completions", post(chat)));
        let url = url.await;
        for given in [url.clone(), format!("{url}/v1/"), format!("{url}/v1/chat/completions")] {
            let server = ChatServer::new(&given).unwrap().find_model().await.unwrap();
            assert_eq!(server.name(), "m");
            let options = ChatOptions { temperature: Some(0.5), ..ChatOptions::default() };
            let reply = server.reply(&[Message::user("hi")], &options).await.unwrap();
            let said: Value = serde_json::from_str(&reply.content).unwrap();
            let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5});
            assert_eq!((&said["body"], said["key"].as_str()), (&body, Some("none")));
            assert_eq!(reply.reasoning_content.as_deref(), Some("hm"));
            assert_eq!((reply.finish_reason, reply.usage), (FinishReason::Length, Usage::default()));
        }
        let mut server = ChatServer::new(&url).unwrap().model("m");
        server.token = Some(Secret::new("t0ken"));
        let error = server.reply(&[Message::user("busy")], &ChatOptions::default()).await.unwrap_err();
        let text = training_gym_core::chain(&*error.source);
        assert!(error.transient && text.contains("429") && text.contains("later") && !text.contains("t0ken"), "{text}");
        assert!(!format!("{server:?}").contains("t0ken"));
    }

    #[tokio::test]
    async fn a_server_that_cannot_be_used_is_refused_with_the_remedy() {
        let two = || async { Json(json!({"data": [{"id": "a"}, {"id": "b"}]})) };
        let url = serve(axum::Router::new().route("/v1/models", get(two))).await;
        let error = ChatServer::new(&url).unwrap().find_model().await.unwrap_err().to_string();
        assert!(error.contains("name one of a, b"), "{error}");
        for bad in [
            "host:80",
            "ftp://x",
            "http://user:s3cret@host/v1",
            "http://u:p@s3cret@h",
            "https://host/v1?key=s3cret",
            "",
        ] {
            let error = ChatServer::new(bad).unwrap_err().to_string();
            assert!(error.contains("`url`") && !error.contains("s3cret"), "{bad}: {error}");
        }
        let error = ChatServer::new("http://h").unwrap().token_from("GYM_NO_SUCH_VARIABLE").unwrap_err().to_string();
        assert!(error.contains("GYM_NO_SUCH_VARIABLE"), "{error}");
        let gone = ChatServer::new("http://127.0.0.1:1").unwrap().model("m");
        let error = gone.reply(&[Message::user("x")], &ChatOptions::default()).await.unwrap_err();
        assert!(error.transient, "it may come");
    }
}
