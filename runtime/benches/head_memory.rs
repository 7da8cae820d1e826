//! Peak memory and time of the output head: all logits at once against chunks of rows.
//!
//! `cargo bench --package training-gym-runtime --bench head_memory [-- TOKENS VOCAB HIDDEN]`
//!
//! Each way runs in a process of its own, since a peak never falls: the same program, called with
//! a way's name. Every figure is the peak above what was resident before the head ran.

mod measure;

use std::process::Command;
use std::time::Instant;

use measure::status;
use tch::{Kind, Tensor};
use training_gym_runtime::update::head::{OutputHead, Rows};

const WAYS: [&str; 4] = ["autograd", "whole", "512", "128"];

fn main() {
    let numbers: Vec<i64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let way = std::env::var("HEAD_MEMORY_WAY").ok();
    if let (Some(way), &[tokens, vocab, hidden]) = (&way, numbers.as_slice()) {
        return child(way, tokens, vocab, hidden);
    }
    let (vocab, hidden) = (numbers.get(1).copied().unwrap_or(32_768), numbers.get(2).copied().unwrap_or(256));
    let sizes = numbers.first().map_or_else(|| vec![1024, 2048, 4096], |&tokens| vec![tokens]);
    println!("output head and its gradient, vocabulary {vocab}, hidden {hidden}, float32, 1 thread");
    println!("{:>8}  {:>14}  {:>12}  {:>9}", "tokens", "way", "peak MiB", "seconds");
    for tokens in sizes {
        for way in WAYS {
            let output = Command::new(std::env::current_exe().expect("this program"))
                .args([tokens, vocab, hidden].map(|number| number.to_string()))
                .env("HEAD_MEMORY_WAY", way)
                .output()
                .expect("this program starts again");
            assert!(output.status.success(), "{way}: {}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8_lossy(&output.stdout);
            let (peak, seconds) = text.trim().split_once(' ').expect("two numbers");
            let label = if way.parse::<usize>().is_ok() { format!("chunks of {way}") } else { way.to_owned() };
            println!("{tokens:>8}  {label:>14}  {peak:>12}  {seconds:>9}");
        }
    }
}

fn child(way: &str, tokens: i64, vocab: i64, hidden: i64) {
    tch::set_num_threads(1);
    tch::manual_seed(1);
    let weight = Tensor::randn([vocab, hidden], tch::kind::FLOAT_CPU) * 0.05;
    let rows = Tensor::randn([tokens, hidden], tch::kind::FLOAT_CPU);
    let targets = Tensor::randint(vocab, [tokens], tch::kind::INT64_CPU);
    let mut weight_grad = weight.zeros_like();
    let before = status("VmRSS");
    let start = Instant::now();
    match way {
        "autograd" => {
            let (rows, weight) = (rows.set_requires_grad(true), weight.set_requires_grad(true));
            let scores = rows.mm(&weight.tr()).log_softmax(-1, Kind::Float).gather(1, &targets.unsqueeze(1), false);
            let _ = Tensor::run_backward(&[scores.mean(None)], &[&rows, &weight], false, false);
        }
        _ => {
            let chunk_size = way.parse().unwrap_or(tokens as usize);
            let head = OutputHead { weight: &weight, temperature: 1.0, chunk_size };
            let rows = Rows { hidden: &rows, targets: &targets, entropy: false };
            let _ = head.backward(&rows, &mut weight_grad, |chunk| chunk.logprobs.sum(None) / tokens as f64);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{:.0} {seconds:.2}", (status("VmHWM") - before) / 1024.0);
}
