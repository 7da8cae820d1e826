//! Sequences end to end in one tensor, and attention that keeps them apart.
//!
//! Nothing but mixers see more than one token, so everything else runs on `[U, …]` as it is. (How
//! a delta net cuts sequences is in `chunks`.)
//! Attention runs once per group of sequences of (nearly) equal length, contiguous and causal:
//! that is the kernel that neither builds a mask nor computes the upper triangle. In a group of
//! nearly equal lengths the shorter ones are filled up at the end; under the causal rule no real
//! token sees the filling, and its rows are dropped.
//!
//! A token's hidden state depends on the tokens before it alone, so where sequences begin alike
//! (the responses to one prompt) the common beginning is computed once, as one row for all. Its
//! gradient is the sum over the sequences, as it would be if each had a row of its own.

use std::cell::OnceCell;
use std::collections::HashMap;

use tch::{Device, Tensor};

use super::chunks::Chunks;

/// Sequences up to this much longer than the shortest of their group share its attention call.
const SLACK_TOKENS: usize = 16;
/// … or up to this share (an eighth) of the shortest.
const SLACK_SHARE: usize = 8;
/// Common beginnings are shared where they are at least this share (an eighth) of all tokens:
/// gathering rows for attention has its price too.
const WORTH_SHARING: usize = 8;

/// Where each sequence of a packed tensor begins and ends, and how attention is grouped.
#[derive(Debug)]
pub(super) struct Packing {
    ids: Tensor,
    positions: Tensor,
    longest: usize,
    groups: Vec<Group>,
    /// The place of each row in the groups' outputs, one after another; `None`: they are in order.
    restore: Option<Tensor>,
    /// The row of each of the `T` tokens.
    rows: Vec<i64>,
    lengths: Vec<usize>,
    shared: bool,
    device: Device,
    chunks: OnceCell<Chunks>,
    earlier: OnceCell<Vec<Tensor>>,
}

#[derive(Debug)]
struct Group {
    sequences: i64,
    length: i64,
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    /// The group's rows lie together, from this one on.
    From(i64),
    /// The row of each `[sequences · length]` place.
    Gather(Tensor),
}

impl Packing {
    /// # Panics
    /// When a length is zero, or they do not add up to the ids.
    pub(super) fn new(ids: &[i64], lengths: &[usize], device: Device) -> Self {
        assert!(lengths.iter().all(|&length| length > 0), "a packed sequence has at least one token");
        assert_eq!(ids.len(), lengths.iter().sum::<usize>(), "lengths {lengths:?} add up to the packed ids");
        let mut beginnings = beginnings(ids, lengths);
        let shared = (ids.len() - beginnings.first.len()) * WORTH_SHARING >= ids.len().max(1);
        if !shared {
            beginnings = Beginnings { rows: (0..ids.len() as i64).collect(), first: (0..ids.len()).collect() };
        }
        let Beginnings { rows, first } = beginnings;

        let starts: Vec<usize> =
            lengths.iter().scan(0, |next, length| Some(std::mem::replace(next, *next + length))).collect();
        let positions: Vec<i64> = lengths.iter().flat_map(|&length| 0..length as i64).collect();
        let of = |values: &[i64]| {
            Tensor::from_slice(&first.iter().map(|&token| values[token]).collect::<Vec<_>>()).to_device(device)
        };
        let (unique_ids, unique_positions) = (of(ids), of(&positions));

        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|&index| lengths[index]);
        let mut groups = Vec::new();
        let mut restore = vec![0_i64; first.len()];
        let mut placed = 0;
        let mut rest = order.as_slice();
        while let Some(&shortest) = rest.first() {
            let limit = lengths[shortest] + SLACK_TOKENS.max(lengths[shortest] / SLACK_SHARE);
            let count = rest.iter().take_while(|&&index| lengths[index] <= limit).count();
            let (members, others) = rest.split_at(count);
            rest = others;
            let length = lengths[members[count - 1]];
            let mut places = Vec::with_capacity(count * length);
            for &member in members {
                let of_member = &rows[starts[member]..starts[member] + lengths[member]];
                for (offset, &row) in of_member.iter().enumerate() {
                    restore[row as usize] = (placed + places.len() + offset) as i64;
                }
                places.extend_from_slice(of_member);
                places.resize(places.len() + length - of_member.len(), of_member[of_member.len() - 1]);
            }
            placed += places.len();
            let together = places.windows(2).all(|pair| pair[1] == pair[0] + 1);
            let rows = match together {
                true => Rows::From(places[0]),
                false => Rows::Gather(Tensor::from_slice(&places).to_device(device)),
            };
            groups.push(Group { sequences: count as i64, length: length as i64, rows });
        }
        let in_order = placed == first.len() && restore.iter().enumerate().all(|(row, &from)| row as i64 == from);
        Self {
            ids: unique_ids,
            positions: unique_positions,
            longest: lengths.iter().copied().max().unwrap_or(0),
            groups,
            restore: (!in_order).then(|| Tensor::from_slice(&restore).to_device(device)),
            rows,
            lengths: lengths.to_vec(),
            shared,
            device,
            chunks: OnceCell::new(),
            earlier: OnceCell::new(),
        }
    }

    /// The tokens to compute, `[U]`, `U` ≤ `T`.
    pub(super) fn ids(&self) -> &Tensor {
        &self.ids
    }

    /// Each one's position in its sequence, `[U]`.
    pub(super) fn positions(&self) -> &Tensor {
        &self.positions
    }

    /// Tokens of the longest sequence.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// The row of each of the `T` tokens.
    pub(super) fn rows(&self) -> &[i64] {
        &self.rows
    }

    /// Whether some row stands for more than one token.
    pub(super) fn shared(&self) -> bool {
        self.shared
    }

    /// How a recurrence goes through the sequences.
    pub(super) fn chunks(&self) -> &Chunks {
        let unique = self.ids.size()[0] as usize;
        self.chunks.get_or_init(|| Chunks::new(&self.rows, &self.lengths, unique, self.device))
    }

    /// For each distance from 1 to `furthest`, one more than the row so far before each row in its
    /// sequence, `[U]`; 0 where there is none. The same for every layer.
    pub(super) fn earlier(&self, furthest: usize) -> &[Tensor] {
        let make = || {
            let mut before = vec![0_i64; self.ids.size()[0] as usize + 1];
            for rows in self.sequences() {
                for pair in rows.windows(2) {
                    before[pair[1] as usize + 1] = pair[0] + 1;
                }
            }
            let mut found: Vec<i64> = (0..before.len() as i64).collect();
            let next = |_| {
                found.iter_mut().for_each(|row| *row = before[*row as usize]);
                Tensor::from_slice(&found[1..]).to_device(self.device)
            };
            (0..furthest).map(next).collect()
        };
        let earlier = self.earlier.get_or_init(make);
        assert_eq!(earlier.len(), furthest, "all layers see equally far");
        earlier
    }

    /// One more than the rows of each sequence's last `count` tokens, `[sequences, count]`; 0 where
    /// there are fewer.
    pub(super) fn endings(&self, count: usize) -> Tensor {
        let mut endings = Vec::with_capacity(self.lengths.len() * count);
        for rows in self.sequences() {
            endings.extend(std::iter::repeat_n(0, count.saturating_sub(rows.len())));
            endings.extend(rows[rows.len().saturating_sub(count)..].iter().map(|row| row + 1));
        }
        Tensor::from_slice(&endings).view([-1, count as i64]).to_device(self.device)
    }

    /// The rows of each sequence.
    fn sequences(&self) -> impl Iterator<Item = &[i64]> {
        let mut rest = self.rows.as_slice();
        self.lengths.iter().map(move |&length| {
            let (rows, others) = rest.split_at(length);
            rest = others;
            rows
        })
    }

    /// Causal attention within each sequence.
    ///
    /// # Shapes
    /// `q [U, A, D]`, `k [U, K, D]`, `v [U, K, D]` → `[U, A·D]`.
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
    /// `[U, heads, D]` → `[sequences, heads, length, D]`.
    fn take(&self, x: &Tensor) -> Tensor {
        let rows = match &self.rows {
            Rows::From(start) => x.narrow(0, *start, self.sequences * self.length),
            Rows::Gather(rows) => x.index_select(0, rows),
        };
        rows.unflatten(0, [self.sequences, self.length]).transpose(1, 2)
    }
}

/// One row for all tokens with the same tokens before them.
struct Beginnings {
    /// The row of each token.
    rows: Vec<i64>,
    /// The first token of each row.
    first: Vec<usize>,
}

fn beginnings(ids: &[i64], lengths: &[usize]) -> Beginnings {
    // A row is known by the row before it and its own token.
    let mut known: HashMap<(i64, i64), i64> = HashMap::with_capacity(ids.len());
    let mut found = Beginnings { rows: Vec::with_capacity(ids.len()), first: Vec::new() };
    for &length in lengths {
        let mut before = -1;
        for _ in 0..length {
            let token = found.rows.len();
            let next = found.first.len() as i64;
            let row = *known.entry((before, ids[token])).or_insert(next);
            if row == next {
                found.first.push(token);
            }
            found.rows.push(row);
            before = row;
        }
    }
    found
}
