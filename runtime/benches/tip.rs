//! Memory and time of one distillation step when all, half, a fifth and a tenth of the tokens are
//! taught (TIP's Soft-OR), with an output head over all rows at once (the paper's setting) and with
//! ours, in chunks.
//!
//! `cargo xtask bench tip [--json]`
//!
//! Each line is a process of its own, since a peak never falls. The peak is what is resident above
//! the student, its optimizer and what the teacher left. Seconds are the least of five steps:
//! `head_loss` is projection, loss and gradient of the tokens that are taught; `scoring` is what a
//! selection costs on top, a pass of the student and both projections over all tokens without
//! gradients; `step` is everything, the optimizer included.

mod measure;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use measure::{flag, option, scored_batch, status, update_spec};
use serde_json::{Value, json};
use tch::{Device, Kind};
use training_gym_core::spec::{Divergence, SelectionRule, TokenSelection};
use training_gym_runtime::batch::TrainBatch;
use training_gym_runtime::model::{LoadOptions, Model, ModelConfig};
use training_gym_runtime::update::{CoTeacher, Distillation, Updater};

const RATIOS: [f64; 4] = [1.0, 0.5, 0.2, 0.1];
const VOCAB: i64 = 32_768;
const SAMPLES: usize = 8;
const PROMPT: usize = 8;
const RESPONSE: usize = 128;
/// Rows of our head; all there are, in the paper's setting.
const CHUNK: usize = 256;
const ROUNDS: usize = 5;

fn main() {
    if let (Some(ratio), Some(folder)) = (option("--ratio"), option("--teacher")) {
        println!("{}", child(ratio.parse().expect("a ratio"), flag("--chunked"), Path::new(&folder)));
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("config.json"), config(256).to_string()).expect("a config");
    model(256, 2).save_weights(folder.path()).expect("the teacher's weights");
    let json = flag("--json");
    if !json {
        println!("{} tokens, vocabulary {VOCAB}, float32, 1 thread", SAMPLES * RESPONSE);
        let titles = ["tokens", "head", "peak MiB", "of all", "head+loss s", "of all", "scoring s", "step s"];
        println!("{}", titles.map(|title| format!("{title:>12}")).concat());
    }
    for chunked in [false, true] {
        let mut all: Option<Value> = None;
        for ratio in RATIOS {
            let line = measured(ratio, chunked, folder.path());
            if json {
                println!("{line}");
            } else {
                print(&line, all.as_ref().unwrap_or(&line));
            }
            all.get_or_insert(line);
        }
    }
}

fn measured(ratio: f64, chunked: bool, teacher: &Path) -> Value {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--ratio", &ratio.to_string(), "--teacher"]).arg(teacher).env("OMP_NUM_THREADS", "1");
    if chunked {
        command.arg("--chunked");
    }
    let output = command.output().expect("this program starts again");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a line of JSON")
}

fn print(line: &Value, all: &Value) {
    let number = |line: &Value, name: &str| line[name].as_f64().expect("a number");
    let (peak, head) = ("peak_bytes_above_model", "head_loss_seconds");
    let of_all = |name| format!("{:.2}", number(line, name) / number(all, name));
    let columns = [
        format!("{:.0} %", 100.0 * number(line, "ratio")),
        if line["chunked"] == true { format!("by {CHUNK}") } else { "whole".to_owned() },
        format!("{:.0}", number(line, peak) / f64::from(1 << 20)),
        of_all(peak),
        format!("{:.2}", number(line, head)),
        of_all(head),
        format!("{:.2}", number(line, "scoring_seconds")),
        format!("{:.2}", number(line, "step_seconds")),
    ];
    println!("{}", columns.map(|column| format!("{column:>12}")).concat());
}

fn child(ratio: f64, chunked: bool, teacher: &Path) -> Value {
    tch::set_num_threads(1);
    let options = LoadOptions { device: Device::Cpu, dtype: Kind::Float };
    let mut spec = update_spec(SAMPLES, SAMPLES * (PROMPT + RESPONSE));
    spec.logits_chunk_size = if chunked { CHUNK } else { SAMPLES * RESPONSE };
    let selection = (ratio < 1.0).then_some(TokenSelection { rule: SelectionRule::SOFT_OR, ratio });
    let distillation = Distillation { divergence: Divergence::ReverseKl, coef: 1.0, selection, seed: 1 };
    let mut updater = Updater::new(model(128, 1), spec, 1.0).expect("an updater").distilling(distillation, false);
    let batch = batch();
    let config = updater.model().config().clone();
    let teacher = CoTeacher::new(teacher, options, &config, VOCAB as usize, 4096).expect("a teacher");
    let parked = updater.park();
    let signal = teacher.score(&parked, batch.rollouts()).expect("scores");
    parked.seat();
    // What the teacher needed is no part of the step's peak.
    std::fs::write("/proc/self/clear_refs", "5").expect("Linux's /proc");
    let before = status("VmRSS");
    let (mut head, mut scoring, mut step) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let report = updater.apply_taught(&batch, &signal).expect("an update");
        step = step.min(began.elapsed().as_secs_f64());
        assert_eq!(report.updates, 1);
        (head, scoring) = (head.min(report.head_seconds), scoring.min(report.scoring_seconds));
    }
    json!({
        "ratio": ratio, "chunked": chunked, "peak_bytes_above_model": ((status("VmHWM") - before) * 1024.0) as u64,
        "head_loss_seconds": head, "scoring_seconds": scoring, "step_seconds": step,
    })
}

fn config(hidden: i64) -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCAB, "hidden_size": hidden,
        "intermediate_size": 2 * hidden, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false, "initializer_range": 0.1,
    })
}

fn model(hidden: i64, seed: u64) -> Model {
    let config = ModelConfig::from_json(&config(hidden)).expect("a Qwen3 config");
    Model::init(config, LoadOptions { device: Device::Cpu, dtype: Kind::Float }, seed)
}

fn batch() -> TrainBatch {
    let token = |place: usize| ((place * 7919 + 13) % VOCAB as usize) as i64;
    let sample = |index: usize| {
        let from = index * (PROMPT + RESPONSE);
        let prompt: Vec<i64> = (from..from + PROMPT).map(token).collect();
        let response: Vec<i64> = (from + PROMPT..from + PROMPT + RESPONSE).map(token).collect();
        (prompt, response, vec![-10.4; RESPONSE])
    };
    let scored = scored_batch((0..SAMPLES).map(sample).collect(), None);
    let advantages = scored.rollouts().iter().map(|rollout| vec![0.0; rollout.response_ids.len()]).collect();
    scored.with_advantages(advantages)
}
