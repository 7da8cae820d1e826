//! The reward worker: the person's own executable, as a server on a Unix socket. It is started here,
//! confined, or by the supervisor of another container; asking it is the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use training_gym_core::ids::ContentHash;
use training_gym_core::spec::{Egress, RewardSpec};
use training_gym_core::worker::Functions;

use super::Error;
use crate::sandbox::remote::Remote;
use crate::sandbox::{Generation, Launcher, Plan, control};

/// How long a program may take from its start to its first answer.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a pod may take that is started, or started anew on another node.
const POD_TIMEOUT: Duration = Duration::from_secs(600);

/// Bytes of a Unix socket's path (`sockaddr_un`, without the zero at its end).
const LONGEST_SOCKET: usize = 107;

/// A worker that is restarted when it dies.
#[derive(Debug)]
pub struct Worker {
    place: Place,
    declared: Declared,
    state: Mutex<State>,
    restarts: AtomicU64,
}

/// Where it runs.
#[derive(Debug)]
enum Place {
    /// In a process of ours.
    Here {
        launcher: Launcher,
        program: PathBuf,
        /// As we call it: a job's own folder may lie too deep for a socket's path.
        sockets: PathBuf,
        folder: tempfile::TempDir,
    },
    /// At the supervisor behind this folder.
    Sidecar { sockets: PathBuf, program: ContentHash },
    /// At a supervisor in another pod, which is given the program; we speak to it by sockets here.
    Remote { remote: Remote, program: (ContentHash, PathBuf), sockets: PathBuf, _folder: tempfile::TempDir },
}

/// What the recipe says that the worker may have.
#[derive(Clone, Debug)]
struct Declared {
    egress: Egress,
    files: Vec<PathBuf>,
    environment: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct State {
    generation: u64,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    generation: Generation,
    client: reqwest::Client,
}

/// A way to ask the worker, good until that generation of it ends.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Which start of the worker this is.
    pub generation: u64,
    /// Speaks over its socket.
    pub client: reqwest::Client,
}

impl Worker {
    /// A worker of the executable at `program`, confined by `launcher`; it is started when first asked.
    /// Its volume is a folder of its own below `scratch`, removed with this.
    ///
    /// # Errors
    /// When no such folder can be made, or a socket there would have too long a path.
    pub fn here(launcher: Launcher, program: &Path, scratch: &Path, spec: &RewardSpec) -> Result<Self, Error> {
        let (folder, sockets) = volume(scratch)?;
        Ok(Self::at(Place::Here { launcher, program: program.to_owned(), sockets, folder }, spec))
    }

    /// A worker at the supervisor whose control socket is in the folder `sockets`.
    ///
    /// # Errors
    /// When the spec declares what a sidecar does not have.
    pub fn sidecar(sockets: &Path, spec: &RewardSpec) -> Result<Self, Error> {
        no_files(spec)?;
        let place = Place::Sidecar { sockets: sockets.to_owned(), program: spec.program.sha256.clone() };
        Ok(Self::at(place, spec))
    }

    /// A worker at the supervisor `remote` in another pod, which is given the executable at `program`.
    ///
    /// # Errors
    /// When the spec declares what that pod does not have, or there is no folder for sockets.
    pub fn remote(remote: Remote, program: &Path, scratch: &Path, spec: &RewardSpec) -> Result<Self, Error> {
        no_files(spec)?;
        let (folder, sockets) = volume(scratch)?;
        let program = (spec.program.sha256.clone(), program.to_owned());
        Ok(Self::at(Place::Remote { remote, program, sockets, _folder: folder }, spec))
    }

    /// With variables that the recipe declares for the job.
    #[must_use]
    pub fn with_environment(mut self, environment: &BTreeMap<String, String>) -> Self {
        self.declared.environment.clone_from(environment);
        self
    }

    fn at(place: Place, spec: &RewardSpec) -> Self {
        let RewardSpec { egress, files, .. } = spec.clone();
        let declared = Declared { egress, files, environment: BTreeMap::new() };
        Self { place, declared, state: Mutex::default(), restarts: AtomicU64::new(0) }
    }

    /// The running worker, started if there is none.
    ///
    /// # Errors
    /// [`Error::Worker`] when it does not answer within a minute or exits first.
    pub async fn connect(&self) -> Result<Connection, Error> {
        let mut state = self.state.lock().await;
        let current = state.generation;
        if let Some(running) = &state.running {
            if !running.generation.has_ended() {
                return Ok(Connection { generation: current, client: running.client.clone() });
            }
            state.running = None;
            self.restarts.fetch_add(1, Ordering::Relaxed);
        }
        let generation = current + 1;
        let running = self.start(generation).await?;
        let client = running.client.clone();
        *state = State { generation, running: Some(running) };
        Ok(Connection { generation, client })
    }

    /// Ends the worker of `generation`, so that the next [`Worker::connect`] starts another. Does
    /// nothing if that one is gone already.
    pub async fn kill(&self, generation: u64) {
        let mut state = self.state.lock().await;
        if state.generation == generation
            && let Some(running) = state.running.take()
        {
            self.restarts.fetch_add(1, Ordering::Relaxed);
            running.generation.kill().await;
        }
    }

    /// How often a worker was replaced.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    async fn start(&self, number: u64) -> Result<Running, Error> {
        let failed = |what: String, log: String| Error::Worker { what, log };
        let (mut generation, socket) = match &self.place {
            Place::Here { launcher, program, sockets, folder } => {
                let plan = self.declared.plan(program, folder.path(), sockets, number)?;
                let generation = Generation::start(launcher, &plan, log_line)
                    .map_err(|error| failed(training_gym_core::chain(&error), String::new()))?;
                (generation, sockets.join(socket_name(number)))
            }
            Place::Sidecar { sockets, program } => {
                let start = self.declared.start(program);
                control::ask(sockets, &start, START_TIMEOUT, log_line).await.map_err(unanswered)?
            }
            Place::Remote { remote, program: (hash, path), sockets, .. } => {
                let (start, socket) = (self.declared.start(hash), sockets.join(socket_name(number)));
                let asked = remote.ask(&start, path, &socket, (POD_TIMEOUT, log_line)).await;
                (asked.map_err(unanswered)?, socket)
            }
        };
        let client = reqwest::Client::builder()
            .unix_socket(socket.as_path())
            .no_proxy()
            .build()
            .map_err(|error| failed(format!("cannot be asked: {error}"), String::new()))?;
        let deadline = Instant::now() + START_TIMEOUT;
        let mut pause = Duration::from_millis(5);
        loop {
            if functions(&client).await.is_ok() {
                return Ok(Running { generation, client });
            }
            // A socket that is not there yet cannot be awaited: ask again, ever more slowly, or
            // learn at once that the process ended.
            tokio::select! {
                how = generation.end() => {
                    return Err(failed(format!("ended before it answered ({how})"), generation.last_words()));
                }
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_millis(200)),
            }
            if Instant::now() > deadline {
                let words = generation.last_words();
                generation.kill().await;
                return Err(failed(format!("did not answer within {} s", START_TIMEOUT.as_secs()), words));
            }
        }
    }
}

impl Declared {
    /// What a supervisor is asked for.
    fn start(&self, program: &ContentHash) -> control::Start {
        let Self { egress, environment, .. } = self.clone();
        control::Start { program: program.clone(), egress, environment }
    }

    /// The plan of a start in a process of ours.
    fn plan(&self, program: &Path, volume: &Path, sockets: &Path, number: u64) -> Result<Plan, Error> {
        let absolute = |path: &Path| {
            std::path::absolute(path)
                .map_err(|error| Error::Worker { what: format!("has no path: {error}"), log: String::new() })
        };
        let volume = absolute(volume)?;
        let name = PathBuf::from(socket_name(number));
        // Its working folder is the volume, so that a name without a folder is the same socket there.
        let socket = if sockets.is_absolute() { sockets.join(name) } else { name };
        Ok(Plan {
            program: absolute(program)?,
            volume,
            socket,
            environment: self.environment.clone(),
            egress: self.egress.clone(),
            files: self.files.clone(),
        })
    }
}

/// Why a supervisor gave none.
fn unanswered(error: control::Error) -> Error {
    match error {
        control::Error::Refused { ended, log } => Error::Worker { what: format!("was not started: {ended}"), log },
        other => Error::Worker { what: other.to_string(), log: String::new() },
    }
}

fn no_files(spec: &RewardSpec) -> Result<(), Error> {
    if spec.files.is_empty() {
        return Ok(());
    }
    let what = "cannot have the files of recipe.reward_files in a pod, which does not share your disk; put them into the \
                program (`include_bytes!`)";
    Err(Error::Worker { what: what.to_owned(), log: String::new() })
}

/// A folder of its own below `scratch`, removed with what is returned, and how we call it for sockets.
fn volume(scratch: &Path) -> Result<(tempfile::TempDir, PathBuf), Error> {
    let failed = |what: String| Error::Worker { what, log: String::new() };
    let folder = tempfile::Builder::new().prefix("gym-worker-").tempdir_in(scratch).map_err(|error| {
        failed(format!("needs a folder for its socket below {}: {error}; check free space", scratch.display()))
    })?;
    let here = std::env::current_dir().unwrap_or_default();
    let sockets = socket_folder(folder.path(), &here).ok_or_else(|| {
        failed(format!(
            "needs a folder for its socket, and {} is too long: a socket's path has at most {LONGEST_SOCKET} bytes; \
             set TMPDIR to a shorter one",
            folder.path().display()
        ))
    })?;
    Ok((folder, sockets))
}

fn socket_name(number: u64) -> String {
    format!("{number}.sock")
}

/// `folder` by a name that leaves room for a socket's: as it is, or relative to `here`, the working
/// folder. A job's own folder may lie deep.
fn socket_folder(folder: &Path, here: &Path) -> Option<PathBuf> {
    let fits = |path: &Path| path.join(socket_name(u64::MAX)).as_os_str().len() <= LONGEST_SOCKET;
    let relative = || folder.strip_prefix(here).ok();
    [Some(folder), relative()].into_iter().flatten().find(|path| fits(path)).map(Path::to_owned)
}

/// What the worker has registered.
///
/// # Errors
/// When it does not answer.
pub async fn functions(client: &reqwest::Client) -> Result<Functions, reqwest::Error> {
    client.get("http://worker/functions").send().await?.error_for_status()?.json().await
}

/// The worker's output belongs to our log.
fn log_line(line: &str) {
    tracing::info!(target: "reward", "{line}");
}

#[cfg(test)]
mod tests {
    use training_gym_core::spec::ProgramRef;

    use super::*;

    fn spec() -> RewardSpec {
        RewardSpec {
            function: "f".into(),
            post_process: None,
            program: ProgramRef { key: "k".into(), sha256: ContentHash::of(b"") },
            timeout_secs: 1.0,
            max_concurrency: 1,
            max_ungraded_fraction: 0.0,
            grade_truncated: false,
            egress: Egress::None,
            files: Vec::new(),
        }
    }

    #[test]
    fn a_deep_folder_is_named_from_the_working_folder() {
        let deep = PathBuf::from(format!("/home/{}/jobs/train-r", "x".repeat(120)));
        let folder = deep.join("scratch/gym-worker-abcdef");
        assert_eq!(socket_folder(&folder, &deep).unwrap(), Path::new("scratch/gym-worker-abcdef"));
        assert_eq!(socket_folder(&folder, Path::new("/elsewhere")), None);
        let short = Path::new("/tmp/gym-worker-abcdef");
        assert_eq!(socket_folder(short, Path::new("/tmp")).unwrap(), short);
        let long = std::env::temp_dir().join("y".repeat(110));
        std::fs::create_dir_all(&long).unwrap();
        let worker = Worker::here(Launcher::new("gym-runtime"), Path::new("/bin/true"), &long, &spec());
        let error = worker.unwrap_err().to_string();
        std::fs::remove_dir_all(&long).unwrap();
        assert!(error.contains("at most 107 bytes") && error.contains("TMPDIR"), "{error}");
    }

    #[test]
    fn the_worker_and_we_mean_the_same_socket() {
        let declared = Worker::sidecar(Path::new("/worker"), &spec()).unwrap().declared;
        let plan = |sockets: &str| declared.plan(Path::new("/p"), Path::new("/deep/v"), Path::new(sockets), 3).unwrap();
        assert_eq!(plan("/deep/v").socket, Path::new("/deep/v/3.sock"));
        assert_eq!(plan("scratch/v").socket, Path::new("3.sock"), "in its volume, where it works");
        let files = RewardSpec { files: vec!["/data/answers".into()], ..spec() };
        let error = Worker::sidecar(Path::new("/worker"), &files).unwrap_err().to_string();
        assert!(error.contains("recipe.reward_files"), "{error}");
    }
}
