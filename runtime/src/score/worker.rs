//! The reward worker's process: the person's own executable, started as a server on a Unix socket.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as SyncMutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::Mutex;
use training_gym_core::worker::{Functions, REWARD_WORKER, ROLE_VARIABLE, SOCKET_VARIABLE};

use super::Error;

/// How long a program may take from its start to its first answer.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Lines of output kept for error messages.
const KEPT_LINES: usize = 20;

/// Bytes of a Unix socket's path (`sockaddr_un`, without the zero at its end).
const LONGEST_SOCKET: usize = 107;

/// A worker that is restarted when it dies.
#[derive(Debug)]
pub struct Worker {
    program: PathBuf,
    /// As worker and we, who share a working folder, call it.
    sockets: PathBuf,
    _folder: tempfile::TempDir,
    state: Mutex<State>,
    restarts: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    generation: u64,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    /// The worker ends when this closes: it must not outlive us.
    _stdin: Option<ChildStdin>,
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
    /// A worker of the executable at `program`; it is started when first asked. Its sockets lie in a
    /// folder of their own below `scratch`.
    ///
    /// # Errors
    /// When no folder for the sockets can be made, or a socket there would have too long a path.
    pub fn new(program: &Path, scratch: &Path) -> Result<Self, Error> {
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
        let (state, restarts) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self { program: program.to_owned(), sockets, _folder: folder, state, restarts })
    }

    /// The running worker, started if there is none.
    ///
    /// # Errors
    /// [`Error::Worker`] when it does not answer within a minute or exits first.
    pub async fn connect(&self) -> Result<Connection, Error> {
        let mut state = self.state.lock().await;
        let current = state.generation;
        if let Some(running) = &mut state.running {
            if let Ok(None) = running.child.try_wait() {
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
            && let Some(mut running) = state.running.take()
        {
            self.restarts.fetch_add(1, Ordering::Relaxed);
            let _ = running.child.kill().await;
        }
    }

    /// How often a worker was replaced.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    async fn start(&self, generation: u64) -> Result<Running, Error> {
        let socket = self.sockets.join(format!("{generation}.sock"));
        let failed = |what: String, log: String| Error::Worker { what, log };
        let mut child = Command::new(&self.program)
            .env(ROLE_VARIABLE, REWARD_WORKER)
            .env(SOCKET_VARIABLE, &socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                failed(format!("cannot be started from {}: {error}", self.program.display()), String::new())
            })?;
        // Taken out: waiting for a child would close it.
        let stdin = child.stdin.take();
        let tail = Arc::new(SyncMutex::new(Vec::new()));
        if let Some(out) = child.stdout.take() {
            forward(out, Arc::clone(&tail));
        }
        if let Some(out) = child.stderr.take() {
            forward(out, Arc::clone(&tail));
        }
        let client = reqwest::Client::builder()
            .unix_socket(socket.as_path())
            .no_proxy()
            .build()
            .map_err(|error| failed(format!("cannot be asked: {error}"), String::new()))?;
        let words = || {
            tail.lock().map_or_else(|_| String::new(), |lines: std::sync::MutexGuard<'_, Vec<String>>| lines.join("\n"))
        };
        let deadline = Instant::now() + START_TIMEOUT;
        let mut pause = Duration::from_millis(5);
        loop {
            if functions(&client).await.is_ok() {
                return Ok(Running { child, _stdin: stdin, client });
            }
            // A socket that is not there yet cannot be awaited: ask again, ever more slowly, or
            // learn at once that the process ended.
            tokio::select! {
                status = child.wait() => {
                    let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                    return Err(failed(format!("ended before it answered ({how})"), words()));
                }
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_millis(200)),
            }
            if Instant::now() > deadline {
                let _ = child.kill().await;
                return Err(failed(format!("did not answer within {} s", START_TIMEOUT.as_secs()), words()));
            }
        }
    }
}

/// `folder` by a name that leaves room for a socket's: as it is, or relative to `here`, the working
/// folder. A job's own folder may lie deep.
fn socket_folder(folder: &Path, here: &Path) -> Option<PathBuf> {
    let fits = |path: &Path| path.join(format!("{}.sock", u64::MAX)).as_os_str().len() <= LONGEST_SOCKET;
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

/// Copies the worker's output to our log, and keeps the last lines.
fn forward(out: impl AsyncRead + Unpin + Send + 'static, tail: Arc<SyncMutex<Vec<String>>>) {
    tokio::spawn(async move {
        let mut lines = BufReader::new(out).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            tracing::info!(target: "reward", "{line}");
            if let Ok(mut tail) = tail.lock() {
                if tail.len() == KEPT_LINES {
                    tail.remove(0);
                }
                tail.push(line);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let error = Worker::new(Path::new("/bin/true"), &long).unwrap_err().to_string();
        std::fs::remove_dir_all(&long).unwrap();
        assert!(error.contains("at most 107 bytes") && error.contains("TMPDIR"), "{error}");
    }
}
