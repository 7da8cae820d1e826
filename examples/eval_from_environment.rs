//! MATH-500 and AIME from the environment variables of the reference scripts.
//!
//! ```sh
//! MODEL_PATH=Qwen/Qwen3-4B DATA_DIR=data INSTRUCTION_VARIANT=boxed REWARD_FUNCTION=math_reward VAL_N=16 \
//!     cargo run --bin eval_from_environment
//! ```
//!
//! Every variable: `docs/reference/seed-variables.md`. For another server, or another file: `gym eval`.

use anyhow::bail;
use seed_variables::{Environment, Knobs, Program};
use training_gym::eval::Benchmark;
use training_gym::prelude::*;

#[training_gym::main]
async fn main() -> anyhow::Result<()> {
    let knobs = Knobs::read(&Environment::of_process(), Program::Eval)?;
    for note in &knobs.notes {
        println!("note: {note}");
    }
    let found: Vec<_> = Benchmark::all()
        .into_iter()
        .filter_map(|benchmark| Some((benchmark, benchmark.find_in(&knobs.data_dir)?)))
        .collect();
    if found.is_empty() {
        bail!("DATA_DIR = {} has no benchmark: put MATH-500/test.jsonl there", knobs.data_dir.display());
    }
    let gym = Gym::from_env()?;
    let launch = Endpoint::launch(knobs.model).on(&gym);
    let endpoint = match &knobs.name {
        Some(name) => launch.app_name(name.as_str()).await?,
        None => launch.await?,
    };
    let evaluated = tokio::select! {
        evaluated = evaluate_all(&knobs, &endpoint, &found) => evaluated,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    // What is started here is stopped here, also when something fails.
    endpoint.stop().await?;
    evaluated
}

async fn evaluate_all(
    knobs: &Knobs,
    endpoint: &Endpoint,
    found: &[(Benchmark, std::path::PathBuf)],
) -> anyhow::Result<()> {
    endpoint.wait_until_ready(Duration::from_secs(30 * 60)).await?;
    let grader = knobs.grader;
    for (benchmark, file) in found {
        let rows = benchmark.load(&benchmark.dataset_in(file), knobs.instruction).await?;
        let report = evaluate(endpoint, &rows, |row: &Row, reply: &ChatReply| grader.score(&reply.content, &row.label))
            .options(knobs.chat_options())
            .samples(knobs.validation.n)
            .max_concurrency(32)
            .await?;
        println!("{benchmark}, {}, grader {grader}\n{}", knobs.instruction, report.summary(grader)?);
    }
    Ok(())
}
