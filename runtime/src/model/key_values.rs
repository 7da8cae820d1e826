//! Keys and values of one attention layer.

use std::cell::OnceCell;

use tch::{Device, Kind, Tensor};

use super::config::ModelConfig;
use super::cpu;

/// Keys and values of one layer, `[slots, 2K, positions, D]`: keys first, then values. The
/// positions of a head lie together, in the order attention reads them.
#[derive(Debug)]
pub(super) struct KeyValues {
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
    /// Rows of a packed prefill: sequence `i` of the pack goes to each of `slots[i]`; `rows` is
    /// where each packed token was computed.
    pub(super) fn of_prefill(rows: &[i64], lengths: &[usize], slots: &[Vec<usize>]) -> Self {
        let mut places = Vec::new();
        let mut start = 0;
        for (&length, slots) in lengths.iter().zip(slots) {
            for &slot in slots {
                let place = |position: usize| Place { token: rows[start + position] as usize, slot, position };
                places.extend((0..length).map(place));
            }
            start += length;
        }
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
    /// Rows of a decode step: slot `i` gets its token at `positions[i]` and then sees
    /// `0..=positions[i]`.
    pub(super) fn new(positions: &[i64]) -> Self {
        let places = positions.iter().enumerate().map(|(slot, &at)| Place { token: slot, slot, position: at as usize });
        Self {
            write: WriteRows { places: places.collect(), indices: OnceCell::new() },
            lengths: positions.iter().map(|&position| position as usize + 1).collect(),
            mask: OnceCell::new(),
        }
    }

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

impl KeyValues {
    pub(super) fn new(config: &ModelConfig, options: (Kind, Device)) -> Self {
        let (key_value, dimension) = (config.num_key_value_heads as i64, config.head_dim as i64);
        Self { tensor: Tensor::zeros([0, 2 * key_value, 0, dimension], options) }
    }

    /// Other numbers of slots and positions; the first `keep` slots keep what they hold.
    pub(super) fn resize(&mut self, slots: usize, positions: usize, keep: usize) {
        let size = self.tensor.size();
        let options = (self.tensor.kind(), self.tensor.device());
        // Zeros, since attention by mask multiplies what it does not see by 0.
        let resized = Tensor::zeros([slots as i64, size[1], positions as i64, size[3]], options);
        if keep > 0 {
            let old = self.tensor.narrow(0, 0, keep as i64);
            resized.narrow(0, 0, keep as i64).narrow(2, 0, size[2]).copy_(&old);
        }
        self.tensor = resized;
    }

    /// Copies the first `length` positions of one slot to another.
    pub(super) fn copy_slot(&mut self, from: usize, to: usize, length: usize) {
        let slot = |index: usize| self.tensor.select(0, index as i64).narrow(1, 0, length as i64);
        slot(to).copy_(&slot(from));
    }

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
