//! Logs: lines on standard error, which the job's log keeps.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging at `info`, or as `RUST_LOG` says.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // A second start (in tests) is no fault.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init();
}
