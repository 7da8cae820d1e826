//! What running sequences leave for their next tokens.
//!
//! Sequences fill slots `0..n` without holes: when one ends, the last moves into its place. So a
//! decode step works on the first `n` slots as they lie, up to the longest sequence, and the
//! memory held is that of the sequences that run, not of `max_position_embeddings`.

use tch::{Device, Kind, Tensor};

use super::config::{MixerKind, ModelConfig};
use super::key_values::{DecodeRows, KeyValues, WriteRows};
use super::recurrent::{Copies, Recurrent};

/// Positions are added in steps of this many, at least.
const POSITIONS_STEP: usize = 64;

/// One layer's share.
#[derive(Debug)]
pub(super) enum LayerCache {
    /// Of attention: keys and values, which grow with the sequence.
    Attention(KeyValues),
    /// Of a delta net: states of fixed size.
    DeltaNet(Recurrent),
}

impl LayerCache {
    fn tensors(&self) -> Vec<&Tensor> {
        match self {
            Self::Attention(kept) => vec![kept.tensor()],
            Self::DeltaNet(kept) => kept.tensors().into(),
        }
    }
}

/// Where a prefill is kept.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) rows: WriteRows,
    pub(super) copies: Copies,
}

/// The cache of all layers.
#[derive(Debug)]
pub(crate) struct KvCache {
    layers: Vec<LayerCache>,
    slots: usize,
    positions: usize,
    limit: usize,
    /// Slots it never has more of.
    most_slots: usize,
    device: Device,
}

impl KvCache {
    /// An empty cache of which no sequence outgrows `limit` positions.
    pub(crate) fn new(config: &ModelConfig, limit: usize, device: Device, kind: Kind) -> Self {
        let layer = |mixer| match mixer {
            MixerKind::Attention => LayerCache::Attention(KeyValues::new(config, (kind, device))),
            MixerKind::DeltaNet => LayerCache::DeltaNet(Recurrent::new(config, (kind, device))),
        };
        let layers = config.layers.iter().map(|kinds| layer(kinds.mixer)).collect();
        Self { layers, slots: 0, positions: 0, limit, most_slots: usize::MAX, device }
    }

    /// As [`KvCache::new`], and never of more slots.
    pub(crate) fn of_at_most(self, most_slots: usize) -> Self {
        Self { most_slots, ..self }
    }

    /// Bytes as allocated now.
    pub(crate) fn bytes(&self) -> usize {
        self.layers.iter().flat_map(LayerCache::tensors).map(|it| it.numel() * it.kind().elt_size_in_bytes()).sum()
    }

    /// Slots and positions a slot, as allocated now.
    pub(crate) fn capacity(&self) -> (usize, usize) {
        (self.slots, self.positions)
    }

    /// Makes room for `slots` sequences of `positions`, keeping the first `keep` slots.
    pub(crate) fn reserve(&mut self, slots: usize, positions: usize, keep: usize) {
        if slots <= self.slots && positions <= self.positions {
            return;
        }
        let new_slots = if slots > self.slots { slots.next_power_of_two().min(self.most_slots) } else { self.slots };
        let new_positions = if positions > self.positions {
            positions.max(2 * self.positions).next_multiple_of(POSITIONS_STEP).min(self.limit)
        } else {
            self.positions
        };
        self.resize(new_slots, new_positions, keep);
    }

    /// Gives the memory back.
    pub(crate) fn clear(&mut self) {
        self.resize(0, 0, 0);
    }

    fn resize(&mut self, slots: usize, positions: usize, keep: usize) {
        for layer in &mut self.layers {
            match layer {
                LayerCache::Attention(kept) => kept.resize(slots, positions, keep),
                LayerCache::DeltaNet(kept) => kept.resize(slots, keep),
            }
        }
        (self.slots, self.positions) = (slots, positions);
    }

    /// Copies a slot that holds `length` positions to another.
    pub(crate) fn copy_slot(&mut self, from: usize, to: usize, length: usize) {
        for layer in &mut self.layers {
            match layer {
                LayerCache::Attention(kept) => kept.copy_slot(from, to, length),
                LayerCache::DeltaNet(kept) => kept.copy_slot(from, to),
            }
        }
    }

    pub(super) fn layer(&mut self, index: usize) -> &mut LayerCache {
        &mut self.layers[index]
    }

    /// Where a packed prefill is kept: sequence `i` of the pack in each of `slots[i]`; `rows` is
    /// where each packed token was computed.
    pub(super) fn kept(&self, rows: &[i64], lengths: &[usize], slots: &[Vec<usize>]) -> Kept {
        Kept { rows: WriteRows::of_prefill(rows, lengths, slots), copies: Copies::new(slots, self.device) }
    }

    /// Where a decode step writes, and what it sees.
    pub(super) fn decode_rows(positions: &[i64]) -> DecodeRows {
        DecodeRows::new(positions)
    }
}
