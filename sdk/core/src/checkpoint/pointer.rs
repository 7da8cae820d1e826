//! `latest.json`: the run's newest checkpoint, for whoever wants one read instead of a listing.
//!
//! It is also the fence between a run's attempts. A newer attempt puts its number there with
//! [`claim_latest`] before it does anything else, and every move is a compare-and-swap of a document
//! that still had no higher number: an older attempt that survived its node can never move it again.

use serde::{Deserialize, Serialize};

use super::{Error, Kind, latest, now};
use crate::ids::RunId;
use crate::store::{self, Store};

/// The pointer's content. It is a shortcut: the manifests are the truth, see [`super::latest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latest {
    /// The step of the newest checkpoint; 0 while there is none.
    pub step: u64,
    /// The newest attempt that claimed or moved the pointer; 0 in one written before attempts were noted.
    #[serde(default)]
    pub attempt: u64,
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
        Ok(object) => parse(&key, &object.bytes).map(|latest| Some(latest).filter(|latest| latest.step > 0)),
        Err(store::Error::NotFound { .. }) => Ok(None),
        Err(source) => Err(Error::Store { folder: key, source }),
    }
}

/// Puts `attempt` on the pointer, which stays where it is: from now on no older attempt moves it. A
/// damaged pointer is written anew from the manifests.
///
/// # Errors
/// [`Error::Superseded`] when a newer attempt has claimed it; or the store fails.
pub async fn claim_latest(store: &dyn Store, run: &RunId, attempt: u64) -> Result<(), Error> {
    let found = latest(store, Kind::Checkpoint, run).await;
    let newest = found.ok().flatten().map_or(0, |manifest| manifest.step);
    put(store, run, attempt, |current| match current {
        Some(current) if current.attempt == attempt => None,
        Some(current) => Some(current.step),
        None => Some(newest),
    })
    .await
    .map(drop)
}

/// Moves the pointer to `step` unless it is there or further already, and returns what it is then.
/// A damaged pointer is written anew.
///
/// # Errors
/// [`Error::Superseded`] when a newer attempt than `attempt` has claimed it: nothing has moved then.
/// Or the store fails.
pub async fn advance_latest(store: &dyn Store, run: &RunId, attempt: u64, step: u64) -> Result<Latest, Error> {
    put(store, run, attempt, |current| match current {
        Some(current) if current.step >= step => None,
        // One that cannot be read is replaced: the manifests are the truth.
        _ => Some(step),
    })
    .await
}

/// Writes the step that `decide` makes of the pointer as it is (`None`: absent or unreadable), in
/// the name of `attempt`; where it makes none, the pointer stays.
async fn put(
    store: &dyn Store,
    run: &RunId,
    attempt: u64,
    decide: impl Fn(Option<&Latest>) -> Option<u64>,
) -> Result<Latest, Error> {
    let key = key(run);
    let failed = |source| Error::Store { folder: key.clone(), source };
    // Each turn that does not end here is one in which somebody else wrote the pointer.
    loop {
        let there = match store.get(&key).await {
            Ok(object) => Some(object),
            Err(store::Error::NotFound { .. }) => None,
            Err(source) => return Err(failed(source)),
        };
        let current = there.as_ref().and_then(|object| parse(&key, &object.bytes).ok());
        if let Some(Latest { attempt: newer, .. }) = current
            && newer > attempt
        {
            return Err(Error::Superseded { run: run.clone(), attempt, newer });
        }
        let next = match (decide(current.as_ref()), current) {
            (Some(step), _) => Latest { step, attempt, updated_at: now() },
            (None, Some(current)) => return Ok(current),
            (None, None) => Latest { step: 0, attempt, updated_at: now() },
        };
        let document = serde_json::to_vec(&next)
            .map_err(|source| Error::Unreadable { key: key.clone(), source })
            .map(bytes::Bytes::from)?;
        let written = match &there {
            Some(object) => store.swap(&key, document, &object.etag).await,
            None => store.create(&key, document).await,
        };
        match written {
            Ok(_) => return Ok(next),
            Err(store::Error::Changed { .. } | store::Error::AlreadyExists { .. }) => {}
            Err(source) => return Err(failed(source)),
        }
    }
}
