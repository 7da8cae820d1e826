//! A job's log: its containers' lines, one pod after the other, each line once.
//!
//! A stream that breaks, or that nothing came on for a while (a kubelet that lost a rotated file says
//! nothing), is opened again where the [`Seam`] says. A container that was restarted has two logs; what
//! was not yet read of the old one is read first.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{AsyncBufRead, AsyncBufReadExt};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::LogParams;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::KubernetesBackend;
use super::client::Failed;
use super::error::ClusterError;
use super::look::{container, is_over, is_running, is_terminated, state};
use super::seam::Seam;
use crate::backend::{Error, JobId, LogOptions, Logs};
use crate::manifest::{FETCHER, SERVER, TRAINER};

/// A stream on which nothing came for so long is opened again.
const SILENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(700);
/// Lines that wait for their reader.
const WAITING: usize = 256;
/// Longest line that is kept whole.
const LONGEST: usize = 1 << 20;

/// The reader is gone: nobody wants the rest.
struct Gone;

enum Ended {
    Gone,
    Failed(ClusterError),
}

impl From<Gone> for Ended {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

impl From<ClusterError> for Ended {
    fn from(error: ClusterError) -> Self {
        Self::Failed(error)
    }
}

/// The lines of a job's log.
pub(super) fn lines(backend: KubernetesBackend, id: JobId, options: LogOptions) -> Logs {
    let (sender, receiver) = channel(WAITING);
    tokio::spawn(async move {
        let reader = Reader { backend, id, options, sender: sender.clone() };
        if let Err(Ended::Failed(error)) = reader.all().await {
            let _ = sender.send(Err(error.into())).await;
        }
    });
    Logs::new(futures::stream::unfold(receiver, |mut receiver: Receiver<Result<String, Error>>| async move {
        receiver.recv().await.map(|line| (line, receiver))
    }))
}

struct Reader {
    backend: KubernetesBackend,
    id: JobId,
    options: LogOptions,
    sender: Sender<Result<String, Error>>,
}

/// A container of one pod.
#[derive(Clone, Copy)]
struct Place<'a> {
    pod: &'a str,
    uid: Option<&'a str>,
    container: &'a str,
}

impl Reader {
    async fn all(&self) -> Result<(), Ended> {
        let main = if KubernetesBackend::serves(&self.id) { SERVER } else { TRAINER };
        let mut read: BTreeSet<String> = BTreeSet::new();
        loop {
            let Some(owner) = self.backend.owner(&self.id).await? else { return Ok(()) };
            let pods = self.backend.pods(&owner).await?;
            // A tail is the newest pod's.
            let skipped = if self.options.tail.is_some() && read.is_empty() { pods.len().saturating_sub(1) } else { 0 };
            let mut found = false;
            for (index, pod) in pods.iter().enumerate() {
                let uid = pod.metadata.uid.clone().unwrap_or_default();
                if !read.insert(uid) || index < skipped {
                    continue;
                }
                found = true;
                let tail = self.options.tail.filter(|_| index + 1 == pods.len());
                self.pod(pod, main, tail).await?;
            }
            if !self.options.follow {
                return Ok(());
            }
            let live = state(&owner, &pods, None, f64::INFINITY).state.is_live();
            if !found && !live {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn pod(&self, pod: &Pod, main: &str, tail: Option<usize>) -> Result<(), Ended> {
        let (Some(name), uid) = (pod.metadata.name.as_deref(), pod.metadata.uid.as_deref()) else { return Ok(()) };
        let begun = container(pod, main).is_some_and(|container| container.container_id.is_some());
        // Of a tail the model's download is no part, unless nothing else is there.
        if tail.is_none() || !begun {
            self.container(Place { pod: name, uid, container: FETCHER }, tail).await?;
        }
        self.container(Place { pod: name, uid, container: main }, tail).await
    }

    /// All of a container's lines, whatever happens to it, until it is over for good.
    async fn container(&self, at: Place<'_>, mut tail: Option<usize>) -> Result<(), Ended> {
        let mut seam = Seam::default();
        let mut instance: Option<String> = None;
        let mut finished = false;
        loop {
            let Some((pod, live)) = self.pod_now(at).await? else { return Ok(()) };
            let status = container(&pod, at.container);
            let Some(status) = status.filter(|status| has_log(status)) else {
                if !self.options.follow || !live || is_over(&pod) || pod.metadata.deletion_timestamp.is_some() {
                    return Ok(());
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let now = status.container_id.clone().unwrap_or_default();
            if instance.as_ref().is_some_and(|before| *before != now) {
                if !finished {
                    self.rest(at, &mut seam).await?;
                }
                (seam, finished) = (Seam::default(), false);
            }
            instance = Some(now);
            let over = !is_running(status);
            if self.options.follow && !over {
                self.stream(at, &mut seam, tail.take()).await?;
                continue;
            }
            if !finished {
                self.whole(at, &mut seam, tail.take()).await?;
                finished = over;
            }
            let restarts = pod.spec.as_ref().is_some_and(|spec| spec.restart_policy.as_deref() != Some("Never"));
            let again = restarts && (at.container != FETCHER || !succeeded(status));
            if !self.options.follow || !again || !live || is_over(&pod) {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The pod as it is, and whether its job lives.
    async fn pod_now(&self, at: Place<'_>) -> Result<Option<(Pod, bool)>, ClusterError> {
        let Some(owner) = self.backend.owner(&self.id).await? else { return Ok(None) };
        let pods = self.backend.pods(&owner).await?;
        let live = state(&owner, &pods, None, f64::INFINITY).state.is_live();
        let pod = pods.into_iter().find(|pod| pod.metadata.uid.as_deref() == at.uid);
        Ok(pod.map(|pod| (pod, live)))
    }

    /// Follows until the stream ends, breaks or falls silent.
    async fn stream(&self, at: Place<'_>, seam: &mut Seam, tail: Option<usize>) -> Result<(), Ended> {
        let parameters = LogParams { follow: true, ..parameters(at, seam, tail) };
        seam.begin();
        let cluster = self.backend.cluster();
        let parameters = &parameters;
        let opened = cluster
            .call_within(Duration::ZERO, "follow a log", |client| async move {
                cluster.api::<Pod>(client).log_stream(at.pod, parameters).await
            })
            .await;
        match opened {
            Ok(stream) => Ok(self.copy(stream, seam).await?),
            // It is not there yet or any more, or the server is away: the next look says which.
            Err(Failed::Call(kube::Error::Api(status))) if matches!(status.code, 401 | 403) => {
                Err(cluster.sorted("follow a log", Failed::Call(kube::Error::Api(status))).into())
            }
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                Ok(())
            }
        }
    }

    async fn copy(&self, stream: impl AsyncBufRead, seam: &mut Seam) -> Result<(), Gone> {
        let mut stream = std::pin::pin!(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            match tokio::time::timeout(SILENCE, stream.read_until(b'\n', &mut line)).await {
                // A line without its end may be cut: it is read again.
                Ok(Ok(_)) if line.last() == Some(&b'\n') => self.send(seam, &line[..line.len() - 1]).await?,
                _ => return Ok(()),
            }
        }
    }

    /// What is there of a container that is over, its last line included even where that has no end.
    async fn whole(&self, at: Place<'_>, seam: &mut Seam, tail: Option<usize>) -> Result<(), Ended> {
        let parameters = parameters(at, seam, tail);
        self.read(at, seam, &parameters).await
    }

    /// What was not yet read of the container's start before this one.
    async fn rest(&self, at: Place<'_>, seam: &mut Seam) -> Result<(), Ended> {
        let parameters = LogParams { previous: true, ..parameters(at, seam, None) };
        self.read(at, seam, &parameters).await
    }

    async fn read(&self, at: Place<'_>, seam: &mut Seam, parameters: &LogParams) -> Result<(), Ended> {
        seam.begin();
        let cluster = self.backend.cluster();
        let action = "read a log";
        let read = cluster
            .call_within(Duration::from_secs(60), action, |client| async move {
                cluster.api::<Pod>(client).logs(at.pod, parameters).await
            })
            .await;
        let text = match read {
            Ok(text) => text,
            // The node, or the file, is gone.
            Err(Failed::Call(kube::Error::Api(status))) if !matches!(status.code, 401 | 403) => return Ok(()),
            Err(error) => return Err(cluster.sorted(action, error).into()),
        };
        for line in text.split_terminator('\n') {
            self.send(seam, line.as_bytes()).await?;
        }
        Ok(())
    }

    async fn send(&self, seam: &mut Seam, line: &[u8]) -> Result<(), Gone> {
        let line = &line[..line.len().min(LONGEST)];
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
        match seam.accept(&line) {
            Some(text) => self.sender.send(Ok(text)).await.map_err(|_| Gone),
            None => Ok(()),
        }
    }
}

fn parameters(at: Place<'_>, seam: &Seam, tail: Option<usize>) -> LogParams {
    LogParams {
        container: Some(at.container.to_owned()),
        timestamps: true,
        since_time: seam.since(),
        tail_lines: tail.and_then(|count| i64::try_from(count).ok()),
        ..LogParams::default()
    }
}

/// Whether it ran: one that waits for its next start has the log of the last.
fn has_log(status: &ContainerStatus) -> bool {
    let before = status.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
    is_running(status) || is_terminated(status) || before
}

fn succeeded(status: &ContainerStatus) -> bool {
    let terminated = status.state.as_ref().and_then(|state| state.terminated.as_ref());
    terminated.is_some_and(|ended| ended.exit_code == 0)
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
