//! Someone asked the run to stop: seen by what computes, and by what waits.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::sync::watch;

/// Whether the run was asked to stop.
#[derive(Clone, Debug)]
pub(super) struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    /// A signal that SIGTERM sets, and `true` on the sender.
    pub(super) fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Whether it was set.
    pub(super) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for `work`, or for the signal: then `work` is dropped, and there is `None`. Work that
    /// is done already counts even so.
    pub(super) fn or<T>(&self, runtime: &Handle, work: impl Future<Output = T>) -> Option<T> {
        let mut asked = self.0.clone();
        runtime.block_on(async {
            tokio::select! {
                biased;
                done = work => Some(done),
                Ok(_) = asked.wait_for(|asked| *asked) => None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_dropped_and_what_is_done_counts() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (sender, signal) = StopSignal::new();
        assert_eq!((signal.is_set(), signal.or(runtime.handle(), async { 1 })), (false, Some(1)));
        sender.send_replace(true);
        assert!(signal.is_set());
        assert_eq!(signal.or(runtime.handle(), std::future::pending::<i32>()), None);
        assert_eq!(signal.or(runtime.handle(), async { 2 }), Some(2));
    }
}
