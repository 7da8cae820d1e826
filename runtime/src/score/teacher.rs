//! The teacher's log-probabilities of the student's responses, over HTTP.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{StatusCode, Url};
use tokio::sync::Semaphore;
use training_gym_core::chain;
use training_gym_core::spec::{TeacherDialect, TeacherSpec};
use training_gym_core::wire::ModelInfo;
use training_gym_core::wire::teacher::{
    self, Answer, PROBE_TOKENS, Sequence, check_probe, compare_models, probe_sequence,
};

use super::Error;
use crate::batch::Rollout;

/// Tries of one request before it counts as failed; the pauses between them add up to 31 s.
const TRIES: u32 = 6;

/// Asks a teacher's server.
#[derive(Debug)]
pub struct Teacher {
    spec: TeacherSpec,
    token: Option<String>,
    client: reqwest::Client,
    slots: Semaphore,
}

/// A failed try.
enum Failed {
    /// Worth another try, after the pause the server asked for, if it did.
    Transient(String, Option<Duration>),
    /// Not worth one; with the status it came with, if it did.
    Final(String, Option<StatusCode>),
}

impl Teacher {
    /// A client with one connection pool. `token` is sent as a bearer token.
    ///
    /// # Errors
    /// [`Error::Teacher`] when no client can be made.
    pub fn new(spec: TeacherSpec, token: Option<String>) -> Result<Self, Error> {
        let mut builder = reqwest::Client::builder().timeout(Duration::from_secs_f64(spec.timeout_secs));
        if is_loopback(&spec.url) {
            // A proxy of the environment cannot reach this machine's own servers.
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| Error::Teacher { url: spec.url.clone(), what: chain(&error) })?;
        let slots = Semaphore::new(spec.max_concurrency.max(1));
        Ok(Self { spec, token, client, slots })
    }

    /// Responses that go into one request. They are scored together.
    pub fn batch_size(&self) -> usize {
        self.spec.batch_size.max(1)
    }

    /// Likeliest tokens it names a position.
    fn top(&self) -> usize {
        self.spec.top_k.map_or(0, |top| top.k)
    }

    /// log π_teacher of each token of each rollout that the student drew, `[M]`, and the likeliest tokens there,
    /// where they are learnt from.
    ///
    /// # Errors
    /// [`Error::Teacher`] after the last try, or at once for an answer that is wrong rather than late.
    pub async fn score(&self, rollouts: &[Rollout]) -> Result<Vec<Answer>, Error> {
        let tokens: Vec<(Vec<i64>, usize)> = rollouts
            .iter()
            .map(|rollout| {
                let ids = [&rollout.prompt.prompt_ids[..], &rollout.response_ids[..]].concat();
                (ids, rollout.response_ids.len())
            })
            .collect();
        let sequences: Vec<Sequence<'_>> = tokens
            .iter()
            .map(|(ids, response)| Sequence::new(ids, *response))
            .collect::<Result<_, _>>()
            .map_err(|error| self.error(error.to_string()))?;
        let body = self.ask(&sequences).await?;
        let scored = teacher::response_answers(self.spec.dialect, &sequences, self.top(), &body)
            .map_err(|error| self.error(chain(&error)))?;
        scored
            .into_iter()
            .zip(rollouts)
            .map(|(scored, rollout)| {
                let scored =
                    scored.map_err(|error| self.error(format!("sample {}: {}", rollout.index, chain(&error))))?;
                let top = scored.top.map(|top| top.only(&rollout.response_mask));
                Ok(Answer { logprobs: rollout.of_drawn(scored.logprobs), top })
            })
            .collect()
    }

    /// Before the first step: does it score at all, and does it speak the student's tokens? Returns
    /// notes for the run's status.
    ///
    /// # Errors
    /// [`Error::Teacher`] when it cannot teach this student.
    pub async fn probe(&self, student: &ModelInfo, probe: &[i64; PROBE_TOKENS]) -> Result<Vec<String>, Error> {
        let sequence = [probe_sequence(probe)];
        let body = self.ask(&sequence).await?;
        let mut scored = teacher::response_answers(self.spec.dialect, &sequence, self.top(), &body)
            .map_err(|error| self.error(chain(&error)))?;
        check_probe(scored.remove(0).map(|answer| answer.logprobs)).map_err(|error| self.error(chain(&error)))?;
        let info = self.model_info().await?.unwrap_or_else(|| ModelInfo {
            model_path: self.spec.url.clone(),
            is_generation: true,
            eos_token_ids: None,
            vocab_sha256: None,
            context_length: None,
            weight_version: None,
        });
        compare_models(student, &info).map_err(|error| self.error(error.to_string()))
    }

    /// What the server says of its model; one that has no such route does not say, which is no
    /// fault. Any other failure is one.
    async fn model_info(&self) -> Result<Option<ModelInfo>, Error> {
        if self.spec.dialect != TeacherDialect::Sglang {
            return Ok(None);
        }
        let url = Url::parse(&self.spec.url)
            .and_then(|url| url.join("get_model_info"))
            .map_err(|error| self.error(format!("its URL is none: {error}")))?;
        match self.with_retries(|| self.client.get(url.clone())).await {
            Ok(body) => serde_json::from_slice(&body)
                .map(Some)
                .map_err(|error| self.error(format!("/get_model_info answered something else: {error}"))),
            Err(Failed::Final(_, Some(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED))) => Ok(None),
            Err(Failed::Transient(what, _) | Failed::Final(what, _)) => {
                Err(self.error(format!("/get_model_info: {what}")))
            }
        }
    }

    async fn ask(&self, sequences: &[Sequence<'_>]) -> Result<Vec<u8>, Error> {
        let body = serde_json::to_vec(&teacher::request_top(self.spec.dialect, sequences, None, self.top()))
            .map_err(|error| self.error(error.to_string()))?;
        let _slot = self.slots.acquire().await;
        let request = || self.client.post(&self.spec.url).header(CONTENT_TYPE, "application/json").body(body.clone());
        self.with_retries(request).await.map_err(|failed| match failed {
            Failed::Transient(what, _) => self.error(format!("{what} ({TRIES} tries)")),
            Failed::Final(what, _) => self.error(what),
        })
    }

    /// The body of the first successful answer; else the last failure.
    async fn with_retries(&self, request: impl Fn() -> reqwest::RequestBuilder) -> Result<Vec<u8>, Failed> {
        let mut pause = Duration::from_secs(1);
        let mut attempt = 1;
        loop {
            match self.send(request()).await {
                Err(Failed::Transient(what, asked)) if attempt < TRIES => {
                    let wait = asked.unwrap_or(pause).min(Duration::from_secs(60));
                    tracing::warn!("teacher: {what}; asking again in {:.0} s", wait.as_secs_f64());
                    tokio::time::sleep(wait).await;
                    pause *= 2;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    async fn send(&self, mut request: reqwest::RequestBuilder) -> Result<Vec<u8>, Failed> {
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let late = |error: reqwest::Error| Failed::Transient(chain(&error.without_url()), None);
        let response = request.send().await.map_err(late)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response.bytes().await.map_err(late)?.to_vec());
        }
        let asked = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let words: String = response.text().await.unwrap_or_default().chars().take(300).collect();
        let what = format!("answered {status}: {words}");
        if status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT) {
            return Err(Failed::Transient(what, asked));
        }
        let what = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                format!("{what}; the token is missing or wrong: check the teacher's credential in recipe.opd")
            }
            StatusCode::NOT_FOUND => {
                format!("{what}; the URL must end in /generate (SGLang) or /v1/completions (vLLM)")
            }
            _ => what,
        };
        Err(Failed::Final(what, Some(status)))
    }

    fn error(&self, what: String) -> Error {
        Error::Teacher { url: self.spec.url.clone(), what }
    }
}

/// Whether `url` names this machine itself.
fn is_loopback(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests;
