//! Seconds of one update, at one thread and at two, in float32 and bfloat16: 64 samples of about
//! 60 tokens, on a decoder of 4 layers, hidden size 128, vocabulary 128.
//!
//! `cargo bench --package training-gym-runtime --bench update_step`

mod measure;

use measure::{median, scored_batch, update_spec};
use serde_json::json;
use tch::{Device, Kind};
use training_gym_runtime::batch::{Rollout, TrainBatch};
use training_gym_runtime::model::{LoadOptions, Model, ModelConfig};
use training_gym_runtime::update::Updater;

const SAMPLES: usize = 64;
const ROUNDS: usize = 5;

fn main() {
    training_gym_runtime::memory::keep_large_blocks();
    let titles = ["type", "threads", "micro-batch", "median s", "cpu s", "tokens/s"];
    println!("{}", titles.map(|title| format!("{title:>12}")).concat());
    for dtype in [Kind::Float, Kind::BFloat16] {
        for threads in [1, 2] {
            for max_tokens in [1024, 8192] {
                tch::set_num_threads(threads);
                let mut updater = updater(dtype, max_tokens);
                let batch = batch();
                let tokens: usize = batch.rollouts().iter().map(|r| 20 + r.response_ids.len()).sum();
                let took = median(ROUNDS, || {
                    assert_eq!(updater.apply(&batch).expect("an update").updates, 1);
                });
                let (median, cpu) = (took.seconds, took.cpu_seconds);
                let rate = tokens as f64 / median;
                let name = format!("{dtype:?}");
                println!("{name:>12}{threads:>12}{max_tokens:>12}{median:>12.3}{cpu:>12.3}{rate:>12.0}");
            }
        }
    }
}

fn updater(dtype: Kind, max_tokens_per_gpu: usize) -> Updater {
    let config = ModelConfig::from_json(&json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 128, "hidden_size": 128,
        "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false,
    }))
    .expect("a Qwen3 config");
    Updater::new(
        Model::init(config, LoadOptions { device: Device::Cpu, dtype }, 1),
        update_spec(SAMPLES, max_tokens_per_gpu),
        1.0,
    )
    .expect("an updater")
}

/// Prompts of 20 tokens, responses of 25 to 55.
fn batch() -> TrainBatch {
    let response = |index: usize, length: usize| (0..length).map(move |token| ((token * 37 + index * 11) % 128) as i64);
    let sample = |index: usize| {
        let length = 25 + index * 7 % 31;
        ((0..20).collect(), response(index, length).collect(), vec![-4.8; length])
    };
    let scored = scored_batch((0..SAMPLES).map(sample).collect(), None);
    let advantage = |r: &Rollout| vec![0.5 - (r.index % 4) as f32 / 3.0; r.response_ids.len()];
    let advantages = scored.rollouts().iter().map(advantage).collect();
    scored.with_advantages(advantages)
}
