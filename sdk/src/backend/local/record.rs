//! A job on disk: `HOME/jobs/ID/`.
//!
//! | file | what | written |
//! |---|---|---|
//! | `record.json` | the workload, labels, when | before the start, once |
//! | `spec.json` | a service's spec, as `gym-runtime serve --spec` reads it | before the start, once |
//! | `secrets/NAME` | a secret, mode 0600 in a folder of mode 0700 | before the start, once |
//! | `job.json` | what `gym-runtime supervise` starts: `argv`, `env`, `cwd` | before the start, once |
//! | `process.json` | which process the supervisor is | after the start |
//! | `log` | the job's output | by the supervisor |
//! | `supervisor.log` | the supervisor's own output, empty unless it failed | by the supervisor |
//! | `ready.json` | `{port, pid}` of a service that answers | by the service |
//! | `cancelled` | an empty mark: somebody asked it to stop | before the first signal |
//! | `exit.json` | how it ended: `{code, signal, at}` | by the supervisor |

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::process::{self, Identity};
use crate::backend::{Error, Exit, Job, JobState, Secret, Workload};

/// `record.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "version", deny_unknown_fields)]
pub(super) enum Record {
    #[serde(rename = "1")]
    V1 { workload: Workload, labels: BTreeMap<String, String>, submitted_at: f64 },
}

/// `job.json`: the supervisor's order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: PathBuf,
}

/// `ready.json`.
#[derive(Debug, Deserialize)]
struct Ready {
    port: u16,
}

/// `exit.json`. When it ended is there too; nothing here needs it.
#[derive(Debug, Deserialize)]
struct ExitRecord {
    #[serde(default)]
    code: Option<i32>,
    #[serde(default)]
    signal: Option<i32>,
}

/// Longest piece of a log's end that is read for its last lines.
const TAIL_BYTES: u64 = 256 << 10;

/// A job's folder.
#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn secret_path(&self, name: &str) -> PathBuf {
        self.0.join("secrets").join(name)
    }

    pub(super) fn create(&self) -> Result<(), Error> {
        private_folder(&self.0)
    }

    pub(super) fn write_secrets(&self, secrets: &BTreeMap<String, Secret>) -> Result<(), Error> {
        if secrets.is_empty() {
            return Ok(());
        }
        private_folder(&self.0.join("secrets"))?;
        for (name, secret) in secrets {
            let path = self.secret_path(name);
            fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .and_then(|mut file| writeln!(file, "{}", secret.expose()))
                .map_err(io("write", &path))?;
        }
        Ok(())
    }

    pub(super) fn read_secret(&self, name: &str) -> Result<Secret, Error> {
        let path = self.secret_path(name);
        let text = fs::read_to_string(&path).map_err(io("read", &path))?;
        Ok(Secret::new(text.lines().next().unwrap_or_default()))
    }

    /// Writes `name` so that a reader sees all of it or none.
    pub(super) fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<(), Error> {
        let path = self.file(name);
        let bytes = serde_json::to_vec_pretty(value).map_err(|source| Error::Record { path: path.clone(), source })?;
        tempfile::NamedTempFile::new_in(&self.0)
            .and_then(|mut file| {
                file.write_all(&bytes)?;
                file.persist(&path).map_err(|error| error.error)
            })
            .map(drop)
            .map_err(io("write", &path))
    }

    /// Reads `name`; `None` where there is none.
    fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        let path = self.file(name);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|source| Error::Record { path, source }),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(io("read", &path)(error)),
        }
    }

    pub(super) fn record(&self) -> Result<Option<Record>, Error> {
        self.read_json("record.json")
    }

    /// The supervisor, if it lives.
    pub(super) fn supervisor(&self) -> Result<Option<Identity>, Error> {
        match self.read_json::<Identity>("process.json")? {
            Some(identity) => Ok(Some(identity).filter(Identity::lives)),
            // The submitter died, or has just not come to it, between the start and its record.
            None => Ok(process::supervisor_of(&self.0)),
        }
    }

    pub(super) fn mark_cancelled(&self) -> Result<(), Error> {
        let path = self.file("cancelled");
        fs::write(&path, b"").map_err(io("write", &path))
    }

    fn exit(&self) -> Result<Option<Exit>, Error> {
        let cancelled = self.file("cancelled").exists();
        Ok(self.read_json::<ExitRecord>("exit.json")?.map(|exit| Exit {
            code: exit.code,
            signal: exit.signal,
            cancelled,
            failure: None,
        }))
    }

    pub(super) fn state(&self, workload: &Workload) -> Result<JobState, Error> {
        if let Some(exit) = self.exit()? {
            return Ok(JobState::Ended(exit));
        }
        if self.supervisor()?.is_some() {
            let answers = matches!(workload, Workload::Train { .. }) || self.file("ready.json").exists();
            return Ok(if answers { JobState::Running } else { JobState::Starting });
        }
        // It may have written how it ended, and gone, between the two looks.
        let vanished = Exit { cancelled: self.file("cancelled").exists(), ..Exit::default() };
        Ok(JobState::Ended(self.exit()?.unwrap_or(vanished)))
    }

    /// The job as it is now; `None` where there is no record.
    pub(super) fn job(&self) -> Result<Option<Job>, Error> {
        let Some(Record::V1 { workload, labels, submitted_at }) = self.record()? else { return Ok(None) };
        let state = self.state(&workload)?;
        let url = match &workload {
            Workload::Serve { spec } if state == JobState::Running => {
                self.read_json::<Ready>("ready.json")?.map(|ready| format!("http://{}:{}", spec.host, ready.port))
            }
            _ => None,
        };
        let (id, url_for_jobs) = (workload.job_id(), url.clone());
        Ok(Some(Job { id, workload, state, url, url_for_jobs, restarts: false, waiting: None, labels, submitted_at }))
    }

    /// Where the log's last `count` lines begin, in bytes.
    pub(super) fn tail_offset(&self, count: usize) -> Result<u64, Error> {
        let path = self.file("log");
        let mut file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(io("read", &path)(error)),
        };
        let mut tail = Vec::new();
        let read = file.metadata().and_then(|meta| {
            let start = meta.len().saturating_sub(TAIL_BYTES);
            file.seek(SeekFrom::Start(start))?;
            file.read_to_end(&mut tail)?;
            Ok(start)
        });
        let start = read.map_err(io("read", &path))?;
        let body = tail.strip_suffix(b"\n").unwrap_or(&tail);
        let mut ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(index, _)| index + 1);
        let within = match count {
            0 => tail.len(),
            _ => ends.nth(count - 1).unwrap_or(0),
        };
        Ok(start + within as u64)
    }

    /// What the supervisor said before it failed to start the job.
    pub(super) fn supervisor_lines(&self) -> Vec<String> {
        let text = fs::read(self.file("supervisor.log")).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }
}

pub(super) fn private_folder(path: &Path) -> Result<(), Error> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io("create", path))
}

pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}
