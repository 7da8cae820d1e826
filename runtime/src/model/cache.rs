//! Keys and values of running sequences.
//!
//! Sequences fill slots `0..n` without holes: when one ends, the last moves into its place. So a
//! decode step works on the first `n` slots as they lie, up to the longest sequence, and the
//! memory held is that of the sequences that run, not of `max_position_embeddings`.

use tch::{Device, Kind, Tensor};

use super::config::ModelConfig;

/// Positions are added in steps of this many, at least.
const POSITIONS_STEP: usize = 64;

/// Keys and values of one layer, `[slots, positions, 2K, D]`: keys first, then values.
#[derive(Debug)]
pub(super) struct LayerCache {
    tensor: Tensor,
    key_value: i64,
}

/// Where tokens are written: rows of `[slots · positions]`.
#[derive(Debug)]
pub(super) struct WriteRows {
    to: Tensor,
    /// Which of the given tokens goes there; `None`: each, in order.
    from: Option<Tensor>,
}

/// A decode step's view of the cache.
#[derive(Debug)]
pub(super) struct DecodeRows {
    pub(super) write: WriteRows,
    sequences: i64,
    longest: i64,
    /// `[B, 1, 1, longest]`, 0 or −∞; `None`: all sequences are equally long.
    pub(super) mask: Option<Tensor>,
}

impl LayerCache {
    pub(super) fn write(&mut self, keys_values: &Tensor, rows: &WriteRows) {
        let selected = rows.from.as_ref().map(|from| keys_values.index_select(0, from));
        let _ = self.tensor.flatten(0, 1).index_copy_(0, &rows.to, selected.as_ref().unwrap_or(keys_values));
    }

    /// Keys and values, `[B, K, longest, D]` each, without a copy.
    pub(super) fn read(&self, rows: &DecodeRows) -> (Tensor, Tensor) {
        let used = self.tensor.narrow(0, 0, rows.sequences).narrow(1, 0, rows.longest).transpose(1, 2);
        (used.narrow(1, 0, self.key_value), used.narrow(1, self.key_value, self.key_value))
    }
}

/// The cache of all layers.
#[derive(Debug)]
pub(crate) struct KvCache {
    layers: Vec<LayerCache>,
    slots: usize,
    positions: usize,
    limit: usize,
    device: Device,
    kind: Kind,
}

impl KvCache {
    /// An empty cache of which no sequence outgrows `limit` positions.
    pub(crate) fn new(config: &ModelConfig, limit: usize, device: Device, kind: Kind) -> Self {
        let (key_value, dimension) = (config.num_key_value_heads as i64, config.head_dim as i64);
        let layer =
            || LayerCache { tensor: Tensor::zeros([0, 0, 2 * key_value, dimension], (kind, device)), key_value };
        let layers = (0..config.num_hidden_layers).map(|_| layer()).collect();
        Self { layers, slots: 0, positions: 0, limit, device, kind }
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
        let new_slots = if slots > self.slots { slots.next_power_of_two() } else { self.slots };
        let new_positions = if positions > self.positions {
            positions.max(2 * self.positions).next_multiple_of(POSITIONS_STEP).min(self.limit)
        } else {
            self.positions
        };
        for layer in &mut self.layers {
            let size = layer.tensor.size();
            let grown =
                Tensor::zeros([new_slots as i64, new_positions as i64, size[2], size[3]], (self.kind, self.device));
            if keep > 0 {
                let old = layer.tensor.narrow(0, 0, keep as i64);
                grown.narrow(0, 0, keep as i64).narrow(1, 0, size[1]).copy_(&old);
            }
            layer.tensor = grown;
        }
        (self.slots, self.positions) = (new_slots, new_positions);
    }

    /// Gives the memory back.
    pub(crate) fn clear(&mut self) {
        for layer in &mut self.layers {
            let size = layer.tensor.size();
            layer.tensor = Tensor::zeros([0, 0, size[2], size[3]], (self.kind, self.device));
        }
        (self.slots, self.positions) = (0, 0);
    }

    /// Copies the first `length` positions of one slot to another.
    pub(crate) fn copy_slot(&mut self, from: usize, to: usize, length: usize) {
        for layer in &mut self.layers {
            let slot = |index: usize| layer.tensor.select(0, index as i64).narrow(0, 0, length as i64);
            slot(to).copy_(&slot(from));
        }
    }

    pub(super) fn layer(&mut self, index: usize) -> &mut LayerCache {
        &mut self.layers[index]
    }

    /// Rows of a packed prefill: sequence `i` of the pack goes to each of `slots[i]`.
    pub(super) fn write_rows(&self, lengths: &[usize], slots: &[Vec<usize>]) -> WriteRows {
        let (mut to, mut from) = (Vec::new(), Vec::new());
        let mut start = 0;
        for (&length, slots) in lengths.iter().zip(slots) {
            for slot in slots {
                to.extend((0..length).map(|offset| (slot * self.positions + offset) as i64));
                from.extend((start..start + length).map(|row| row as i64));
            }
            start += length;
        }
        let in_order = from.len() == start && from.iter().enumerate().all(|(row, &at)| row as i64 == at);
        let tensor = |rows: &[i64]| Tensor::from_slice(rows).to_device(self.device);
        WriteRows { to: tensor(&to), from: (!in_order).then(|| tensor(&from)) }
    }

    /// Rows of a decode step: slot `i` gets its token at `positions[i]` and then sees
    /// `0..=positions[i]`.
    pub(super) fn decode_rows(&self, positions: &[i64]) -> DecodeRows {
        let longest = positions.iter().copied().max().unwrap_or(0) + 1;
        let to: Vec<i64> =
            positions.iter().enumerate().map(|(slot, position)| (slot * self.positions) as i64 + position).collect();
        let even = positions.iter().all(|position| position + 1 == longest);
        let mask = (!even).then(|| {
            let last = Tensor::from_slice(positions).to_device(self.device).view([-1, 1, 1, 1]);
            let hidden = Tensor::arange(longest, (Kind::Int64, self.device)).gt_tensor(&last);
            Tensor::zeros(hidden.size(), (self.kind, self.device)).masked_fill(&hidden, f64::NEG_INFINITY)
        });
        let write = WriteRows { to: Tensor::from_slice(&to).to_device(self.device), from: None };
        DecodeRows { write, sequences: positions.len() as i64, longest, mask }
    }
}
