//! How much may be computed for one verdict.

use std::cell::Cell;

use super::Reason;

/// What a verdict may cost, in operations on small numbers: below a second, also without optimisation.
const MOST: u64 = 500_000;

/// A budget of work. It counts operations and not seconds, so that an answer has the same verdict on
/// every machine, however busy.
#[derive(Debug)]
pub(super) struct Effort(Cell<u64>);

impl Effort {
    pub(super) fn new() -> Self {
        Self(Cell::new(MOST))
    }

    /// Pays for an operation whose result has so many machine words. Products and common divisors of long
    /// numbers cost the square of their length.
    pub(super) fn spend(&self, words: u64) -> Result<(), Reason> {
        let left = self.0.get().checked_sub(1 + words * words / 16).ok_or(Reason::TooMuch)?;
        self.0.set(left);
        Ok(())
    }
}
