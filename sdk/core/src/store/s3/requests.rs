//! One request and its attempts, and the operations that are one request.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::future::Future;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};

use super::client::{Clients, endpoint_of_environment};
use super::limits::{Attempts, S3Limits};
use super::profile::Profile;
use super::sorting::{self, Asked};
use super::tail::Tail;
use crate::store::fault::{Fault, FaultKind};
use crate::store::{ETag, Error, ObjectMeta};

/// The longest key that S3 takes, in bytes, with the store's prefix.
const LONGEST_KEY: usize = 1024;
/// The sha256 of an object's content, in its metadata.
pub(super) const SHA256: &str = "gym-sha256";
/// Which write an object came from, in its metadata.
pub(super) const WRITE: &str = "gym-write";

/// The part of a bucket that is a store.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) profile: Profile,
    pub(super) url: String,
    pub(super) limits: S3Limits,
    /// Whom requests go to, for the words.
    endpoint: String,
    clients: Clients,
    /// Whether the endpoint has answered anything.
    proven: AtomicBool,
    /// Logs that this store wrote last, by key.
    pub(super) tails: Mutex<HashMap<String, Tail>>,
    /// Whether the server was seen to copy parts; false once it refused.
    pub(super) copies: AtomicBool,
}

/// What is being done, for the words and the time.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    action: &'static str,
    permission: &'static str,
    pub(super) key: String,
    /// Bytes that the request or its answer carries.
    bytes: u64,
}

impl Ask {
    pub(super) fn new(action: &'static str, permission: &'static str, key: &str) -> Self {
        Self { action, permission, key: key.to_owned(), bytes: 0 }
    }

    /// The same for a request that carries `bytes`.
    pub(super) fn carrying(&self, bytes: u64) -> Self {
        Self { bytes, ..self.clone() }
    }
}

/// An object, as its metadata describes it.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) etag: String,
    pub(super) size: u64,
    pub(super) sha256: Option<String>,
    pub(super) write: Option<String>,
}

impl Bucket {
    pub(super) fn new(profile: Profile, limits: S3Limits) -> Self {
        let endpoint = profile.endpoint.clone().or_else(endpoint_of_environment);
        let endpoint = endpoint.unwrap_or_else(|| match &profile.region {
            Some(region) => format!("AWS S3 ({region})"),
            None => "AWS S3".to_owned(),
        });
        Self {
            url: profile.url(),
            profile,
            limits,
            endpoint,
            clients: Clients::default(),
            proven: AtomicBool::new(false),
            tails: Mutex::default(),
            copies: AtomicBool::new(true),
        }
    }

    /// The object's key in the bucket.
    pub(super) fn key(&self, key: &str) -> String {
        self.profile.key(key)
    }

    pub(super) fn asked(&self, ask: &Ask) -> Asked<'_> {
        Asked { profile: &self.profile, endpoint: &self.endpoint, permission: ask.permission }
    }

    /// The error that a caller of the store gets.
    pub(super) fn error(&self, ask: &Ask, fault: Fault) -> Error {
        let (key, store) = (ask.key.clone(), self.url.clone());
        match fault.kind {
            FaultKind::NoObject => Error::NotFound { key, store },
            _ => Error::Remote { action: ask.action, key, store, fault: Box::new(fault) },
        }
    }

    pub(super) fn sort<E>(&self, ask: &Ask, error: &SdkError<E, HttpResponse>) -> Fault
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        sorting::sort(error, self.asked(ask))
    }

    /// One attempt, within its time.
    pub(super) async fn attempt<T, F>(&self, ask: &Ask, call: impl FnOnce(Client) -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let client = self.clients.of_this_runtime(&self.profile, &self.limits).await;
        let time = self.limits.time(ask.bytes);
        let outcome = tokio::time::timeout(time, call(client)).await;
        let outcome = outcome.unwrap_or_else(|_| {
            let within = format!(": not within {:.0} s", time.as_secs_f64().ceil());
            Err(sorting::timed_out(Some(&within), self.asked(ask)))
        });
        if outcome.as_ref().err().is_none_or(|fault| fault.kind.is_an_answer()) {
            self.proven.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// Attempts until one succeeds, none may help any more, or the limits are reached.
    pub(super) async fn attempts<T, F>(&self, ask: &Ask, call: impl Fn(Client) -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let mut attempts = Attempts::new(&self.limits);
        loop {
            match self.attempt(ask, &call).await {
                Ok(value) => return Ok(value),
                Err(fault) => self.pause(ask, &mut attempts, fault).await?,
            }
        }
    }

    /// Waits before another attempt.
    ///
    /// # Errors
    /// The fault, where there is to be none.
    pub(super) async fn pause(&self, ask: &Ask, attempts: &mut Attempts<'_>, fault: Fault) -> Result<(), Fault> {
        let sentence = fault.sentence.clone();
        let pause: Duration = attempts.failed(fault, self.proven.load(Ordering::Relaxed))?;
        tracing::debug!(pause = ?pause, "cannot {} `{}` yet: {sentence}", ask.action, ask.key);
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// One look at an object's metadata: `None` where it is not there or cannot be asked now.
    pub(super) async fn peek(&self, key: &str) -> Option<Head> {
        let ask = Ask::new("read", "s3:GetObject", key);
        let (bucket, key) = (&self.profile.bucket, self.key(key));
        let call = async |client: Client| {
            let answer = client.head_object().bucket(bucket).key(&key).send().await;
            let answer = answer.map_err(|error| self.sort(&ask, &error))?;
            let metadata = answer.metadata();
            Ok(Head {
                etag: plain(answer.e_tag().unwrap_or_default()),
                size: answer.content_length().and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
                sha256: metadata.and_then(|all| all.get(SHA256)).cloned(),
                write: metadata.and_then(|all| all.get(WRITE)).cloned(),
            })
        };
        let mut attempts = Attempts::new(&self.limits);
        for _ in 0..3 {
            match self.attempt(&ask, call).await {
                Ok(head) => return Some(head),
                Err(fault) => self.pause(&ask, &mut attempts, fault).await.ok()?,
            }
        }
        None
    }

    /// All objects whose key begins with `prefix`, in key order.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, Error> {
        let ask = Ask::new("list", "s3:ListBucket", prefix);
        let (root, mut found) = (self.key(""), Vec::new());
        let under = format!("{root}{prefix}");
        let mut page: Option<String> = None;
        loop {
            let answer = self
                .attempts(&ask, |client| {
                    let request = client.list_objects_v2().bucket(&self.profile.bucket).prefix(&under);
                    let request = request.set_continuation_token(page.clone());
                    let ask = &ask;
                    async move { request.send().await.map_err(|error| self.sort(ask, &error)) }
                })
                .await
                .map_err(|fault| self.error(&ask, fault))?;
            for object in answer.contents() {
                let key = object.key().and_then(|key| key.strip_prefix(&root)).unwrap_or_default();
                // What a console made as a "folder" is no object of ours.
                if key.starts_with(prefix) && check_key(key).is_ok() {
                    let size = object.size().and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
                    let version = object.e_tag().map(|tag| ETag(plain(tag)));
                    found.push(ObjectMeta { key: key.to_owned(), size, version });
                }
            }
            let next = answer.next_continuation_token().map(str::to_owned);
            if !answer.is_truncated().unwrap_or(false) {
                break;
            }
            if next.is_none() || next == page {
                let sentence = format!("{} says that its listing goes on, and not where", self.endpoint);
                let fault = Fault::new(FaultKind::Unsupported, sentence, "use a server that lists by pages");
                return Err(self.error(&ask, fault));
            }
            page = next;
        }
        // Not every server's order is that of bytes.
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        found.dedup_by(|a, b| a.key == b.key);
        Ok(found)
    }

    /// Removes an object; one that is not there is no error.
    pub(super) async fn delete(&self, ask: &Ask) -> Result<(), Error> {
        let key = self.key(&ask.key);
        let outcome = self
            .attempts(ask, |client| {
                let request = client.delete_object().bucket(&self.profile.bucket).key(&key);
                async move { request.send().await.map_err(|error| self.sort(ask, &error)) }
            })
            .await;
        match outcome {
            Ok(_) => Ok(()),
            Err(fault) if fault.kind == FaultKind::NoObject => Ok(()),
            Err(fault) => Err(self.error(ask, fault)),
        }
    }
}

/// A tag without the marks that some servers put around it and others do not.
pub(super) fn plain(etag: &str) -> String {
    etag.trim_start_matches("W/").trim_matches('"').to_owned()
}

/// A tag as a header has it.
pub(super) fn quoted(etag: &str) -> String {
    format!("\"{}\"", plain(etag))
}

/// As every store's keys, and none that a listing could not give back.
pub(super) fn check_key(key: &str) -> Result<(), Error> {
    crate::store::check_key(key)?;
    let rule = if key.chars().any(char::is_control) {
        "S3 cannot list keys with control characters; choose another key".to_owned()
    } else if key.len() > LONGEST_KEY {
        format!("S3 takes keys of up to {LONGEST_KEY} bytes, and this one has {}", key.len())
    } else {
        return Ok(());
    };
    Err(Error::Invalid { what: "store key", given: key.to_owned(), rule })
}
