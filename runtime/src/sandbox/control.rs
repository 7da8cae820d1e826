//! What a trainer and the supervisor of its reward worker say to each other, over the Unix socket
//! `control.sock` of a folder that both see, or over TCP (then [`super::remote`] says who it is first).
//!
//! A connection is one generation of the worker. The trainer says [`Start`], a line of JSON; then the
//! supervisor says [`Event`]s, one a line. The worker ends when the connection does, whoever closes it.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};
use training_gym_core::ids::ContentHash;
use training_gym_core::spec::Egress;

use super::Generation;
use super::generation::Tail;
use super::lines::Lines;

/// The control socket's name in its folder.
pub const CONTROL_SOCKET: &str = "control.sock";

/// Bytes of a line of the protocol, at most: the worker's last twenty lines fit.
pub(super) const LONGEST_MESSAGE: usize = 1 << 20;

/// Between two attempts to reach a supervisor that is starting, or starting anew.
const PAUSE: Duration = Duration::from_millis(100);

/// What a trainer asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The program, which the supervisor has in its folder under this name.
    pub program: ContentHash,
    /// Which network it may use.
    #[serde(default)]
    pub egress: Egress,
    /// Variables that the recipe declares for it.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

/// What a supervisor answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Event {
    /// The program was started and will listen on this socket.
    Started {
        /// A path in the folder of the control socket.
        socket: PathBuf,
    },
    /// The supervisor does not have the program, and may be given it. The last event.
    Missing {
        /// The program.
        missing: ContentHash,
    },
    /// It printed a line.
    Line {
        /// The line.
        line: String,
    },
    /// It ended, or never began. The last event.
    Ended {
        /// How.
        ended: String,
        /// Its last lines.
        log: String,
    },
}

/// Why a supervisor gave no worker.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answers.
    #[error("has no supervisor at {at}: {why}; is {what} running?")]
    Absent {
        /// The control socket, or an address.
        at: String,
        /// Why.
        why: String,
        /// Who should listen there.
        what: &'static str,
    },
    /// It closed the connection before it had answered: it is ending, or was replaced.
    #[error("has a supervisor that closed the connection without an answer; look at the reward container's log")]
    Closed,
    /// It lacks the program.
    #[error("has a supervisor that does not have the program {0}; delete the pod, so that it is fetched anew")]
    Missing(ContentHash),
    /// It answered something else than it should.
    #[error("has a supervisor that does not keep to the protocol: {0}; use one image for the whole pod")]
    Protocol(String),
    /// It started no worker.
    #[error("was not started: {ended}")]
    Refused {
        /// Why.
        ended: String,
        /// The program's last output.
        log: String,
    },
}

/// Asks the supervisor behind `folder` for a worker, for up to `patience` while there is none yet.
/// The socket it will listen on is returned with it.
///
/// # Errors
/// [`Error`].
pub async fn ask(
    folder: &Path,
    start: &Start,
    patience: Duration,
    on_line: impl Fn(&str) + Clone + Send + Sync + 'static,
) -> Result<(Generation, PathBuf), Error> {
    let deadline = Instant::now() + patience;
    let (generation, socket) = loop {
        let stream = connect(&folder.join(CONTROL_SOCKET), deadline).await?;
        match converse(stream.into_split(), start, patience, on_line.clone()).await {
            // One that was ending had our connection in its queue still.
            Err(Error::Closed) if Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
            answer => break answer?,
        }
    };
    let outside = || Error::Protocol(format!("the socket {} is not in its folder", socket.display()));
    let socket = inside(folder, &socket).ok_or_else(outside)?;
    Ok((generation, socket))
}

/// Asks over a connection, and follows what it says from then on. The socket is as the supervisor named it.
pub(super) async fn converse<R, W>(
    (read, mut write): (R, W),
    start: &Start,
    patience: Duration,
    on_line: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(Generation, PathBuf), Error>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let broken = |what: String| Error::Protocol(what);
    let mut request = serde_json::to_vec(start).map_err(|error| broken(error.to_string()))?;
    request.push(b'\n');
    // One that refuses may close before it has read this: what it said is still to be read.
    let _ = write.write_all(&request).await;
    let mut events = Lines::up_to(read, LONGEST_MESSAGE);
    let first = tokio::time::timeout(patience, events.next()).await;
    let first = first.map_err(|_| broken(format!("no answer within {} s", patience.as_secs())))?;
    let socket = match first.as_deref().map(serde_json::from_str::<Event>) {
        Some(Ok(Event::Started { socket })) => socket,
        Some(Ok(Event::Missing { missing })) => return Err(Error::Missing(missing)),
        Some(Ok(Event::Ended { ended, log })) => return Err(Error::Refused { ended, log }),
        Some(Ok(Event::Line { .. })) => return Err(broken("a line before the worker was started".to_owned())),
        Some(Err(error)) => return Err(broken(error.to_string())),
        None => return Err(Error::Closed),
    };
    let (end, asked) = oneshot::channel::<()>();
    let (ended, ending) = watch::channel(None);
    let tail = Tail::default();
    let kept = tail.clone();
    let on_line = Arc::new(on_line);
    tokio::spawn(async move {
        // Held until the end: closing it ends the worker.
        let _write = write;
        let reading = async {
            while let Some(text) = events.next().await {
                match serde_json::from_str(&text) {
                    Ok(Event::Line { line }) => {
                        on_line(&line);
                        kept.push(line);
                    }
                    Ok(Event::Ended { ended, .. }) => return ended,
                    Ok(_) | Err(_) => return "its supervisor no longer makes sense".to_owned(),
                }
            }
            "its supervisor is gone".to_owned()
        };
        let how = tokio::select! {
            how = reading => how,
            _ = asked => "it was ended".to_owned(),
        };
        ended.send_replace(Some(how));
    });
    Ok((Generation::elsewhere(ending, tail, end), socket))
}

async fn connect(path: &Path, deadline: Instant) -> Result<UnixStream, Error> {
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => {
                let at = path.display().to_string();
                return Err(Error::Absent { at, why: error.to_string(), what: "the container `reward` of the pod" });
            }
            // A sidecar that is starting, or starting anew.
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// A path of `folder`, unless it would lead out of it: the folder is written by others too.
pub(super) fn inside(folder: &Path, path: &Path) -> Option<PathBuf> {
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && path.components().next().is_some()).then(|| folder.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_is_what_the_other_side_was_told() {
        let read = |text: &str| serde_json::from_str::<Event>(text).unwrap();
        assert_eq!(read(r#"{"socket":"3.sock"}"#), Event::Started { socket: "3.sock".into() });
        let missing = ContentHash::of(b"p");
        assert_eq!(read(&format!(r#"{{"missing":"{missing}"}}"#)), Event::Missing { missing });
        assert_eq!(read(r#"{"line":"x"}"#), Event::Line { line: "x".to_owned() });
        let ended = Event::Ended { ended: "exit status: 1".to_owned(), log: "a\nb".to_owned() };
        assert_eq!(read(r#"{"ended":"exit status: 1","log":"a\nb"}"#), ended);
        let start = Start { program: ContentHash::of(b"p"), egress: Egress::None, environment: BTreeMap::new() };
        let text = serde_json::to_string(&start).unwrap();
        assert_eq!(serde_json::from_str::<Start>(&text).unwrap(), start);
    }

    #[test]
    fn a_socket_is_in_its_folder() {
        let folder = Path::new("/worker");
        assert_eq!(inside(folder, Path::new("1.sock")), Some("/worker/1.sock".into()));
        for bad in ["", "/run/other.sock", "../other.sock", "a/../../b"] {
            assert_eq!(inside(folder, Path::new(bad)), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn one_that_was_ending_is_not_the_answer_of_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let listener = tokio::net::UnixListener::bind(folder.path().join(CONTROL_SOCKET)).unwrap();
        let supervisor = tokio::spawn(async move {
            drop(listener.accept().await.unwrap());
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"{\"socket\":\"1.sock\"}\n").await.unwrap();
            stream
        });
        let start = Start { program: ContentHash::of(b"p"), egress: Egress::None, environment: BTreeMap::new() };
        let (_, socket) = ask(folder.path(), &start, Duration::from_secs(10), |_| {}).await.unwrap();
        assert_eq!(socket, folder.path().join("1.sock"));
        drop(supervisor);
    }

    #[tokio::test]
    async fn nobody_there_is_said_with_where_to_look() {
        let folder = tempfile::tempdir().unwrap();
        let start = Start { program: ContentHash::of(b"p"), egress: Egress::None, environment: BTreeMap::new() };
        let error = ask(folder.path(), &start, Duration::ZERO, |_| {}).await.unwrap_err().to_string();
        assert!(error.contains("control.sock") && error.contains("container `reward`"), "{error}");
    }
}
