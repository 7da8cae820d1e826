//! Jobs as processes of this machine.
//!
//! Each job is a folder under the state folder (`HOME/jobs/ID/`) and a detached `gym-runtime
//! supervise` process that starts the job, keeps its log and writes down how it ended. Nothing needs
//! the program that submitted it: a second program sees the same folders. A record is believed only
//! as far as its process: pid, start time and boot must all match, so a reused pid is recognised.
//!
//! **Collisions.** A submission holds `HOME/locks/ID.lock` (`flock`) while it looks and starts, so of
//! two submissions of one name the second sees the first. Ports are chosen by the kernel (port 0) and
//! reported by the service itself.
//!
//! **Cores.** A job that did not ask for a number of threads gets the cores this process may use less
//! the threads of every live job, idle deployments included, but at most half of the cores and at
//! least one. So a trainer and its teacher fit side by side, and no core is given twice while one is
//! free. It is decided under one lock for all launches of the state folder, which is held until the
//! job is started; a live job of the same name passes its number on. The number is part of the job's
//! spec, since sums depend on it, and is also passed as `OMP_NUM_THREADS`, with
//! `OMP_WAIT_POLICY=PASSIVE`: threads that spin while they wait take the cores of the other jobs.
//!
//! **Environment.** A job gets a fixed list of this process's variables ([`INHERITED`]), then what
//! the recipe's `environment` says. Secrets travel as files of mode 0600, never as variables or
//! arguments.

mod handshake;
mod orphans;
mod process;
mod program;
mod record;
mod start;
mod tail;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use training_gym_core::chain;
use training_gym_core::spec::SecretRef;

use self::record::Folder;
use super::{
    Answer, Backend, Error, Job, JobId, LogOptions, Logs, Orphan, Question, Request, Resources, Secret, Share,
    Submitted,
};
use crate::doctor::{Finding, machine};

/// Variables of this process that its jobs inherit.
pub const INHERITED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// The backend that runs jobs as processes of this machine. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LocalBackend {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    home: PathBuf,
    runtime: Option<PathBuf>,
}

impl LocalBackend {
    /// A backend with its records under `home`, which is made when the first job is.
    pub fn new(home: impl Into<PathBuf>) -> Self {
        let home = home.into();
        // A job has another working folder.
        let home = std::path::absolute(&home).unwrap_or(home);
        Self { inner: Arc::new(Inner { home, runtime: None }) }
    }

    /// Uses this program instead of looking for `gym-runtime` (the variable
    /// `TRAINING_GYM_RUNTIME`, beside the current executable, on `PATH`, in the `target` folder of
    /// the repository this SDK was compiled in).
    #[must_use]
    pub fn with_runtime(self, program: impl Into<PathBuf>) -> Self {
        Self { inner: Arc::new(Inner { home: self.inner.home.clone(), runtime: Some(program.into()) }) }
    }

    /// The state folder.
    pub fn home(&self) -> &Path {
        &self.inner.home
    }

    /// The program jobs are started with.
    ///
    /// # Errors
    /// [`Error::NoRuntime`], naming every place looked at; [`Error::NotRuntime`] and [`Error::Start`]
    /// where what is there is another program.
    pub fn runtime(&self) -> Result<PathBuf, Error> {
        runtime_here(self.inner.runtime.as_deref())
    }

    /// Where the job's files are.
    pub fn job_folder(&self, id: &JobId) -> PathBuf {
        self.jobs().join(id.as_str())
    }

    fn jobs(&self) -> PathBuf {
        self.inner.home.join("jobs")
    }

    fn folder(&self, id: &JobId) -> Folder {
        Folder::new(self.job_folder(id))
    }

    fn unknown(&self, id: &JobId) -> Error {
        Error::UnknownJob { id: id.clone(), backend: self.name() }
    }

    /// Looks at a job without leaving the thread: a few small files.
    fn look(&self, id: &JobId) -> Result<Job, Error> {
        self.folder(id).job()?.ok_or_else(|| self.unknown(id))
    }

    /// Every job there is a record of, by id.
    fn jobs_there(&self) -> Result<Vec<Job>, Error> {
        let path = self.jobs();
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(record::io("list", &path)(error)),
        };
        let mut jobs = Vec::new();
        for entry in entries {
            let entry = entry.map_err(record::io("list", &path))?;
            // Names with a leading point are folders being made or put away.
            if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                jobs.extend(Folder::new(entry.path()).job()?);
            }
        }
        jobs.sort_by(|a: &Job, b: &Job| a.id.cmp(&b.id));
        Ok(jobs)
    }

    async fn blocking<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    {
        let this = self.clone();
        tokio::task::spawn_blocking(move || work(&this)).await.map_err(|_| Error::Interrupted)?
    }

    /// Ends a job; the caller holds its lock.
    fn end(&self, id: &JobId, grace: Duration) -> Result<(), Error> {
        let folder = self.folder(id);
        let Some(supervisor) = folder.supervisor()? else { return Ok(()) };
        folder.mark_cancelled()?;
        process::end_family(&supervisor, grace).map_err(|pids| Error::Unstoppable { id: id.clone(), pids })
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn name(&self) -> String {
        format!("the local backend at `{}`", self.inner.home.display())
    }

    fn listen_on(&self) -> (&str, u16) {
        ("127.0.0.1", 0)
    }

    async fn ask(&self, question: Question) -> Result<Answer, Error> {
        let program = self.blocking(Self::runtime).await?;
        ask(program, &question).await
    }

    async fn share(&self, id: &JobId) -> Result<Share, Error> {
        let id = id.clone();
        self.blocking(move |this| this.share_of(&id)).await
    }

    fn secret_ref(&self, id: &JobId, name: &str) -> SecretRef {
        SecretRef::File(self.folder(id).secret_path(name))
    }

    async fn secret(&self, id: &JobId, name: &str) -> Result<Secret, Error> {
        self.folder(id).read_secret(name)
    }

    async fn submit(&self, request: Request) -> Result<Submitted, Error> {
        self.blocking(move |this| this.start(request)).await
    }

    async fn job(&self, id: &JobId) -> Result<Job, Error> {
        self.look(id)
    }

    async fn logs(&self, id: &JobId, options: LogOptions) -> Result<Logs, Error> {
        self.look(id)?;
        let folder = self.folder(id);
        let offset = options.tail.map_or(Ok(0), |count| folder.tail_offset(count))?;
        Ok(Logs::new(tail::lines(folder, offset, options.follow)))
    }

    async fn cancel(&self, id: &JobId, grace: Duration) -> Result<(), Error> {
        self.look(id)?;
        let id = id.clone();
        self.blocking(move |this| {
            let _lock = this.lock(&id)?;
            this.end(&id, grace)
        })
        .await
    }

    async fn list(&self) -> Result<Vec<Job>, Error> {
        self.blocking(Self::jobs_there).await
    }

    async fn orphans(&self) -> Result<Vec<Orphan>, Error> {
        self.orphans_there().await
    }

    async fn remove(&self, orphan: &Orphan) -> Result<(), Error> {
        let orphan = orphan.clone();
        self.blocking(move |this| this.remove_orphan(&orphan)).await
    }

    async fn doctor(&self, resources: &Resources) -> Vec<Finding> {
        let mut findings = vec![match self.blocking(Self::runtime).await {
            Ok(program) => Finding::ok("gym-runtime", program.display().to_string()),
            Err(error) => Finding::failed("gym-runtime", chain(&error), error.hint().unwrap_or_default()),
        }];
        let home = self.inner.home.clone();
        match self.blocking(move |_| Ok(machine::findings(&home))).await {
            Ok(more) => findings.extend(more),
            Err(error) => findings.push(Finding::skipped("this machine", chain(&error))),
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if let Some(asked) = resources.threads.filter(|asked| *asked > cores) {
            let detail = format!("{asked} are asked for, and there are {cores} cores");
            findings.push(Finding::warning(
                "threads",
                detail,
                "ask for at most as many threads as cores: more are slower",
            ));
        }
        findings
    }
}

/// The `gym-runtime` of this machine: `chosen`, or the one that is found.
pub(super) fn runtime_here(chosen: Option<&Path>) -> Result<PathBuf, Error> {
    let program = program::find(chosen)?;
    handshake::greet(&program)?;
    Ok(program)
}

/// Lets `program` answer a question.
pub(super) async fn ask(program: PathBuf, question: &Question) -> Result<Answer, Error> {
    let output = tokio::process::Command::new(&program)
        .args(question.arguments(Path::to_owned))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| Error::Start { program: program.clone(), source })?;
    if output.status.success() {
        return Ok(Answer::Printed { program, stdout: output.stdout });
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("error: ").to_owned();
    let silent = || format!("`{}` ended with {} and said nothing", program.display(), output.status);
    Ok(Answer::Refused(if said.is_empty() { silent() } else { said }))
}
