//! `runs/ID/spec.json`: written once; a later launch of the same run must mean the same.

use bytes::Bytes;
use serde_json::Value;
use training_gym_core::ids::RunId;
use training_gym_core::record::keys;
use training_gym_core::spec::{RunSpec, VersionedRunSpec};
use training_gym_core::store::{self, Object};

use super::Error;
use super::launch::known;
use crate::backend::JobId;
use crate::backend::difference::first_difference;
use crate::gym::Gym;

/// Writes the spec if it is the run's first; otherwise checks that it is the same.
///
/// The teacher's address may change, since a restarted deployment has another port: it says *where*,
/// not *what*. It is then renewed, unless the run is running.
pub(super) async fn settle(gym: &Gym, spec: RunSpec) -> Result<RunSpec, Error> {
    let key = keys::spec(&spec.run_id);
    let bytes = bytes_of(&key, &spec)?;
    match gym.store().create(&key, bytes.clone()).await {
        Ok(_) => return Ok(spec),
        Err(store::Error::AlreadyExists { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let object = gym.store().get(&key).await?;
    let stored = parse(&key, &object)?;
    if stored == spec {
        return Ok(stored);
    }
    if let Some(found) = first_difference(&without_address(&key, &stored)?, &without_address(&key, &spec)?) {
        let (field, stored, asked) = (found.field, found.first, found.second);
        return Err(Error::Changed { run_id: spec.run_id, field, stored, asked });
    }
    let job = known(gym.backend().job(&JobId::train(&spec.run_id)).await)?;
    if job.is_some_and(|job| job.state.is_live()) {
        return Ok(stored);
    }
    gym.store().swap(&key, bytes, &object.etag).await?;
    Ok(spec)
}

/// The spec of a run; `None` where there is no such run.
pub(super) async fn read(gym: &Gym, run_id: &RunId) -> Result<Option<RunSpec>, Error> {
    let key = keys::spec(run_id);
    match gym.store().get(&key).await {
        Ok(object) => parse(&key, &object).map(Some),
        Err(store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn parse(key: &str, object: &Object) -> Result<RunSpec, Error> {
    let VersionedRunSpec::V1(spec) = serde_json::from_slice(&object.bytes).map_err(unreadable(key))?;
    Ok(spec)
}

fn bytes_of(key: &str, spec: &RunSpec) -> Result<Bytes, Error> {
    let spec = VersionedRunSpec::V1(spec.clone());
    Ok(serde_json::to_vec_pretty(&spec).map_err(unreadable(key))?.into())
}

fn without_address(key: &str, spec: &RunSpec) -> Result<Value, Error> {
    let mut spec = spec.clone();
    if let Some(teacher) = &mut spec.teacher {
        teacher.url.clear();
        teacher.token = None;
    }
    serde_json::to_value(spec).map_err(unreadable(key))
}

pub(super) fn unreadable(key: &str) -> impl FnOnce(serde_json::Error) -> Error {
    let key = key.to_owned();
    move |source| Error::Unreadable { key, source }
}
