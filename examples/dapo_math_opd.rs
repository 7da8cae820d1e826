//! On-policy distillation: a small student learns to solve math problems from a larger teacher.
//!
//! ```sh
//! cargo xtask demo                       # tiny models, made for this: minutes on two cores
//! cargo xtask demo -- --scale full       # Qwen3.5-4B learns from Qwen3.5-9B
//! cargo xtask demo -- --student FOLDER_OR_HUB_ID --teacher FOLDER_OR_HUB_ID
//! ```
//!
//! In each rollout step the student's responses go to the teacher, which returns how likely it
//! finds each token. That changes the advantage of every token:
//! `A_t = A_t^GRPO − opd_kl_coef·(log π_student − log π_teacher)`: the first term says *what* to
//! answer, the second *how* the teacher would put it.

mod demo;

use std::time::{Duration, Instant};

use clap::Parser;
use demo::{Arguments, Deployments, Report};
use training_gym::prelude::*;

/// 1 for the right answer, −1 for a wrong one, as in the DAPO paper.
#[training_gym::reward]
async fn math_opd_rm(sample: &mut Sample) -> Result<f64, RewardError> {
    let response = models::QWEN3_5_4B.parse_response(&sample.response); // splits <think>…</think> off
    let score = score_answer(&response.content, &sample.label);
    sample.metadata.insert("shaped_reward".into(), score.into());
    Ok(score)
}

/// The same score for a row of the evaluation.
fn score_row(row: &Row, reply: &ChatReply) -> f64 {
    let response =
        if reply.content.is_empty() { reply.reasoning_content.as_deref().unwrap_or("") } else { &reply.content };
    f64::from(u8::from(score_answer(response, &row.label) == 1.0))
}

#[training_gym::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let began = Instant::now();
    let gym = demo::gym(&arguments)?;
    let scale = demo::scale(&arguments);
    // Everything that is deployed here is stopped at the end, also when something fails.
    let mut deployments = Deployments::default();
    let outcome = run(&arguments, &gym, &scale, &mut deployments).await;
    deployments.stop_all().await;
    let report = Report { seconds: began.elapsed().as_secs_f64(), ..outcome? };
    report.print(&arguments)
}

async fn run(
    arguments: &Arguments,
    gym: &Gym,
    scale: &demo::Scale,
    deployments: &mut Deployments,
) -> anyhow::Result<Report> {
    // Deploy the student as it is, and the teacher. A CustomDeployment promises per-token
    // log-probabilities, which is what a teacher is asked for.
    let student = scale.student;
    let base = Endpoint::launch(student).app_name("base-student").unauthenticated(true).recreate_if_existing(true).on(gym).await?;
    deployments.add(&base);
    let teacher = CustomDeployment::launch(scale.teacher).app_name("teacher").recreate_if_existing(true).on(gym).await?;
    deployments.add(&teacher);
    base.wait_until_ready(Duration::from_secs(15 * 60)).await?;
    println!("student base model deployed to {}", base.url()?);
    teacher.wait_until_ready(Duration::from_secs(15 * 60)).await?;
    println!("teacher deployed to {}", teacher.url()?);

    // The problems: some to train on, others to evaluate on.
    let train = scale.train.clone();
    let eval = scale.eval.clone();

    // First, is the teacher good enough to teach, and how far is the student behind?
    let evaluation = scale.evaluation();
    let teacher_report = evaluation.run(&teacher, &eval, score_row).await?;
    println!("teacher: {teacher_report}");
    let base_report = evaluation.run(&base, &eval, score_row).await?;
    println!("base student: {base_report}");

    let run = TrainConfig {
        model: student,
        dataset: train,
        recipe: Recipe {
            custom_rm_function: Some(MATH_OPD_RM),
            opd: Some(Opd { opd_kl_coef: 1.0, ..Opd::from(&teacher) }),
            seed: Some(arguments.seed),
            ..scale.recipe()
        },
    }
    .launch()
    .on(gym)
    .await?;
    println!("run id: {}", run.training_run_id());
    deployments.watch(&run);

    let result = run.result().await?; // progress bars; Ctrl-C detaches, never kills
    let checkpoint = result.checkpoints().last();
    println!("checkpoint: {}", checkpoint.path.display());

    // Deploy what was trained and evaluate it like the base.
    let trained = Endpoint::launch(checkpoint).app_name("trained-student").recreate_if_existing(true).on(gym).await?;
    deployments.add(&trained);
    trained.wait_until_ready(Duration::from_secs(15 * 60)).await?;
    println!("checkpoint deployed to {}", trained.url()?);
    let trained_report = evaluation.run(&trained, &eval, score_row).await?;
    println!("trained student: {trained_report}");

    Ok(Report::new(teacher_report, base_report, trained_report))
}
