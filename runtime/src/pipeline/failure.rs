//! From a room's error to what a person reads: cause, sentence, next step.

use training_gym_core::record::{Cause, Failure};
use training_gym_core::store::{self, Fault, FaultKind};
use training_gym_core::{chain, checkpoint};

use crate::publish;
use crate::rollout::collect;

/// A [`Failure`] on its way up.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stop(pub(super) Failure);

impl Stop {
    /// A failure of `cause`; the sentence is the error with all its sources. A store on the network that
    /// refused says itself what helps, and whether another attempt alone does.
    pub(super) fn new(cause: Cause, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut stop = Self::say(cause, chain(error));
        if let (Cause::Store, Some(fault)) = (cause, fault_of(error)) {
            stop.0.retryable = fault.kind.is_transient() || fault.kind == FaultKind::ExpiredCredentials;
            stop.0.next_step = format!("{}; then launch again with the same run id", fault.remedy);
        }
        stop
    }

    /// A failure of `cause` in our own words.
    pub(super) fn say(cause: Cause, sentence: impl Into<String>) -> Self {
        let (next_step, retryable) = advice(cause);
        Self(Failure { cause, sentence: sentence.into(), next_step: next_step.to_owned(), retryable })
    }

    /// Responses that could not be drawn.
    pub(super) fn undrawn(error: &collect::Error) -> Self {
        let cause = match error {
            collect::Error::NotFinite { .. } => Cause::Numerics,
            _ => Cause::InvalidInput,
        };
        Self::new(cause, error)
    }

    /// A checkpoint that could not be read or published.
    pub(super) fn checkpoint(error: &checkpoint::Error) -> Self {
        let superseded = matches!(error, checkpoint::Error::Superseded { .. });
        Self::new(if superseded { Cause::Superseded } else { Cause::Store }, error)
    }

    /// A step that could not be published.
    pub(super) fn unpublished(error: &publish::Error) -> Self {
        match error {
            publish::Error::Publish { source: source @ checkpoint::Error::Superseded { .. }, .. } => {
                Self::checkpoint(source)
            }
            _ => Self::new(Cause::Store, error),
        }
    }

    /// The same with a next step that fits better than the cause's own.
    #[must_use]
    pub(super) fn then(mut self, next_step: impl Into<String>) -> Self {
        self.0.next_step = next_step.into();
        self
    }
}

/// The refusal of a store somewhere below an error.
fn fault_of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Fault> {
    let mut current = Some(error);
    while let Some(error) = current {
        if let Some(store::Error::Remote { fault, .. }) = error.downcast_ref() {
            return Some(fault);
        }
        current = error.source();
    }
    None
}

/// What helps for a cause in general, and whether another attempt alone may.
fn advice(cause: Cause) -> (&'static str, bool) {
    match cause {
        Cause::InvalidInput => ("correct what the sentence names and launch a new run", false),
        Cause::Teacher => (
            "check that the teacher answers (`deployment.logs()`, its URL and token), then launch again with the same run id",
            true,
        ),
        Cause::Reward => (
            "run the reward function on the sample in a unit test (`NAME.call(&mut sample)`), then launch again; \
             a program that was built anew needs a new run id",
            false,
        ),
        Cause::Numerics => ("lower recipe.lr or look at the last lines of metrics.jsonl, then launch a new run", false),
        Cause::Store => ("check the store's space and permissions, then launch again with the same run id", true),
        Cause::Superseded => ("follow the newer attempt: TrainRun::attach(run_id)", false),
        Cause::OutOfMemory => {
            ("lower recipe.max_tokens_per_gpu or recipe.rollout_max_response_len, then launch again", false)
        }
        Cause::Died | Cause::Cluster => ("look at the run's log, then launch again with the same run id", true),
        Cause::Internal => ("this is a fault of training-gym: report it with the run's log", false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_holds_every_source_once() {
        let inner = std::io::Error::other("disk full");
        let error = training_gym_core::store::Error::Io {
            action: "write",
            key: "runs/a/spec.json".into(),
            store: "file:///s".into(),
            source: inner,
        };
        let Stop(failure) = Stop::new(Cause::Store, &error);
        assert_eq!(failure.sentence, "cannot write `runs/a/spec.json` in file:///s: disk full");
        assert!(failure.retryable);
        assert!(!Stop::say(Cause::Reward, "x").then("y").0.retryable);
    }
}
