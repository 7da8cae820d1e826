//! How much the requests that are still to be answered may hold, all of them together.
//!
//! A request's prompts are at most as many tokens as its body has bytes, so bodies are what is
//! weighed: before one is read, and until the last of its responses is there. One that does not arrive
//! keeps its room for a minute.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::BODY_LIMIT;
use super::error::ApiError;
use super::service::Service;

/// Bytes of bodies at once: eight of the longest.
const MOST_BYTES: usize = 8 * BODY_LIMIT;

/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(60);

/// The room there is.
#[derive(Debug)]
pub(super) struct Waiting(Arc<Semaphore>);

/// A request's part of it, until the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Held {
    _room: Arc<OwnedSemaphorePermit>,
}

impl Held {
    /// As much of the room as a body of `bytes` takes.
    fn shrunk(mut room: OwnedSemaphorePermit, bytes: usize) -> Self {
        let surplus = room.num_permits().saturating_sub(bytes.max(1));
        drop(room.split(surplus));
        Self { _room: Arc::new(room) }
    }
}

impl Default for Waiting {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_BYTES)))
    }
}

impl Waiting {
    /// Room for a body of `bytes`, now or not at all.
    fn hold(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let permits = u32::try_from(bytes.clamp(1, BODY_LIMIT)).expect("the limit of a body fits");
        Arc::clone(&self.0).try_acquire_many_owned(permits).map_err(|_| {
            ApiError::busy(&format!("requests of {MOST_BYTES} bytes wait already, the most this server holds"))
        })
    }
}

/// Takes room for a request with a body, or refuses it; its handler finds a [`Held`].
pub(super) async fn weigh(State(service): State<Service>, request: Request, next: Next) -> Response {
    // One that does not say its length may have any.
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let room = match service.waiting().hold(length.unwrap_or(BODY_LIMIT)) {
        Ok(room) => room,
        Err(error) => return error.into_response(),
    };
    match arrived(request, PATIENCE).await {
        Ok((mut request, bytes)) => {
            request.extensions_mut().insert(Held::shrunk(room, bytes));
            next.run(request).await
        }
        Err(refusal) => refusal,
    }
}

/// The request once its body is here, and the body's length.
async fn arrived(request: Request, patience: Duration) -> Result<(Request, usize), Response> {
    let (parts, body) = request.into_parts();
    let body = Bytes::from_request(Request::from_parts(parts.clone(), body), &());
    match tokio::time::timeout(patience, body).await {
        Ok(Ok(bytes)) => {
            let length = bytes.len();
            Ok((Request::from_parts(parts, Body::from(bytes)), length))
        }
        Ok(Err(rejection)) => Err(rejection.into_response()),
        Err(_) => Err(ApiError::slow(patience).into_response()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_until_what_came_before_is_answered() {
        let waiting = Waiting::default();
        let full = || Held::shrunk(waiting.hold(BODY_LIMIT).unwrap(), BODY_LIMIT);
        let mut held: Vec<Held> = (0..8).map(|_| full()).collect();
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
        // One that did not say its length keeps what it has.
        let _short = Held::shrunk(waiting.hold(BODY_LIMIT).unwrap(), 10);
        drop(waiting.hold(BODY_LIMIT - 10).unwrap());
        assert!(waiting.hold(BODY_LIMIT - 9).is_err());
    }

    #[tokio::test]
    async fn a_body_arrives_or_is_given_up() {
        let (request, length) =
            arrived(Request::new(Body::from("12345")), Duration::from_secs(60)).await.map_err(drop).unwrap();
        assert_eq!(length, 5);
        assert_eq!(Bytes::from_request(request, &()).await.unwrap(), "12345");
        let never = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let refusal = arrived(Request::new(never), Duration::from_millis(10)).await.map(drop).unwrap_err();
        assert_eq!(refusal.status(), axum::http::StatusCode::REQUEST_TIMEOUT);
        let broken = futures::stream::iter([Err::<Bytes, _>(std::io::Error::other("reset"))]);
        let refusal = arrived(Request::new(Body::from_stream(broken)), Duration::from_secs(60)).await.map(drop);
        assert!(refusal.unwrap_err().status().is_client_error());
    }
}
