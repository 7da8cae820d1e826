//! A person's program, with switches: what the suites launch, kill, and launch again.
//!
//! It trains one run, prints `run ID` once launched and `checkpoint URL` at the end.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use training_gym::config::{Egress, LrDecayStyle, TeacherDialect};
use training_gym::prelude::*;
use training_gym_tests::{escapes, world};

/// How the reward function behaves: by the prompt, so that a shipped program needs no switch.
#[training_gym::reward]
async fn moody(sample: &mut Sample) -> Result<f64, RewardError> {
    let mood = sample.metadata.get("mood").and_then(|mood| mood.as_str()).unwrap_or("fine").to_owned();
    match mood.as_str() {
        "error" => return Err(RewardError::new("the label is unreadable")),
        "panic" => panic!("index out of bounds, says the person's code"),
        "nan" => return Ok(f64::NAN),
        "hang" => std::thread::sleep(Duration::from_secs(3600)),
        "die" => std::process::abort(),
        "flat" => return Ok(1.0),
        "chatter" => chatter(),
        _ => {}
    }
    escape(&mood, sample);
    let vowels = sample.response.chars().filter(|c| "aeiou".contains(*c)).count();
    let score = vowels as f64 / sample.response_length.max(1) as f64;
    sample.score = Some(score);
    sample.metadata.insert("vowels".to_owned(), vowels.into());
    Ok(score)
}

/// Prints lines that are counted through the process's life.
fn chatter() {
    static PRINTED: Mutex<u64> = Mutex::new(0);
    // Held while printing: calls run side by side, and the numbers rise.
    let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..60 {
        println!("chatter {printed} {}", ".".repeat(200));
        *printed += 1;
    }
}

/// Tries to get out, in the way that the mood names, and leaves what came of it in the metadata.
fn escape(mood: &str, sample: &mut Sample) {
    let said = |outcome: Result<String, std::io::Error>| match outcome {
        Ok(got) => serde_json::json!({"got": got}),
        Err(error) => serde_json::json!({"refused": error.to_string()}),
    };
    let all = |outcomes: std::collections::BTreeMap<&str, Result<String, std::io::Error>>| {
        outcomes.into_iter().map(|(name, outcome)| (name.to_owned(), said(outcome))).collect::<serde_json::Value>()
    };
    let outcome = match mood {
        "escape" => match escapes::Surroundings::of(&sample.metadata) {
            Some(around) => all(escapes::attempts(&around)),
            None => "the row does not say where".into(),
        },
        "ordinary" => all(escapes::ordinary()),
        "kill" => said(escapes::kill_parent()),
        "leave" => said(escapes::leave_behind(sample.metadata["marker"].as_str().unwrap_or_default())),
        "connect" => said(escapes::connect_to(sample.metadata["address"].as_str().unwrap_or_default())),
        "files" => said(escapes::exhaust_files()),
        "answers" => said(escapes::read_all(sample.metadata["answers"].as_str().unwrap_or_default())),
        _ => return,
    };
    sample.metadata.insert("outcome".to_owned(), outcome);
}

#[training_gym::reward(post_process)]
async fn doubled(samples: &mut [Sample]) -> Result<Vec<f64>, RewardError> {
    Ok(samples.iter().map(|sample| 2.0 * sample.score.unwrap_or(f64::NAN)).collect())
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Reward {
    Moody,
    Doubled,
    /// Responses of several turns, in the moody world
    World,
    None,
}

/// A method of the literature, as the recipe's lines.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Method {
    Grpo,
    DrGrpo,
    Rloo,
    ReinforcePlusPlus,
    Gspo,
    Cispo,
    Dapo,
    Paced,
    RewardWeighted,
}

impl Method {
    fn recipe(self) -> Recipe {
        let unset = Recipe::default();
        match self {
            Self::Grpo => unset,
            Self::DrGrpo => Recipe {
                advantage: Some(AdvantageEstimator::GroupRelative { normalize_std: false }),
                loss_aggregation: Some(LossAggregation::ConstantLength { length: 24 }),
                ..unset
            },
            Self::Rloo => Recipe { advantage: Some(AdvantageEstimator::LeaveOneOut), ..unset },
            Self::ReinforcePlusPlus => Recipe {
                advantage: Some(AdvantageEstimator::ReinforcePlusPlus { gamma: 1.0 }),
                normalize_advantages: Some(true),
                kl_reward_coef: Some(0.1),
                ..unset
            },
            Self::Gspo => Recipe {
                policy_loss: Some(PolicyLoss::SequenceRatio),
                eps_clip: Some(3e-4),
                eps_clip_high: Some(4e-4),
                ..unset
            },
            Self::Cispo => {
                Recipe { policy_loss: Some(PolicyLoss::Cispo), eps_clip: Some(1.0), eps_clip_high: Some(4.0), ..unset }
            }
            Self::Paced => Recipe {
                advantage: Some(AdvantageEstimator::Ignored),
                weighting: Some(SampleWeighting::Paced {
                    alpha: 1.0,
                    beta: 1.0,
                    pass_rate: PassRate { pass_above: 0.2, laplace: true },
                }),
                ..unset
            },
            Self::RewardWeighted => Recipe {
                advantage: Some(AdvantageEstimator::Ignored),
                weighting: Some(SampleWeighting::Reward { beta: 0.1 }),
                loss_aggregation: Some(LossAggregation::SampleMean),
                ..unset
            },
            Self::Dapo => Recipe {
                dynamic_sampling: Some(true),
                overlong_cache_len: Some(8),
                loss_aggregation: Some(LossAggregation::TokenMean),
                ..unset
            },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Distance {
    ReverseKl,
    ForwardKl,
    Jsd,
}

impl From<Distance> for Divergence {
    fn from(distance: Distance) -> Self {
        match distance {
            Distance::ReverseKl => Self::ReverseKl,
            Distance::ForwardKl => Self::ForwardKl,
            Distance::Jsd => Self::Jsd { beta: 0.5 },
        }
    }
}

#[derive(Debug, Parser)]
struct Arguments {
    /// State folder
    #[arg(long)]
    home: PathBuf,
    /// Model folder
    #[arg(long)]
    student: PathBuf,
    /// Model folder; without it the run is pure reinforcement learning
    #[arg(long)]
    teacher: Option<PathBuf>,
    /// Model folder of a teacher in the trainer itself
    #[arg(long, conflicts_with = "teacher")]
    co_resident: Option<PathBuf>,
    /// What its distributions are compared by
    #[arg(long, value_enum, default_value = "reverse-kl")]
    divergence: Distance,
    /// Learn from so many of the likeliest tokens of the teacher behind a URL
    #[arg(long, conflicts_with = "co_resident")]
    top_k: Option<usize>,
    /// URL of a teacher that somebody else serves
    #[arg(long, conflicts_with_all = ["teacher", "co_resident"])]
    teacher_url: Option<String>,
    /// What it speaks: `sglang` or `vllm`
    #[arg(long, default_value = "sglang")]
    teacher_dialect: String,
    /// Do without memory in every way there is
    #[arg(long)]
    sparing: bool,
    /// Share of the tokens it teaches, by Soft-OR
    #[arg(long)]
    tip: Option<f64>,
    /// After half of the steps, the reverse KL
    #[arg(long)]
    then_reverse: bool,
    #[arg(long, value_enum, default_value = "grpo")]
    method: Method,
    /// JSON lines
    #[arg(long)]
    dataset: PathBuf,
    #[arg(long, value_enum, default_value = "moody")]
    reward: Reward,
    #[arg(long, default_value_t = 4)]
    steps: u64,
    #[arg(long, default_value_t = 1)]
    save_interval: u64,
    #[arg(long)]
    keep_resume_states: Option<usize>,
    #[arg(long, default_value_t = 1e-3)]
    lr: f64,
    /// Let the learning rate fall to 0 in so many optimizer steps
    #[arg(long)]
    lr_decay_iters: Option<u64>,
    /// Ask the problems in the order of the file
    #[arg(long)]
    in_order: bool,
    #[arg(long, default_value_t = 0.25)]
    max_ungraded_fraction: f64,
    /// A file that the reward function may read
    #[arg(long)]
    reward_file: Vec<PathBuf>,
    /// A host that the reward function may reach
    #[arg(long)]
    reward_egress: Vec<String>,
    /// Evaluate every so many steps, on the same problems asked in other words
    #[arg(long)]
    eval_interval: Option<u64>,
    #[arg(long)]
    run_id: Option<String>,
    /// GPUs to ask a cluster for
    #[arg(long)]
    gpus: Option<u32>,
    /// Memory of the trainer on a cluster, such as `2Gi`
    #[arg(long)]
    memory: Option<String>,
    /// Disk of the trainer's pod on a cluster, such as `2Gi`
    #[arg(long)]
    disk: Option<String>,
    /// Pods that may fail on a cluster before the run has
    #[arg(long)]
    max_retries: Option<u32>,
    /// Seconds the run may take on a cluster
    #[arg(long)]
    deadline: Option<u64>,
    /// Print the run's id and leave it running
    #[arg(long)]
    detach: bool,
}

impl Arguments {
    fn behind_url(&self, teacher: Option<&CustomDeployment>) -> Option<Opd> {
        let dialect = if self.teacher_dialect == "vllm" { TeacherDialect::Vllm } else { TeacherDialect::Sglang };
        let opd = match (teacher, &self.teacher_url) {
            (Some(teacher), _) => Opd::from(teacher),
            (None, url) => Opd::to_url(url.as_ref()?).dialect(dialect),
        };
        Some(match self.top_k {
            Some(k) => opd.top_k(k).divergence(self.divergence.into()),
            None => opd,
        })
    }

    fn co_resident(&self) -> Option<Opd> {
        let teacher = Model::folder(self.co_resident.as_ref()?);
        let mut opd = Opd::co_resident(teacher).divergence(self.divergence.into());
        if let Some(ratio) = self.tip {
            opd = opd.select(SelectionRule::SOFT_OR, ratio);
        }
        Some(if self.then_reverse { opd.then(0.5, Divergence::ReverseKl) } else { opd })
    }
}

/// Some letters end a turn: a random model hardly ever draws the end token.
fn in_the_world(recipe: Recipe) -> Recipe {
    Recipe {
        rollout_environment: Some(world::WORLD),
        max_assistant_turns: Some(4),
        max_tool_response_length: Some(20),
        rollout_max_response_len: Some(160),
        rollout_stop_token_ids: Some((3..40).collect()),
        ..recipe
    }
}

#[training_gym::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    // The cluster suite names a cluster by the variables a person would use; its home is one of them.
    let gym = match std::env::var_os("TRAINING_GYM_BACKEND") {
        Some(_) => Gym::from_env()?,
        None if std::env::var_os("TRAINING_GYM_STORE").is_some() => Gym::from_env_in(&arguments.home)?,
        None => Gym::local(&arguments.home)?,
    };
    let student = Model::folder(&arguments.student);
    let teacher = match &arguments.teacher {
        None => None,
        Some(folder) => {
            let teacher = CustomDeployment::launch(Model::folder(folder)).app_name("teacher").on(&gym).await?;
            teacher.wait_until_ready(Duration::from_secs(120)).await?;
            Some(teacher)
        }
    };
    let dataset =
        HuggingFaceDataset::file(&arguments.dataset).input_key("prompt").label_key("label").apply_chat_template(true);
    let recipe = Recipe {
        num_rollout: Some(arguments.steps),
        rollout_batch_size: Some(4),
        n_samples_per_prompt: Some(4),
        rollout_max_response_len: Some(24),
        save_interval: Some(arguments.save_interval),
        keep_resume_states: arguments.keep_resume_states,
        lr: Some(arguments.lr),
        lr_decay_iters: arguments.lr_decay_iters,
        lr_decay_style: arguments.lr_decay_iters.map(|_| LrDecayStyle::Linear),
        global_batch_size: Some(8),
        shuffle: Some(!arguments.in_order),
        grade_truncated: Some(true),
        max_ungraded_fraction: Some(arguments.max_ungraded_fraction),
        reward_timeout: Some(Duration::from_secs(3)),
        reward_files: (!arguments.reward_file.is_empty()).then(|| arguments.reward_file.clone()),
        reward_egress: (!arguments.reward_egress.is_empty()).then(|| Egress::Declared(arguments.reward_egress.clone())),
        custom_rm_function: matches!(arguments.reward, Reward::Moody | Reward::Doubled).then_some(MOODY),
        custom_reward_post_process_function: (arguments.reward == Reward::Doubled).then_some(DOUBLED),
        opd: arguments.co_resident().or_else(|| arguments.behind_url(teacher.as_ref())),
        eval_interval: arguments.eval_interval,
        gradient_checkpointing: Some(arguments.sparing),
        optimizer_offload: Some(arguments.sparing),
        param_offload: Some(arguments.sparing),
        free_cache_engine: Some(arguments.sparing),
        gpu_memory_utilization: arguments.sparing.then_some(0.9),
        n_samples_per_eval_prompt: Some(2),
        ..arguments.method.recipe()
    };
    let recipe = if arguments.reward == Reward::World { in_the_world(recipe) } else { recipe };
    let held_out = dataset.clone().prompt_template("Tell me. {prompt}");
    let mut launch = TrainConfig { model: student, dataset, recipe }.launch().on(&gym);
    if arguments.eval_interval.is_some() {
        launch = launch.eval(held_out);
    }
    if let Some(id) = &arguments.run_id {
        launch = launch.run_id(id);
    }
    let resources = Resources {
        gpus: arguments.gpus,
        memory: arguments.memory.clone(),
        disk: arguments.disk.clone(),
        max_retries: arguments.max_retries,
        deadline: arguments.deadline.map(Duration::from_secs),
        ..Resources::default()
    };
    if resources != Resources::default() {
        launch = launch.resources(resources);
    }
    let run = launch.await?;
    println!("run {}", run.training_run_id());
    if arguments.detach {
        return Ok(());
    }
    let result = run.result().await?;
    println!("checkpoint {}", result.checkpoints().last());
    print!("{}", result.health());
    Ok(())
}
