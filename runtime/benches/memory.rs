//! Memory and time of one step, rollout and update, with each of the recipe's memory options off and on.
//!
//! `cargo xtask bench memory [--json] [--device cuda:N]`
//!
//! Each line is a process of its own, since a peak never falls. Peaks are what is resident above the student
//! and its optimizer, in the rollout and in the update (of a GPU, whose memory the kernel does not count, they
//! are the host's). `resident` is weights and optimizer on the device while responses are drawn, `cache` the
//! engine's key-value cache as the update begins, `moved` what went between device and host: on a CPU,
//! whose memory is the host's, an offload moves nothing, and says so. Seconds are the least of two steps. The
//! hash is over the weights after them: an option that changes no number has the hash of the line above it.

mod measure;

use std::process::Command;
use std::time::Instant;

use measure::{flag, option, scored_batch, status, update_spec};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tch::{Device, Kind};
use training_gym_core::spec::{EngineSpec, MemorySpec};
use training_gym_runtime::batch::TrainBatch;
use training_gym_runtime::model::{LoadOptions, Model, ModelConfig};
use training_gym_runtime::rollout::{Engine, Event, Request, RequestId};
use training_gym_runtime::update::Updater;

const OPTIONS: [&str; 6] = [
    "gradient_checkpointing",
    "max_tokens_per_gpu",
    "free_cache_engine",
    "gpu_memory_utilization",
    "optimizer_offload",
    "param_offload",
];
const SEQUENCES: usize = 32;
const PROMPT: usize = 16;
const RESPONSE: usize = 112;
const VOCAB: i64 = 4096;
/// Of the tokens of a step.
const SMALL_BATCH: usize = SEQUENCES * (PROMPT + RESPONSE) / 8;
/// Sequences whose keys and values the bound has room for.
const BOUNDED: u64 = 8;
const ROUNDS: usize = 2;

fn main() {
    let device = option("--device").unwrap_or_else(|| "cpu".to_owned());
    if let Some(name) = option("--option") {
        println!("{}", child(&name, flag("--on"), &device));
        return;
    }
    let json = flag("--json");
    if !json {
        println!("{} tokens, 6 layers, float32, {device}, 1 thread; MiB", SEQUENCES * (PROMPT + RESPONSE));
        let titles = ["rollout peak", "update peak", "resident", "cache", "moved", "rollout s", "update s"];
        println!("{:<28}{}  weights", "", titles.map(|title| format!("{title:>14}")).concat());
    }
    for name in OPTIONS {
        for on in [false, true] {
            let line = measured(name, on, &device);
            if json {
                println!("{line}");
            } else {
                print(&line);
            }
        }
    }
}

fn measured(name: &str, on: bool, device: &str) -> Value {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--option", name, "--device", device]).env("OMP_NUM_THREADS", "1");
    if on {
        command.arg("--on");
    }
    let output = command.output().expect("this program starts again");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a line of JSON")
}

fn print(line: &Value) {
    let mib = |name: &str| format!("{:.1}", line[name].as_f64().expect("bytes") / f64::from(1 << 20));
    let seconds = |name: &str| format!("{:.2}", line[name].as_f64().expect("seconds"));
    let columns = [
        mib("rollout_peak_bytes_above_model"),
        mib("update_peak_bytes_above_model"),
        mib("resident_bytes_in_rollout"),
        mib("cache_bytes_in_update"),
        mib("moved_bytes"),
        seconds("rollout_seconds"),
        seconds("update_seconds"),
    ];
    let name =
        format!("{} {}", line["option"].as_str().unwrap_or_default(), if line["on"] == true { "on" } else { "off" });
    let hash = &line["weights_sha256"].as_str().unwrap_or_default()[..8];
    println!("{name:<28}{}  {hash}", columns.map(|column| format!("{column:>14}")).concat());
}

fn child(name: &str, on: bool, device: &str) -> Value {
    tch::set_num_threads(1);
    let device = match device.strip_prefix("cuda:") {
        Some(index) => Device::Cuda(index.parse().expect("the device's number")),
        None => Device::Cpu,
    };
    let given = |option: &str| on && option == name;
    let memory = MemorySpec {
        param_offload: given("param_offload"),
        optimizer_offload: given("optimizer_offload"),
        free_cache_engine: given("free_cache_engine"),
        gpu_memory_utilization: None,
        gradient_checkpointing: given("gradient_checkpointing"),
    };
    let all = SEQUENCES * (PROMPT + RESPONSE);
    let spec = update_spec(SEQUENCES, if given("max_tokens_per_gpu") { SMALL_BATCH } else { all });
    let config = ModelConfig::from_json(&config()).expect("a Qwen3 config");
    let model = Model::init(config, LoadOptions { device, dtype: Kind::Float }, 1);
    let limits = EngineSpec {
        max_running_requests: SEQUENCES,
        context_length: Some(PROMPT + RESPONSE),
        ..EngineSpec::default()
    };
    let mut engine = Engine::new(model.share(), &limits).expect("an engine");
    let mut updater = Updater::new(model, spec, 1.0).expect("an updater").sparing(memory);
    if given("gpu_memory_utilization") {
        // Six layers of 4 heads of 64, keys and values, float32; a layer more while it grows.
        let of_one = 7 * 2 * 4 * 64 * 4 * (PROMPT + RESPONSE) as u64;
        assert_eq!(engine.bound_cache(BOUNDED * of_one).expect("room") as u64, BOUNDED);
    }
    let before = status("VmRSS");
    let (mut peaks, mut seconds) = ([0.0_f64; 2], [f64::INFINITY; 2]);
    let (mut cache, mut resident) = (0, 0);
    for _ in 0..ROUNDS {
        resident = updater.resident_bytes();
        let mut batch = None;
        measure_part(&mut peaks[0], &mut seconds[0], before, || batch = Some(drawn(&mut engine)));
        if memory.free_cache_engine {
            engine.free_cache();
        }
        cache = engine.cache_bytes();
        // As a step does while it waits for scores.
        if updater.offload_student() {
            engine.reseat(updater.model().share());
        }
        if updater.onload_student() {
            engine.reseat(updater.model().share());
        }
        let batch = batch.expect("a batch");
        measure_part(&mut peaks[1], &mut seconds[1], before, || {
            assert_eq!(updater.apply(&batch).expect("an update").updates, 1);
        });
    }
    let moves = updater.take_moves();
    let mut hasher = Sha256::new();
    updater.for_each_master_weight(|_, bytes| hasher.update(bytes));
    let hash: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "option": name, "on": on, "device": format!("{device:?}").to_lowercase(),
        "rollout_peak_bytes_above_model": (peaks[0] * 1024.0) as u64,
        "update_peak_bytes_above_model": (peaks[1] * 1024.0) as u64,
        "resident_bytes_in_rollout": resident, "cache_bytes_in_update": cache,
        "moved_bytes": moves.bytes, "move_seconds": moves.seconds,
        "rollout_seconds": seconds[0], "update_seconds": seconds[1], "weights_sha256": hash,
    })
}

/// The peak in KiB above `before`, and the least seconds.
fn measure_part(peak: &mut f64, seconds: &mut f64, before: f64, work: impl FnOnce()) {
    std::fs::write("/proc/self/clear_refs", "5").expect("Linux's /proc");
    let began = Instant::now();
    work();
    *seconds = seconds.min(began.elapsed().as_secs_f64());
    *peak = peak.max(status("VmHWM") - before);
}

fn config() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCAB, "hidden_size": 192,
        "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 4,
        "head_dim": 64, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false, "initializer_range": 0.05,
    })
}

/// One response to each prompt, to its full length, and an advantage of either sign.
fn drawn(engine: &mut Engine) -> TrainBatch {
    let prompts: Vec<Vec<i64>> = (0..SEQUENCES)
        .map(|index| (0..PROMPT).map(|place| ((index * 977 + place * 7919 + 13) % VOCAB as usize) as i64).collect())
        .collect();
    let mut samples: Vec<(Vec<i64>, Vec<i64>, Vec<f32>)> =
        prompts.iter().map(|prompt| (prompt.clone(), Vec::new(), Vec::new())).collect();
    for (index, prompt) in prompts.into_iter().enumerate() {
        let request = Request { seed: index as u64, ..Request::new(prompt, RESPONSE) };
        engine.submit(RequestId(index as u64), request).expect("room");
    }
    while !engine.is_idle() {
        for event in engine.step() {
            if let Event::Token { id, score } = event {
                let (_, ids, logprobs) = &mut samples[id.0 as usize];
                ids.push(score.token);
                logprobs.push(score.logprob.expect("a log-probability"));
            }
        }
    }
    let scored = scored_batch(samples, None);
    let advantage = |index: u64| if index.is_multiple_of(2) { 1.0 } else { -1.0 };
    let advantages =
        scored.rollouts().iter().map(|rollout| vec![advantage(rollout.index); rollout.response_ids.len()]).collect();
    scored.with_advantages(advantages)
}
