//! `gym-runtime reward-worker`: starts the person's program for a trainer in another container.
//!
//! It has no store and no network of its own to use: it is told a program's hash, finds the file in its
//! folder, and starts it confined as the local form does. In the trainer's pod it listens on a socket in
//! a folder; in a pod of its own on a port, behind the run's token ([`super::door`]).

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::Mode;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use training_gym_core::ids::ContentHash;

use super::control::{CONTROL_SOCKET, Event, LONGEST_MESSAGE, Start};
use super::door::{self, Digested};
use super::lines::Lines;
use super::{Error, Generation, Launcher, Plan};

/// Workers at once. A trainer has one; another, on its way out, may overlap.
const WORKERS: usize = 4;
/// Lines on their way to the trainer. Who prints more than is read loses lines, and is told.
const LINES: usize = 1024;
/// How long a trainer may take to say what it wants.
pub(super) const REQUEST: Duration = Duration::from_secs(10);
/// How long the last lines may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Where a supervisor finds programs, and where its workers write.
#[derive(Clone, Debug)]
pub struct Supervisor {
    /// Starts them.
    pub launcher: Launcher,
    /// Programs by sha256; only read by workers.
    pub programs: PathBuf,
    /// The workers' sockets, and its own where it listens here.
    pub sockets: PathBuf,
    /// The workers' volume.
    pub volume: PathBuf,
    /// Where trainers speak to it.
    pub place: Place,
}

/// Where trainers speak to a supervisor.
#[derive(Clone)]
pub enum Place {
    /// At a socket in its folder, which the trainer sees too: a container of the same pod.
    Folder,
    /// At a port: a pod of its own.
    Port {
        /// Address and port to listen on, such as `0.0.0.0:8001`.
        listen: String,
        /// What a trainer must show.
        token: String,
    },
}

impl std::fmt::Debug for Place {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder => out.write_str("Folder"),
            Self::Port { listen, .. } => out.debug_struct("Port").field("listen", listen).finish_non_exhaustive(),
        }
    }
}

/// Why a supervisor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its run is over: nobody will need it again.
    RunOver,
    /// It was told to by a signal: the run may go on, and need another.
    Signal,
}

/// Serves trainers until SIGTERM or SIGINT, or until the run is over where that is said; then every
/// worker has ended.
///
/// # Errors
/// [`Error::Supervisor`] when the socket, the port or the volume cannot be had.
pub fn supervise(supervisor: Supervisor) -> Result<End, Error> {
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Supervisor { what, path, source }
    };
    let control = match &supervisor.place {
        Place::Folder => supervisor.sockets.join(CONTROL_SOCKET),
        Place::Port { listen, .. } => PathBuf::from(listen),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(failed("listen on", &control))?;
    let place = supervisor.place.clone();
    let ended = runtime.block_on(async {
        let mut term = signal(SignalKind::terminate()).map_err(failed("listen on", &control))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed("listen on", &control))?;
        for folder in [&supervisor.volume, &supervisor.sockets] {
            std::fs::create_dir_all(folder).map_err(failed("make", folder))?;
        }
        let programs = supervisor.programs.display().to_string();
        let serving: std::pin::Pin<Box<dyn Future<Output = ()>>> = match &place {
            Place::Folder => {
                // What a supervisor before this one left; nobody listens there any more.
                let _ = std::fs::remove_file(&control);
                let before = rustix::process::umask(Mode::from_raw_mode(0o077));
                let listener = UnixListener::bind(&control).map_err(failed("listen on", &control));
                rustix::process::umask(before);
                Box::pin(accept(listener?, Arc::new(supervisor)))
            }
            Place::Port { listen, token } => {
                let listener = TcpListener::bind(listen).await.map_err(failed("listen on", &control))?;
                Box::pin(door::accept(listener, supervisor, Digested::of(token)))
            }
        };
        tracing::info!("ready on {} for programs of {programs}", control.display());
        Ok(tokio::select! {
            () = serving => End::RunOver,
            _ = term.recv() => End::Signal,
            _ = interrupt.recv() => End::Signal,
        })
    });
    if matches!(place, Place::Folder) {
        let _ = std::fs::remove_file(&control);
    }
    // Dropping what serves a connection ends its worker, with all it started.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

/// How many workers run, and how many were started.
pub(super) struct Counted {
    places: Semaphore,
    number: AtomicU64,
}

impl Default for Counted {
    fn default() -> Self {
        Self { places: Semaphore::new(WORKERS), number: AtomicU64::new(0) }
    }
}

async fn accept(listener: UnixListener, supervisor: Arc<Supervisor>) {
    let counted = Arc::new(Counted::default());
    let mut serving = JoinSet::new();
    loop {
        tokio::select! {
            // A connection that failed is its client's to notice.
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let (supervisor, counted) = (Arc::clone(&supervisor), Arc::clone(&counted));
                serving.spawn(async move {
                    let (read, write) = stream.into_split();
                    serve((Lines::up_to(read, LONGEST_MESSAGE), write), &supervisor, &counted).await;
                });
            }
            Some(_) = serving.join_next() => {}
        }
    }
}

/// Serves one connection: one generation.
pub(super) async fn serve<R, W>((mut read, mut write): (Lines<R>, W), supervisor: &Supervisor, counted: &Counted)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let place = counted.places.try_acquire();
    if let Err(ended) = serve_asked(&mut read, &mut write, supervisor, (place.is_ok(), &counted.number)).await {
        tracing::warn!("no worker: {ended}");
        say(&mut write, &Event::Ended { ended, log: String::new() }).await;
    }
}

async fn serve_asked<R, W>(
    read: &mut Lines<R>,
    write: &mut W,
    supervisor: &Supervisor,
    (free, number): (bool, &AtomicU64),
) -> Result<(), String>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let request = tokio::time::timeout(REQUEST, read.next()).await.ok().flatten().ok_or("nothing was asked for")?;
    let start: Start = serde_json::from_str(&request).map_err(|error| format!("no request: {error}"))?;
    if !free {
        return Err(format!("{WORKERS} workers run already"));
    }
    if supervisor.lacks(&start.program)? {
        say(write, &Event::Missing { missing: start.program }).await;
        return Ok(());
    }
    let name = format!("{}.sock", number.fetch_add(1, Ordering::Relaxed) + 1);
    let plan = supervisor.plan(&start, &name)?;
    let _ = std::fs::remove_file(&plan.socket);
    let (lines, mut printed) = mpsc::channel(LINES);
    let lost = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&lost);
    let on_line = move |line: &str| {
        if lines.try_send(line.to_owned()).is_err() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    };
    let mut generation =
        Generation::start(&supervisor.launcher, &plan, on_line).map_err(|error| training_gym_core::chain(&error))?;
    tracing::info!("worker {name} of program {} started", start.program);
    say(write, &Event::Started { socket: name.clone().into() }).await;
    let ended = loop {
        tokio::select! {
            // Whatever else a trainer says, it says nothing more that counts; its end does.
            more = read.next() => if more.is_none() { break None },
            Some(line) = printed.recv() => say(write, &Event::Line { line }).await,
            how = generation.end() => break Some(how),
        }
    };
    let log = generation.last_words();
    generation.kill().await;
    let _ = std::fs::remove_file(&plan.socket);
    tracing::info!("worker {name} ended: {}", ended.as_deref().unwrap_or("the trainer closed its connection"));
    if let Some(ended) = ended {
        let rest = async {
            while let Some(line) = printed.recv().await {
                say(write, &Event::Line { line }).await;
            }
            match lost.load(Ordering::Relaxed) {
                0 => {}
                lost => say(write, &Event::Line { line: format!("({lost} lines were left out)") }).await,
            }
            say(write, &Event::Ended { ended, log }).await;
        };
        let _ = tokio::time::timeout(LAST_WORDS, rest).await;
    }
    Ok(())
}

impl Supervisor {
    /// Where a program is, or would be.
    pub(super) fn program(&self, program: &ContentHash) -> Result<PathBuf, String> {
        let hash = program.as_str();
        if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(format!("`{hash}` is no sha256"));
        }
        Ok(self.programs.join(hash))
    }

    /// Whether a program must be brought first: only to a pod of its own, which fetches nothing.
    fn lacks(&self, program: &ContentHash) -> Result<bool, String> {
        Ok(matches!(self.place, Place::Port { .. }) && !self.program(program)?.exists())
    }

    /// The plan of a request, once the program is the one that was asked for.
    fn plan(&self, start: &Start, socket: &str) -> Result<Plan, String> {
        if !start.egress.is_none() && matches!(self.place, Place::Folder) {
            return Err(
                "recipe.reward_egress declares hosts, which needs a pod of its own: this container shares the \
                 trainer's network; start the supervisor with --listen and --token-file, the trainer with \
                 --reward-address"
                    .to_owned(),
            );
        }
        let program = self.program(&start.program)?;
        let damaged = |why: String| {
            format!("the program {}: {why}; delete the pod, so that it is fetched anew", program.display())
        };
        let meta = std::fs::metadata(&program).map_err(|error| damaged(error.to_string()))?;
        if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
            return Err(damaged("it is no executable file".to_owned()));
        }
        let found = ContentHash::of_file(&program).map_err(|error| damaged(error.to_string()))?;
        if found != start.program {
            return Err(damaged(format!("it has sha256 {found}")));
        }
        let absolute = |path: &Path| std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()));
        Ok(Plan {
            volume: absolute(&self.volume)?,
            socket: absolute(&self.sockets)?.join(socket),
            program: absolute(&program)?,
            environment: start.environment.clone(),
            egress: start.egress.clone(),
            files: Vec::new(),
        })
    }
}

/// Says an event. A trainer that is gone is noticed by its end of the connection.
pub(super) async fn say(write: &mut (impl AsyncWrite + Unpin), event: &Event) {
    let Ok(mut text) = serde_json::to_vec(event) else { return };
    text.push(b'\n');
    let _ = write.write_all(&text).await;
}
