//! How fast a small model decodes, prefills and trains on this machine.
//!
//! `cargo run --release -p training-gym-runtime --example engine_speed -- [hidden] [layers] [vocabulary]`

use std::time::Instant;

use serde_json::json;
use tch::{Kind, Tensor};
use training_gym_core::spec::EngineSpec;
use training_gym_runtime::memory::keep_large_blocks;
use training_gym_runtime::model::{LoadOptions, Model, ModelConfig};
use training_gym_runtime::rollout::{Engine, Request, RequestId};

const SEQUENCES: usize = 64;
const PROMPT: usize = 64;
const RESPONSE: usize = 128;

fn main() {
    if std::env::var_os("GYM_PLAIN_ALLOCATOR").is_none() {
        keep_large_blocks();
    }
    let mut sizes = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let hidden = sizes.next().unwrap_or(128);
    let layers = sizes.next().unwrap_or(4);
    let vocabulary = sizes.next().unwrap_or(128);
    let config = ModelConfig::from_json(&json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": vocabulary, "hidden_size": hidden,
        "intermediate_size": 3 * hidden, "num_hidden_layers": layers, "num_attention_heads": hidden / 32,
        "num_key_value_heads": (hidden / 64).max(1), "head_dim": 32, "max_position_embeddings": 1024,
        "tie_word_embeddings": true,
    }))
    .expect("a sound configuration");
    let model = Model::init(config, LoadOptions::default(), 1);
    let parameters: usize = model.parameters().iter().map(|(_, tensor)| tensor.numel()).sum();
    println!("{parameters} parameters, {} threads", tch::get_num_threads());
    for _ in 0..3 {
        decode(&model, vocabulary as i64);
        score(&model, vocabulary as i64);
        train(&model, vocabulary as i64);
    }
}

fn prompt(number: usize, length: usize, vocabulary: i64) -> Vec<i64> {
    (0..length).map(|place| ((place * place + 7 * place + 13 * number) as i64) % vocabulary).collect()
}

fn decode(model: &Model, vocabulary: i64) {
    let mut engine = Engine::new(model.share(), &EngineSpec::default()).expect("sound limits");
    for id in 0..SEQUENCES {
        let length = PROMPT - id % 16;
        let request = Request { seed: id as u64, ..Request::new(prompt(id, length, vocabulary), RESPONSE) };
        engine.submit(RequestId(id as u64), request).expect("room");
    }
    let start = Instant::now();
    engine.step();
    let first = start.elapsed();
    let start = Instant::now();
    let mut steps = 0;
    while !engine.is_idle() {
        engine.step();
        steps += 1;
    }
    let step = start.elapsed().as_secs_f64() / f64::from(steps);
    println!(
        "decode: {:.3} ms a step of {SEQUENCES}, first step with prefill {:.1} ms",
        step * 1e3,
        first.as_secs_f64() * 1e3
    );
}

fn lengths() -> Vec<usize> {
    (0..SEQUENCES).map(|i| 128 + (i * 37) % 97).collect()
}

fn score(model: &Model, vocabulary: i64) {
    let lengths = lengths();
    let ids: Vec<i64> = lengths.iter().enumerate().flat_map(|(i, &n)| prompt(i, n, vocabulary)).collect();
    let mut engine = Engine::new(model.share(), &EngineSpec { max_prefill_tokens: 1 << 20, ..EngineSpec::default() })
        .expect("sound");
    let mut from = 0;
    let list: Vec<_> = lengths
        .iter()
        .map(|&length| {
            from += length;
            let input_ids = ids[from - length..from].to_vec();
            training_gym_runtime::rollout::ScoreRequest { input_ids, start_len: 64, top_logprobs: 0 }
        })
        .collect();
    let start = Instant::now();
    engine.score(&list).expect("scores");
    println!("score: {:.0} tokens/s", ids.len() as f64 / start.elapsed().as_secs_f64());
}

fn train(model: &Model, vocabulary: i64) {
    let lengths = lengths();
    let ids: Vec<i64> = lengths.iter().enumerate().flat_map(|(i, &n)| prompt(i, n, vocabulary)).collect();
    let packed = Tensor::from_slice(&ids);
    model.set_requires_grad(true);
    let start = Instant::now();
    let logits = model.logits(&model.hidden(&packed, &lengths));
    let forward = start.elapsed().as_secs_f64();
    logits.log_softmax(-1, Kind::Float).gather(1, &packed.unsqueeze(1), false).mean(Kind::Float).backward();
    let both = start.elapsed().as_secs_f64();
    model.set_requires_grad(false);
    let tokens = ids.len() as f64;
    println!("train: {:.0} tokens/s forward, {:.0} tokens/s forward and backward", tokens / forward, tokens / both);
}
