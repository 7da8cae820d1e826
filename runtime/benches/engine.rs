//! Tokens a second of the engine's two structures against a loop over sequences: packed prefill
//! (scoring), and decoding all sequences together.
//!
//! `cargo bench --package training-gym-runtime --bench engine [-- --json] [--model DIR]`
//!
//! Without `--model`: fresh weights of a Qwen3 decoder, 8 layers, hidden size 256, vocabulary
//! 8,192. Both ways run the same kernels on the same tokens, so the ratio is what the structure
//! gives. float32, as many threads as there are cores unless `--threads N` says otherwise.

mod measure;

use std::path::Path;

use measure::{Took, flag, median, option};
use serde_json::json;
use tch::{Device, Kind};
use training_gym_core::spec::EngineSpec;
use training_gym_runtime::model::{LoadOptions, Model, ModelConfig};
use training_gym_runtime::rollout::{Engine, Request, RequestId, ScoreRequest};

const SEQUENCES: usize = 32;
const NEW_TOKENS: usize = 32;
const ROUNDS: usize = 3;

fn main() {
    training_gym_runtime::memory::keep_large_blocks();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = option("--threads").and_then(|text| text.parse().ok()).unwrap_or(cores as i32);
    tch::set_num_threads(threads);
    let json = flag("--json");
    let mut engine = Engine::new(model(), &EngineSpec::default()).expect("an engine");
    if !json {
        println!("float32, {threads} threads, {SEQUENCES} sequences, tokens a second");
        println!("{:<28}{:>12}{:>16}{:>8}", "", "together", "one by one", "ratio");
    }
    for length in [16, 64, 256] {
        let sequences = sequences(&engine, length);
        let requests: Vec<ScoreRequest> =
            sequences.into_iter().map(|input_ids| ScoreRequest { input_ids, start_len: 1, top_logprobs: 0 }).collect();
        let tokens = SEQUENCES * length;
        let together = median(ROUNDS, || drop(engine.score(&requests).expect("scores")));
        let apart = median(ROUNDS, || {
            for request in &requests {
                engine.score(std::slice::from_ref(request)).expect("scores");
            }
        });
        report(json, &format!("prefill, {length} tokens each"), tokens, [together, apart]);
    }
    let prompts = sequences(&engine, 16);
    let together = median(ROUNDS, || generate(&mut engine, &prompts));
    let apart = median(ROUNDS, || {
        for prompt in &prompts {
            generate(&mut engine, std::slice::from_ref(prompt));
        }
    });
    report(json, &format!("decode, {NEW_TOKENS} tokens each"), SEQUENCES * NEW_TOKENS, [together, apart]);
}

fn model() -> Model {
    let options = LoadOptions { device: Device::Cpu, dtype: Kind::Float };
    if let Some(folder) = option("--model") {
        return Model::load(Path::new(&folder), options).expect("the checkpoint");
    }
    let config = ModelConfig::from_json(&json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 8192, "hidden_size": 256,
        "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 32, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false,
    }));
    Model::init(config.expect("a Qwen3 config"), options, 1)
}

/// No two alike.
fn sequences(engine: &Engine, length: usize) -> Vec<Vec<i64>> {
    let vocab = engine.model().config().vocab_size;
    let token = |sequence: usize, place: usize| ((sequence * 7919 + place * 104_729 + 13) % vocab) as i64;
    (0..SEQUENCES).map(|sequence| (0..length).map(|place| token(sequence, place)).collect()).collect()
}

fn generate(engine: &mut Engine, prompts: &[Vec<i64>]) {
    for (index, prompt) in prompts.iter().enumerate() {
        let request = Request { seed: index as u64, ..Request::new(prompt.clone(), NEW_TOKENS) };
        engine.submit(RequestId(index as u64), request).expect("room");
    }
    while !engine.is_idle() {
        engine.step();
    }
}

fn report(json: bool, what: &str, tokens: usize, took: [Took; 2]) {
    let [together, apart] = took.map(|took| tokens as f64 / took.seconds);
    let ratio = together / apart;
    if json {
        let line =
            json!({ "what": what, "unit": "tokens/s", "together": together, "one_by_one": apart, "ratio": ratio });
        println!("{line}");
    } else {
        println!("{what:<28}{together:>12.0}{apart:>16.0}{ratio:>8.2}");
    }
}
