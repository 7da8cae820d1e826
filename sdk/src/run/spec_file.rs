//! `runs/ID/spec.json`: written once; a later launch of the same run must mean the same.

use bytes::Bytes;
use serde_json::Value;
use training_gym_core::ids::RunId;
use training_gym_core::record::keys;
use training_gym_core::spec::{RunSpec, VersionedRunSpec};
use training_gym_core::store::{self, Object};

use super::Error;
use super::document::Document;
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
    let bytes = bytes_of(gym, &spec)?;
    match gym.store().create(&key, bytes.clone()).await {
        Ok(_) => return Ok(spec),
        Err(store::Error::AlreadyExists { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let object = gym.store().get(&key).await?;
    let stored = parse(gym, &spec.run_id, &object)?;
    if stored == spec {
        return Ok(stored);
    }
    same(gym, &stored, &spec)?;
    let job = known(gym.backend().job(&JobId::train(&spec.run_id)).await)?;
    if job.is_some_and(|job| job.state.is_live()) {
        return Ok(stored);
    }
    gym.store().swap(&key, bytes, &object.etag).await?;
    Ok(spec)
}

/// Refuses a spec under the id of a run that is another; without such a run there is nothing to refuse.
pub(super) async fn compare(gym: &Gym, spec: &RunSpec) -> Result<(), Error> {
    match read(gym, &spec.run_id).await? {
        Some(stored) => same(gym, &stored, spec),
        None => Ok(()),
    }
}

fn same(gym: &Gym, stored: &RunSpec, asked: &RunSpec) -> Result<(), Error> {
    let Some(found) = first_difference(&what_counts(gym, stored)?, &what_counts(gym, asked)?) else { return Ok(()) };
    let (field, stored, now) = (found.field, found.first, found.second);
    Err(Error::Changed { run_id: asked.run_id.clone(), field, stored, asked: now })
}

/// The spec of a run; `None` where there is no such run.
pub(super) async fn read(gym: &Gym, run_id: &RunId) -> Result<Option<RunSpec>, Error> {
    let key = keys::spec(run_id);
    match gym.store().get(&key).await {
        Ok(object) => parse(gym, run_id, &object).map(Some),
        Err(store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn parse(gym: &Gym, run_id: &RunId, object: &Object) -> Result<RunSpec, Error> {
    let key = keys::spec(run_id);
    let spec = serde_json::from_slice(&object.bytes).map_err(Document::Spec.unreadable(gym, run_id, &key));
    spec.map(|VersionedRunSpec::V1(spec)| spec)
}

fn bytes_of(gym: &Gym, spec: &RunSpec) -> Result<Bytes, Error> {
    let key = keys::spec(&spec.run_id);
    let bytes = serde_json::to_vec_pretty(&VersionedRunSpec::V1(spec.clone()));
    Ok(bytes.map_err(Document::Spec.unreadable(gym, &spec.run_id, &key))?.into())
}

/// What makes the run the run it is: not where the teacher is, nor where model and rows came from,
/// since their folder and hash say what they are.
fn what_counts(gym: &Gym, spec: &RunSpec) -> Result<Value, Error> {
    let mut spec = spec.clone();
    spec.model.hub = None;
    spec.data.train.hub = None;
    if let Some(eval) = &mut spec.eval {
        eval.rows.hub = None;
    }
    if let Some(teacher) = &mut spec.teacher {
        teacher.url.clear();
        teacher.token = None;
    }
    if let Some(distill) = &mut spec.distill {
        distill.teacher.hub = None;
    }
    let key = keys::spec(&spec.run_id);
    serde_json::to_value(&spec).map_err(Document::Spec.unreadable(gym, &spec.run_id, &key))
}
