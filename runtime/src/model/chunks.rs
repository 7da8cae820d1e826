//! How a recurrence goes through packed sequences: in chunks, many sequences at each step.
//!
//! Each sequence is cut by itself, so what it comes to does not depend on its neighbours. Whole
//! chunks are laid out step by step, the sequences with the most of them first: those that go on at
//! a step are the first of those before. What is left of each sequence, less than a chunk, is
//! filled up to a multiple of [`TAIL_STEP`] and computed last, equal sizes together: at most
//! `TAIL_STEP − 1` places a sequence are filling.

use std::collections::BTreeMap;

use tch::{Device, Tensor};

/// Tokens of a whole chunk.
const CHUNK: usize = 64;
/// Tails are filled up to a multiple of this.
const TAIL_STEP: usize = 16;

/// Where the tokens of a pack are computed.
#[derive(Debug)]
pub(super) struct Chunks {
    /// Whole chunks, where there are any.
    pub(super) whole: Option<Whole>,
    pub(super) tails: Vec<Tail>,
    /// The place of each row in the outputs of whole chunks and tails, one after another, `[U]`.
    pub(super) restore: Tensor,
    /// Where each sequence's state is, `[sequences]`: states are in order of whole chunks.
    pub(super) states: Tensor,
    /// How many sequences there are.
    pub(super) sequences: i64,
}

/// All whole chunks: those of the first step, those of the second, …
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) group: Group,
    /// Sequences at each step.
    pub(super) steps: Vec<i64>,
}

/// Ends of some sequences.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) group: Group,
    /// Where their states are.
    pub(super) states: Tensor,
}

/// Some chunks of one size.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) size: i64,
    /// The row of each place, `[chunks · size]`.
    pub(super) rows: Tensor,
    /// 1 for a token, 0 for filling, `[chunks · size]` float32; `None`: no filling.
    pub(super) real: Option<Tensor>,
}

impl Chunks {
    /// `rows`: the row of each token; `unique`: how many rows there are.
    pub(super) fn new(rows: &[i64], lengths: &[usize], unique: usize, device: Device) -> Self {
        let starts: Vec<usize> =
            lengths.iter().scan(0, |next, length| Some(std::mem::replace(next, *next + length))).collect();
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|&sequence| std::cmp::Reverse(lengths[sequence] / CHUNK));
        let tensor = |values: &[i64]| Tensor::from_slice(values).to_device(device);

        let mut restore = vec![0_i64; unique];
        let mut placed = 0;
        let mut place = |rows: &[i64], filling: usize| {
            for (offset, &row) in rows.iter().enumerate() {
                restore[row as usize] = (placed + offset) as i64;
            }
            placed += rows.len() + filling;
        };
        let (mut whole_rows, mut steps) = (Vec::new(), Vec::new());
        for step in 0.. {
            let active = order.iter().take_while(|&&sequence| lengths[sequence] / CHUNK > step).count();
            if active == 0 {
                break;
            }
            steps.push(active as i64);
            for &sequence in &order[..active] {
                let chunk = &rows[starts[sequence] + step * CHUNK..][..CHUNK];
                place(chunk, 0);
                whole_rows.extend_from_slice(chunk);
            }
        }
        let whole = (!steps.is_empty())
            .then(|| Whole { group: Group { size: CHUNK as i64, rows: tensor(&whole_rows), real: None }, steps });

        let mut by_size: BTreeMap<usize, Vec<(usize, &[i64])>> = BTreeMap::new();
        for (state, &sequence) in order.iter().enumerate() {
            let length = lengths[sequence];
            let tail = &rows[starts[sequence] + length / CHUNK * CHUNK..starts[sequence] + length];
            if !tail.is_empty() {
                by_size.entry(tail.len().next_multiple_of(TAIL_STEP)).or_default().push((state, tail));
            }
        }
        let mut tails = Vec::new();
        for (size, members) in by_size {
            let (mut tail_rows, mut real) = (Vec::new(), Vec::new());
            for (_, tail) in &members {
                let filling = size - tail.len();
                place(tail, filling);
                tail_rows.extend_from_slice(tail);
                tail_rows.extend(std::iter::repeat_n(tail[tail.len() - 1], filling));
                real.extend(std::iter::repeat_n(1.0_f32, tail.len()));
                real.extend(std::iter::repeat_n(0.0_f32, filling));
            }
            let states: Vec<i64> = members.iter().map(|&(state, _)| state as i64).collect();
            let filled = real.contains(&0.0).then(|| Tensor::from_slice(&real).to_device(device));
            let group = Group { size: size as i64, rows: tensor(&tail_rows), real: filled };
            tails.push(Tail { group, states: tensor(&states) });
        }
        let mut states = vec![0_i64; lengths.len()];
        for (state, &sequence) in order.iter().enumerate() {
            states[sequence] = state as i64;
        }
        Self { whole, tails, restore: tensor(&restore), states: tensor(&states), sequences: lengths.len() as i64 }
    }
}
