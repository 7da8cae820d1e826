//! A job's log as a stream of lines.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{BoxStream, Stream, StreamExt};

use super::Error;

/// Which part of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Begin with this many last lines; `None` begins at the start.
    pub tail: Option<usize>,
    /// Go on until the job is over; otherwise end at what is there now.
    pub follow: bool,
}

/// Lines of a log, without their line ends. It ends when the job is over, or, when it is not
/// followed, at what was there.
pub struct Logs(BoxStream<'static, Result<String, Error>>);

impl Logs {
    /// Wraps a stream of lines.
    pub fn new(lines: impl Stream<Item = Result<String, Error>> + Send + 'static) -> Self {
        Self(lines.boxed())
    }

    /// The next line, or `None` at the end.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub async fn next_line(&mut self) -> Result<Option<String>, Error> {
        self.0.next().await.transpose()
    }

    /// All lines to the end.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub async fn lines(mut self) -> Result<Vec<String>, Error> {
        let mut lines = Vec::new();
        while let Some(line) = self.next_line().await? {
            lines.push(line);
        }
        Ok(lines)
    }
}

impl Stream for Logs {
    type Item = Result<String, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

impl fmt::Debug for Logs {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Logs")
    }
}
