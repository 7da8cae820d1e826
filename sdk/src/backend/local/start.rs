//! Starting a job: look, make its folder, start its supervisor; all under the job's lock.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::process::Identity;
use super::record::{self, Folder, Order, Record};
use super::{INHERITED, LocalBackend};
use crate::backend::difference::first_difference;
use crate::backend::{Error, IfExisting, JobId, Request, Submitted, Workload};

/// How long a replaced job may take to end by itself.
const REPLACE_GRACE: Duration = Duration::from_secs(10);

impl LocalBackend {
    /// Holds a job's lock until dropped.
    pub(super) fn lock(&self, id: &JobId) -> Result<fs::File, Error> {
        let folder = self.home().join("locks");
        record::private_folder(&folder)?;
        let path = folder.join(format!("{id}.lock"));
        let file = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(record::io("open", &path))?;
        file.lock().map_err(record::io("lock", &path))?;
        Ok(file)
    }

    pub(super) fn start(&self, request: Request) -> Result<Submitted, Error> {
        let id = request.workload.job_id();
        let _lock = self.lock(&id)?;
        if let Some(job) = self.folder(&id).job()?
            && job.state.is_live()
        {
            match request.if_existing {
                IfExisting::Replace => self.end(&id, REPLACE_GRACE)?,
                IfExisting::Adopt => return adopt(&id, &job.workload, &request.workload),
            }
        }
        // Before anything is moved: without a program the old log is all there is to read.
        let runtime = self.runtime()?;
        let folder = self.prepare(&id, &request, &runtime)?;
        self.spawn(&folder, &runtime)?;
        Ok(Submitted::Started)
    }

    /// Makes the job's folder under another name, complete, and moves it to its place; what was
    /// there before is kept as `jobs/.previous/ID`.
    fn prepare(&self, id: &JobId, request: &Request, runtime: &Path) -> Result<Folder, Error> {
        let jobs = self.jobs();
        record::private_folder(&jobs)?;
        let place = self.job_folder(id);
        let draft = Folder::new(jobs.join(format!(".new-{id}")));
        remove(draft.path())?;
        draft.create()?;
        draft.write_secrets(&request.secrets)?;
        if let Workload::Serve { spec } = &request.workload {
            let spec = training_gym_core::spec::VersionedServeSpec::V1((**spec).clone());
            draft.write_json("spec.json", &spec)?;
        }
        draft.write_json(
            "record.json",
            &Record::V1 {
                workload: request.workload.clone(),
                labels: request.labels.clone(),
                submitted_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
            },
        )?;
        draft.write_json(
            "job.json",
            &Order {
                argv: arguments(&request.workload, runtime, &place),
                env: environment(request),
                cwd: place.clone(),
            },
        )?;
        if place.exists() {
            let previous = jobs.join(".previous");
            record::private_folder(&previous)?;
            let previous = previous.join(id.as_str());
            remove(&previous)?;
            fs::rename(&place, &previous).map_err(record::io("move", &place))?;
            // A dead job needs its credentials no more.
            remove(&previous.join("secrets"))?;
        }
        fs::rename(draft.path(), &place).map_err(record::io("move", draft.path()))?;
        Ok(Folder::new(place))
    }

    fn spawn(&self, folder: &Folder, runtime: &Path) -> Result<(), Error> {
        let log_path = folder.file("supervisor.log");
        let log = fs::File::create(&log_path).map_err(record::io("write", &log_path))?;
        let errors = log.try_clone().map_err(record::io("write", &log_path))?;
        let spawned = Command::new(runtime)
            .arg("supervise")
            .arg(folder.path())
            .env_clear()
            .envs(inherited())
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            // Its own group: the terminal's Ctrl-C is for the program that submitted it.
            .process_group(0)
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(source) => {
                remove(folder.path())?;
                return Err(Error::Start { program: runtime.to_owned(), source });
            }
        };
        if let Some(identity) = Identity::of(child.id()) {
            folder.write_json("process.json", &identity)?;
        }
        // Reaped when it ends, so that it does not stay a zombie for as long as this program lives.
        std::thread::spawn(move || child.wait());
        Ok(())
    }
}

fn adopt(id: &JobId, running: &Workload, asked: &Workload) -> Result<Submitted, Error> {
    if running == asked {
        return Ok(Submitted::Adopted);
    }
    let value = |workload: &Workload| serde_json::to_value(workload).unwrap_or_default();
    // Unequal values that print alike do not occur; if they did, the whole is what differs.
    let (field, running, asked) = match first_difference(&value(running), &value(asked)) {
        Some(found) => (found.field, found.first, found.second),
        None => ("workload".to_owned(), format!("{running:?}"), format!("{asked:?}")),
    };
    Err(Error::Different { id: id.clone(), field, running, asked })
}

fn arguments(workload: &Workload, runtime: &Path, folder: &Path) -> Vec<String> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut arguments = vec![text(runtime.to_owned())];
    match workload {
        Workload::Train { run_id, store, .. } => {
            arguments.extend(["train", "--store", store, "--run", run_id.as_str()].map(str::to_owned));
        }
        Workload::Serve { .. } => {
            arguments.extend(["serve".to_owned(), "--spec".to_owned(), text(folder.join("spec.json"))]);
            arguments.extend(["--ready".to_owned(), text(folder.join("ready.json"))]);
        }
    }
    arguments
}

fn inherited() -> BTreeMap<String, String> {
    INHERITED.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?))).collect()
}

fn environment(request: &Request) -> BTreeMap<String, String> {
    let mut environment = inherited();
    environment.insert("OMP_NUM_THREADS".to_owned(), request.workload.threads().to_string());
    environment.extend(request.environment.clone());
    environment
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(record::io("remove", path)(error)),
        _ => Ok(()),
    }
}
