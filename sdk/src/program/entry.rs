//! What `#[training_gym::main]` does before, and after, the person's `main`.

use std::error::Error;
use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use training_gym_core::worker::{REWARD_WORKER, ROLE_VARIABLE, SOCKET_VARIABLE};

use super::{STARTED_BY_MAIN, interrupt};
use crate::reward::{Registry, worker};

/// What the person's `main` may return.
#[diagnostic::on_unimplemented(
    message = "`main` cannot return `{Self}`",
    note = "it returns nothing, an `ExitCode`, or a `Result` of these with any error"
)]
pub trait Outcome {
    /// The exit code; a failure is printed.
    fn report(self) -> ExitCode;
}

impl Outcome for () {
    fn report(self) -> ExitCode {
        ExitCode::SUCCESS
    }
}

impl Outcome for ExitCode {
    fn report(self) -> ExitCode {
        self
    }
}

impl<T: Outcome, E: Into<Box<dyn Error + Send + Sync>>> Outcome for Result<T, E> {
    fn report(self) -> ExitCode {
        match self {
            Ok(value) => value.report(),
            Err(error) => fail(error),
        }
    }
}

/// Prints an error and its causes, one a line.
fn fail(error: impl Into<Box<dyn Error + Send + Sync>>) -> ExitCode {
    let error = error.into();
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("  caused by: {error}");
        cause = error.source();
    }
    ExitCode::FAILURE
}

/// Plays the part the process was started for: the reward worker, or the person's `main`.
pub fn run<F, M>(main: M) -> ExitCode
where
    M: FnOnce() -> F,
    F: Future<Output: Outcome>,
{
    let registry = match Registry::collect() {
        Ok(registry) => registry,
        Err(error) => return fail(error),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(error),
    };
    match std::env::var(ROLE_VARIABLE).as_deref() {
        Ok(REWARD_WORKER) => {
            let Some(socket) = std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from) else {
                return fail(format!(
                    "{ROLE_VARIABLE}={REWARD_WORKER} needs {SOCKET_VARIABLE}, the socket to listen on"
                ));
            };
            return match runtime.block_on(worker::serve(registry, &socket)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(format!("the reward worker cannot serve on {}: {error}", socket.display())),
            };
        }
        Ok(other) => return fail(format!("{ROLE_VARIABLE}={other}: the only role is {REWARD_WORKER}; unset it")),
        Err(_) => {}
    }
    STARTED_BY_MAIN.store(true, Ordering::Relaxed);
    // On a thread of its own, so that it also ends a `main` that blocks.
    runtime.spawn(interrupt::last_resort());
    let code = runtime.block_on(main()).report();
    // Background work that is still blocked somewhere must not keep a finished program alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}
