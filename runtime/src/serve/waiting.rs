//! How much the requests that are still to be answered may hold, all of them together.
//!
//! A request's prompts are at most as many tokens as its body has bytes, so bodies are what is
//! weighed: before one is read, and until the last of its responses is there.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::BODY_LIMIT;
use super::error::ApiError;
use super::service::Service;

/// Bytes of bodies at once: eight of the longest.
const MOST_BYTES: usize = 8 * BODY_LIMIT;

/// The room there is.
#[derive(Debug)]
pub(super) struct Waiting(Arc<Semaphore>);

/// A request's part of it, until the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Held {
    _room: Arc<OwnedSemaphorePermit>,
}

impl Default for Waiting {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_BYTES)))
    }
}

impl Waiting {
    /// Room for a body of `bytes`, now or not at all.
    fn hold(&self, bytes: usize) -> Result<Held, ApiError> {
        let permits = u32::try_from(bytes.clamp(1, BODY_LIMIT)).expect("the limit of a body fits");
        let held = Arc::clone(&self.0).try_acquire_many_owned(permits);
        held.map(|permit| Held { _room: Arc::new(permit) }).map_err(|_| {
            ApiError::busy(&format!("requests of {MOST_BYTES} bytes wait already, the most this server holds"))
        })
    }
}

/// Takes room for a request with a body, or refuses it; its handler finds a [`Held`].
pub(super) async fn weigh(State(service): State<Service>, mut request: Request, next: Next) -> Response {
    // One that does not say its length may have any.
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    match service.waiting().hold(length.unwrap_or(BODY_LIMIT)) {
        Ok(held) => {
            request.extensions_mut().insert(held);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_until_what_came_before_is_answered() {
        let waiting = Waiting::default();
        let mut held: Vec<Held> = (0..8).map(|_| waiting.hold(BODY_LIMIT).unwrap()).collect();
        for bytes in [0, 1, BODY_LIMIT, usize::MAX] {
            let body = waiting.hold(bytes).unwrap_err().body();
            assert_eq!(body["error"]["code"], "queue_full", "{body}");
        }
        let shared = held[0].clone();
        drop(held.remove(0));
        assert!(waiting.hold(1).is_err(), "one of its responses is still to come");
        drop(shared);
        // A body that is too long is refused for that.
        drop(waiting.hold(usize::MAX).unwrap());
        drop(waiting.hold(1).unwrap());
    }
}
