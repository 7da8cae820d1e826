//! Where a supervisor in a pod of its own is spoken to: a port, behind the run's token.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use training_gym_core::ids::ContentHash;

use super::control::{Event, LONGEST_MESSAGE, inside};
use super::lines::Lines;
use super::remote::{Hello, Wants, prepare};
use super::supervisor::{Counted, REQUEST, Supervisor, say, serve};

/// Connections at once: a trainer has one for each sample that is graded.
const CONNECTIONS: usize = 4096;
/// Bytes of a first line, at most.
const LONGEST_HELLO: usize = 4096;
/// Bytes of a program, at most.
const LARGEST_PROGRAM: u64 = 2 << 30;
/// How long after its last trainer a supervisor waits for another. Trainers that are evicted come back.
const ALONE: Duration = Duration::from_secs(3600);
const LOOK: Duration = Duration::from_secs(30);

/// A token's hash: hashes of one length are compared, so the time it takes tells nothing.
#[derive(Clone, Copy)]
pub(super) struct Digested([u8; 32]);

impl Digested {
    pub(super) fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    fn matches(self, token: &str) -> bool {
        self.0.ct_eq(&Self::of(token).0).into()
    }
}

/// What all connections share.
struct Shared {
    supervisor: Supervisor,
    token: Digested,
    counted: Counted,
    /// Trainers that hold a worker, and when the last one was seen.
    trainers: Mutex<(usize, Option<Instant>)>,
    over: watch::Sender<bool>,
}

impl Shared {
    fn came_or_went(&self, change: isize) {
        let mut trainers = self.trainers.lock().unwrap_or_else(PoisonError::into_inner);
        *trainers = (trainers.0.saturating_add_signed(change), Some(Instant::now()));
    }

    fn is_alone(&self) -> bool {
        let trainers = self.trainers.lock().unwrap_or_else(PoisonError::into_inner);
        trainers.0 == 0 && trainers.1.is_some_and(|seen| seen.elapsed() > ALONE)
    }
}

/// Serves trainers until one says that the run is over, or none came back.
pub(super) async fn accept(listener: TcpListener, supervisor: Supervisor, token: Digested) {
    let (over, mut told) = watch::channel(false);
    let shared = Arc::new(Shared { supervisor, token, counted: Counted::default(), trainers: Mutex::default(), over });
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut serving = JoinSet::new();
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            _ = told.wait_for(|over| *over) => {
                tracing::info!("the run is over");
                return;
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                    let shared = Arc::clone(&shared);
                    serving.spawn(async move {
                        answer(stream, peer, &shared).await;
                        drop(place);
                    });
                },
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            Some(_) = serving.join_next() => {}
            _ = look.tick() => if shared.is_alone() {
                tracing::info!("no trainer came for {} minutes", ALONE.as_secs() / 60);
                return;
            }
        }
    }
}

async fn answer(stream: TcpStream, peer: SocketAddr, shared: &Shared) {
    let _ = prepare(&stream);
    let (read, mut write) = stream.into_split();
    let mut lines = Lines::up_to(read, LONGEST_HELLO);
    // A probe connects and says nothing.
    let Some(hello) = tokio::time::timeout(REQUEST, lines.next()).await.ok().flatten() else { return };
    let refusal = match serde_json::from_str::<Hello>(&hello) {
        Ok(hello) if shared.token.matches(&hello.token) => {
            return serve_wanted(hello.wants, lines.longer(LONGEST_MESSAGE), write, shared).await;
        }
        Ok(_) => "the token is not this run's",
        Err(_) => "the first line is no greeting",
    };
    tracing::warn!("refused a connection from {peer}: {refusal}");
    say(&mut write, &Event::Ended { ended: refusal.to_owned(), log: String::new() }).await;
}

async fn serve_wanted(wants: Wants, lines: Lines<OwnedReadHalf>, mut write: OwnedWriteHalf, shared: &Shared) {
    match wants {
        Wants::Worker => {
            shared.came_or_went(1);
            serve((lines, write), &shared.supervisor, &shared.counted).await;
            shared.came_or_went(-1);
        }
        Wants::Socket(name) => {
            let Some(socket) = inside(&shared.supervisor.sockets, &name) else { return };
            let Ok(mut worker) = UnixStream::connect(socket).await else { return };
            let mut far = tokio::io::join(lines.into_reader(), write);
            let _ = tokio::io::copy_bidirectional(&mut far, &mut worker).await;
        }
        Wants::Program { sha256, size } => {
            let said = match shared.supervisor.take(&sha256, size, lines).await {
                Ok(()) => Event::Line { line: format!("program {sha256} arrived") },
                Err(ended) => Event::Ended { ended, log: String::new() },
            };
            if let Event::Ended { ended, .. } = &said {
                tracing::warn!("no program: {ended}");
            }
            say(&mut write, &said).await;
        }
        Wants::End => {
            let _ = shared.over.send(true);
        }
    }
}

impl Supervisor {
    /// Puts a program that arrives into the folder, once it is the one that was meant.
    async fn take(&self, sha256: &ContentHash, size: u64, lines: Lines<OwnedReadHalf>) -> Result<(), String> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let target = self.program(sha256)?;
        if size > LARGEST_PROGRAM {
            return Err(format!("the program has {size} bytes, and may have {LARGEST_PROGRAM}"));
        }
        let partial = target.with_extension(format!("partial-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let arrived = async {
            let mut file = tokio::fs::File::create(&partial).await?;
            let written = tokio::io::copy(&mut lines.into_reader().take(size), &mut file).await?;
            file.flush().await?;
            let whole = written == size && ContentHash::of_file(&partial)? == *sha256;
            if !whole {
                return Err(std::io::Error::other("what arrived is not the program"));
            }
            std::fs::set_permissions(&partial, std::fs::Permissions::from_mode(0o555))?;
            std::fs::rename(&partial, &target)
        };
        let arrived: std::io::Result<()> = arrived.await;
        let _ = std::fs::remove_file(&partial);
        arrived.map_err(|error| format!("the program {}: {error}", target.display()))
    }
}
