//! Who may come in: permits for the places of one engine, counted outside its thread, so that
//! whoever may wait can wait for a place instead of asking again.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use training_gym_core::spec::EngineSpec;

use super::request::Refusal;

/// Batches that may wait, whatever the queue holds: each costs its request's memory and no place.
const BATCHES: usize = 1024;

/// The places of one engine. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Admission {
    /// One for every request that runs or is queued.
    all: Arc<Semaphore>,
    /// Those among them that members of batches may hold. The rest of the queue is left to single
    /// requests, which a batch, however large, does not shut out.
    members: Arc<Semaphore>,
    /// Batches with members that are still to come in.
    batches: Arc<Semaphore>,
    /// Scoring requests: one at work, the others waiting.
    scoring: Arc<Semaphore>,
    max_queued: usize,
}

/// Holds a request's place until dropped.
#[derive(Debug)]
pub(super) struct Place {
    _place: OwnedSemaphorePermit,
    _member: Option<OwnedSemaphorePermit>,
}

impl Place {
    fn alone(place: OwnedSemaphorePermit) -> Self {
        Self { _place: place, _member: None }
    }
}

impl Admission {
    /// All places free.
    pub(super) fn new(limits: &EngineSpec) -> Self {
        let EngineSpec { max_running_requests: running, max_queued_requests: queued, .. } = *limits;
        let places = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Self {
            all: places(running.saturating_add(queued)),
            // Some wait inside, so that a slot is filled again at once.
            members: places(running.saturating_add(running.min(queued / 2))),
            batches: places(BATCHES),
            scoring: places(queued.saturating_add(1)),
            max_queued: queued,
        }
    }

    /// A place for a single request, now or not at all.
    pub(super) fn single(&self) -> Result<Place, Refusal> {
        let place = Arc::clone(&self.all).try_acquire_owned();
        place.map(Place::alone).map_err(|_| Refusal::QueueFull { limit: self.max_queued })
    }

    /// A place for one member of a batch, in order of asking, when there is room.
    pub(super) async fn member(&self) -> Place {
        let member = Arc::clone(&self.members).acquire_owned().await.expect("the semaphore is never closed");
        let place = Arc::clone(&self.all).acquire_owned().await.expect("the semaphore is never closed");
        Place { _place: place, _member: Some(member) }
    }

    /// A place for a batch to wait in, now or not at all.
    pub(super) fn batch(&self) -> Result<Place, Refusal> {
        let place = Arc::clone(&self.batches).try_acquire_owned();
        place.map(Place::alone).map_err(|_| Refusal::QueueFull { limit: BATCHES })
    }

    /// A place for a scoring request, now or not at all.
    pub(super) fn scoring(&self) -> Result<Place, Refusal> {
        let place = Arc::clone(&self.scoring).try_acquire_owned();
        place.map(Place::alone).map_err(|_| Refusal::ScoringFull { limit: self.max_queued })
    }
}
