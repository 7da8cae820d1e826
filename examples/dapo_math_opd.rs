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
use demo::{Arguments, Outcome, Scale, Started};
use training_gym::prelude::*;
use training_gym::scorers::score_answer;

/// 1 for the right answer, −1 for a wrong one, as in the DAPO paper.
#[training_gym::reward]
async fn math_opd_rm(sample: &mut Sample) -> Result<f64, RewardError> {
    let response = models::QWEN3_5_4B.parse_response(&sample.response); // splits <think>…</think> off
    let score = score_answer(&response.content, &sample.label);
    sample.metadata.insert("shaped_reward".into(), score.into());
    Ok(score)
}

/// The same judgement of a row of the evaluation.
fn score_row(row: &Row, reply: &ChatReply) -> f64 {
    let reasoning = reply.reasoning_content.as_deref().unwrap_or_default();
    score_answer(if reply.content.is_empty() { reasoning } else { &reply.content }, &row.label)
}

#[training_gym::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let began = Instant::now();
    let gym = demo::gym(&arguments)?;
    let scale = demo::scale(&arguments)?;
    // What is started here is stopped here, also when something fails.
    let mut started = Started::default();
    let outcome = tokio::select! {
        outcome = distil(&arguments, &gym, &scale, &mut started) => outcome,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    started.stop().await;
    outcome?.print(&arguments, began.elapsed().as_secs_f64())
}

async fn distil(arguments: &Arguments, gym: &Gym, scale: &Scale, started: &mut Started) -> anyhow::Result<Outcome> {
    // Deploy the student as it is, and the teacher. A CustomDeployment promises per-token
    // log-probabilities, which is what a teacher is asked for.
    let student = scale.student;
    let base = Endpoint::launch(student)
        .app_name("base-student")
        .unauthenticated(true)
        .recreate_if_existing(true)
        .on(gym)
        .await?;
    started.deployment(&base);
    let teacher =
        CustomDeployment::launch(scale.teacher).app_name("teacher").recreate_if_existing(true).on(gym).await?;
    started.deployment(&teacher);
    base.wait_until_ready(Duration::from_secs(15 * 60)).await?;
    println!("student base model deployed to {}", base.url()?);
    teacher.wait_until_ready(Duration::from_secs(15 * 60)).await?;
    println!("teacher deployed to {}", teacher.url()?);

    let config = TrainConfig {
        model: student,
        dataset: scale.train.clone(),
        recipe: Recipe {
            custom_rm_function: Some(MATH_OPD_RM),
            opd: Some(Opd { opd_kl_coef: 1.0, ..Opd::from(&teacher) }),
            seed: Some(arguments.seed),
            ..scale.recipe()
        },
    };
    // What cannot run is found now, not after the evaluations.
    for note in config.check().on(gym).await?.notes {
        println!("note: {note}");
    }

    // Is the teacher good enough to teach, and how far is the student behind?
    let score = |deployment| {
        let evaluation = evaluate(deployment, &scale.eval, score_row);
        evaluation.options(scale.chat_options()).max_concurrency(16)
    };
    let teacher_report = score(&teacher).await?;
    println!("{teacher_report}");
    let base_report = score(&base).await?;
    println!("{base_report}");
    base.stop().await?;

    // Train the student on its own responses.
    let run = config.launch().on(gym).await?;
    started.run(&run);
    println!("run id: {}", run.training_run_id());
    let result = run.result().await?;
    let checkpoint = result.checkpoints().last();
    println!("checkpoint: {checkpoint}");

    // Deploy what was trained, and evaluate it like the base.
    let trained = Endpoint::launch(checkpoint).app_name("trained-student").recreate_if_existing(true).on(gym).await?;
    started.deployment(&trained);
    trained.wait_until_ready(Duration::from_secs(15 * 60)).await?;
    println!("checkpoint deployed to {}", trained.url()?);
    let trained_report = score(&trained).await?;
    println!("{trained_report}");
    Ok(Outcome { teacher: teacher_report, base: base_report, trained: trained_report })
}
