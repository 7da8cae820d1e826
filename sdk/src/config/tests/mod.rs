//! What is explained, what is refused, and what reaches a job.

mod environments;
mod explained;
mod models;
mod refused;
mod resolved;
mod source;

use super::{Model, Opd, Recipe, TrainConfig, models as presets};
use crate::dataset::HuggingFaceDataset;
use crate::reward::{PostProcessFn, RewardFn};

const REWARD: RewardFn = RewardFn::__new("math_opd_rm", module_path!(), |_| Box::pin(async { Ok(1.0) }));
const POST_PROCESS: PostProcessFn =
    PostProcessFn::__new("math_opd_post_process", module_path!(), |_| Box::pin(async { Ok(Vec::new()) }));

fn train(model: Model, recipe: Recipe) -> TrainConfig {
    TrainConfig { model, dataset: HuggingFaceDataset::new("zhuzilin/dapo-math-17k"), recipe }
}

/// The tutorial's recipe.
fn tutorial() -> Recipe {
    Recipe {
        eval_interval: None,
        rollout_num_gpus: Some(8),
        num_rollout: Some(10),
        n_samples_per_prompt: Some(4),
        rollout_max_response_len: Some(2048),
        save_interval: Some(5),
        custom_rm_function: Some(REWARD),
        custom_reward_post_process_function: Some(POST_PROCESS),
        apply_chat_template_kwargs: Some(r#"{"enable_thinking": true}"#.into()),
        environment: Some([("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("NCCL_NVLS_ENABLE", "1")].into()),
        opd: Some(Opd { opd_kl_coef: 1.0, ..Opd::to_url("http://teacher:8000/generate").token_env("TEACHER_TOKEN") }),
        ..presets::QWEN3_5_4B.recipe()
    }
}

/// The least that can run.
fn least() -> Recipe {
    Recipe { custom_rm_function: Some(REWARD), ..Recipe::default() }
}
