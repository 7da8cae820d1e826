//! Someone asked the run to stop: seen by what computes, and by what waits.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

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

    /// Computes `work` on a thread of its own and waits for it, or for the signal: then the thread is
    /// left behind, whatever it still does is thrown away, and there is `None`. What it holds of
    /// libtorch is why the program must end without destructors then (`main` does).
    ///
    /// # Panics
    /// Where `work` does, and when the operating system has no thread left.
    pub(super) fn or_leave<T: Send + 'static>(
        &self,
        runtime: &Handle,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, answer) = oneshot::channel();
        let body = move || {
            let _ = done.send(catch_unwind(AssertUnwindSafe(work)));
        };
        std::thread::Builder::new().name("prepare".to_owned()).spawn(body).expect("a thread to prepare on");
        match self.or(runtime, answer)?.expect("the thread answers before it ends") {
            Ok(value) => Some(value),
            Err(panic) => resume_unwind(panic),
        }
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

    #[test]
    fn what_computes_is_left_behind_and_its_panic_is_ours() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, signal) = StopSignal::new();
        assert_eq!(signal.or_leave(runtime.handle(), || 1), Some(1));
        let panicked = catch_unwind(AssertUnwindSafe(|| signal.or_leave(runtime.handle(), || panic!("broken"))));
        assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"broken"));
        let (begun, begins) = std::sync::mpsc::channel();
        let (release, held) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            begins.recv().unwrap();
            sender.send_replace(true);
        });
        let outcome = signal.or_leave(runtime.handle(), move || {
            begun.send(()).unwrap();
            held.recv()
        });
        assert_eq!(outcome, None);
        drop(release);
    }
}
