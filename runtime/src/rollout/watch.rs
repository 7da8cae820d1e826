//! Stop texts, watched by the engine.

use super::TokenWatcher;
use crate::text::StopWatcher;

/// Ends a response at a stop text.
#[derive(Clone, Debug)]
pub struct Watch(pub StopWatcher);

impl TokenWatcher for Watch {
    fn push(&mut self, token: i64) -> bool {
        self.0.push(token)
    }
}
