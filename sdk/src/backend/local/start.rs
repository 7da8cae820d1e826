//! Starting a job: look, make its folder, start its supervisor; all under the job's lock.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::process::Identity;
use super::record::{self, Folder, Order, Record};
use super::{INHERITED, LocalBackend};
use crate::backend::difference::first_difference;
use crate::backend::{Error, IfExisting, Job, JobId, Request, Share, Submitted, Workload};

/// How long a replaced job may take to end by itself.
const REPLACE_GRACE: Duration = Duration::from_secs(10);

impl LocalBackend {
    /// Holds a job's lock until dropped.
    pub(super) fn lock(&self, id: &JobId) -> Result<fs::File, Error> {
        self.lock_named(id.as_str())
    }

    /// The threads of a new job `id`, under a lock that no other launch passes before this one's job
    /// is counted: the module's text has the rule.
    pub(super) fn share_of(&self, id: &JobId) -> Result<Share, Error> {
        // No job has this id: a job's begins with its kind.
        let lock = self.lock_named("cores")?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let live: Vec<Job> = self.jobs_there()?.into_iter().filter(|job| job.state.is_live()).collect();
        let threads = match live.iter().find(|job| job.id == *id) {
            Some(same) => same.workload.threads(),
            None => share(cores, live.iter().map(|job| job.workload.threads()).sum()),
        };
        Ok(Share::new(threads, lock))
    }

    fn lock_named(&self, name: &str) -> Result<fs::File, Error> {
        let folder = self.home().join("locks");
        record::private_folder(&folder)?;
        let path = folder.join(format!("{name}.lock"));
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
        self.spawn(&folder, &runtime, &request.workload)?;
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
            // A dead job needs its credentials no more, nor what it left where even its supervisor
            // was killed.
            remove(&previous.join("secrets"))?;
            remove(&previous.join("scratch"))?;
        }
        fs::rename(draft.path(), &place).map_err(record::io("move", draft.path()))?;
        Ok(Folder::new(place))
    }

    fn spawn(&self, folder: &Folder, runtime: &Path, workload: &Workload) -> Result<(), Error> {
        let log_path = folder.file("supervisor.log");
        let log = fs::File::create(&log_path).map_err(record::io("write", &log_path))?;
        let errors = log.try_clone().map_err(record::io("write", &log_path))?;
        let spawned = Command::new(runtime)
            .arg("supervise")
            .arg(folder.path())
            .env_clear()
            .envs(inherited())
            .envs(credentials(workload))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            // Not a group of its own: a group's leader cannot `setsid`, with which the supervisor
            // leaves our terminal, whose Ctrl-C is for the program that submitted it.
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

/// What is left of the cores, at least one and at most half of them.
fn share(cores: usize, taken: usize) -> usize {
    cores.saturating_sub(taken).min(cores / 2).max(1)
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

pub(super) fn inherited() -> BTreeMap<String, String> {
    INHERITED.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?))).collect()
}

/// Where the AWS SDK's chain finds what opens an `s3://` store, for a trainer of one. Handed down from process to
/// process and written nowhere; the reward worker's variables are others.
fn credentials(workload: &Workload) -> Vec<(String, String)> {
    let Workload::Train { store, .. } = workload else { return Vec::new() };
    let of_aws = |(name, _): &(String, String)| name.starts_with("AWS_") && store.starts_with("s3://");
    let readable =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    readable.filter(of_aws).collect()
}

fn environment(request: &Request) -> BTreeMap<String, String> {
    let mut environment = inherited();
    environment.extend(request.environment.clone());
    environment.insert("OMP_NUM_THREADS".to_owned(), request.workload.threads().to_string());
    environment.insert("OMP_WAIT_POLICY".to_owned(), "PASSIVE".to_owned());
    environment
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(record::io("remove", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_what_is_left_up_to_half() {
        let shares = [(16, 0, 8), (16, 8, 8), (16, 14, 2), (16, 16, 1), (16, 40, 1), (3, 0, 1), (2, 1, 1), (1, 0, 1)];
        for (cores, taken, expected) in shares {
            assert_eq!(share(cores, taken), expected, "{cores} cores, {taken} taken");
        }
    }

    #[test]
    fn the_recipe_cannot_set_the_threads_behind_the_specs_back() {
        let workload = Workload::Train { run_id: "r".parse().unwrap(), store: "file:///s".to_owned(), threads: 3 };
        let mut request = Request::new(workload);
        request.environment.insert("OMP_NUM_THREADS".to_owned(), "64".to_owned());
        let environment = environment(&request);
        assert_eq!(
            (environment["OMP_NUM_THREADS"].as_str(), environment["OMP_WAIT_POLICY"].as_str()),
            ("3", "PASSIVE")
        );
    }
}
