//! `gym-runtime reward-worker`: starts the person's program for a trainer in another container.
//!
//! It has no secret, no store and no network of its own to use: it is told a program's hash, finds the
//! file in a folder it can only read, and starts it confined as the local form does.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::Mode;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use training_gym_core::ids::ContentHash;

use super::control::{CONTROL_SOCKET, Event, LONGEST_MESSAGE, Start};
use super::lines::Lines;
use super::{Error, Generation, Launcher, Plan};

/// Workers at once. A trainer has one; another, on its way out, may overlap.
const WORKERS: usize = 4;
/// Lines on their way to the trainer. Who prints more than is read loses lines, and is told.
const LINES: usize = 1024;
/// How long a trainer may take to say what it wants.
const REQUEST: Duration = Duration::from_secs(10);
/// How long the last lines may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Where a supervisor finds programs, and where its workers write.
#[derive(Clone, Debug)]
pub struct Supervisor {
    /// Starts them.
    pub launcher: Launcher,
    /// Programs by sha256; only read.
    pub programs: PathBuf,
    /// Sockets: its own and the workers'. The trainer sees this folder too.
    pub sockets: PathBuf,
    /// The workers' volume.
    pub volume: PathBuf,
}

/// Serves trainers until SIGTERM or SIGINT; then every worker has ended.
///
/// # Errors
/// [`Error::Supervisor`] when the socket or the volume cannot be made.
pub fn supervise(supervisor: Supervisor) -> Result<(), Error> {
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Supervisor { what, path, source }
    };
    let control = supervisor.sockets.join(CONTROL_SOCKET);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(failed("listen on", &control))?;
    let ended = runtime.block_on(async {
        let mut term = signal(SignalKind::terminate()).map_err(failed("listen on", &control))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed("listen on", &control))?;
        std::fs::create_dir_all(&supervisor.volume).map_err(failed("make", &supervisor.volume))?;
        // What a supervisor before this one left; nobody listens there any more.
        let _ = std::fs::remove_file(&control);
        let before = rustix::process::umask(Mode::from_raw_mode(0o077));
        let listener = UnixListener::bind(&control).map_err(failed("listen on", &control));
        rustix::process::umask(before);
        let listener = listener?;
        tracing::info!("ready on {} for programs of {}", control.display(), supervisor.programs.display());
        tokio::select! {
            () = accept(listener, Arc::new(supervisor)) => {}
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    });
    let _ = std::fs::remove_file(&control);
    // Dropping what serves a connection ends its worker, with all it started.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

async fn accept(listener: UnixListener, supervisor: Arc<Supervisor>) {
    let (places, number) = (Arc::new(Semaphore::new(WORKERS)), Arc::new(AtomicU64::new(0)));
    let mut serving = JoinSet::new();
    loop {
        tokio::select! {
            // A connection that failed is its client's to notice.
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let (supervisor, places, number) = (Arc::clone(&supervisor), Arc::clone(&places), Arc::clone(&number));
                serving.spawn(async move {
                    let place = places.try_acquire();
                    serve(stream, &supervisor, place.is_ok(), &number).await;
                });
            }
            Some(_) = serving.join_next() => {}
        }
    }
}

/// Serves one connection: one generation.
async fn serve(stream: UnixStream, supervisor: &Supervisor, free: bool, number: &AtomicU64) {
    let (read, mut write) = stream.into_split();
    let mut read = Lines::up_to(read, LONGEST_MESSAGE);
    if let Err(ended) = serve_asked(&mut read, &mut write, supervisor, (free, number)).await {
        tracing::warn!("no worker: {ended}");
        say(&mut write, &Event::Ended { ended, log: String::new() }).await;
    }
}

async fn serve_asked(
    read: &mut Lines<OwnedReadHalf>,
    write: &mut OwnedWriteHalf,
    supervisor: &Supervisor,
    (free, number): (bool, &AtomicU64),
) -> Result<(), String> {
    let request = tokio::time::timeout(REQUEST, read.next()).await.ok().flatten().ok_or("nothing was asked for")?;
    let start: Start = serde_json::from_str(&request).map_err(|error| format!("no request: {error}"))?;
    if !free {
        return Err(format!("{WORKERS} workers run already"));
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
    /// The plan of a request, once the program is the one that was asked for.
    fn plan(&self, start: &Start, socket: &str) -> Result<Plan, String> {
        if !start.egress.is_none() {
            return Err("reward.egress = declared needs a pod of its own, which is not made yet: the sidecar shares \
                 the trainer's network; leave recipe.reward_egress unset, or use the local backend"
                .to_owned());
        }
        let hash = start.program.as_str();
        if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(format!("`{hash}` is no sha256"));
        }
        let program = self.programs.join(hash);
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
async fn say(write: &mut OwnedWriteHalf, event: &Event) {
    let Ok(mut text) = serde_json::to_vec(event) else { return };
    text.push(b'\n');
    let _ = write.write_all(&text).await;
}
