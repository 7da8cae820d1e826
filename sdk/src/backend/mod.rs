//! Where jobs run: one trait, and the embedded [`local`] backend behind it.
//!
//! A backend starts `gym-runtime` with a spec, says how it is doing, streams its log and stops it.
//! It has no policy: it does not know what a rollout is. What a job reads is a spec; what it writes
//! is a log, and objects in the store.
//!
//! Two kinds of job: a *training job* ends by itself, a *service* answers on an address until it is
//! stopped. Jobs outlive the program that submitted them; any other program with the same backend
//! finds them by their [`JobId`].

pub(crate) mod difference;
#[cfg(feature = "kubernetes")]
pub mod explain;
pub mod local;
mod logs;
mod resources;
mod secret;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use training_gym_core::ids::{AppName, RunId};
use training_gym_core::spec::{SecretRef, ServeSpec};

pub use local::LocalBackend;
pub use logs::{LogOptions, Logs};
pub use resources::{InvalidResources, Resources};
pub use secret::Secret;

use crate::doctor::Finding;

/// What can go wrong between us and a backend, in kinds a caller can act on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No job has this id.
    #[error("there is no job `{id}` in {backend}")]
    UnknownJob {
        /// The id asked for.
        id: JobId,
        /// Where it was looked for.
        backend: String,
    },
    /// A live job has this id and is something else.
    #[error("`{id}` is already running with another {field}: {running}, asked for {asked}; {DIFFERENT_REMEDY}")]
    Different {
        /// The id.
        id: JobId,
        /// The first field that differs.
        field: String,
        /// Its value in the running job.
        running: String,
        /// Its value in the request.
        asked: String,
    },
    /// The runtime's program was not found.
    #[error("found no `gym-runtime`: looked at {looked}; {RUNTIME_REMEDY}")]
    NoRuntime {
        /// Every place looked at, in order.
        looked: String,
    },
    /// What was named as the runtime's program is another one, or one that does not work.
    #[error("`{}` does not answer as `gym-runtime` does: {what}; {RUNTIME_REMEDY}", program.display())]
    NotRuntime {
        /// The program.
        program: PathBuf,
        /// What it did.
        what: String,
    },
    /// The program could not be started.
    #[error("cannot start `{}`; {RUNTIME_REMEDY}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file of a job could not be read or written.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// `read`, `write`, `lock`, …
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file of a job does not say what it should.
    #[error(
        "`{}` is damaged: it is not the record of a job that it was; {RECORD_REMEDY} (`pgrep -af {folder}` shows them), remove \
         `{folder}`, and launch again",
        path.display(),
        folder = path.parent().unwrap_or(path).display()
    )]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A process did not end, even when killed.
    #[error("processes of `{id}` are still there after SIGKILL: {pids:?}")]
    Unstoppable {
        /// The job.
        id: JobId,
        /// The processes.
        pids: Vec<u32>,
    },
    /// The task that did the work was lost.
    #[error("the task talking to the backend was stopped")]
    Interrupted,
}

/// The folder is the one this SDK was compiled from: for a crate that depends on it by path, the
/// person's own clone.
const RUNTIME_REMEDY: &str = concat!(
    "run `cargo xtask runtime` in `",
    env!("CARGO_MANIFEST_DIR"),
    "/..`, which builds it where it is looked for, or name a built one in the environment variable `TRAINING_GYM_RUNTIME`"
);
const RECORD_REMEDY: &str = "end the job's processes if there are any";
const DIFFERENT_REMEDY: &str = "stop the running one first, or use another name";

impl Error {
    /// The part of the message that says what to do, where there is something to do.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoRuntime { .. } | Self::NotRuntime { .. } | Self::Start { .. } => Some(RUNTIME_REMEDY),
            Self::Record { .. } => Some(RECORD_REMEDY),
            Self::Different { .. } => Some(DIFFERENT_REMEDY),
            _ => None,
        }
    }
}

/// Names a job: its kind and the name of the run or deployment. One live job has it at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(String);

impl JobId {
    /// The training job of a run.
    pub fn train(run: &RunId) -> Self {
        Self(format!("train-{run}"))
    }

    /// The service of a deployment.
    pub fn serve(app: &AppName) -> Self {
        Self(format!("serve-{app}"))
    }

    /// An id as a record has it.
    pub(crate) fn named(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// The id as text: also the name of the job's folder.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// What a job is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Workload {
    /// `gym-runtime train`: the spec is in the store under `runs/RUN_ID/spec.json`.
    Train {
        /// The run.
        run_id: RunId,
        /// URL of the store.
        store: String,
        /// Threads of libtorch, as the run's spec says.
        threads: usize,
    },
    /// `gym-runtime serve`.
    Serve {
        /// The deployment, complete. A port of 0 takes a free one.
        spec: Box<ServeSpec>,
    },
}

impl Workload {
    /// The id of the job that does this.
    pub fn job_id(&self) -> JobId {
        match self {
            Self::Train { run_id, .. } => JobId::train(run_id),
            Self::Serve { spec } => JobId::serve(&spec.app_name),
        }
    }

    /// CPU threads it computes with.
    pub fn threads(&self) -> usize {
        match self {
            Self::Train { threads, .. } => *threads,
            Self::Serve { spec } => spec.node.threads,
        }
    }
}

/// What to do when a live job has the same id already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfExisting {
    /// The same workload: take it as it is. Another: [`Error::Different`].
    #[default]
    Adopt,
    /// Stop it and start anew.
    Replace,
}

/// A job to be started.
#[derive(Clone, Debug)]
pub struct Request {
    /// What it does.
    pub workload: Workload,
    /// Variables it is started with, beside the backend's own.
    pub environment: BTreeMap<String, String>,
    /// Secrets by name; [`Backend::secret_ref`] says where the job finds each.
    pub secrets: BTreeMap<String, Secret>,
    /// What the submitter wants to find again with the job.
    pub labels: BTreeMap<String, String>,
    /// What to do about a live job of the same id.
    pub if_existing: IfExisting,
}

impl Request {
    /// A request for `workload` with nothing else.
    pub fn new(workload: Workload) -> Self {
        Self {
            workload,
            environment: BTreeMap::new(),
            secrets: BTreeMap::new(),
            labels: BTreeMap::new(),
            if_existing: IfExisting::Adopt,
        }
    }
}

/// A job's part of the machine. Other launches wait for theirs while it is held.
#[derive(Debug)]
#[must_use = "the next launch decides without this one once it is dropped"]
pub struct Share {
    threads: usize,
    _held: Box<dyn Holds>,
}

/// What a share holds while it lives: a lock, or nothing.
trait Holds: fmt::Debug + Send + Sync {}

impl<T: fmt::Debug + Send + Sync> Holds for T {}

impl Share {
    /// `threads` ≥ 1, and what keeps others from deciding at the same time.
    pub fn new(threads: usize, held: impl fmt::Debug + Send + Sync + 'static) -> Self {
        Self { threads, _held: Box::new(held) }
    }

    /// CPU threads.
    pub fn threads(&self) -> usize {
        self.threads
    }
}

/// How a submission went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// A new job was started.
    Started,
    /// A live job of the same id and workload was there.
    Adopted,
}

/// How a job's process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code, where it had one.
    pub code: Option<i32>,
    /// The signal that ended it, where one did.
    pub signal: Option<i32>,
    /// Whether it was stopped through [`Backend::cancel`].
    pub cancelled: bool,
}

impl fmt::Display for Exit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.signal, self.code) {
            _ if self.cancelled => out.write_str("stopped on request"),
            (Some(9), _) => out.write_str("killed by signal 9 (SIGKILL): possibly the machine ran out of memory"),
            (Some(signal), _) => match signal_name(signal) {
                Some(name) => write!(out, "killed by signal {signal} ({name})"),
                None => write!(out, "killed by signal {signal}"),
            },
            (None, Some(code)) => write!(out, "exited with code {code}"),
            (None, None) => {
                out.write_str("vanished without a word (killed together with its supervisor, or the machine restarted)")
            }
        }
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGTERM => "SIGTERM",
        _ => return None,
    })
}

/// Where a job is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Its process lives. A service in this state does not answer yet.
    Starting,
    /// Its process lives; a service answers.
    Running,
    /// It is over.
    Ended(Exit),
}

impl JobState {
    /// Whether its process lives.
    pub fn is_live(&self) -> bool {
        !matches!(self, Self::Ended(_))
    }

    /// Whether it is over because somebody asked.
    pub fn was_cancelled(&self) -> bool {
        matches!(self, Self::Ended(exit) if exit.cancelled)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => out.write_str("starting"),
            Self::Running => out.write_str("running"),
            Self::Ended(exit) => exit.fmt(out),
        }
    }
}

/// A job, as the backend sees it.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// What it does.
    pub workload: Workload,
    /// Where it is in its life.
    pub state: JobState,
    /// Base URL of a service that answers, such as `http://127.0.0.1:40123`.
    pub url: Option<String>,
    /// What the submitter left with it.
    pub labels: BTreeMap<String, String>,
    /// When it was submitted, in Unix seconds.
    pub submitted_at: f64,
}

/// Lines of a log that a message quotes.
pub(crate) const LAST_LINES: usize = 20;

/// What `gym-runtime` answered to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It succeeded.
    Printed {
        /// The program that was asked.
        program: PathBuf,
        /// Its standard output.
        stdout: Vec<u8>,
    },
    /// It failed, with these words.
    Refused(String),
}

impl Answer {
    /// The JSON document it printed, or its refusal.
    pub(crate) fn json<T: serde::de::DeserializeOwned>(self) -> Result<Result<T, String>, Error> {
        match self {
            Self::Refused(said) => Ok(Err(said)),
            Self::Printed { program, stdout } => serde_json::from_slice(&stdout).map(Ok).map_err(|error| {
                let what = format!("its answer to `check` cannot be read ({error})");
                Error::NotRuntime { program, what }
            }),
        }
    }
}

/// Something of ours that nobody needs any more: see [`Backend::orphans`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Its kind, such as `secret`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Why nobody needs it.
    pub why: String,
}

/// A place where jobs run.
#[async_trait]
pub trait Backend: Send + Sync + fmt::Debug {
    /// What messages call it.
    fn name(&self) -> String;

    /// The address a service is told to listen on.
    fn service_host(&self) -> &str;

    /// Runs the very `gym-runtime` that jobs are started with to its end, with `arguments`: what a
    /// launch asks before it starts anything. Files that the arguments name are this machine's.
    ///
    /// # Errors
    /// [`Error::NoRuntime`], [`Error::NotRuntime`] or [`Error::Start`] when it cannot be asked. That
    /// it fails is an answer.
    async fn ask(&self, arguments: Vec<OsString>) -> Result<Answer, Error>;

    /// CPU threads that a job `id` gets which did not ask for a number: see [`local`] for the local
    /// rule. Hold the answer until the job is submitted, so that the next launch counts it.
    ///
    /// # Errors
    /// [`Error::Io`] when the records cannot be read.
    async fn share(&self, id: &JobId) -> Result<Share, Error>;

    /// Where the job `id` will find its secret `name`. Pure: a spec can name it before it exists.
    fn secret_ref(&self, id: &JobId, name: &str) -> SecretRef;

    /// Reads a secret of a job back, for a handle on a service.
    ///
    /// # Errors
    /// [`Error::Io`] when it is not there or not ours to read.
    async fn secret(&self, id: &JobId, name: &str) -> Result<Secret, Error>;

    /// Starts a job, or adopts a live one, as [`Request::if_existing`] says. Two submissions of the
    /// same id at once: one starts, the other sees it.
    ///
    /// # Errors
    /// [`Error::Different`] when a live job of this id does something else; [`Error::NoRuntime`],
    /// [`Error::Start`] or [`Error::Io`] when nothing was started.
    async fn submit(&self, request: Request) -> Result<Submitted, Error>;

    /// A job as it is now.
    ///
    /// # Errors
    /// [`Error::UnknownJob`].
    async fn job(&self, id: &JobId) -> Result<Job, Error>;

    /// A job's log.
    ///
    /// # Errors
    /// [`Error::UnknownJob`].
    async fn logs(&self, id: &JobId, options: LogOptions) -> Result<Logs, Error>;

    /// Asks a job to end, and makes it end after `grace`. A job that is over already is no error.
    ///
    /// # Errors
    /// [`Error::UnknownJob`]; [`Error::Unstoppable`].
    async fn cancel(&self, id: &JobId, grace: Duration) -> Result<(), Error>;

    /// Every job there is a record of, live or over, by id.
    ///
    /// # Errors
    /// [`Error::Io`] when the records cannot be read.
    async fn list(&self) -> Result<Vec<Job>, Error>;

    /// What was left behind and nobody needs any more: what `gym gc` removes.
    ///
    /// # Errors
    /// When it cannot be looked for.
    async fn orphans(&self) -> Result<Vec<Orphan>, Error> {
        Ok(Vec::new())
    }

    /// Removes one of [`Backend::orphans`].
    ///
    /// # Errors
    /// When it cannot be removed.
    async fn remove(&self, orphan: &Orphan) -> Result<(), Error> {
        let _ = orphan;
        Ok(())
    }

    /// Whether a job that asks for `resources` would find what it needs: the program, rights, room. It
    /// starts nothing, and a finding that cannot be made is one that says why.
    async fn doctor(&self, resources: &Resources) -> Vec<Finding> {
        let _ = resources;
        Vec::new()
    }
}
