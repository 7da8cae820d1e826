//! What benchmarks share: the clock, peak memory, options of the command line, batches to train on.
#![allow(dead_code, reason = "each benchmark uses a part")]

use std::sync::Arc;
use std::time::Instant;

use serde_json::Map;
use training_gym_core::ids::WeightVersion;
use training_gym_core::record::Grade;
use training_gym_core::sample::{FinishReason, Prompt};
use training_gym_core::spec::{LossAggregation, LrDecayStyle, OptimizerSpec, UpdateSpec};
use training_gym_runtime::batch::{PreparedPrompt, Rollout, RolloutBatch, Score, ScoredBatch};

/// The value after `--name`.
pub(crate) fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

/// Whether `--name` is there.
pub(crate) fn flag(name: &str) -> bool {
    std::env::args().any(|argument| argument == name)
}

/// What one call took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Took {
    /// On the clock.
    pub(crate) seconds: f64,
    /// Computed by all threads: tells more than the clock on a busy machine.
    pub(crate) cpu_seconds: f64,
}

/// The middle one of `rounds` calls by the clock, after one that is not counted.
pub(crate) fn median(rounds: usize, mut work: impl FnMut()) -> Took {
    work();
    let mut took: Vec<Took> = (0..rounds.max(1))
        .map(|_| {
            let (start, cpu) = (Instant::now(), cpu_seconds());
            work();
            Took { seconds: start.elapsed().as_secs_f64(), cpu_seconds: cpu_seconds() - cpu }
        })
        .collect();
    took.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    took[took.len() / 2]
}

/// Seconds all threads of this process have computed.
pub(crate) fn cpu_seconds() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux's /proc");
    let nanoseconds = |path: std::path::PathBuf| -> Option<f64> {
        std::fs::read_to_string(path.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
    };
    threads.filter_map(|thread| nanoseconds(thread.ok()?.path())).sum::<f64>() / 1e9
}

/// MiB this process had resident at most.
pub(crate) fn peak_mib() -> f64 {
    status("VmHWM") / 1024.0
}

/// KiB of one line of `/proc/self/status`.
pub(crate) fn status(name: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux's /proc");
    let line = text.lines().find(|line| line.starts_with(name)).expect("the line");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

/// One optimizer step over `samples`, with the recipe's clipping and AdamW.
pub(crate) fn update_spec(samples: usize, max_tokens_per_gpu: usize) -> UpdateSpec {
    UpdateSpec {
        global_batch_size: samples,
        max_tokens_per_gpu,
        eps_clip: 0.2,
        eps_clip_high: 0.28,
        eps_clip_c: None,
        policy_loss: training_gym_core::spec::PolicyLoss::TokenRatio,
        kl_loss: None,
        entropy_coef: 0.0,
        loss_aggregation: LossAggregation::TokenMean,
        logits_chunk_size: 1024,
        optimizer: OptimizerSpec {
            lr: 1e-6,
            min_lr: 0.0,
            lr_warmup_iters: 0,
            lr_decay_iters: 0,
            lr_decay_style: LrDecayStyle::Constant,
            weight_decay: 0.1,
            adam_beta1: 0.9,
            adam_beta2: 0.98,
            adam_eps: 1e-8,
            clip_grad: Some(1.0),
        },
    }
}

/// A sample: the prompt, the response, its log-probabilities under the student.
pub(crate) type Drawn = (Vec<i64>, Vec<i64>, Vec<f32>);

/// Samples as the pipeline hands them to the advantage stage; no reward, the teacher's
/// log-probabilities where given.
pub(crate) fn scored_batch(samples: Vec<Drawn>, mut teacher: Option<Vec<Vec<f32>>>) -> ScoredBatch {
    let rollouts: Vec<Rollout> = samples
        .into_iter()
        .enumerate()
        .map(|(index, (prompt_ids, response_ids, rollout_logprobs))| Rollout {
            index: index as u64,
            group_index: index as u64,
            prompt: Arc::new(PreparedPrompt {
                row: index as u64,
                prompt: Prompt::Text(String::new()),
                prompt_ids,
                label: String::new(),
                metadata: Map::new(),
            }),
            response_mask: vec![true; response_ids.len()],
            response_ids,
            rollout_logprobs,
            response: String::new(),
            finish_reason: FinishReason::Stop,
            weight_version: WeightVersion(0),
            episode: None,
        })
        .collect();
    let scores = (0..rollouts.len())
        .map(|index| Score {
            grade: Grade::NotAsked,
            reward: None,
            score: None,
            metadata: Map::new(),
            teacher_logprobs: teacher.as_mut().map(|all| std::mem::take(&mut all[index])),
            teacher_top: None,
        })
        .collect();
    RolloutBatch::new(1, rollouts).scored(scores)
}
