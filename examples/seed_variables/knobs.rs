//! What the variables come to.

use std::path::{Path, PathBuf};

use training_gym::config::{
    AdvantageEstimator, Divergence, ExtraConfig, LossAggregation, Model, Opd, Recipe, SampleWeighting,
};
use training_gym::deploy::ChatOptions;
use training_gym::eval::{Grader, Instruction};
use training_gym::external::serde_json::{Map, Value};
use training_gym::ids::AppName;

use super::read::{Environment, Problems, Reader};
use super::rewards;
use super::table::Program;

/// Requests an evaluation within a training may make at once: the engine's queue.
const MOST_EVALUATED: usize = 1024;

/// All that the variables say.
#[derive(Clone, Debug)]
pub struct Knobs {
    /// The student.
    pub model: Model,
    /// The run's name, as ids are written.
    pub name: Option<AppName>,
    /// Where data files are.
    pub data_dir: PathBuf,
    /// The frame of the questions.
    pub instruction: Instruction,
    /// Who says what is right.
    pub grader: Grader,
    /// Tokens of a prompt.
    pub max_prompt_length: usize,
    /// Tokens of a response.
    pub max_response_length: usize,
    /// Thinking on or off; `None` is the template's choice.
    pub enable_thinking: Option<bool>,
    /// How replies of an evaluation are drawn.
    pub validation: Sampling,
    /// How it trains.
    pub training: Training,
    /// How it is taught; `None` unless the program is [`Program::Opd`].
    pub distillation: Option<Distillation>,
    /// What is set and not applied, and why.
    pub notes: Vec<String>,
}

/// How replies of an evaluation are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f64,
    /// Nucleus mass.
    pub top_p: f64,
    /// The k most likely; −1 is all.
    pub top_k: i64,
    /// Replies a question.
    pub n: usize,
}

/// How it trains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Training {
    /// Prompts a step.
    pub train_batch_size: usize,
    /// Prompts an optimizer step.
    pub ppo_mini_batch_size: usize,
    /// Sequences of full length computed at once.
    pub ppo_micro_batch_size: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Passes over the rows.
    pub total_epochs: usize,
    /// Responses a prompt.
    pub rollout_n: usize,
    /// Share of the device's memory while responses are drawn.
    pub gpu_memory_util: Option<f64>,
}

/// How it is taught.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distillation {
    /// The teacher.
    pub teacher: Model,
    /// What is minimised.
    pub divergence: Divergence,
    /// Rows of logits at once.
    pub chunk_size: usize,
    /// Tokens of prompt and response together.
    pub max_length: usize,
    /// Temperature of reward weights.
    pub reward_beta: Option<f64>,
}

/// A folder where there is one, else a hub id.
fn model(name: &str) -> Model {
    if Path::new(name).is_dir() { Model::folder(name) } else { Model::hub(name) }
}

impl Knobs {
    /// Reads the variables that `program` applies, and notes the others.
    ///
    /// # Errors
    /// Everything that is wrong, each by its variable, value and remedy.
    pub fn read(environment: &Environment, program: Program) -> Result<Self, Problems> {
        let mut read = Reader::new(environment, program);
        let reader = &mut read;
        let pick = |grpo, opd, eval| match program {
            Program::Grpo => grpo,
            Program::Opd => opd,
            Program::Eval | Program::Agent => eval,
        };
        let student = reader.required("MODEL_PATH", "export it as a model's folder or hub id");
        let training = Training {
            train_batch_size: reader.count("TRAIN_BATCH_SIZE", pick(512, 256, 256)),
            ppo_mini_batch_size: reader.count("PPO_MINI_BATCH_SIZE", pick(128, 64, 64)),
            ppo_micro_batch_size: reader.count("PPO_MICRO_BATCH_SIZE_PER_GPU", 4),
            learning_rate: reader.value(
                "LEARNING_RATE",
                1e-6,
                (|lr: f64| lr > 0.0 && lr <= 1.0, "write a number in (0, 1], such as 1e-6"),
            ),
            total_epochs: reader.count("TOTAL_EPOCHS", pick(15, 1, 1)),
            rollout_n: reader.count("ROLLOUT_N", pick(8, 1, 1)),
            gpu_memory_util: memory(reader),
        };
        let mut knobs = Self {
            model: model(student),
            name: reader.text("MODEL_NAME").map(AppName::slug),
            data_dir: reader.text("DATA_DIR").unwrap_or("data").into(),
            instruction: variant(reader),
            grader: grader(reader),
            max_prompt_length: reader.count("MAX_PROMPT_LENGTH", 2048),
            max_response_length: reader.count("MAX_RESPONSE_LENGTH", pick(8192, 8192, 16384)),
            enable_thinking: reader.truth("ENABLE_THINKING"),
            validation: validation(reader, pick(1, 16, 16)),
            training,
            distillation: None,
            notes: Vec::new(),
        };
        if program != Program::Eval {
            knobs.check_batches(reader, program);
        }
        if program == Program::Opd {
            knobs.distillation = Some(distillation(reader, &knobs));
        }
        one_turn(reader);
        Ok(Self { notes: read.finish()?, ..knobs })
    }

    fn check_batches(&self, reader: &mut Reader<'_>, program: Program) {
        let Training { train_batch_size, ppo_mini_batch_size, rollout_n, .. } = self.training;
        if !train_batch_size.is_multiple_of(ppo_mini_batch_size) {
            let rule = format!("divides TRAIN_BATCH_SIZE = {train_batch_size}; take a divisor of it");
            reader.refuse("PPO_MINI_BATCH_SIZE", &ppo_mini_batch_size.to_string(), &rule);
        }
        if program == Program::Grpo && rollout_n < 2 {
            let rule = "an advantage compares the responses of one prompt: take at least 2";
            reader.refuse("ROLLOUT_N", &rollout_n.to_string(), rule);
        }
    }

    /// The recipe of a training on `rows` rows, with rows to evaluate on or without.
    ///
    /// # Errors
    /// Where the batch is larger than the rows.
    pub fn recipe(&self, rows: u64, evaluates: bool) -> Result<Recipe, Problems> {
        let Training {
            train_batch_size,
            ppo_mini_batch_size,
            ppo_micro_batch_size,
            learning_rate,
            total_epochs,
            rollout_n,
            gpu_memory_util,
        } = self.training;
        let steps = rows.saturating_mul(total_epochs as u64) / train_batch_size as u64;
        if steps == 0 {
            let environment = Environment::default();
            let mut reader = Reader::new(&environment, Program::Opd);
            let rule = format!("there are {rows} training rows in {total_epochs} epochs: take at most so many");
            reader.refuse("TRAIN_BATCH_SIZE", &train_batch_size.to_string(), &rule);
            return Err(reader.finish().err().unwrap_or_default());
        }
        let length = self.max_prompt_length.saturating_add(self.max_response_length);
        let mut recipe = Recipe {
            num_rollout: Some(steps),
            rollout_batch_size: Some(train_batch_size),
            n_samples_per_prompt: Some(rollout_n),
            global_batch_size: Some(ppo_mini_batch_size.saturating_mul(rollout_n)),
            max_tokens_per_gpu: Some(length.saturating_mul(ppo_micro_batch_size)),
            rollout_max_prompt_len: Some(self.max_prompt_length),
            rollout_max_response_len: Some(self.max_response_length),
            lr: Some(learning_rate),
            shuffle: Some(true),
            custom_rm_function: Some(rewards::of(self.grader)),
            apply_chat_template_kwargs: self.enable_thinking.map(|on| thinking(on).into()),
            loss_aggregation: Some(LossAggregation::TokenMean),
            save_interval: Some(20),
            gpu_memory_utilization: gpu_memory_util,
            // As in the scripts, without a switch.
            param_offload: Some(true),
            optimizer_offload: Some(true),
            free_cache_engine: Some(true),
            ..self.model.recipe()
        };
        if evaluates {
            recipe.n_samples_per_eval_prompt = Some(self.validation.n);
            recipe.eval_temperature = Some(self.validation.temperature);
            recipe.eval_top_p = Some(self.validation.top_p);
        }
        match &self.distillation {
            None => recipe.eps_clip_c = Some(10.0),
            Some(taught) => {
                recipe.opd = Some(Opd::co_resident(taught.teacher).divergence(taught.divergence));
                recipe.logits_chunk_size = Some(taught.chunk_size);
                recipe.extra_config = Some(ExtraConfig::from([("context_length", taught.max_length)]));
                // The reward is reported, and weighs; what is learnt is the teacher's.
                recipe.advantage = Some(AdvantageEstimator::Ignored);
                recipe.weighting = taught.reward_beta.map(|beta| SampleWeighting::Reward { beta });
            }
        }
        Ok(recipe)
    }

    /// Rows of which an evaluation within a training takes at most so many.
    pub fn most_evaluated(&self) -> u64 {
        (MOST_EVALUATED / self.validation.n).max(1) as u64
    }

    /// How a reply of an evaluation is made.
    pub fn chat_options(&self) -> ChatOptions {
        let Sampling { temperature, top_p, top_k, .. } = self.validation;
        ChatOptions {
            temperature: Some(temperature),
            top_p: Some(top_p),
            top_k: Some(top_k),
            max_tokens: Some(self.max_response_length),
            chat_template_kwargs: self.enable_thinking.map(thinking).unwrap_or_default(),
            ..ChatOptions::default()
        }
    }
}

pub(crate) fn thinking(on: bool) -> Map<String, Value> {
    [("enable_thinking".to_owned(), Value::from(on))].into_iter().collect()
}

fn variant(reader: &mut Reader<'_>) -> Instruction {
    let text = reader.text("INSTRUCTION_VARIANT").unwrap_or("boxed");
    text.parse().unwrap_or_else(|_| {
        reader.refuse("INSTRUCTION_VARIANT", text, "write boxed, dapo or none");
        Instruction::Boxed
    })
}

fn grader(reader: &mut Reader<'_>) -> Grader {
    let text = reader.text("REWARD_FUNCTION").unwrap_or("math_reward");
    text.parse().unwrap_or_else(|_| {
        reader.refuse("REWARD_FUNCTION", text, "write math_reward, math_dapo, math or tutorial");
        Grader::MathReward
    })
}

fn validation(reader: &mut Reader<'_>, n: usize) -> Sampling {
    let sampling = Sampling {
        temperature: reader.value(
            "VAL_TEMPERATURE",
            0.7,
            (|t: f64| (0.0..=10.0).contains(&t), "write a number in [0, 10], such as 0.7"),
        ),
        top_p: reader.value("VAL_TOP_P", 0.8, (|p: f64| p > 0.0 && p <= 1.0, "write a number in (0, 1], such as 0.8")),
        top_k: reader.value("VAL_TOP_K", 20, (|k: i64| k == -1 || k >= 1, "write a whole number ≥ 1, or -1 for all")),
        n: reader.count("VAL_N", n),
    };
    if sampling.temperature == 0.0 && sampling.n > 1 {
        reader.refuse("VAL_N", &sampling.n.to_string(), "with VAL_TEMPERATURE = 0 all replies are the same: take 1");
    }
    if sampling.n > MOST_EVALUATED {
        reader.refuse("VAL_N", &sampling.n.to_string(), "write at most 1024: the engine's queue holds no more");
    }
    sampling
}

fn distillation(reader: &mut Reader<'_>, knobs: &Knobs) -> Distillation {
    let teacher = reader.required("TEACHER_MODEL_PATH", "export it as the teacher's folder or hub id");
    let kind = reader.text("OPD_LOSS_TYPE").unwrap_or("reverse_kl");
    let divergence = match kind {
        "reverse_kl" => Divergence::ReverseKl,
        "forward_kl" => Divergence::ForwardKl,
        "jsd" => Divergence::Jsd { beta: 0.5 },
        _ => {
            reader.refuse("OPD_LOSS_TYPE", kind, "write reverse_kl, forward_kl or jsd");
            Divergence::ReverseKl
        }
    };
    let reward_beta = match reader.text("OPD_REWARD_BETA").map(str::to_ascii_lowercase).as_deref() {
        None | Some("none" | "null") => None,
        Some(_) => {
            let rule = "write a number > 0, such as 0.5, or none";
            Some(reader.value("OPD_REWARD_BETA", 1.0, (|beta: f64| beta > 0.0 && beta.is_finite(), rule)))
        }
    };
    let max_length = reader.count("OPD_MAX_LENGTH", 16384);
    let longest = knobs.max_prompt_length + knobs.max_response_length;
    if max_length < longest {
        let rule = format!(
            "nothing is cut here, and MAX_PROMPT_LENGTH + MAX_RESPONSE_LENGTH are {longest}: raise it, or lower those"
        );
        reader.refuse("OPD_MAX_LENGTH", &max_length.to_string(), &rule);
    }
    Distillation {
        teacher: model(teacher),
        divergence,
        chunk_size: reader.count("OPD_CHUNK_SIZE", 256),
        max_length,
        reward_beta,
    }
}

fn memory(reader: &mut Reader<'_>) -> Option<f64> {
    reader.text("GPU_MEMORY_UTIL")?;
    let allowed = |share: f64| share > 0.0 && share <= 1.0;
    Some(reader.value("GPU_MEMORY_UTIL", 1.0, (allowed, "write a share in (0, 1], such as 0.7")))
}

/// What only says what these programs are, or asks for what they are not.
fn one_turn(reader: &mut Reader<'_>) {
    if reader.count("TP_SIZE", 1) != 1 {
        let given = reader.text("TP_SIZE").unwrap_or_default();
        reader.refuse("TP_SIZE", given, "an engine is on one device here: take 1");
    }
    if reader.truth("ENABLE_TOOLS") == Some(true) {
        reader.refuse("ENABLE_TOOLS", "true", "these programs have one turn: take false, or start query_database");
    }
    for name in ["MAX_ASSISTANT_TURNS", "MAX_TOOL_RESPONSE_LENGTH", "AGENT_NUM_WORKERS"] {
        reader.count(name, 1);
    }
}
