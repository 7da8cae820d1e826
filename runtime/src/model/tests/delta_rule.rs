//! The chunked form of the delta rule against the recurrent one.

use super::super::chunks::Chunks;
use super::super::delta_rule::{Inputs, chunked, recurrent};
use super::*;

/// Largest difference allowed between the two forms, outputs and states being of size about 1.
const AGREE: f64 = 2e-5;

fn inputs(tokens: i64, seed: u64) -> Inputs {
    let mut normals = initial::Normals::new(seed);
    let mut random = |heads: i64, size: i64| normals.tensor(&[tokens, heads, size], 1.0);
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
    let inputs = inputs(tokens as i64, 5);
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
