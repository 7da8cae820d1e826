//! Sequences end to end in one tensor, and attention that keeps them apart.
//!
//! Nothing but attention sees more than one token, so everything else runs on `[T, …]` as it is.
//! Attention runs once per group of sequences of (nearly) equal length, contiguous and causal:
//! that is the kernel that neither builds a mask nor computes the upper triangle. In a group of
//! nearly equal lengths the shorter ones are filled up at the end; under the causal rule no real
//! token sees the filling, and its rows are dropped.

use tch::{Device, Tensor};

/// Sequences up to this much longer than the shortest of their group share its attention call.
const SLACK_TOKENS: usize = 16;
/// … or up to this share (an eighth) of the shortest.
const SLACK_SHARE: usize = 8;

/// Where each sequence of a packed tensor begins and ends, and how attention is grouped.
#[derive(Debug)]
pub(super) struct Packing {
    tokens: i64,
    longest: usize,
    positions: Tensor,
    groups: Vec<Group>,
    /// Rows of the groups' outputs, one after another, in packed order; `None`: they are already.
    restore: Option<Tensor>,
}

#[derive(Debug)]
struct Group {
    sequences: i64,
    length: i64,
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    /// The group lies together in the pack, from this row on.
    From(i64),
    /// The packed row of each `[sequences · length]` place.
    Gather(Tensor),
}

impl Packing {
    /// # Panics
    /// When a length is zero.
    pub(super) fn new(lengths: &[usize], device: Device) -> Self {
        assert!(lengths.iter().all(|&length| length > 0), "a packed sequence has at least one token");
        let starts: Vec<usize> =
            lengths.iter().scan(0, |next, length| Some(std::mem::replace(next, *next + length))).collect();
        let tokens: usize = lengths.iter().sum();
        let positions: Vec<i64> = lengths.iter().flat_map(|&length| 0..length as i64).collect();

        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|&index| lengths[index]);
        let mut groups = Vec::new();
        let mut restore = vec![0_i64; tokens];
        let mut placed = 0;
        let mut rest = order.as_slice();
        while let Some(&shortest) = rest.first() {
            let limit = lengths[shortest] + SLACK_TOKENS.max(lengths[shortest] / SLACK_SHARE);
            let count = rest.iter().take_while(|&&index| lengths[index] <= limit).count();
            let (members, others) = rest.split_at(count);
            rest = others;
            let length = lengths[members[count - 1]];
            for (slot, &member) in members.iter().enumerate() {
                for offset in 0..lengths[member] {
                    restore[starts[member] + offset] = (placed + slot * length + offset) as i64;
                }
            }
            placed += count * length;
            groups.push(Group {
                sequences: count as i64,
                length: length as i64,
                rows: rows(members, lengths, &starts, device),
            });
        }
        let in_order = placed == tokens && restore.iter().enumerate().all(|(row, &from)| row as i64 == from);
        Self {
            tokens: tokens as i64,
            longest: lengths.iter().copied().max().unwrap_or(0),
            positions: Tensor::from_slice(&positions).to_device(device),
            groups,
            restore: (!in_order).then(|| Tensor::from_slice(&restore).to_device(device)),
        }
    }

    /// `T`.
    pub(super) fn tokens(&self) -> i64 {
        self.tokens
    }

    /// Tokens of the longest sequence.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Each token's position in its sequence, `[T]`.
    pub(super) fn positions(&self) -> &Tensor {
        &self.positions
    }

    /// Causal attention within each sequence.
    ///
    /// # Shapes
    /// `q [T, A, D]`, `k [T, K, D]`, `v [T, K, D]` → `[T, A·D]`.
    pub(super) fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let (heads, dimension) = (q.size()[1], q.size()[2]);
        let mut outputs: Vec<Tensor> = self
            .groups
            .iter()
            .map(|group| {
                let [q, k, v] = [q, k, v].map(|x| group.take(x));
                let grouped = heads != k.size()[1];
                let out = Tensor::scaled_dot_product_attention::<Tensor>(&q, &k, &v, None, 0.0, true, None, grouped);
                out.transpose(1, 2).reshape([group.sequences * group.length, heads * dimension])
            })
            .collect();
        let packed = if outputs.len() == 1 { outputs.remove(0) } else { Tensor::cat(&outputs, 0) };
        match &self.restore {
            None => packed,
            Some(rows) => packed.index_select(0, rows),
        }
    }
}

impl Group {
    /// # Shapes
    /// `[T, heads, D]` → `[sequences, heads, length, D]`.
    fn take(&self, x: &Tensor) -> Tensor {
        let rows = match &self.rows {
            Rows::From(start) => x.narrow(0, *start, self.sequences * self.length),
            Rows::Gather(rows) => x.index_select(0, rows),
        };
        rows.unflatten(0, [self.sequences, self.length]).transpose(1, 2)
    }
}

fn rows(members: &[usize], lengths: &[usize], starts: &[usize], device: Device) -> Rows {
    let first = starts[members[0]];
    let length = lengths[members[members.len() - 1]];
    let together =
        members.iter().enumerate().all(|(slot, &m)| lengths[m] == length && starts[m] == first + slot * length);
    if together {
        return Rows::From(first as i64);
    }
    let places = members
        .iter()
        .flat_map(|&member| (0..length).map(move |offset| (starts[member] + offset.min(lengths[member] - 1)) as i64));
    Rows::Gather(Tensor::from_slice(&places.collect::<Vec<_>>()).to_device(device))
}
