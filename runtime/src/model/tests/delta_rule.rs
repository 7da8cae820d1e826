//! The chunked form of the delta rule against the recurrent one.

use super::super::chunks::Chunks;
use super::super::delta_rule::{Inputs, chunked, recurrent};
use super::*;

/// Largest difference allowed between the two forms, outputs and states being of size about 1.
const AGREE: f64 = 2e-5;

fn inputs(tokens: i64, kind: Kind) -> Inputs {
    let mut normals = initial::Normals::new(5);
    let mut random = |heads: i64, size: i64| normals.tensor(&[tokens, heads, size], 1.0).to_kind(kind);
    let unit = |x: Tensor| &x / x.square().sum_dim_intlist([-1_i64].as_slice(), true, None).sqrt();
    let (q, k, v) = (unit(random(2, 8)), unit(random(2, 8)), random(4, 5));
    // Some heads forget within a token, some hardly at all.
    let rate = Tensor::from_slice(&[-20.0_f32, -1.0, -0.1, -0.001]);
    let forget = random(4, 1).squeeze_dim(-1).abs() * rate;
    Inputs { q, k, v, forget, beta: random(4, 1).squeeze_dim(-1).sigmoid() }
}

fn part(inputs: &Inputs, start: usize, count: usize) -> Inputs {
    let [q, k, v, forget, beta] = [&inputs.q, &inputs.k, &inputs.v, &inputs.forget, &inputs.beta]
        .map(|x| x.narrow(0, start as i64, count as i64));
    Inputs { q, k, v, forget, beta }
}

#[test]
fn both_forms_agree_at_every_length() {
    let lengths = [1, 200, 64, 15, 63, 128, 17, 65, 16, 130, 33];
    let tokens: usize = lengths.iter().sum();
    let inputs = inputs(tokens as i64, Kind::Float);
    let rows: Vec<i64> = (0..tokens as i64).collect();
    let (outputs, states) = chunked(&inputs, &Chunks::new(&rows, &lengths, tokens, Device::Cpu), true);
    let states = states.unwrap();
    let mut start = 0;
    for (sequence, &length) in lengths.iter().enumerate() {
        let state = Tensor::zeros([1, 4, 8, 5], (Kind::Float, Device::Cpu));
        for token in start..start + length {
            let out = recurrent(&part(&inputs, token, 1), &state);
            let difference = (out - outputs.narrow(0, token as i64, 1)).abs().max().double_value(&[]);
            assert!(difference < AGREE, "token {} of {length}: {difference:e}", token - start);
        }
        let difference = (state - states.narrow(0, sequence as i64, 1)).abs().max().double_value(&[]);
        assert!(difference < AGREE, "state after {length}: {difference:e}");
        start += length;
    }
}

/// The rule as it is written down, differentiable. # Shapes: → `[n, value heads, value dim]`.
fn by_definition(inputs: &Inputs) -> Tensor {
    let each = |x: &Tensor| x.repeat_interleave_self_int(2, 1, None);
    let (q, k) = (each(&inputs.q), each(&inputs.k));
    let mut state = Tensor::zeros([4, 8, 5], (inputs.v.kind(), Device::Cpu));
    let outputs: Vec<Tensor> = (0..q.size()[0])
        .map(|token| {
            let head = |x: &Tensor| x.get(token).unsqueeze(-1);
            state = &state * head(&inputs.forget).exp().unsqueeze(-1);
            let seen = |x: &Tensor| (&state * head(x)).sum_dim_intlist([1_i64].as_slice(), false, None);
            let added = head(&inputs.beta) * (inputs.v.get(token) - seen(&k));
            state = &state + head(&k) * added.unsqueeze(1);
            (&state * head(&q)).sum_dim_intlist([1_i64].as_slice(), false, None)
        })
        .collect();
    Tensor::stack(&outputs, 0)
}

#[test]
fn gradients_are_those_of_the_definition() {
    let lengths = [1, 150, 64, 17];
    let tokens: usize = lengths.iter().sum();
    let rows: Vec<i64> = (0..tokens as i64).collect();
    let leaves =
        |inputs: &Inputs| [&inputs.q, &inputs.k, &inputs.v, &inputs.forget, &inputs.beta].map(Tensor::shallow_clone);
    let (one, other) = (inputs(tokens as i64, Kind::Double), inputs(tokens as i64, Kind::Double));
    for leaf in leaves(&one).iter().chain(&leaves(&other)) {
        let _ = leaf.set_requires_grad(true);
    }
    let outputs = chunked(&one, &Chunks::new(&rows, &lengths, tokens, Device::Cpu), false).0;
    let mut starts = lengths.iter().scan(0, |next, &length| Some(std::mem::replace(next, *next + length)));
    let expected = lengths.map(|length| by_definition(&part(&other, starts.next().unwrap(), length)));
    let expected = Tensor::cat(&expected, 0);
    assert!((&outputs - &expected).abs().max().double_value(&[]) < 1e-12);
    let weights = Tensor::arange(5, (Kind::Double, Device::Cpu)).sin();
    (outputs.square() * &weights).sum(None).backward();
    (expected.square() * &weights).sum(None).backward();
    for (name, (one, other)) in ["q", "k", "v", "forget", "beta"].iter().zip(leaves(&one).iter().zip(&leaves(&other))) {
        let scale = other.grad().abs().max().double_value(&[]);
        let difference = (one.grad() - other.grad()).abs().max().double_value(&[]);
        assert!(scale > 1e-3 && difference < 1e-11 * scale, "{name}: {difference:e} of {scale:e}");
    }
}

#[test]
fn sequences_that_do_not_fill_a_chunk_cost_little_filling() {
    for lengths in [vec![1; 40], vec![70, 3, 64], vec![17, 33, 49, 64, 15]] {
        let tokens: usize = lengths.iter().sum();
        let rows: Vec<i64> = (0..tokens as i64).collect();
        let chunks = Chunks::new(&rows, &lengths, tokens, Device::Cpu);
        let places = |rows: &Tensor| rows.size()[0] as usize;
        let whole = chunks.whole.as_ref().map_or(0, |whole| places(&whole.group.rows));
        let tails: usize = chunks.tails.iter().map(|tail| places(&tail.group.rows)).sum();
        assert!(whole + tails <= tokens + 15 * lengths.len(), "{lengths:?}: {whole} + {tails} places");
        assert!(chunks.tails.len() <= 4);
    }
}
