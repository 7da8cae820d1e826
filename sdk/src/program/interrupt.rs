//! Ctrl-C, once somebody has listened for it.
//!
//! A process that has listened for SIGINT once (tokio never gives the signal's default back) does not
//! end on it by itself any more. Whether the person's program handles it cannot be known from here, so
//! the first one is always the program's; the second in a row ends it.

use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// How soon the second must follow.
const AGAIN: Duration = Duration::from_secs(5);
/// The exit code of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Process-wide, as signals are. Holds a permit once there was a call of [`listened`].
static LISTENED: Notify = Notify::const_new();

/// Says that this process listens for Ctrl-C from now on.
pub(crate) fn listened() {
    LISTENED.notify_one();
}

/// Ends the process at the second Ctrl-C in a row, once it no longer ends on the first by itself.
/// For `#[training_gym::main]` alone: a library does not end its process.
pub(super) async fn last_resort() {
    LISTENED.notified().await;
    let Ok(mut interrupts) = signal(SignalKind::interrupt()) else { return };
    let mut before: Option<Instant> = None;
    while interrupts.recv().await.is_some() {
        if before.is_some_and(|before| before.elapsed() <= AGAIN) {
            std::process::exit(INTERRUPTED);
        }
        before = Some(Instant::now());
        eprintln!("Ctrl-C again within {} s ends this program at once", AGAIN.as_secs());
    }
}
