//! `latest.json`: the run's newest checkpoint, for whoever wants one read instead of a listing.

use serde::{Deserialize, Serialize};

use super::{Error, now};
use crate::ids::RunId;
use crate::store::{self, Store};

/// The pointer's content. It is a shortcut: the manifests are the truth, see [`super::latest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latest {
    /// The step of the newest checkpoint.
    pub step: u64,
    /// Unix seconds of when it became so.
    pub updated_at: f64,
}

fn key(run: &RunId) -> String {
    format!("runs/{run}/latest.json")
}

fn parse(key: &str, bytes: &[u8]) -> Result<Latest, Error> {
    serde_json::from_slice(bytes).map_err(|source| Error::Unreadable { key: key.to_owned(), source })
}

/// Reads the pointer; `None` before the first checkpoint.
///
/// # Errors
/// When the store fails or the pointer cannot be read.
pub async fn latest_pointer(store: &dyn Store, run: &RunId) -> Result<Option<Latest>, Error> {
    let key = key(run);
    match store.get(&key).await {
        Ok(object) => parse(&key, &object.bytes).map(Some),
        Err(store::Error::NotFound { .. }) => Ok(None),
        Err(source) => Err(Error::Store { folder: key, source }),
    }
}

/// Moves the pointer to `step` unless it is there or further already, and returns what it is then.
/// An old trainer that woke up late moves nothing back; a damaged pointer is written anew.
///
/// # Errors
/// When the store fails.
pub async fn advance_latest(store: &dyn Store, run: &RunId, step: u64) -> Result<Latest, Error> {
    let key = key(run);
    let next = Latest { step, updated_at: now() };
    let document = serde_json::to_vec(&next)
        .map_err(|source| Error::Unreadable { key: key.clone(), source })
        .map(bytes::Bytes::from)?;
    // Each turn that does not end here is one in which somebody else moved the pointer forward.
    loop {
        let written = match store.get(&key).await {
            Ok(object) => {
                // One that cannot be read is replaced: the manifests are the truth.
                if let Ok(current) = parse(&key, &object.bytes)
                    && current.step >= step
                {
                    return Ok(current);
                }
                store.swap(&key, document.clone(), &object.etag).await
            }
            Err(store::Error::NotFound { .. }) => store.create(&key, document.clone()).await,
            Err(error) => Err(error),
        };
        match written {
            Ok(_) => return Ok(next),
            Err(store::Error::Changed { .. } | store::Error::AlreadyExists { .. }) => {}
            Err(source) => return Err(Error::Store { folder: key, source }),
        }
    }
}
