//! Sparse-to-dense: scarce labels go to the teacher, and the teacher teaches the student everything else.
//!
//! ```sh
//! cargo run --bin sparse_to_dense                        # tiny models: minutes on two cores
//! cargo run --bin sparse_to_dense -- --without warm-up   # each stage may be left out
//! cargo run --bin sparse_to_dense -- --finish replay     # the control of the last stage
//! ```
//!
//! Five hundred problems have labels that training may see. Directly, they would teach the student by
//! one reward a response. Here the teacher learns from them first; the student then takes each token's
//! whole distribution from the teacher, on as many problems as there are, labelled or not.
//!
//! Each stage is a run of its own, `PROGRAM-STAGE`. Interrupt this and start it again: what is done is
//! taken as it is, and what was cut goes on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use training_gym::config::LrDecayStyle;
use training_gym::prelude::*;
use training_gym::scorers::score_answer;

/// Sparse-to-dense, start to end.
#[derive(Debug, Parser)]
struct Arguments {
    /// Names the runs
    #[arg(long, default_value = "sparse-to-dense")]
    program: String,
    /// Leave a stage out
    #[arg(long, value_enum)]
    without: Vec<Name>,
    /// What comes after distillation
    #[arg(long, value_enum, default_value = "student-rl")]
    finish: Name,
    /// Seed of all randomness of the training
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rollout steps of a stage, instead of each one's own number
    #[arg(long)]
    steps: Option<u64>,
    /// Held-out problems to evaluate on
    #[arg(long, default_value_t = 200)]
    eval_problems: u64,
    /// State folder; unset: TRAINING_GYM_HOME, or the usual one
    #[arg(long)]
    home: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Name {
    TeacherRl,
    WarmUp,
    Opd,
    StudentRl,
    Replay,
}

/// 1 for the right answer, −1 for a wrong one.
#[training_gym::reward]
async fn right(sample: &mut Sample) -> Result<f64, RewardError> {
    Ok(score_answer(&sample.response, &sample.label))
}

#[training_gym::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let gym = match &arguments.home {
        Some(home) => Gym::local(home)?,
        None => Gym::from_env()?,
    };
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny");
    let (student, teacher) = (Model::folder(assets.join("student")), Model::folder(assets.join("early-teacher")));
    let problems = |name: &str| {
        let file = HuggingFaceDataset::file(assets.join(name));
        file.input_key("prompt").label_key("label").apply_chat_template(true)
    };
    // The labels of the first are the teacher's, those of the last are the student's; nobody asks for the others.
    let labelled = problems("train.jsonl").split("train[:500]")?;
    let open = problems("train.jsonl").split("train[500:3500]")?;
    let held_out = problems("train.jsonl").split("train[3500:]")?;

    // Sizes and learning rates are all that a stage has to say; who learns from whom is the program's.
    let kept = |stage: Name| !arguments.without.contains(&stage);
    let recipe = |steps: u64, lr: f64| {
        let steps = arguments.steps.unwrap_or(steps);
        Recipe {
            num_rollout: Some(steps),
            rollout_batch_size: Some(16),
            n_samples_per_prompt: Some(4),
            rollout_max_response_len: Some(48),
            lr: Some(lr),
            lr_warmup_iters: Some(steps / 10),
            lr_decay_style: Some(LrDecayStyle::Cosine),
            weight_decay: Some(0.0),
            shuffle: Some(true),
            seed: Some(arguments.seed),
            ..Recipe::default()
        }
    };
    let rewarded = |recipe: Recipe| Recipe { custom_rm_function: Some(RIGHT), n_samples_per_prompt: Some(8), ..recipe };
    let finish = match arguments.finish {
        stage if !kept(stage) => None,
        Name::Replay => Some(Finish::Replay { num_rollout: arguments.steps.unwrap_or(60) }),
        _ => Some(Finish::StudentRl(Stage::new(held_out, rewarded(recipe(60, 1e-4))))),
    };
    let program = SparseToDense {
        // 1. GRPO on the labels there are.
        teacher_rl: kept(Name::TeacherRl).then(|| Stage::new(labelled, rewarded(recipe(100, 1e-4)))),
        // 2a. Forward KL on what the teacher writes: the student comes within its reach.
        warm_up: kept(Name::WarmUp).then(|| Stage::new(open.clone(), recipe(100, 2e-3))),
        // 2b. Reverse KL on what the student writes itself.
        opd: kept(Name::Opd).then(|| Stage::new(open, recipe(200, 2e-3))),
        // 3. The student's own reward, on labels nobody has seen; or the control.
        finish,
        ..SparseToDense::of(student, teacher)
    };
    let result = program.run(&gym, &arguments.program).await?;

    let eval = problems("eval.jsonl").limit(arguments.eval_problems);
    let table =
        [("teacher at first", teacher), ("student at first", student)].map(|(name, model)| (name.to_owned(), model));
    let stages = result.stages().iter().map(|stage| (stage.name().to_owned(), stage.model()));
    for (name, model) in table.into_iter().chain(stages) {
        println!("{name:<18} {:>5.1} % of the problems", 100.0 * accuracy(&gym, model, &eval).await?);
    }
    Ok(())
}

/// Share of the problems a model gets right, answering greedily.
async fn accuracy(gym: &Gym, model: Model, problems: &HuggingFaceDataset) -> anyhow::Result<f64> {
    let endpoint = Endpoint::launch(model).app_name("sparse-to-dense").recreate_if_existing(true).on(gym).await?;
    let report = async {
        endpoint.wait_until_ready(Duration::from_secs(15 * 60)).await?;
        let options = ChatOptions { temperature: Some(0.0), max_tokens: Some(48), ..ChatOptions::default() };
        let score = |row: &Row, reply: &ChatReply| score_answer(&reply.content, &row.label);
        anyhow::Ok(evaluate(&endpoint, problems, score).options(options).max_concurrency(16).await?)
    };
    let report = report.await;
    endpoint.stop().await?;
    Ok(report?.accuracy().value)
}
