//! From a spec to a server that answers, until it is told to stop.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use training_gym_core::spec::ServeSpec;

use super::{Service, app};
use crate::settings;

/// How long responses may go on after the signal to stop.
const GRACE: Duration = Duration::from_secs(4);

/// How long the engine may take to notice that nobody waits any more.
const SETTLE: Duration = Duration::from_secs(2);

/// What can end a server besides a signal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine's thread died.
    #[error("the engine has stopped: {cause}")]
    EngineStopped {
        /// What it died of.
        cause: String,
    },
}

/// Serves what `spec` says until SIGTERM or SIGINT; then responses have a few seconds to end.
/// `ready` is written once the server answers: `{"port": N, "pid": N}`, whole or not at all.
///
/// # Errors
/// When the address cannot be bound, the token or the model cannot be read, or the engine dies.
pub fn run(spec: ServeSpec, ready: Option<&Path>) -> anyhow::Result<()> {
    let token = spec.token.as_ref().map(settings::secret).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(serve(&spec, token.as_deref(), ready));
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

async fn serve(spec: &ServeSpec, token: Option<&str>, ready: Option<&Path>) -> anyhow::Result<()> {
    // Bound before the model is loaded, so that a taken port fails at once.
    let address = format!("{}:{}", spec.host, spec.port);
    let listener = TcpListener::bind(&address).await.with_context(|| format!("cannot listen on {address}"))?;
    let local = listener.local_addr()?;
    if token.is_none() && !local.ip().is_loopback() {
        tracing::warn!(%local, "serving without a token on an address that others may reach");
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let loading = Instant::now();
    let service = {
        let (spec, token) = (spec.clone(), token.map(str::to_owned));
        let load = tokio::task::spawn_blocking(move || Service::load(&spec, token.as_deref()));
        tokio::select! {
            service = load => service.context("loading the model")??,
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    };
    tracing::info!(seconds = loading.elapsed().as_secs_f64(), "model loaded");

    let (stop, stopped) = tokio::sync::watch::channel(false);
    let signalled = |mut stopped: tokio::sync::watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let server = axum::serve(listener, app(service.clone())).with_graceful_shutdown(signalled(stopped.clone()));
    let server = tokio::spawn(server.into_future());
    if let Some(path) = ready {
        write_ready(path, local.port()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    tracing::info!(%local, app_name = spec.app_name.as_str(), "serving");

    let died = loop {
        tokio::select! {
            _ = terminate.recv() => break None,
            _ = interrupt.recv() => break None,
            () = tokio::time::sleep(Duration::from_millis(500)) => {
                if let Some(cause) = service.engine().failure() {
                    break Some(cause);
                }
            }
        }
    };
    tracing::info!("stopping: responses have {} s to end", GRACE.as_secs());
    let _ = stop.send(true);
    let abort = server.abort_handle();
    if tokio::time::timeout(GRACE, server).await.is_err() {
        abort.abort();
    }
    settle(&service).await;
    match died {
        Some(cause) => Err(Error::EngineStopped { cause }.into()),
        None => Ok(()),
    }
}

/// Waits until the engine has given up what nobody waits for: libtorch must not be computing while
/// the process ends.
async fn settle(service: &Service) {
    let until = Instant::now() + SETTLE;
    while Instant::now() < until && service.engine().failure().is_none() {
        let stats = service.engine().stats();
        if stats.running + stats.queued + stats.scoring == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn write_ready(path: &Path, port: u16) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    writeln!(file, "{}", serde_json::json!({"port": port, "pid": std::process::id()}))?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}
