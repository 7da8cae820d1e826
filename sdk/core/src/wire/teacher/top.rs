//! The likeliest tokens a teacher names at each position of a response.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{TeacherFault, finite};

/// Rounding may lift the mass of a position's likeliest tokens above 1 by this much; beyond it they are
/// no distribution's.
const MASS_ROUNDING: f64 = 1e-2;

/// The `k` likeliest tokens under the teacher at each of `R` positions, likeliest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored", deny_unknown_fields)]
pub struct TopLogprobs {
    k: usize,
    ids: Vec<i64>,
    logprobs: Vec<f32>,
}

/// As it is written; the lengths are checked on the way in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    k: usize,
    ids: Vec<i64>,
    logprobs: Vec<f32>,
}

impl TryFrom<Stored> for TopLogprobs {
    type Error = String;

    fn try_from(Stored { k, ids, logprobs }: Stored) -> Result<Self, String> {
        if k == 0 || ids.len() != logprobs.len() || !ids.len().is_multiple_of(k) {
            return Err(format!("{} ids and {} log-probabilities are no rows of {k}", ids.len(), logprobs.len()));
        }
        Ok(Self { k, ids, logprobs })
    }
}

impl TopLogprobs {
    /// No position yet. `k` ≥ 1.
    pub(super) fn new(k: usize) -> Self {
        Self { k, ids: Vec::new(), logprobs: Vec::new() }
    }

    /// From rows: `ids` and `logprobs` are `[R · k]` each.
    ///
    /// # Errors
    /// When the lengths do not fit.
    pub fn from_rows(k: usize, ids: Vec<i64>, logprobs: Vec<f32>) -> Result<Self, String> {
        Stored { k, ids, logprobs }.try_into()
    }

    /// Those of the positions that `mask`, `[R]`, marks.
    #[must_use]
    pub fn only(&self, mask: &[bool]) -> Self {
        let rows = self.ids.chunks(self.k).zip(self.logprobs.chunks(self.k)).zip(mask);
        let mut kept = Self::new(self.k);
        for ((ids, logprobs), _) in rows.filter(|(_, marked)| **marked) {
            kept.ids.extend_from_slice(ids);
            kept.logprobs.extend_from_slice(logprobs);
        }
        kept
    }

    /// Tokens a position.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Positions: the response's tokens, or those of them that were drawn.
    pub fn positions(&self) -> usize {
        self.ids.len() / self.k
    }

    /// `[R · k]` ids, position by position.
    pub fn ids(&self) -> &[i64] {
        &self.ids
    }

    /// `[R · k]` log-probabilities at temperature 1, in nats.
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// Adds one position from what the server named there, in any order. A server may name one more: the
    /// token that was sent.
    ///
    /// # Errors
    /// When they are fewer than `k`, one comes twice, a log-probability is none, or their mass is above 1.
    pub(super) fn push(&mut self, position: usize, named: &[(i64, Option<f64>)]) -> Result<(), TeacherFault> {
        let mut row = Vec::with_capacity(named.len());
        let mut seen = BTreeSet::new();
        for &(id, logprob) in named {
            if !seen.insert(id) {
                return Err(TeacherFault::TopTwice { position, id });
            }
            row.push((id, finite(position, logprob)?));
        }
        if row.len() < self.k {
            return Err(TeacherFault::TopCount { position, expected: self.k, received: row.len() });
        }
        row.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        row.truncate(self.k);
        let mass: f64 = row.iter().map(|&(_, logprob)| f64::from(logprob).exp()).sum();
        if mass > 1.0 + MASS_ROUNDING {
            return Err(TeacherFault::TopMass { position, mass });
        }
        for (id, logprob) in row {
            self.ids.push(id);
            self.logprobs.push(logprob);
        }
        Ok(())
    }
}
