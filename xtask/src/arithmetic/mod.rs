//! The demo's assets, from nothing: problems, tokenizer, a teacher and a base student.
//!
//! The models are pretrained by our own runtime on worked solutions made here. Problems are split
//! by a hash of their numbers before anything reads them, so what the demo is judged by occurs in
//! no training, the teacher's included.

mod models;
mod problem;
mod random;
mod rows;
mod trace;
mod vocabulary;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use models::{EARLY_TEACHER, Plan, STUDENT, TEACHER};
use problem::Split;

/// Problems to distil on.
const TRAIN_ROWS: usize = 4000;
/// Problems to evaluate on.
const EVAL_ROWS: usize = 200;

/// Makes `examples/assets/tiny` under the repository's root: `train.jsonl`, `eval.jsonl`,
/// `teacher/`, `student/` and `early-teacher/`. Worked solutions pass through `scratch`.
///
/// # Errors
/// When a file cannot be written, or `gym-runtime pretrain` fails.
pub(crate) fn write_assets(root: &Path, gym_runtime: &Path, scratch: &Path) -> Result<()> {
    let assets = root.join("examples/assets/tiny");
    for folder in [&assets, scratch] {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    rows::write_problems(&assets.join("train.jsonl"), TRAIN_ROWS, Split::Train, 11)?;
    rows::write_problems(&assets.join("eval.jsonl"), EVAL_ROWS, Split::Eval, 12)?;
    for plan in [&TEACHER, &STUDENT, &EARLY_TEACHER] {
        pretrain(plan, &assets.join(plan.name), gym_runtime, scratch)?;
    }
    Ok(())
}

fn pretrain(plan: &Plan, folder: &Path, gym_runtime: &Path, scratch: &Path) -> Result<()> {
    plan.write_folder(folder)?;
    let traces = scratch.join(format!("{}.jsonl", plan.name));
    rows::write_traces(&traces, plan.traces, plan.corruption, plan.seed)?;
    println!("pretraining the {} on {} worked solutions", plan.name, plan.traces);
    let status = Command::new(gym_runtime)
        .arg("pretrain")
        .arg("--model")
        .arg(folder)
        .arg("--rows")
        .arg(&traces)
        .args(["--batch-size", &plan.batch_size.to_string()])
        .args(["--lr", &plan.lr.to_string()])
        .args(["--seed", &plan.seed.to_string()])
        .args(plan.stop_after.map(|steps| format!("--stop-after={steps}")))
        .status()
        .with_context(|| format!("cannot start {}", gym_runtime.display()))?;
    ensure!(status.success(), "`gym-runtime pretrain` of the {} ended with {status}", plan.name);
    Ok(())
}
