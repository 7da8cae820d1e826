//! The gated delta rule (Yang et al., "Gated Delta Networks", 2024), in two forms that agree.
//!
//! A head's state `S` `[key dim, value dim]`, all in float32, goes through a sequence by
//! `S ← e^g·S`, `d = β·(v − Sᵀk)`, `S ← S + k dᵀ`, `o = Sᵀq`.
//!
//! [`recurrent`] does just that, a token at a time. [`chunked`] takes a chunk at a time: within one,
//! with `G` the running sum of `g` and `D_ij = e^(G_i − G_j)` for `i ≥ j`, what each token adds is
//! the solution of a triangular system, `(I + tril(β k kᵀ ∘ D, −1)) d = β·(v − e^G·kᵀS)` (section 3.3
//! there, after the WY form of Yang et al., "Parallelizing Linear Transformers with the Delta Rule",
//! 2024), and only `S` passes from chunk to chunk.

use tch::Tensor;

use super::chunks::{Chunks, Group};

/// What the rule sees of some tokens, all in one type (a model's are float32).
#[derive(Debug)]
pub(super) struct Inputs {
    /// Queries `[n, key heads, key dim]`, of length 1 over √(key dim).
    pub(super) q: Tensor,
    /// Keys, likewise of length 1.
    pub(super) k: Tensor,
    /// Values `[n, value heads, value dim]`.
    pub(super) v: Tensor,
    /// `g` ≤ 0, `[n, value heads]`.
    pub(super) forget: Tensor,
    /// `β` in (0, 1), `[n, value heads]`.
    pub(super) beta: Tensor,
}

impl Inputs {
    fn heads(&self) -> i64 {
        self.v.size()[1]
    }

    /// `[heads, key dim, value dim]`.
    fn state(&self) -> [i64; 3] {
        [self.heads(), self.k.size()[2], self.v.size()[2]]
    }
}

/// All sequences of a pack, from empty states. Differentiable.
///
/// # Shapes
/// → outputs `[n, value heads, value dim]`; states after each sequence, `[sequences, value heads,
/// key dim, value dim]`, where `states` asks for them.
pub(super) fn chunked(inputs: &Inputs, chunks: &Chunks, states: bool) -> (Tensor, Option<Tensor>) {
    let [heads, key, value] = inputs.state();
    let mut outputs = Vec::new();
    let mut last = Tensor::zeros([chunks.sequences * heads, key, value], (inputs.v.kind(), inputs.v.device()));
    if let Some(whole) = &chunks.whole {
        let (out, after) = steps(&Chunk::new(inputs, &whole.group), &whole.steps, heads);
        outputs.push(by_token(&out, heads));
        let none = last.narrow(0, 0, last.size()[0] - after.size()[0]);
        last = Tensor::cat(&[&after, &none], 0);
    }
    let mut last = last.view([chunks.sequences, heads, key, value]);
    let empty = chunks.whole.is_none();
    let mut ends = Vec::new();
    for tail in &chunks.tails {
        let before = (!empty).then(|| last.index_select(0, &tail.states).flatten(0, 1));
        let (out, after) = Chunk::new(inputs, &tail.group).step(before.as_ref());
        outputs.push(by_token(&out, heads));
        ends.push(after);
    }
    let outputs = if outputs.len() == 1 { outputs.remove(0) } else { Tensor::cat(&outputs, 0) };
    let outputs = outputs.index_select(0, &chunks.restore);
    let states = states.then(|| {
        for (tail, after) in chunks.tails.iter().zip(ends) {
            last = last.index_copy(0, &tail.states, &after.view([-1, heads, key, value]));
        }
        last.index_select(0, &chunks.states)
    });
    (outputs, states)
}

/// One more token of each sequence; `states` `[B, value heads, key dim, value dim]` are changed in
/// place. For inference.
///
/// # Shapes
/// → `[B, value heads, value dim]`.
pub(super) fn recurrent(inputs: &Inputs, states: &Tensor) -> Tensor {
    let [heads, key, value] = inputs.state();
    let mut state = states.view([-1, key, value]);
    let row = |x: &Tensor| repeated(&x.unsqueeze(2), heads);
    let scalar = |x: &Tensor| x.reshape([-1, 1, 1]);
    let (q, k) = (row(&inputs.q), row(&inputs.k));
    let _ = state.g_mul_(&scalar(&inputs.forget.exp()));
    let missing = inputs.v.reshape([-1, 1, value]) - k.bmm(&state);
    let added = missing * scalar(&inputs.beta);
    let _ = state.baddbmm_(&k.transpose(1, 2), &added);
    q.bmm(&state).view([-1, heads, value])
}

/// Key heads repeated, each in its place, for `heads` value heads.
///
/// # Shapes
/// `x [n, key heads, size, D]` → `[n · heads, size, D]`.
fn repeated(x: &Tensor, heads: i64) -> Tensor {
    let &[n, key_heads, size, dimension] = x.size().as_slice() else { unreachable!("four dimensions") };
    let each = heads / key_heads;
    x.unsqueeze(2).expand([n, key_heads, each, size, dimension], false).reshape([n * heads, size, dimension])
}

/// # Shapes
/// `[chunks · heads, size, D]` → `[chunks · size, heads, D]`.
fn by_token(x: &Tensor, heads: i64) -> Tensor {
    x.unflatten(0, [-1, heads]).transpose(1, 2).flatten(0, 1)
}

/// Chunks of a size, all heads, ready to be applied to a state. `N` is chunks · heads, `C` the size.
struct Chunk {
    /// `e^G·q`, `[N, C, key dim]`.
    from_state: Tensor,
    /// `q kᵀ ∘ D`, `[N, C, C]`.
    within: Tensor,
    /// What is added to an empty state, `[N, C, value dim]`.
    added: Tensor,
    /// What the state takes away from it, `[N, C, key dim]`.
    taken: Tensor,
    /// `e^(G_C − G)·k`, `[N, C, key dim]`.
    to_state: Tensor,
    /// `e^(G_C)`, `[N, 1, 1]`.
    kept: Tensor,
}

impl Chunk {
    fn new(inputs: &Inputs, group: &Group) -> Self {
        let heads = inputs.heads();
        let gather = |x: &Tensor| x.index_select(0, &group.rows).unflatten(0, [-1, group.size]).transpose(1, 2);
        let (q, k) = (repeated(&gather(&inputs.q), heads), repeated(&gather(&inputs.k), heads));
        let v = gather(&inputs.v).flatten(0, 1);
        // Filling neither forgets nor adds; what it returns is dropped.
        let scalar = |x: &Tensor| {
            let of_rows = x.index_select(0, &group.rows);
            let of_rows = group.real.as_ref().map_or(of_rows.shallow_clone(), |real| of_rows * real.unsqueeze(-1));
            of_rows.unflatten(0, [-1, group.size]).transpose(1, 2).flatten(0, 1)
        };
        let sum = scalar(&inputs.forget).cumsum(-1, None);
        let beta = scalar(&inputs.beta).unsqueeze(-1);
        let decay = (sum.unsqueeze(-1) - sum.unsqueeze(-2)).tril(0).exp().tril(0);
        let end = sum.narrow(1, group.size - 1, 1);
        let grown = sum.exp().unsqueeze(-1);
        let keys = k.transpose(1, 2);
        let weighted = &k * &beta;
        let system = (weighted.bmm(&keys) * &decay).tril(-1);
        let right = Tensor::cat(&[&v * &beta, &weighted * &grown], -1);
        let solved = system.linalg_solve_triangular(&right, false, true, true);
        let (value, key) = (v.size()[2], k.size()[2]);
        Self {
            from_state: &q * &grown,
            within: q.bmm(&keys) * &decay,
            added: solved.narrow(2, 0, value),
            taken: solved.narrow(2, value, key),
            to_state: &k * (&end - &sum).exp().unsqueeze(-1),
            kept: end.exp().unsqueeze(-1),
        }
    }

    fn narrow(&self, start: i64, count: i64) -> Self {
        let part = |x: &Tensor| x.narrow(0, start, count);
        Self {
            from_state: part(&self.from_state),
            within: part(&self.within),
            added: part(&self.added),
            taken: part(&self.taken),
            to_state: part(&self.to_state),
            kept: part(&self.kept),
        }
    }

    /// Outputs `[N, C, value dim]` and the states after, from those before (`None`: empty).
    fn step(&self, state: Option<&Tensor>) -> (Tensor, Tensor) {
        let keys = self.to_state.transpose(1, 2);
        let Some(state) = state else {
            return (self.within.bmm(&self.added), keys.bmm(&self.added));
        };
        let added = &self.added - self.taken.bmm(state);
        let out = self.from_state.bmm(state).baddbmm(&self.within, &added, 1, 1);
        (out, (state * &self.kept).baddbmm(&keys, &added, 1, 1))
    }
}

/// Whole chunks, a step of all sequences after the other. Returns outputs, and the states of the
/// sequences that have a whole chunk.
fn steps(chunks: &Chunk, steps: &[i64], heads: i64) -> (Tensor, Tensor) {
    let (mut outputs, mut finished) = (Vec::new(), Vec::new());
    let mut state: Option<Tensor> = None;
    let mut start = 0;
    for count in steps.iter().map(|active| active * heads) {
        let before = state.map(|state| {
            let all = state.size()[0];
            if count < all {
                finished.push(state.narrow(0, count, all - count));
            }
            state.narrow(0, 0, count)
        });
        let (out, after) = chunks.narrow(start, count).step(before.as_ref());
        outputs.push(out);
        state = Some(after);
        start += count;
    }
    finished.extend(state);
    finished.reverse();
    (Tensor::cat(&outputs, 0), Tensor::cat(&finished, 0))
}
