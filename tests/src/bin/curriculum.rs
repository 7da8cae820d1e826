//! A person's program of several runs: what the suite of curricula launches, kills, and launches again.
//!
//! It prints `stage NAME RUN CHECKPOINT` for each stage that is done.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use training_gym::prelude::*;

/// The share of vowels.
#[training_gym::reward]
async fn vowels(sample: &mut Sample) -> Result<f64, RewardError> {
    let vowels = sample.response.chars().filter(|c| "aeiou".contains(*c)).count();
    Ok(vowels as f64 / sample.response_length.max(1) as f64)
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Named {
    Sft,
    TeacherRl,
    WarmUp,
    Opd,
    StudentRl,
    Replay,
}

#[derive(Debug, Parser)]
struct Arguments {
    /// State folder
    #[arg(long)]
    home: PathBuf,
    #[arg(long)]
    student: PathBuf,
    #[arg(long)]
    teacher: PathBuf,
    /// JSON lines
    #[arg(long)]
    dataset: PathBuf,
    #[arg(long, default_value = "bridge")]
    program: String,
    #[arg(long, value_delimiter = ',')]
    stages: Vec<Named>,
    /// Rollout steps of each
    #[arg(long, default_value_t = 4)]
    steps: u64,
    #[arg(long, default_value_t = 1e-3)]
    lr: f64,
    /// Supervised fine-tuning on what this run recorded, as the stage `again`, and nothing else
    #[arg(long)]
    recorded: Option<String>,
}

impl Arguments {
    fn stage(&self, name: Named, more: Recipe) -> Option<Stage> {
        let recipe = Recipe {
            num_rollout: Some(self.steps),
            rollout_batch_size: Some(4),
            rollout_max_response_len: Some(24),
            save_interval: Some(1),
            lr: Some(self.lr),
            grade_truncated: Some(true),
            ..more
        };
        self.stages.contains(&name).then(|| Stage::new(self.rows(), recipe))
    }

    fn rows(&self) -> HuggingFaceDataset {
        HuggingFaceDataset::file(&self.dataset).input_key("prompt").label_key("label").apply_chat_template(true)
    }
}

#[training_gym::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let gym = Gym::local(&arguments.home)?;
    let student = Model::folder(&arguments.student);
    let rewarded = || Recipe { custom_rm_function: Some(VOWELS), ..Recipe::default() };
    if let Some(run) = &arguments.recorded {
        let responses = Some(ResponseSource::Recorded { run_id: run.parse()? });
        let recipe = Recipe {
            responses,
            num_rollout: Some(arguments.steps),
            rollout_batch_size: Some(4),
            lr: Some(arguments.lr),
            ..Recipe::default()
        };
        let config = TrainConfig { model: student, dataset: arguments.rows(), recipe };
        let done = Curriculum::new(&gym, &arguments.program).stage("again", config).await?;
        println!("stage {} {} {}", done.name(), done.result().training_run_id(), done.checkpoint());
        return Ok(());
    }
    let replay = arguments.stages.contains(&Named::Replay);
    let finish = arguments.stage(Named::StudentRl, rewarded()).map(Finish::StudentRl);
    let program = SparseToDense {
        sft: arguments
            .stage(Named::Sft, Recipe { responses: Some(ResponseSource::column("solution")), ..Recipe::default() }),
        teacher_rl: arguments.stage(Named::TeacherRl, rewarded()),
        warm_up: arguments.stage(Named::WarmUp, Recipe::default()),
        opd: arguments.stage(Named::Opd, Recipe::default()),
        // More steps than were recorded: it begins again.
        finish: if replay { Some(Finish::Replay { num_rollout: arguments.steps + 1 }) } else { finish },
        ..SparseToDense::of(student, Model::folder(&arguments.teacher))
    };
    let result = program.run(&gym, &arguments.program).await?;
    for stage in result.stages() {
        println!("stage {} {} {}", stage.name(), stage.result().training_run_id(), stage.checkpoint());
    }
    Ok(())
}
