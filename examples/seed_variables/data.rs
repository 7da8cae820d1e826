//! The rows: prepared once below the data folder, and found there again.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use training_gym::dataset::HuggingFaceDataset;
use training_gym::external::serde_json;
use training_gym::gym::Gym;
use training_gym::prepare::{Preparation, Report};

use super::knobs::{Knobs, thinking};

/// Evaluation sources in the order of preference: the smaller, the oftener they can be asked.
const EVALUATED: [&str; 4] = ["eval-aime2024.jsonl", "eval-aime2025.jsonl", "eval-math500.jsonl", "validation.jsonl"];

/// What a training needs.
#[derive(Clone, Debug)]
pub struct Data {
    /// The training rows.
    pub train: HuggingFaceDataset,
    /// How many there are.
    pub rows: u64,
    /// Held-out rows: AIME where it is there, else MATH-500, else a part of the training file.
    pub eval: Option<HuggingFaceDataset>,
}

/// The prepared rows; prepared now where they are not there.
///
/// # Errors
/// When the data folder lacks its files, or they cannot be prepared.
pub async fn data(knobs: &Knobs, gym: &Gym) -> Result<Data> {
    let folder = knobs.data_dir.join(format!("prepared-{}-{}", knobs.instruction, knobs.max_prompt_length));
    let report = match read(&folder)? {
        Some(report) => report,
        None => {
            println!("preparing {}", folder.display());
            let mut preparation = Preparation::new(&folder)
                .data_folder(&knobs.data_dir)?
                .instruction(Some(knobs.instruction))
                .tokenizer(knobs.model)
                .max_prompt_len(knobs.max_prompt_length)
                .on(gym);
            if let Some(on) = knobs.enable_thinking {
                preparation = preparation.chat_template_kwargs(thinking(on));
            }
            let report = preparation.await?;
            println!("{report}");
            report
        }
    };
    let train = report.sources.iter().flat_map(|source| &source.written).find(|file| file.file == "train.jsonl");
    let rows = train.map(|file| file.rows).with_context(|| {
        format!("{} has no training rows: put {} into DATA_DIR", folder.display(), training_gym::prepare::DAPO)
    })?;
    let file = |name: &str| HuggingFaceDataset::file(folder.join(name)).label_key("label");
    let eval = EVALUATED.iter().find(|name| folder.join(name).is_file());
    let eval = eval.map(|name| file(name).limit(knobs.most_evaluated()));
    Ok(Data { train: file("train.jsonl"), rows, eval })
}

fn read(folder: &Path) -> Result<Option<Report>> {
    let path: PathBuf = folder.join("report.json");
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let what = || format!("{} is none of ours: remove the folder to prepare it anew", path.display());
    serde_json::from_slice(&text).map(Some).with_context(what)
}
