//! Answers as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, BoxStream, Stream, StreamExt};
use serde_json::{Value, json};

use super::{Envelope, usage};
use crate::serve::error::ApiError;
use crate::serve::generation::{Generation, Piece};

/// What one choice has to say about a piece: any number of chunks.
pub(super) type Render = Box<dyn FnMut(&Piece) -> Result<Vec<Value>, ApiError> + Send>;

/// What the choices of one stream share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) envelope: Arc<Envelope>,
    /// Tokens drawn so far, by all.
    drawn: Arc<AtomicUsize>,
}

impl Shared {
    pub(super) fn new(envelope: Envelope) -> Self {
        Self { envelope: Arc::new(envelope), drawn: Arc::default() }
    }

    /// Counts a piece's token, if it has one.
    pub(super) fn count(&self, piece: &Piece) {
        self.drawn.fetch_add(usize::from(piece.score.is_some()), Ordering::Relaxed);
    }

    /// The chunk that tells the tokens of prompt and responses.
    pub(super) fn usage(&self, prompt_tokens: usize) -> Value {
        self.envelope.wrap(json!([]), Some(usage(prompt_tokens, self.drawn.load(Ordering::Relaxed))))
    }
}

/// The chunks of one choice, ending with its response or with the first error.
pub(super) fn chunks(generation: Generation, render: Render) -> BoxStream<'static, Result<Value, ApiError>> {
    let steps = stream::unfold(Some((generation, render)), |state| async move {
        let (mut generation, mut render) = state?;
        match generation.next().await {
            Ok(None) => None,
            Ok(Some(piece)) => match render(&piece) {
                Ok(chunks) => Some((chunks.into_iter().map(Ok).collect::<Vec<_>>(), Some((generation, render)))),
                Err(error) => Some((vec![Err(error)], None)),
            },
            Err(error) => Some((vec![Err(error)], None)),
        }
    });
    steps.flat_map(stream::iter).boxed()
}

/// Sends `chunks`, then `last` of it where there is one, then `[DONE]`. An error is sent in
/// OpenAI's body and ends the stream.
pub(super) fn respond(
    chunks: impl Stream<Item = Result<Value, ApiError>> + Send + 'static,
    last: impl FnOnce() -> Option<Value> + Send + 'static,
) -> Response {
    let end = stream::once(async move { last().map(Ok) }).filter_map(|value| async move { value });
    let mut failed = false;
    let events = chunks
        .chain(end)
        .map(|chunk| match chunk {
            Ok(value) => (value, false),
            Err(error) => (error.body(), true),
        })
        .take_while(move |(_, error)| {
            let go_on = !failed;
            failed = failed || *error;
            async move { go_on }
        })
        .map(|(value, _)| value.to_string())
        .chain(stream::once(async { "[DONE]".to_owned() }))
        .map(|text| Ok::<_, Infallible>(Event::default().data(text)));
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}
