//! Every variable the scripts' documentation names.

use std::fmt;

/// One of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `grpo_from_environment`.
    Grpo,
    /// `opd_from_environment`.
    Opd,
    /// `eval_from_environment`.
    Eval,
    /// `query_database`: several turns, with a tool. It reads its variables by itself.
    Agent,
}

impl Program {
    /// The program's file.
    pub fn file(self) -> &'static str {
        match self {
            Self::Grpo => "grpo_from_environment",
            Self::Opd => "opd_from_environment",
            Self::Eval => "eval_from_environment",
            Self::Agent => "query_database",
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Grpo => "grpo",
            Self::Opd => "opd",
            Self::Eval => "eval",
            Self::Agent => "agent",
        })
    }
}

/// A variable and what becomes of it.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// The programs that apply it; in another one it is noted and not applied.
    pub programs: &'static [Program],
    /// Unset, in the programs' order above where they differ.
    pub default: &'static str,
    /// What it sets here, or why nothing.
    pub becomes: &'static str,
}

use Program::{Agent, Eval, Grpo, Opd};

const ALL: &[Program] = &[Grpo, Opd, Eval];
const TRAINING: &[Program] = &[Grpo, Opd];

const fn variable(
    name: &'static str,
    programs: &'static [Program],
    default: &'static str,
    becomes: &'static str,
) -> Variable {
    Variable { name, programs, default, becomes }
}

/// The list.
pub const VARIABLES: &[Variable] = &[
    variable("MODEL_PATH", ALL, "required", "the student: a folder or a hub id (`TrainConfig::model`)"),
    variable(
        "MODEL_NAME",
        ALL,
        "the model's own",
        "the run's id: started again, it is continued; the evaluated model's name",
    ),
    variable("DATA_DIR", ALL, "`data`", "where the data files are; prepared rows go to `prepared-…` below it"),
    variable("TRAIN_BATCH_SIZE", TRAINING, "512; 256", "`rollout_batch_size`: prompts a step"),
    variable(
        "PPO_MINI_BATCH_SIZE",
        TRAINING,
        "128; 64",
        "`global_batch_size`, times `ROLLOUT_N`; divides `TRAIN_BATCH_SIZE`",
    ),
    variable(
        "PPO_MICRO_BATCH_SIZE_PER_GPU",
        TRAINING,
        "4",
        "`max_tokens_per_gpu`: so many sequences of full length; shorter ones are packed, more at once",
    ),
    variable("LEARNING_RATE", TRAINING, "1e-6", "`lr`"),
    variable("TOTAL_EPOCHS", TRAINING, "15; 1", "`num_rollout`: so many passes over the training rows"),
    variable(
        "MAX_PROMPT_LENGTH",
        ALL,
        "2048",
        "`rollout_max_prompt_len`; longer prompts are left out when data is prepared",
    ),
    variable(
        "MAX_RESPONSE_LENGTH",
        ALL,
        "8192; 8192; 16384",
        "`rollout_max_response_len`; `max_tokens` of an evaluated reply",
    ),
    variable("ROLLOUT_N", TRAINING, "8; 1", "`n_samples_per_prompt`"),
    variable(
        "TP_SIZE",
        &[],
        "1",
        "nothing: an engine is on one device here, so only 1 is accepted; for a larger model serve it with vLLM or SGLang",
    ),
    variable(
        "GPU_MEMORY_UTIL",
        TRAINING,
        "no bound",
        "`gpu_memory_utilization`: the share of the device for weights, optimizer and cache while responses are drawn",
    ),
    variable("TEACHER_MODEL_PATH", &[Opd], "required", "the co-resident teacher: `Opd::co_resident`"),
    variable(
        "OPD_LOSS_TYPE",
        &[Opd],
        "`reverse_kl`",
        "`Opd::divergence`: `reverse_kl`, `forward_kl` or `jsd` (beta ½)",
    ),
    variable("OPD_CHUNK_SIZE", &[Opd], "256", "`logits_chunk_size`: rows of logits at once"),
    variable(
        "OPD_MAX_LENGTH",
        &[Opd],
        "16384",
        "`extra_config`: `context_length`; nothing is cut here, so prompt and response must fit",
    ),
    variable("OPD_REWARD_BETA", &[Opd], "off", "`weighting: SampleWeighting::Reward { beta }`; `none` is off"),
    variable("ENABLE_THINKING", ALL, "the template's choice", "`apply_chat_template_kwargs`: `enable_thinking`"),
    variable(
        "ENABLE_TOOLS",
        &[],
        "false",
        "nothing: a program has one turn, where only false is accepted, or it is `query_database`, which has a tool",
    ),
    variable("MAX_ASSISTANT_TURNS", &[Agent], "4", "`max_assistant_turns`"),
    variable("MAX_TOOL_RESPONSE_LENGTH", &[Agent], "256", "`max_tool_response_length`, in characters"),
    variable("TOOL_FORMAT", &[Agent], "`hermes`", "`tool_format`: `hermes` or `json`"),
    variable("AGENT_NUM_WORKERS", &[Agent], "8", "`reward_max_concurrency`: turns answered at once"),
    variable(
        "DATABASE_DIR",
        &[Agent],
        "a tiny one is made",
        "the folder of databases that the tool may read: `reward_files`, `environment`",
    ),
    variable(
        "INSTRUCTION_VARIANT",
        ALL,
        "`boxed`",
        "`Preparation::instruction`, `Instruction`: `boxed`, `dapo` or `none`",
    ),
    variable(
        "REWARD_FUNCTION",
        ALL,
        "`math_reward`",
        "`custom_rm_function`, `Grader`: `math_reward`, `math_dapo`, `math` or `tutorial`",
    ),
    variable(
        "VAL_TEMPERATURE",
        ALL,
        "0.7",
        "`eval_temperature`; `ChatOptions::temperature`; 0 is greedy, with `VAL_N` 1",
    ),
    variable("VAL_TOP_P", ALL, "0.8", "`eval_top_p`; `ChatOptions::top_p`"),
    variable("VAL_TOP_K", &[Eval], "20", "`ChatOptions::top_k`; an evaluation within a training cuts by mass alone"),
    variable("VAL_N", ALL, "1; 16; 16", "`n_samples_per_eval_prompt`; `Evaluation::samples`"),
    variable(
        "CHECKPOINT_PATH",
        &[],
        "-",
        "nothing to convert: checkpoints here are Hugging Face folders; for a sharded one of the scripts: `gym-runtime convert`",
    ),
];
