//! Records of jobs that nobody needs any more.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use training_gym_core::record::keys;
use training_gym_core::store;

use super::record::{self, Folder};
use super::{Error, JobId, LocalBackend};
use crate::backend::{Job, Orphan, Workload};

const RECORD: &str = "job record";
const PREVIOUS: &str = "previous job record";

impl LocalBackend {
    /// Records of deployments that were stopped, of runs that are not in their store any more, and of
    /// attempts before whose job has no record itself.
    pub(super) async fn orphans_there(&self) -> Result<Vec<Orphan>, Error> {
        let jobs = self.blocking(Self::jobs_there).await?;
        let mut orphans = Vec::new();
        for job in &jobs {
            if let Some(why) = why(job).await {
                orphans.push(Orphan { kind: RECORD.to_owned(), name: job.id.to_string(), why });
            }
        }
        let previous = self.blocking(|this| folders(&this.jobs().join(".previous"))).await?;
        for name in previous {
            if jobs.iter().all(|job| job.id.as_str() != name) {
                let why = "the job it belongs to has no record any more".to_owned();
                orphans.push(Orphan { kind: PREVIOUS.to_owned(), name, why });
            }
        }
        Ok(orphans)
    }

    /// Removes such a record; one whose job was started again meanwhile is left.
    pub(super) fn remove_orphan(&self, orphan: &Orphan) -> Result<(), Error> {
        let folder = match orphan.kind.as_str() {
            RECORD => self.jobs().join(&orphan.name),
            PREVIOUS => self.jobs().join(".previous").join(&orphan.name),
            _ => return Ok(()),
        };
        // A name is one part of a path: what was listed, and nothing else.
        let listed = folders(folder.parent().unwrap_or(&folder))?;
        if !listed.contains(&orphan.name) {
            return Ok(());
        }
        let _lock = self.lock(&JobId::read(&orphan.name))?;
        let live = Folder::new(self.jobs().join(&orphan.name)).job()?.is_some_and(|job| job.state.is_live());
        if live {
            return Ok(());
        }
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(record::io("remove", &folder)(error)),
            _ => Ok(()),
        }
    }
}

/// Why nobody needs the record of a job; `None` where somebody may.
async fn why(job: &Job) -> Option<String> {
    if job.state.is_live() {
        return None;
    }
    match &job.workload {
        Workload::Serve { .. } => job.state.was_cancelled().then(|| "the deployment was stopped".to_owned()),
        Workload::Train { run_id, store, .. } => {
            // A store that cannot be asked says nothing about its runs.
            let opened = store::open(store).ok()?;
            let spec = opened.get(&keys::spec(run_id)).await;
            let gone = matches!(spec, Err(store::Error::NotFound { .. }));
            gone.then(|| format!("{store} has no run `{run_id}` any more"))
        }
    }
}

/// Names of the folders in `place`; none where there is no such place. Those with a leading point are
/// being made or put away.
fn folders(place: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(place) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(record::io("list", place)(error)),
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    Ok(names)
}
