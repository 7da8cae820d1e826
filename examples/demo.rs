//! What surrounds the tutorial in `dapo_math_opd.rs`: its switches, its two scales, its report.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use training_gym::config::{Dtype, LrDecayStyle};
use training_gym::eval::Report as EvalReport;
use training_gym::prelude::*;

/// On-policy distillation, start to end.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// Which models and problems
    #[arg(long, value_enum, default_value = "tiny")]
    scale: ScaleName,
    /// Hub id or folder of another student
    #[arg(long)]
    student: Option<String>,
    /// Hub id or folder of another teacher, of the student's family
    #[arg(long)]
    teacher: Option<String>,
    /// Seed of all randomness of the training
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Rollout steps
    #[arg(long)]
    steps: Option<u64>,
    /// Held-out problems to evaluate on
    #[arg(long)]
    eval_problems: Option<u64>,
    /// State folder; unset: TRAINING_GYM_HOME, or the usual one
    #[arg(long)]
    home: Option<PathBuf>,
    /// End with one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum ScaleName {
    /// Models of a few hundred thousand parameters, made for this, on generated arithmetic
    Tiny,
    /// Qwen3.5-4B and Qwen3.5-9B on DAPO-Math-17k
    Full,
}

/// The client everything goes through.
pub(crate) fn gym(arguments: &Arguments) -> Result<Gym> {
    Ok(match &arguments.home {
        Some(home) => Gym::local(home)?,
        None => Gym::from_env()?,
    })
}

/// Who learns from whom, on what.
pub(crate) struct Scale {
    pub(crate) student: Model,
    pub(crate) teacher: Model,
    pub(crate) train: HuggingFaceDataset,
    pub(crate) eval: HuggingFaceDataset,
    name: ScaleName,
    steps: Option<u64>,
}

/// The scale the switches name.
pub(crate) fn scale(arguments: &Arguments) -> Result<Scale> {
    let (student, teacher, train, eval) = match arguments.scale {
        ScaleName::Tiny => {
            let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny");
            let problems = |name: &str| {
                HuggingFaceDataset::file(assets.join(name))
                    .input_key("prompt")
                    .label_key("label")
                    .apply_chat_template(true)
            };
            let eval = problems("eval.jsonl").limit(arguments.eval_problems.unwrap_or(200));
            (
                Model::folder(assets.join("student")),
                Model::folder(assets.join("teacher")),
                problems("train.jsonl"),
                eval,
            )
        }
        ScaleName::Full => {
            let dataset = HuggingFaceDataset::new("zhuzilin/dapo-math-17k")
                .input_key("prompt")
                .label_key("label")
                .output_format(OutputFormat::Jsonl)
                .apply_chat_template(true)
                .always_prepare(true);
            let eval = dataset.clone().split("train[100:120]")?.limit(arguments.eval_problems.unwrap_or(20));
            (models::QWEN3_5_4B, models::QWEN3_5_9B, dataset.split("train[:100]")?, eval)
        }
    };
    let named = |given: &Option<String>, model: Model| match given {
        None => model,
        Some(name) if Path::new(name).is_dir() => Model::folder(name),
        Some(name) => Model::hub(name),
    };
    Ok(Scale {
        student: named(&arguments.student, student),
        teacher: named(&arguments.teacher, teacher),
        train,
        eval,
        name: arguments.scale,
        steps: arguments.steps,
    })
}

impl Scale {
    /// How the student is trained; the teacher and the reward are the tutorial's to add.
    pub(crate) fn recipe(&self) -> Recipe {
        match self.name {
            ScaleName::Tiny => {
                let steps = self.steps.unwrap_or(TINY_STEPS);
                Recipe {
                    num_rollout: Some(steps),
                    rollout_batch_size: Some(16),
                    n_samples_per_prompt: Some(4),
                    rollout_max_response_len: Some(48),
                    lr: Some(2e-3),
                    lr_warmup_iters: Some(60.min(steps)),
                    lr_decay_style: Some(LrDecayStyle::Cosine),
                    min_lr: Some(1e-4),
                    weight_decay: Some(0.0),
                    normalize_advantages: Some(true),
                    shuffle: Some(true),
                    save_interval: Some(TINY_STEPS / 4),
                    dtype: Some(Dtype::Float32),
                    ..self.student.recipe()
                }
            }
            ScaleName::Full => Recipe {
                num_rollout: Some(self.steps.unwrap_or(10)),
                n_samples_per_prompt: Some(4),
                rollout_max_response_len: Some(2048),
                save_interval: Some(5),
                rollout_num_gpus: Some(8),
                apply_chat_template_kwargs: Some(r#"{"enable_thinking": true}"#.into()),
                ..self.student.recipe()
            },
        }
    }

    /// How a reply is made in the evaluation.
    pub(crate) fn chat_options(&self) -> ChatOptions {
        match self.name {
            ScaleName::Tiny => ChatOptions { temperature: Some(0.0), max_tokens: Some(48), ..ChatOptions::default() },
            ScaleName::Full => ChatOptions::default().chat_template_kwarg("enable_thinking", true),
        }
    }
}

/// Rollout steps of the tiny scale.
const TINY_STEPS: u64 = 600;

/// What was started, to be stopped however the program ends.
#[derive(Default)]
pub(crate) struct Started {
    deployments: Vec<Deployment>,
    run: Option<TrainRun>,
}

impl Started {
    /// Remembers a deployment.
    pub(crate) fn deployment(&mut self, deployment: &Deployment) {
        self.deployments.push(deployment.clone());
    }

    /// Remembers the run.
    pub(crate) fn run(&mut self, run: &TrainRun) {
        self.run = Some(run.clone());
    }

    /// Stops all of it. What has ended already is no fault.
    pub(crate) async fn stop(&self) {
        if let Some(run) = &self.run
            && let Err(error) = run.cancel().await
        {
            tracing::debug!("the run was not cancelled: {error}");
        }
        for deployment in &self.deployments {
            if let Err(error) = deployment.stop().await {
                eprintln!("warning: {} was not stopped: {error}", deployment.app_name());
            }
        }
    }
}

/// The table at the end.
pub(crate) struct Outcome {
    pub(crate) teacher: EvalReport,
    pub(crate) base: EvalReport,
    pub(crate) trained: EvalReport,
}

impl Outcome {
    /// Prints the table, and the line of JSON if asked for.
    pub(crate) fn print(&self, arguments: &Arguments, seconds: f64) -> Result<()> {
        println!("\n{:<16} {:>9} {:>8} {:>9}", "", "accuracy", "±", "problems");
        for (name, report) in
            [("teacher", &self.teacher), ("base student", &self.base), ("trained student", &self.trained)]
        {
            let accuracy = report.accuracy();
            let error = accuracy.standard_error.map_or_else(|| "-".to_owned(), |error| format!("{:.1}", 100.0 * error));
            println!("{name:<16} {:>8.1}% {error:>8} {:>9}", 100.0 * accuracy.value, accuracy.rows);
        }
        println!("{seconds:.0} s, seed {}", arguments.seed);
        if arguments.json {
            let line = serde_json::json!({
                "teacher": self.teacher.accuracy().value,
                "base": self.base.accuracy().value,
                "trained": self.trained.accuracy().value,
                "n": self.trained.accuracy().rows,
                "seconds": seconds,
                "seed": arguments.seed,
            });
            println!("{}", serde_json::to_string(&line).context("the report is numbers")?);
        }
        Ok(())
    }
}
