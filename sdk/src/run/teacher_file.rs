//! `runs/ID/teacher.json`: which model taught the run at its first launch.
//!
//! A teacher may move to another address; it may not become another model, which would be another
//! run. What it says of itself is written once and compared whenever the run is continued.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use training_gym_core::ids::RunId;
use training_gym_core::record::keys;
use training_gym_core::spec::{RunSpec, SecretRef, TeacherDialect, TeacherSpec};
use training_gym_core::store;
use training_gym_core::wire::ModelInfo;

use super::Error;
use super::document::Document;
use crate::backend::Secret;
use crate::gym::Gym;

/// A server that is up says what it serves at once.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What a teacher says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    model_path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vocab_sha256: Option<String>,
}

/// Asks the teacher who it is, and compares it with whom the run had before. `None`: it does not say,
/// and never did. That it answers at all is for the trainer's own probe to find.
pub(super) async fn ask(gym: &Gym, spec: &RunSpec, token: Option<&Secret>) -> Result<Option<Identity>, Error> {
    // What was recorded was scored when it was.
    let Some(teacher) = spec.teacher.as_ref().filter(|_| !spec.responses.is_recorded()) else { return Ok(None) };
    let found = said(gym, teacher, token).await?;
    let Some(recorded) = read(gym, &spec.run_id).await? else { return Ok(found) };
    if found.as_ref() == Some(&recorded) {
        return Ok(found);
    }
    let vocabulary = |identity: &Identity| match &identity.vocab_sha256 {
        Some(hash) => format!("`{}` (vocabulary {hash:.12})", identity.model_path),
        None => format!("`{}`", identity.model_path),
    };
    Err(Error::OtherTeacher {
        run_id: spec.run_id.clone(),
        recorded: vocabulary(&recorded),
        url: teacher.url.clone(),
        found: found
            .map_or_else(|| "does not say what it serves".to_owned(), |it| format!("serves {}", vocabulary(&it))),
    })
}

/// Writes down who taught the run first.
pub(super) async fn record(gym: &Gym, run_id: &RunId, identity: &Identity) -> Result<(), Error> {
    let key = key(run_id);
    let bytes = serde_json::to_vec_pretty(identity).map_err(Document::Teacher.unreadable(gym, run_id, &key))?;
    match gym.store().create(&key, bytes.into()).await {
        Ok(_) | Err(store::Error::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn read(gym: &Gym, run_id: &RunId) -> Result<Option<Identity>, Error> {
    let key = key(run_id);
    match gym.store().get(&key).await {
        Ok(object) => {
            let identity = serde_json::from_slice(&object.bytes);
            identity.map(Some).map_err(Document::Teacher.unreadable(gym, run_id, &key))
        }
        Err(store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn key(run_id: &RunId) -> String {
    format!("{}teacher.json", keys::run(run_id))
}

async fn said(gym: &Gym, teacher: &TeacherSpec, token: Option<&Secret>) -> Result<Option<Identity>, Error> {
    let info = info(gym, teacher, token).await?;
    Ok(info.map(|info| Identity { model_path: info.model_path, vocab_sha256: info.vocab_sha256 }))
}

/// `GET get_model_info` beside the teacher's address, as the trainer asks it.
pub(super) async fn info(gym: &Gym, teacher: &TeacherSpec, token: Option<&Secret>) -> Result<Option<ModelInfo>, Error> {
    let url = gym.backend().reachable(&teacher.url).await?;
    Ok(info_at(&url, teacher, token).await)
}

async fn info_at(url: &str, teacher: &TeacherSpec, token: Option<&Secret>) -> Option<ModelInfo> {
    if teacher.dialect != TeacherDialect::Sglang {
        return None;
    }
    let url = reqwest::Url::parse(url).ok()?.join("get_model_info").ok()?;
    let mut request = reqwest::Client::builder().timeout(TIMEOUT).build().ok()?.get(url);
    if let Some(token) = token.cloned().or_else(|| kept(teacher.token.as_ref())) {
        request = request.bearer_auth(token.expose());
    }
    request.send().await.ok()?.error_for_status().ok()?.json().await.ok()
}

/// A token that is in a file already, as a deployment's is.
fn kept(token: Option<&SecretRef>) -> Option<Secret> {
    let Some(SecretRef::File(path)) = token else { return None };
    let text = std::fs::read_to_string(path).ok()?;
    Some(Secret::new(text.lines().next()?))
}
