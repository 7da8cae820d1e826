//! A port of this machine that leads to a deployment: each connection goes to the pod that is ready
//! now, so a pod that is replaced, or a broken way to the cluster, costs the connections of that moment.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::client::Cluster;
use super::error::ClusterError;
use super::look::is_ready;
use crate::manifest::{JOB, PORT};

/// How long a new connection waits for a pod that is ready.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(500);

/// A port that is listened on until this is dropped.
#[derive(Debug)]
pub(super) struct Forward {
    url: String,
    task: JoinHandle<()>,
}

impl Forward {
    /// Listens on a free loopback port for the deployment with this slug.
    pub(super) async fn open(cluster: Arc<Cluster>, slug: String) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let task = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let (cluster, slug) = (Arc::clone(&cluster), slug.clone());
                        tokio::spawn(async move {
                            if let Err(error) = carry(&cluster, &slug, stream).await {
                                tracing::debug!(slug, "a forwarded connection ended: {error}");
                            }
                        });
                    }
                    // Out of file descriptors, say: the next may do.
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        });
        Ok(Self { url, task })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Whether somebody listens: its runtime may have ended.
    pub(super) fn lives(&self) -> bool {
        !self.task.is_finished()
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Carries one connection to a pod that is ready.
async fn carry(cluster: &Cluster, slug: &str, mut local: TcpStream) -> Result<(), ClusterError> {
    let begun = Instant::now();
    loop {
        let tried = reach(cluster, slug).await;
        let failed = match tried {
            Ok(mut remote) => {
                // Either side may end it.
                let _ = tokio::io::copy_bidirectional(&mut local, &mut remote).await;
                return Ok(());
            }
            Err(error) => error,
        };
        if begun.elapsed() > PATIENCE {
            return Err(failed);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn reach(
    cluster: &Cluster,
    slug: &str,
) -> Result<impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + use<>, ClusterError> {
    let action = format!("forward a port to `{slug}`");
    let nobody = |said: &str| ClusterError::Unexpected { action: action.clone(), said: said.to_owned() };
    let pods: Vec<Pod> = cluster.list(&format!("{JOB}={slug}")).await?;
    let ready = pods.into_iter().find(is_ready).and_then(|pod| pod.metadata.name);
    let name = ready.ok_or_else(|| nobody("no pod is ready"))?;
    let name = name.as_str();
    let mut forwarder = cluster
        .call_within(Duration::ZERO, &action, |client| async move {
            cluster.api::<Pod>(client).portforward(name, &[PORT]).await
        })
        .await
        .map_err(|failed| cluster.sorted(&action, failed))?;
    let stream = forwarder.take_stream(PORT).ok_or_else(|| nobody("the pod offers no such port"))?;
    // It works on until both ends are closed.
    tokio::spawn(async move {
        let _ = forwarder.join().await;
    });
    Ok(stream)
}
