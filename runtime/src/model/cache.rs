//! Keys and values of running sequences.
//!
//! Sequences fill slots `0..n` without holes: when one ends, the last moves into its place. So a
//! decode step works on the first `n` slots as they lie, up to the longest sequence, and the
//! memory held is that of the sequences that run, not of `max_position_embeddings`.

use std::cell::OnceCell;

use tch::{Device, Kind, Tensor};

use super::config::ModelConfig;
use super::cpu;

/// Positions are added in steps of this many, at least.
const POSITIONS_STEP: usize = 64;

/// Keys and values of one layer, `[slots, 2K, positions, D]`: keys first, then values. The
/// positions of a head lie together, in the order attention reads them.
#[derive(Debug)]
pub(super) struct LayerCache {
    tensor: Tensor,
}

/// Where a token's keys and values are written.
#[derive(Clone, Copy, Debug)]
struct Place {
    token: usize,
    slot: usize,
    position: usize,
}

/// Where tokens are written.
#[derive(Debug)]
pub(super) struct WriteRows {
    places: Vec<Place>,
    /// Rows of `[slots · 2K · positions]` and of the tokens' `[n · 2K]`, for libtorch.
    indices: OnceCell<(Tensor, Tensor)>,
}

/// A decode step's view of the cache: slot `i` sees its first `lengths[i]` positions.
#[derive(Debug)]
pub(super) struct DecodeRows {
    pub(super) write: WriteRows,
    pub(super) lengths: Vec<usize>,
    mask: OnceCell<Option<Tensor>>,
}

impl WriteRows {
    fn new(places: Vec<Place>) -> Self {
        Self { places, indices: OnceCell::new() }
    }

    fn indices(&self, cache: &Tensor) -> &(Tensor, Tensor) {
        self.indices.get_or_init(|| {
            let (heads, positions) = (cache.size()[1], cache.size()[2]);
            let (mut to, mut from) = (Vec::new(), Vec::new());
            for &Place { token, slot, position } in &self.places {
                to.extend((0..heads).map(|head| (slot as i64 * heads + head) * positions + position as i64));
                from.extend((0..heads).map(|head| token as i64 * heads + head));
            }
            let tensor = |rows: &[i64]| Tensor::from_slice(rows).to_device(cache.device());
            (tensor(&to), tensor(&from))
        })
    }
}

impl DecodeRows {
    fn longest(&self) -> i64 {
        self.lengths.iter().copied().max().unwrap_or(0) as i64
    }

    /// `[B, 1, 1, longest]`, 0 or −∞; `None`: all sequences are equally long.
    pub(super) fn mask(&self, kind: Kind, device: Device) -> Option<&Tensor> {
        let make = || {
            let longest = self.longest();
            let lengths: Vec<i64> = self.lengths.iter().map(|&length| length as i64).collect();
            lengths.iter().any(|&length| length != longest).then(|| {
                let lengths = Tensor::from_slice(&lengths).to_device(device).view([-1, 1, 1, 1]);
                let unseen = Tensor::arange(longest, (Kind::Int64, device)).ge_tensor(&lengths);
                Tensor::zeros(unseen.size(), (kind, device)).masked_fill(&unseen, f64::NEG_INFINITY)
            })
        };
        self.mask.get_or_init(make).as_ref()
    }
}

impl LayerCache {
    /// # Shapes
    /// `heads [n, all heads, D]`, of which the last 2K are keys and values.
    pub(super) fn write(&mut self, heads: &Tensor, rows: &WriteRows) {
        let size = self.tensor.size();
        let (kept, dimension) = (size[1], size[3]);
        if cpu::applies(self.tensor.kind(), self.tensor.device(), dimension as usize) {
            let (kept, positions, dimension) = (kept as usize, size[2] as usize, dimension as usize);
            let all = heads.size()[1] as usize;
            let (heads, cache) = (cpu::numbers(heads), cpu::numbers_mut(&mut self.tensor));
            for &Place { token, slot, position } in &rows.places {
                for head in 0..kept {
                    let from = ((token + 1) * all - kept + head) * dimension;
                    let to = ((slot * kept + head) * positions + position) * dimension;
                    cache[to..to + dimension].copy_from_slice(&heads[from..from + dimension]);
                }
            }
            return;
        }
        let (to, from) = rows.indices(&self.tensor);
        let tokens = heads.narrow(1, heads.size()[1] - kept, kept).reshape([-1, dimension]).index_select(0, from);
        let _ = self.tensor.view([-1, dimension]).index_copy_(0, to, &tokens);
    }

    /// Keys and values, `[B, K, longest, D]` each, without a copy.
    pub(super) fn read(&self, rows: &DecodeRows) -> (Tensor, Tensor) {
        let used = self.tensor.narrow(0, 0, rows.lengths.len() as i64).narrow(2, 0, rows.longest());
        let key_value = used.size()[1] / 2;
        (used.narrow(1, 0, key_value), used.narrow(1, key_value, key_value))
    }

    /// The whole tensor, `[slots, 2K, positions, D]`.
    pub(super) fn tensor(&self) -> &Tensor {
        &self.tensor
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
        let layer = || LayerCache { tensor: Tensor::zeros([0, 2 * key_value, 0, dimension], (kind, device)) };
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
        self.resize(new_slots, new_positions, keep);
    }

    /// Gives the memory back.
    pub(crate) fn clear(&mut self) {
        self.resize(0, 0, 0);
    }

    fn resize(&mut self, slots: usize, positions: usize, keep: usize) {
        for layer in &mut self.layers {
            let size = layer.tensor.size();
            // Zeros, since attention by mask multiplies what it does not see by 0.
            let resized = Tensor::zeros([slots as i64, size[1], positions as i64, size[3]], (self.kind, self.device));
            if keep > 0 {
                let old = layer.tensor.narrow(0, 0, keep as i64);
                resized.narrow(0, 0, keep as i64).narrow(2, 0, size[2]).copy_(&old);
            }
            layer.tensor = resized;
        }
        (self.slots, self.positions) = (slots, positions);
    }

    /// Copies the first `length` positions of one slot to another.
    pub(crate) fn copy_slot(&mut self, from: usize, to: usize, length: usize) {
        for layer in &mut self.layers {
            let slot = |index: usize| layer.tensor.select(0, index as i64).narrow(1, 0, length as i64);
            slot(to).copy_(&slot(from));
        }
    }

    pub(super) fn layer(&mut self, index: usize) -> &mut LayerCache {
        &mut self.layers[index]
    }

    /// Rows of a packed prefill: sequence `i` of the pack goes to each of `slots[i]`; `rows` is
    /// where each packed token was computed.
    pub(super) fn write_rows(&self, rows: &[i64], lengths: &[usize], slots: &[Vec<usize>]) -> WriteRows {
        let mut places = Vec::new();
        let mut start = 0;
        for (&length, slots) in lengths.iter().zip(slots) {
            for &slot in slots {
                let place = |position: usize| Place { token: rows[start + position] as usize, slot, position };
                places.extend((0..length).map(place));
            }
            start += length;
        }
        WriteRows::new(places)
    }

    /// Rows of a decode step: slot `i` gets its token at `positions[i]` and then sees
    /// `0..=positions[i]`.
    pub(super) fn decode_rows(&self, positions: &[i64]) -> DecodeRows {
        let places = positions.iter().enumerate().map(|(slot, &at)| Place { token: slot, slot, position: at as usize });
        DecodeRows {
            write: WriteRows::new(places.collect()),
            lengths: positions.iter().map(|&position| position as usize + 1).collect(),
            mask: OnceCell::new(),
        }
    }
}
