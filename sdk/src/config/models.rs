//! The models we know, as data.
//!
//! A preset holds the few values that depend on the model; everything else has one default for all.
//! A model that is not here is as usable, by [`Model::hub`] or [`Model::folder`].

use super::{Family, Model, Recipe};

/// What we know of one model.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its hub id.
    pub repo: &'static str,
    /// Its family.
    pub family: Family,
    /// Prompts a step.
    pub rollout_batch_size: usize,
    /// Responses a prompt.
    pub n_samples_per_prompt: usize,
    /// Tokens a response may have: room to think for those that do.
    pub rollout_max_response_len: usize,
    /// Tokens of a packed micro-batch.
    pub max_tokens_per_gpu: usize,
    /// Peak learning rate.
    pub lr: f64,
}

impl Preset {
    /// The preset as a recipe that remembers where it came from.
    pub(super) fn recipe(&self, model: Model) -> Recipe {
        Recipe {
            preset: Some(model),
            rollout_batch_size: Some(self.rollout_batch_size),
            n_samples_per_prompt: Some(self.n_samples_per_prompt),
            rollout_max_response_len: Some(self.rollout_max_response_len),
            max_tokens_per_gpu: Some(self.max_tokens_per_gpu),
            lr: Some(self.lr),
            ..Recipe::default()
        }
    }
}

macro_rules! presets {
    ($($name:ident $repo:literal $family:ident: $batch:literal x $samples:literal, $response:literal, $packed:literal, $lr:literal;)*) => {
        /// All presets.
        pub const PRESETS: &[Preset] = &[$(Preset {
            repo: $repo,
            family: Family::$family,
            rollout_batch_size: $batch,
            n_samples_per_prompt: $samples,
            rollout_max_response_len: $response,
            max_tokens_per_gpu: $packed,
            lr: $lr,
        }),*];

        $(
            #[doc = concat!("`", $repo, "`.")]
            pub const $name: Model = Model::known($repo);
        )*
    };
}

presets! {
    // name                     hub id                              family    prompts x samples, response, packed tokens, lr
    QWEN3_5_4B                  "Qwen/Qwen3.5-4B"                   Qwen3_5:  16 x 8, 8192, 16384, 1e-6;
    QWEN3_5_9B                  "Qwen/Qwen3.5-9B"                   Qwen3_5:  16 x 8, 8192, 16384, 1e-6;
    QWEN3_0_6B                  "Qwen/Qwen3-0.6B"                   Qwen3:    16 x 8, 4096, 32768, 1e-6;
    QWEN3_1_7B                  "Qwen/Qwen3-1.7B"                   Qwen3:    16 x 8, 4096, 32768, 1e-6;
    QWEN3_4B                    "Qwen/Qwen3-4B"                     Qwen3:    16 x 8, 8192, 16384, 1e-6;
    QWEN3_8B                    "Qwen/Qwen3-8B"                     Qwen3:    16 x 8, 8192, 16384, 1e-6;
    QWEN3_14B                   "Qwen/Qwen3-14B"                    Qwen3:    16 x 8, 8192, 16384, 5e-7;
    QWEN3_32B                   "Qwen/Qwen3-32B"                    Qwen3:    16 x 8, 8192, 16384, 5e-7;
    QWEN2_5_0_5B_INSTRUCT       "Qwen/Qwen2.5-0.5B-Instruct"        Qwen2_5:  16 x 8, 2048, 32768, 1e-6;
    QWEN2_5_1_5B_INSTRUCT       "Qwen/Qwen2.5-1.5B-Instruct"        Qwen2_5:  16 x 8, 2048, 32768, 1e-6;
    QWEN2_5_3B_INSTRUCT         "Qwen/Qwen2.5-3B-Instruct"          Qwen2_5:  16 x 8, 2048, 16384, 1e-6;
    QWEN2_5_7B_INSTRUCT         "Qwen/Qwen2.5-7B-Instruct"          Qwen2_5:  16 x 8, 2048, 16384, 1e-6;
    QWEN2_5_14B_INSTRUCT        "Qwen/Qwen2.5-14B-Instruct"         Qwen2_5:  16 x 8, 2048, 16384, 5e-7;
    QWEN2_5_32B_INSTRUCT        "Qwen/Qwen2.5-32B-Instruct"         Qwen2_5:  16 x 8, 2048, 16384, 5e-7;
    QWEN2_5_MATH_1_5B_INSTRUCT  "Qwen/Qwen2.5-Math-1.5B-Instruct"   Qwen2_5:  16 x 8, 2048, 32768, 1e-6;
    QWEN2_5_MATH_7B_INSTRUCT    "Qwen/Qwen2.5-Math-7B-Instruct"     Qwen2_5:  16 x 8, 2048, 16384, 1e-6;
    LLAMA_3_1_8B_INSTRUCT       "meta-llama/Llama-3.1-8B-Instruct"  Llama3:   16 x 8, 2048, 16384, 1e-6;
    LLAMA_3_1_70B_INSTRUCT      "meta-llama/Llama-3.1-70B-Instruct" Llama3:   16 x 8, 2048, 16384, 5e-7;
    LLAMA_3_2_1B_INSTRUCT       "meta-llama/Llama-3.2-1B-Instruct"  Llama3:   16 x 8, 2048, 32768, 1e-6;
    LLAMA_3_2_3B_INSTRUCT       "meta-llama/Llama-3.2-3B-Instruct"  Llama3:   16 x 8, 2048, 16384, 1e-6;
}
