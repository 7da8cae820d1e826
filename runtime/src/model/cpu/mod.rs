//! Float32 steps of inference on a CPU that libtorch does in many passes or slowly.
//!
//! Matrix products stay with libtorch. What is here stands between them: its own attention kernel
//! takes 4–6 times as long for one query a sequence (and pads all sequences to the longest), a
//! norm is six kernels, a rotation five. Sequences and heads are computed each by itself, so
//! neither neighbours nor threads change a bit.

mod attention;
mod rows;
mod vector;

use std::cell::RefCell;

use tch::{Device, Kind, Tensor};

#[cfg(target_arch = "x86_64")]
use vector::Avx;
use vector::{LANES, Portable};

/// Multiply-adds that are worth a thread.
const WORTH_A_THREAD: usize = 1 << 21;

/// Whether these kernels compute tensors of this kind, rows of `width` numbers.
pub(super) fn applies(kind: Kind, device: Device, width: usize) -> bool {
    kind == Kind::Float && device == Device::Cpu && width.is_multiple_of(LANES)
}

/// Runs a kernel with the CPU's vectors: `kernel::<V>(arguments)`.
macro_rules! vectorised {
    ($name:ident = $($kernel:ident)::+, $($argument:ident: $type:ty),+) => {
        fn $name($($argument: $type),+) {
            #[cfg(target_arch = "x86_64")]
            if Avx::available() {
                #[target_feature(enable = "avx2,fma")]
                fn with_avx($($argument: $type),+) {
                    $($kernel)::+::<Avx>($($argument),+);
                }
                #[expect(unsafe_code, reason = "a call into code compiled for AVX2")]
                // SAFETY: the CPU has AVX2 and FMA.
                return unsafe { with_avx($($argument),+) };
            }
            $($kernel)::+::<Portable>($($argument),+);
        }
    };
}

vectorised!(rms_norm_rows = rows::rms_norm, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]);
vectorised!(silu_mul_rows = rows::silu_mul, gate_up: &[f32], width: usize, out: &mut [f32]);
vectorised!(norm_rotate_tokens = each_head, tokens: &mut Tokens<'_>);
vectorised!(attend_sequences = each_sequence, work: &mut Work<'_>);

/// The numbers of a contiguous float32 tensor on the CPU.
pub(super) fn numbers(tensor: &Tensor) -> &[f32] {
    check(tensor);
    #[expect(unsafe_code, reason = "libtorch's memory as a slice")]
    // SAFETY: the tensor is contiguous float32 on the CPU and outlives the slice. Models and
    // engines are used by one thread, which does not write to it while the slice lives.
    unsafe {
        std::slice::from_raw_parts(tensor.data_ptr().cast(), tensor.numel())
    }
}

/// As [`numbers`], to be written.
pub(super) fn numbers_mut(tensor: &mut Tensor) -> &mut [f32] {
    check(tensor);
    #[expect(unsafe_code, reason = "libtorch's memory as a slice")]
    // SAFETY: as in `numbers`; the callers made the tensor themselves and hold no view of it.
    unsafe {
        std::slice::from_raw_parts_mut(tensor.data_ptr().cast(), tensor.numel())
    }
}

fn check(tensor: &Tensor) {
    let sound = tensor.kind() == Kind::Float && tensor.device() == Device::Cpu && tensor.is_contiguous();
    assert!(sound && tensor.numel() > 0, "a contiguous float32 tensor on the CPU: {tensor:?}");
}

/// # Shapes
/// `x [n, H]`, `weight [H]` → `[n, H]`.
pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Tensor {
    let mut out = x.empty_like();
    rms_norm_rows(numbers(x), numbers(weight), eps as f32, numbers_mut(&mut out));
    out
}

/// # Shapes
/// `gate_up [n, 2·width]` → `[n, width]`.
pub(super) fn silu_mul(gate_up: &Tensor) -> Tensor {
    let (rows, columns) = gate_up.size2().expect("a matrix");
    let mut out = Tensor::empty([rows, columns / 2], (Kind::Float, Device::Cpu));
    silu_mul_rows(numbers(gate_up), columns as usize / 2, numbers_mut(&mut out));
    out
}

/// Weights and ε of a norm over a head, where there is one.
type HeadNorm<'a> = Option<(&'a [f32], f32)>;

/// Heads of some tokens, normalised and rotated in place.
#[derive(Debug)]
pub(super) struct Tokens<'a> {
    /// `[n, all heads, D]`.
    pub(super) heads: &'a mut [f32],
    /// Query, key and value heads of a token, all together.
    pub(super) all: usize,
    /// Queries, then keys: how many heads, and their norm.
    pub(super) groups: [(usize, HeadNorm<'a>); 2],
    /// `[n, 2, R]`: cos, signed sin.
    pub(super) angles: &'a [f32],
    /// `D`, a multiple of eight.
    pub(super) dimension: usize,
    /// `R`, a multiple of sixteen: the dimensions that are rotated.
    pub(super) rotated: usize,
}

/// Normalises and rotates the first heads of each token (queries, then keys).
pub(super) fn norm_rotate(mut tokens: Tokens<'_>) {
    norm_rotate_tokens(&mut tokens);
}

#[inline(always)]
fn each_head<V: vector::Vector>(tokens: &mut Tokens<'_>) {
    let dimension = tokens.dimension;
    let of_tokens = tokens.heads.chunks_exact_mut(tokens.all * dimension);
    for (heads, angles) in of_tokens.zip(tokens.angles.chunks_exact(2 * tokens.rotated)) {
        let mut heads = heads.chunks_exact_mut(dimension);
        for (count, norm) in tokens.groups {
            for head in heads.by_ref().take(count) {
                rows::norm_rotate::<V>(head, norm, angles);
            }
        }
    }
}

/// One new token a sequence, and what the cache holds of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cached<'a> {
    /// `[B, all heads, D]`, queries first.
    pub(super) heads: &'a [f32],
    /// Query, key and value heads of a token, all together.
    pub(super) all: usize,
    /// `[slots, 2K, positions, D]`: keys, then values.
    pub(super) cache: &'a [f32],
    /// Positions of a slot.
    pub(super) positions: usize,
    /// `A`.
    pub(super) query: usize,
    /// `K`.
    pub(super) key_value: usize,
    /// `D`.
    pub(super) dimension: usize,
}

/// Some of the sequences.
struct Work<'a> {
    cached: Cached<'a>,
    first: usize,
    lengths: &'a [usize],
    out: &'a mut [f32],
}

/// Attention of each sequence's newest token to its first `lengths[i]` positions.
///
/// # Shapes
/// → `[B, A·D]`.
pub(super) fn attend(cached: Cached<'_>, lengths: &[usize]) -> Tensor {
    let width = cached.query * cached.dimension;
    let mut out = Tensor::empty([lengths.len() as i64, width as i64], (Kind::Float, Device::Cpu));
    let work = 2 * width * lengths.iter().sum::<usize>();
    let threads = (work / WORTH_A_THREAD).clamp(1, tch::get_num_threads().max(1) as usize);
    let share = lengths.len().div_ceil(threads);
    let parts = lengths.chunks(share).zip(numbers_mut(&mut out).chunks_mut(share * width)).enumerate();
    let parts = parts.map(|(part, (lengths, out))| Work { cached, first: part * share, lengths, out });
    if threads == 1 {
        parts.for_each(|mut part| attend_sequences(&mut part));
    } else {
        std::thread::scope(|scope| {
            for mut part in parts {
                scope.spawn(move || attend_sequences(&mut part));
            }
        });
    }
    out
}

thread_local! {
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

#[inline(always)]
fn each_sequence<V: vector::Vector>(work: &mut Work<'_>) {
    let Cached { heads, all, cache, positions, query, key_value, dimension } = work.cached;
    let (group, slot_size) = (query / key_value * dimension, positions * dimension);
    let mut scores = SCORES.take();
    for (index, (&length, out)) in work.lengths.iter().zip(work.out.chunks_exact_mut(query * dimension)).enumerate() {
        let slot = work.first + index;
        let queries = &heads[slot * all * dimension..][..query * dimension];
        let slot = &cache[slot * 2 * key_value * slot_size..][..2 * key_value * slot_size];
        for (head, (queries, out)) in queries.chunks_exact(group).zip(out.chunks_exact_mut(group)).enumerate() {
            let keys = &slot[head * slot_size..][..length * dimension];
            let values = &slot[(key_value + head) * slot_size..][..length * dimension];
            let head = attention::Head { queries, keys, values, dimension };
            attention::attend::<V>(head, &mut scores, out);
        }
    }
    SCORES.set(scores);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(size: &[i64]) -> Tensor {
        let count = size.iter().product::<i64>();
        let values: Vec<f32> = (0..count).map(|i| ((i * 7919 + 13) % 1009) as f32 / 252.0 - 2.0).collect();
        Tensor::from_slice(&values).view(size)
    }

    fn close(one: &Tensor, other: &Tensor) {
        let difference = (one - other).abs().max().double_value(&[]);
        assert!(difference < 2e-6, "differs by {difference:e}");
    }

    #[test]
    fn rows_equal_libtorch() {
        let (x, weight) = (random(&[5, 48]), random(&[48]));
        close(&rms_norm(&x, &weight, 1e-6), &x.rms_norm([48], Some(&weight), 1e-6));
        let gate_up = random(&[5, 48]) * 20.0;
        let expected = gate_up.narrow(1, 0, 24).silu() * gate_up.narrow(1, 24, 24);
        let relative = (silu_mul(&gate_up) - &expected) / (expected.abs() + 1.0);
        assert!(relative.abs().max().double_value(&[]) < 1e-6);
    }

    #[test]
    fn both_kinds_of_vectors_compute_the_same() {
        let (x, weight) = (random(&[5, 48]), random(&[48]));
        let (x, weight) = (numbers(&x), numbers(&weight));
        let (mut one, mut other) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        rms_norm_rows(x, weight, 1e-6, &mut one);
        rows::rms_norm::<Portable>(x, weight, 1e-6, &mut other);
        let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 2e-6 * b.abs().max(1.0));
        assert!(near(&one, &other));
        silu_mul_rows(x, 24, &mut one[..120]);
        rows::silu_mul::<Portable>(x, 24, &mut other[..120]);
        assert!(near(&one, &other));
        let (keys, mut scores) = (random(&[19, 24]), Vec::new());
        let work = |out: &mut [f32]| {
            attend_sequences(&mut Work {
                cached: Cached {
                    heads: &x[..48],
                    all: 2,
                    cache: &[numbers(&keys), numbers(&keys)].concat(),
                    positions: 19,
                    query: 2,
                    key_value: 1,
                    dimension: 24,
                },
                first: 0,
                lengths: &[19],
                out,
            });
        };
        work(&mut one[..48]);
        let head = attention::Head { queries: &x[..48], keys: numbers(&keys), values: numbers(&keys), dimension: 24 };
        attention::attend::<Portable>(head, &mut scores, &mut other[..48]);
        assert!(near(&one, &other));
    }

    #[test]
    fn attention_equals_libtorch_at_every_length() {
        let (query, key_value, dimension, positions) = (4_usize, 2_usize, 40_usize, 37_usize);
        let lengths: Vec<usize> = (1..=positions).collect();
        let batch = positions as i64;
        let (q, d) = (query as i64, dimension as i64);
        let heads = random(&[batch, q + 2, d]);
        let cache = random(&[batch, 2 * key_value as i64, batch, d]);
        let cached = Cached {
            heads: numbers(&heads),
            all: query + 2,
            cache: numbers(&cache),
            positions,
            query,
            key_value,
            dimension,
        };
        let out = attend(cached, &lengths);
        for (row, &length) in lengths.iter().enumerate() {
            let row = row as i64;
            let queries = heads.get(row).narrow(0, 0, q).view([1, 2, 2, d]);
            let known = cache.get(row).narrow(1, 0, length as i64).unsqueeze(0);
            let (k, v) = (known.narrow(1, 0, 2), known.narrow(1, 2, 2));
            let expected =
                Tensor::scaled_dot_product_attention::<Tensor>(&queries, &k, &v, None, 0.0, false, None, false);
            close(&out.get(row), &expected.reshape([q * d]));
        }
    }
}
