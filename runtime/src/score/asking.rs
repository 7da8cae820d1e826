//! Asking the person's program, so that one call cannot hurt another's.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{RwLock, Semaphore};
use training_gym_core::chain;

use super::Error;
use super::worker::{Connection, Worker};

/// Asks a worker: so many calls at once, each of so long.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) worker: Worker,
    timeout: Duration,
    slots: Semaphore,
    /// Read by ordinary calls, held alone by a call that is asked again.
    pub(super) alone: RwLock<()>,
}

/// What came of a call.
#[derive(Debug)]
pub(super) enum Answer<T> {
    Reply(T),
    /// The program does not have what was asked for.
    Unknown,
    TimedOut,
    /// The reply has more bytes than it may.
    TooLong,
    Died(String),
}

impl<T> Answer<T> {
    /// Why there is no reply, as a sample's reason.
    pub(super) fn reason(&self, timeout: Duration) -> String {
        match self {
            Self::Reply(_) => "it answered".to_owned(),
            Self::Unknown => "the worker no longer has the function".to_owned(),
            Self::TimedOut => format!("it took longer than {} s", timeout.as_secs_f64()),
            Self::TooLong => "its answer has more bytes than are taken".to_owned(),
            Self::Died(error) => format!("its worker died while it ran alone ({error})"),
        }
    }
}

/// What is asked.
#[derive(Debug)]
pub(super) struct Call<'a, B> {
    /// `/reward/NAME`, say.
    pub(super) path: String,
    pub(super) body: &'a B,
    /// Bytes the reply may have.
    pub(super) most: usize,
}

impl Asking {
    pub(super) fn new(worker: Worker, timeout_secs: f64, max_concurrency: usize) -> Self {
        Self {
            worker,
            timeout: Duration::from_secs_f64(timeout_secs),
            slots: Semaphore::new(max_concurrency.max(1)),
            alone: RwLock::new(()),
        }
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Asks beside others; if the worker dies meanwhile, nobody knows of which call, and this one is asked
    /// again alone.
    ///
    /// # Errors
    /// Only when no worker can be had at all.
    pub(super) async fn ask<B: Serialize, T: DeserializeOwned>(&self, call: &Call<'_, B>) -> Result<Answer<T>, Error> {
        let _slot = self.slots.acquire().await;
        let shared = {
            let _shared = self.alone.read().await;
            self.ask_and_clear(call).await?
        };
        match shared {
            Answer::Died(_) => {
                let _alone = self.alone.write().await;
                self.ask_and_clear(call).await
            }
            answer => Ok(answer),
        }
    }

    /// Asks, and ends a worker that did not answer: whatever hangs may hold one of its threads for
    /// good, and one whose connection broke may still be on its way out. The caller holds its side
    /// of `alone` meanwhile, so nobody who is asked alone is ever hit by another's kill.
    async fn ask_and_clear<B: Serialize, T: DeserializeOwned>(&self, call: &Call<'_, B>) -> Result<Answer<T>, Error> {
        let Connection { generation, client } = self.worker.connect().await?;
        let answer = self.ask_once(&client, call).await;
        if matches!(answer, Answer::TimedOut | Answer::Died(_)) {
            self.worker.kill(generation).await;
        }
        Ok(answer)
    }

    async fn ask_once<B: Serialize, T: DeserializeOwned>(
        &self,
        client: &reqwest::Client,
        call: &Call<'_, B>,
    ) -> Answer<T> {
        let asked = async {
            let mut response = client.post(format!("http://worker{}", call.path)).json(call.body).send().await?;
            if response.status() == reqwest::StatusCode::NOT_FOUND {
                return Ok(Answer::Unknown);
            }
            response = response.error_for_status()?;
            let mut bytes = Vec::new();
            while let Some(chunk) = response.chunk().await? {
                if bytes.len() + chunk.len() > call.most {
                    return Ok(Answer::TooLong);
                }
                bytes.extend_from_slice(&chunk);
            }
            Ok(match serde_json::from_slice(&bytes) {
                Ok(reply) => Answer::Reply(reply),
                Err(error) => Answer::Died(error.to_string()),
            })
        };
        match tokio::time::timeout(self.timeout, asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Answer::Died(chain(&reqwest::Error::without_url(error))),
            Err(_) => Answer::TimedOut,
        }
    }
}
