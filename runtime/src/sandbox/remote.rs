//! The supervisor in another pod: the same conversation as over a Unix socket, each connection of it
//! opened by a line of JSON with the run's token.
//!
//! A worker itself listens on a Unix socket in its own pod alone. Requests to it go to a Unix socket
//! here, in a folder of the trainer's; each connection is carried to the supervisor, and from there to
//! the worker's socket. So whoever asks a worker does it in one way, wherever that worker is.
//!
//! The connection is not encrypted: a cluster's network is trusted with samples and token, as it is
//! with those of the endpoints.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use training_gym_core::ids::ContentHash;

use super::Generation;
use super::control::{Error, Event, LONGEST_MESSAGE, Start, converse, inside};
use super::lines::Lines;

/// How long one attempt to connect may take: a policy may drop what is sent.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a supervisor may take to answer, once it is connected.
const ANSWER: Duration = Duration::from_secs(60);
/// How long a program may take to arrive.
const SUPPLY: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(250);
/// After that long without a word, a peer is asked whether it is still there.
const IDLE: Duration = Duration::from_secs(30);
const WHO: &str = "the run's reward pod";

/// The first line of a connection.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hello {
    pub(super) token: String,
    pub(super) wants: Wants,
}

/// What a connection is for.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Wants {
    /// A worker: [`Start`] and events follow.
    Worker,
    /// To be carried to the worker that listens on this socket.
    Socket(PathBuf),
    /// To bring a program: its bytes follow; then the supervisor says a line or how it ended.
    Program { sha256: ContentHash, size: u64 },
    /// Nothing more: the run is over.
    End,
}

/// Where a supervisor is, and what it is shown.
#[derive(Clone)]
pub struct Remote {
    address: String,
    token: Arc<str>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Remote").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Remote {
    /// The supervisor at `address` (`host:port`), which knows `token`.
    pub fn new(address: impl Into<String>, token: &str) -> Self {
        Self { address: address.into(), token: token.into() }
    }

    /// Asks for a worker of `program`, which is asked at the Unix socket `socket`, made here. Waits for
    /// up to `patience` while there is no supervisor, and gives it the program where it has none.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn ask(
        &self,
        start: &Start,
        program: &Path,
        socket: &Path,
        (patience, on_line): (Duration, impl Fn(&str) + Clone + Send + Sync + 'static),
    ) -> Result<Generation, Error> {
        let deadline = Instant::now() + patience;
        let mut supplied = false;
        loop {
            let stream = self.connect(deadline, Wants::Worker).await?;
            match converse(stream.into_split(), start, ANSWER, on_line.clone()).await {
                Ok((generation, theirs)) => {
                    // Only a name: there it is looked up in a folder of the supervisor's.
                    if inside(Path::new(""), &theirs).is_none() {
                        return Err(Error::Protocol(format!("the socket {} is not in its folder", theirs.display())));
                    }
                    self.carry(&generation, socket, theirs).map_err(|error| {
                        Error::Protocol(format!("{} cannot be made here: {error}", socket.display()))
                    })?;
                    return Ok(generation);
                }
                Err(Error::Missing(_)) if !supplied => {
                    supplied = true;
                    self.supply(&start.program, program, deadline).await?;
                }
                // A pod on its way out, or a Service that still knows one that is gone.
                Err(Error::Closed) if Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Tells the supervisor that the run is over: it ends, and does not come back.
    ///
    /// # Errors
    /// [`Error::Absent`] when it cannot be told; it then ends when nobody has needed it for long.
    pub async fn farewell(&self) -> Result<(), Error> {
        self.connect(Instant::now(), Wants::End).await.map(drop)
    }

    /// A connection whose first line is said.
    async fn connect(&self, deadline: Instant, wants: Wants) -> Result<TcpStream, Error> {
        let hello = Hello { token: self.token.to_string(), wants };
        let mut line = serde_json::to_vec(&hello).map_err(|error| Error::Protocol(error.to_string()))?;
        line.push(b'\n');
        loop {
            let attempt = async {
                let mut stream = TcpStream::connect(&self.address).await?;
                prepare(&stream)?;
                stream.write_all(&line).await?;
                Ok::<_, std::io::Error>(stream)
            };
            let why = match tokio::time::timeout(CONNECT, attempt).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no connection within {} s", CONNECT.as_secs()),
            };
            if Instant::now() >= deadline {
                return Err(Error::Absent { at: self.address.clone(), why, what: WHO });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn supply(&self, sha256: &ContentHash, program: &Path, deadline: Instant) -> Result<(), Error> {
        let unread = |error: std::io::Error| Error::Refused {
            ended: format!("its program {} cannot be sent: {error}", program.display()),
            log: String::new(),
        };
        let mut file = tokio::fs::File::open(program).await.map_err(unread)?;
        let size = file.metadata().await.map_err(unread)?.len();
        let stream = self.connect(deadline, Wants::Program { sha256: sha256.clone(), size }).await?;
        let (read, mut write) = stream.into_split();
        let mut events = Lines::up_to(read, LONGEST_MESSAGE);
        let sending = async {
            // One that refuses says so, and stops reading.
            let _ = tokio::io::copy(&mut file, &mut write).await;
            events.next().await
        };
        let answer = tokio::time::timeout(SUPPLY, sending).await;
        let answer = answer.map_err(|_| Error::Protocol(format!("no program within {} s", SUPPLY.as_secs())))?;
        match answer.as_deref().map(serde_json::from_str::<Event>) {
            Some(Ok(Event::Line { .. })) => Ok(()),
            Some(Ok(Event::Ended { ended, log })) => Err(Error::Refused { ended, log }),
            // It is asked for a worker next, and says whether it has it.
            _ => Ok(()),
        }
    }

    /// Carries connections to `socket` to the worker at `theirs`, until that generation has ended.
    fn carry(&self, generation: &Generation, socket: &Path, theirs: PathBuf) -> std::io::Result<()> {
        let listener = UnixListener::bind(socket)?;
        let (remote, mut ending) = (self.clone(), generation.ending());
        tokio::spawn(async move {
            let mut carried = JoinSet::new();
            let ended = async move { drop(ending.wait_for(Option::is_some).await) };
            tokio::pin!(ended);
            loop {
                tokio::select! {
                    () = &mut ended => return,
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => {
                            let (remote, theirs) = (remote.clone(), theirs.clone());
                            carried.spawn(async move { remote.carry_one(stream, theirs).await });
                        }
                        Err(_) => tokio::time::sleep(PAUSE).await,
                    },
                    Some(_) = carried.join_next() => {}
                }
            }
        });
        Ok(())
    }

    async fn carry_one(&self, mut stream: UnixStream, theirs: PathBuf) {
        // What fails here is a broken connection to whoever asked.
        if let Ok(mut far) = self.connect(Instant::now(), Wants::Socket(theirs)).await {
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut far).await;
        }
    }
}

/// Messages go at once, and a peer whose machine is gone is noticed.
pub(super) fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(IDLE).with_interval(IDLE / 3).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use training_gym_core::spec::Egress;

    use super::*;

    #[tokio::test]
    async fn nobody_there_is_said_without_the_token() {
        let remote = Remote::new("127.0.0.1:1", "not-to-be-shown");
        let start = Start { program: ContentHash::of(b"p"), egress: Egress::None, environment: BTreeMap::new() };
        let asked = remote.ask(&start, Path::new("/p"), Path::new("/s"), (Duration::ZERO, |_: &str| {})).await;
        let error = asked.unwrap_err().to_string();
        assert!(error.contains("127.0.0.1:1") && error.contains("reward pod"), "{error}");
        assert!(!error.contains("not-to-be-shown") && !format!("{remote:?}").contains("not-to-be-shown"));
    }
}
