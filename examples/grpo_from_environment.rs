//! GRPO from the environment variables of the reference scripts.
//!
//! ```sh
//! MODEL_PATH=Qwen/Qwen3-4B DATA_DIR=data \
//! REWARD_FUNCTION=math_dapo INSTRUCTION_VARIANT=dapo TRAIN_BATCH_SIZE=8 ROLLOUT_N=16 cargo run --bin grpo_from_environment
//! ```
//!
//! Every variable: `docs/reference/seed-variables.md`.

use seed_variables::{Program, train};

#[training_gym::main]
async fn main() -> anyhow::Result<()> {
    train(Program::Grpo).await
}
