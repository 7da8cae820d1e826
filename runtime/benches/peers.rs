//! One measurement of ours beside a peer's: rollouts, teacher scoring or an update, on a checkpoint
//! and a workload of token ids that the peer gets too (`cargo xtask bench peers` runs both).
//!
//! `peers --what rollouts|scoring|update --model DIR --workload FILE --dtype bf16|fp32 --threads N --rounds N`
//!
//! Prints one JSON line: `seconds`, `cpu_seconds`, `tokens`, `peak_mib`. A peak never falls, so each measurement
//! is a process of its own.

mod measure;

use std::path::PathBuf;

use measure::{Drawn, Took, median, option, peak_mib, scored_batch, update_spec};
use serde::Deserialize;
use serde_json::json;
use tch::{Device, Kind};
use training_gym_core::spec::{AdvantageEstimator, AdvantageSpec, EngineSpec};
use training_gym_runtime::advantage::{Inputs, OpdTerm, estimate};
use training_gym_runtime::model::{LoadOptions, Model};
use training_gym_runtime::rollout::{Engine, Request, RequestId, ScoreRequest};
use training_gym_runtime::update::Updater;

/// Token ids, so that both sides compute the same.
#[derive(Deserialize)]
struct Workload {
    /// Prompts to answer.
    chats: Vec<Vec<i64>>,
    /// Tokens of each answer; nothing ends one earlier.
    new_tokens: usize,
    /// Sequences the teacher scores.
    scoring: Vec<Vec<i64>>,
    /// Sequences of one update: all but the first token carry loss.
    update: Vec<Vec<i64>>,
}

struct Bench {
    folder: PathBuf,
    options: LoadOptions,
    rounds: usize,
    workload: Workload,
}

fn main() {
    // `cargo bench` runs every benchmark without arguments: this one has nothing to say by itself.
    let Some(what) = option("--what") else {
        println!("peers: run by `cargo xtask bench peers`, which gives it a checkpoint and a peer");
        return;
    };
    let wanted = |name: &str| option(name).unwrap_or_else(|| panic!("{name} is missing"));
    training_gym_runtime::memory::keep_large_blocks();
    tch::set_num_threads(wanted("--threads").parse().expect("--threads: a number"));
    let dtype = match wanted("--dtype").as_str() {
        "bf16" => Kind::BFloat16,
        "fp32" => Kind::Float,
        other => panic!("--dtype {other}: bf16 or fp32"),
    };
    let workload = std::fs::read(wanted("--workload")).expect("--workload: a file");
    let bench = Bench {
        folder: wanted("--model").into(),
        options: LoadOptions { device: Device::Cpu, dtype },
        rounds: wanted("--rounds").parse().expect("--rounds: a number"),
        workload: serde_json::from_slice(&workload).expect("--workload: chats, new_tokens, scoring, update"),
    };
    let (took, tokens) = match what.as_str() {
        "rollouts" => bench.rollouts(),
        "scoring" => bench.scoring(),
        "update" => bench.update(),
        other => panic!("--what {other}: rollouts, scoring or update"),
    };
    let Took { seconds, cpu_seconds } = took;
    let line = json!({ "seconds": seconds, "cpu_seconds": cpu_seconds, "tokens": tokens, "peak_mib": peak_mib() });
    println!("{line}");
}

impl Bench {
    fn engine(&self) -> Engine {
        Engine::new(self.model(), &EngineSpec::default()).expect("an engine")
    }

    fn model(&self) -> Model {
        Model::load(&self.folder, self.options).expect("the checkpoint")
    }

    fn rollouts(&self) -> (Took, usize) {
        let mut engine = self.engine();
        let Workload { chats, new_tokens, .. } = &self.workload;
        let took = median(self.rounds, || {
            for (index, chat) in chats.iter().enumerate() {
                let request = Request { seed: index as u64, ..Request::new(chat.clone(), *new_tokens) };
                engine.submit(RequestId(index as u64), request).expect("room for the chat");
            }
            while !engine.is_idle() {
                engine.step();
            }
        });
        let tokens = chats.len() * new_tokens;
        let drawn = engine.stats().generated_tokens as usize;
        assert_eq!(drawn, (self.rounds.max(1) + 1) * tokens, "every round draws every token");
        (took, tokens)
    }

    fn scoring(&self) -> (Took, usize) {
        let mut engine = self.engine();
        let sequences = &self.workload.scoring;
        let took = median(self.rounds, || {
            let scored = logprobs(&mut engine, sequences);
            assert!(scored.iter().flatten().all(|logprob| logprob.is_finite()));
        });
        (took, sequences.iter().map(Vec::len).sum())
    }

    /// Teacher forward, sampled reverse KL, backward, clip, AdamW.
    fn update(&self) -> (Took, usize) {
        let sequences = &self.workload.update;
        let mut teacher = self.engine();
        let student = self.model();
        let mut behaviour = Engine::new(student.share(), &EngineSpec::default()).expect("an engine");
        // The student's own log-probabilities come with the rollouts: they cost the update nothing.
        let drawn = logprobs(&mut behaviour, sequences);
        drop(behaviour);
        let samples: Vec<Drawn> = sequences
            .iter()
            .zip(drawn)
            .map(|(ids, logprobs)| (ids[..1].to_vec(), ids[1..].to_vec(), logprobs))
            .collect();
        let mut updater = Updater::new(student, update_spec(sequences.len(), 1024), 1.0).expect("an updater");
        let spec = AdvantageSpec { estimator: AdvantageEstimator::Raw, ..AdvantageSpec::default() };
        let term = OpdTerm { coef: 1.0, log_ratio_clamp: None };
        let inputs = Inputs {
            opd: Some(&term),
            n_samples_per_prompt: 1,
            max_response_len: usize::MAX,
            reference_logprobs: None,
        };
        let took = median(self.rounds, || {
            let scored = scored_batch(samples.clone(), Some(logprobs(&mut teacher, sequences)));
            let (batch, _) = estimate(scored, &spec, inputs);
            assert_eq!(updater.apply(&batch).expect("an update").updates, 1);
        });
        (took, sequences.iter().map(Vec::len).sum())
    }
}

/// Log-probabilities of all tokens but the first of each sequence.
fn logprobs(engine: &mut Engine, sequences: &[Vec<i64>]) -> Vec<Vec<f32>> {
    let requests: Vec<ScoreRequest> =
        sequences.iter().map(|ids| ScoreRequest { input_ids: ids.clone(), start_len: 1, top_logprobs: 0 }).collect();
    let scored = engine.score(&requests).expect("sequences that can be scored");
    let of = |scores: Vec<training_gym_runtime::rollout::TokenScore>| {
        scores.into_iter().map(|score| score.logprob.expect("after the first token")).collect()
    };
    scored.into_iter().map(of).collect()
}
