//! GRPO from the environment variables of the reference scripts.
//!
//! ```sh
//! MODEL_PATH=Qwen/Qwen3-4B DATA_DIR=data \
//! REWARD_FUNCTION=math_dapo INSTRUCTION_VARIANT=dapo TRAIN_BATCH_SIZE=8 ROLLOUT_N=16 cargo run --bin grpo_from_environment
//! ```
//!
//! Every variable: `docs/reference/seed-variables.md`.

use seed_variables::{Environment, Knobs, Program, data};
use training_gym::prelude::*;

#[training_gym::main]
async fn main() -> anyhow::Result<()> {
    let knobs = Knobs::read(&Environment::of_process(), Program::Grpo)?;
    for note in &knobs.notes {
        println!("note: {note}");
    }
    let gym = Gym::from_env()?;
    let data = data(&knobs, &gym).await?;
    let recipe = knobs.recipe(data.rows, data.eval.is_some())?;
    let mut launch = TrainConfig { model: knobs.model, dataset: data.train, recipe }.launch().on(&gym);
    if let Some(eval) = data.eval {
        launch = launch.eval(eval);
    }
    if let Some(name) = &knobs.name {
        launch = launch.run_id(name.as_str());
    }
    let run = launch.await?;
    println!("run id: {}", run.training_run_id());
    let result = run.result().await?;
    println!("checkpoint: {}", result.checkpoints().last());
    Ok(())
}
