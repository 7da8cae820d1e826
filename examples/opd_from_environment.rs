//! On-policy distillation from the environment variables of the reference scripts.
//!
//! ```sh
//! MODEL_PATH=Qwen/Qwen3-4B TEACHER_MODEL_PATH=Qwen/Qwen3-8B DATA_DIR=data \
//! OPD_LOSS_TYPE=reverse_kl TRAIN_BATCH_SIZE=8 ROLLOUT_N=16 cargo run --bin opd_from_environment
//! ```
//!
//! Every variable: `docs/reference/seed-variables.md`.

use seed_variables::{Program, train};

#[training_gym::main]
async fn main() -> anyhow::Result<()> {
    train(Program::Opd).await
}
