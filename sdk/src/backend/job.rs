//! A job: its name, what it does, how it is asked for, where it is in its life.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use training_gym_core::ids::{AppName, RunId};
use training_gym_core::record::Failure;
use training_gym_core::spec::{Egress, ServeSpec};

use super::{Resources, Secret};

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

    /// The id that this text, written by [`JobId::as_str`], is.
    #[cfg(feature = "kubernetes")]
    pub(super) fn read(text: &str) -> Self {
        Self(text.to_owned())
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
    /// The same workload: take it as it is. Another: [`Error::Different`](super::Error::Different).
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
    /// Secrets by name; [`Backend::secret_ref`](super::Backend::secret_ref) says where the job finds each.
    pub secrets: BTreeMap<String, Secret>,
    /// What the submitter wants to find again with the job.
    pub labels: BTreeMap<String, String>,
    /// What it computes with.
    pub resources: Resources,
    /// Whether a training run has a reward function of its own, whose program the job starts beside
    /// the trainer.
    pub reward_worker: bool,
    /// Which network that program may use. On a cluster one that may use any has a pod of its own.
    pub reward_egress: Egress,
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
            resources: Resources::default(),
            reward_worker: false,
            reward_egress: Egress::None,
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code, where it had one.
    pub code: Option<i32>,
    /// The signal that ended it, where one did.
    pub signal: Option<i32>,
    /// Whether it was stopped through [`Backend::cancel`](super::Backend::cancel).
    pub cancelled: bool,
    /// Why it ended, or could not start, where the backend knows more than code and signal.
    pub failure: Option<Failure>,
}

impl fmt::Display for Exit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(failure) = self.failure.as_ref().filter(|_| !self.cancelled) {
            return write!(out, "ended: {}; {}", failure.sentence, failure.next_step);
        }
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
    /// Base URL of a service that answers, such as `http://127.0.0.1:40123`, as this program reaches
    /// it.
    pub url: Option<String>,
    /// Base URL of a service as other jobs reach it.
    pub url_for_jobs: Option<String>,
    /// Whether the backend starts it again by itself when it dies: while it is live, a last word of
    /// it is not the run's.
    pub restarts: bool,
    /// What holds up one that has not started, where the backend knows.
    pub waiting: Option<String>,
    /// What the submitter left with it.
    pub labels: BTreeMap<String, String>,
    /// When it was submitted, in Unix seconds.
    pub submitted_at: f64,
}

/// Something of ours that nobody needs any more: see [`Backend::orphans`](super::Backend::orphans).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Its kind, such as `secret`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Why nobody needs it.
    pub why: String,
}
