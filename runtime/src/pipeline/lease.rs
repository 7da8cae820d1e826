//! Which attempt owns a run. Each attempt creates its number; the highest one is the owner, so an
//! old trainer that survived its node finds out before it publishes. One that looked a moment too
//! early is held by the pointer itself: the new owner's number is on it from the start, and the move
//! of an older one fails ([`checkpoint::claim_latest`]).

use bytes::Bytes;
use training_gym_core::checkpoint;
use training_gym_core::ids::RunId;
use training_gym_core::record::{Cause, keys};
use training_gym_core::store::{Error, Store};

use super::failure::Stop;

/// This attempt's claim.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    run: RunId,
    attempt: u64,
}

impl Lease {
    /// Takes the next number, and the pointer to the newest checkpoint with it.
    ///
    /// # Errors
    /// When the store fails, others keep taking numbers, or one has taken a higher one meanwhile.
    pub(super) async fn take(store: &dyn Store, run: &RunId) -> Result<Self, Stop> {
        let mut attempt = newest(store, run).await? + 1;
        for _ in 0..16 {
            match store.create(&keys::attempt(run, attempt), Bytes::from(started())).await {
                Ok(_) => {
                    let claimed = checkpoint::claim_latest(store, run, attempt).await;
                    claimed.map_err(|error| Stop::checkpoint(&error))?;
                    return Ok(Self { run: run.clone(), attempt });
                }
                Err(Error::AlreadyExists { .. }) => attempt += 1,
                Err(error) => return Err(Stop::new(Cause::Store, &error)),
            }
        }
        Err(Stop::say(Cause::Superseded, format!("other attempts of run {run} keep starting")))
    }

    /// The run it is of.
    pub(super) fn run(&self) -> &RunId {
        &self.run
    }

    /// Which attempt this is, from 1.
    pub(super) fn attempt(&self) -> u64 {
        self.attempt
    }

    /// Fails when a newer attempt has begun.
    ///
    /// # Errors
    /// [`Cause::Superseded`], or a store that fails.
    pub(super) async fn check(&self, store: &dyn Store) -> Result<(), Stop> {
        let newest = newest(store, &self.run).await?;
        if newest > self.attempt {
            let sentence = format!("attempt {newest} of run {} has begun; this is attempt {}", self.run, self.attempt);
            return Err(Stop::say(Cause::Superseded, sentence));
        }
        Ok(())
    }
}

async fn newest(store: &dyn Store, run: &RunId) -> Result<u64, Stop> {
    let prefix = format!("{}attempts/", keys::run(run));
    let listed = store.list(&prefix).await.map_err(|error| Stop::new(Cause::Store, &error))?;
    let number = |key: &str| key.strip_prefix(&prefix)?.strip_suffix(".json")?.parse().ok();
    Ok(listed.iter().filter_map(|object| number(&object.key)).max().unwrap_or(0))
}

fn started() -> String {
    format!("{{\"started_at\":{}}}\n", super::journal::now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use training_gym_core::store::MemoryStore;

    #[tokio::test]
    async fn the_newest_attempt_owns_the_run() {
        let store = MemoryStore::default();
        let run: RunId = "r".parse().unwrap();
        let first = Lease::take(&store, &run).await.unwrap();
        first.check(&store).await.unwrap();
        let second = Lease::take(&store, &run).await.unwrap();
        assert_eq!((first.attempt(), second.attempt()), (1, 2));
        second.check(&store).await.unwrap();
        let Stop(failure) = first.check(&store).await.unwrap_err();
        assert_eq!(failure.cause, Cause::Superseded);
        assert_eq!(failure.sentence, "attempt 2 of run r has begun; this is attempt 1");
        // Had it looked before the second began, the pointer would not move all the same.
        let error = checkpoint::advance_latest(&store, &run, first.attempt(), 3).await.unwrap_err();
        let Stop(failure) = Stop::checkpoint(&error);
        assert_eq!((failure.cause, failure.retryable), (Cause::Superseded, false), "{}", failure.sentence);
        checkpoint::advance_latest(&store, &run, second.attempt(), 3).await.unwrap();
    }
}
