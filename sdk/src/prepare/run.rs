//! Sift, count, split, write, place.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use training_gym_core::sample::Row;
use training_gym_core::splitmix::{GAMMA, mixed};

use super::folder::{Folder, REPORT};
use super::lengths::Counter;
use super::report::{Lengths, Report, SourceReport, Written};
use super::sift::{Rules, Seen, Sifted, sift};
use super::{Error, Preparation, Source, io};

/// Below the folder while it is made: rows that passed the first reading.
const CANDIDATES: &str = "candidates.tmp";

pub(super) async fn run(asked: Preparation) -> Result<Report, Error> {
    asked.check()?;
    let folder = Folder::begin(&asked.out, asked.replace)?;
    let counter = match asked.tokenizer {
        Some(model) => Some(Counter::new(asked.gym.clone(), model).await?),
        None => None,
    };
    let mut seen = Seen::default();
    let mut sources = Vec::new();
    // Evaluation first: what it asks is not trained on.
    let order = asked.eval.iter().map(|source| (source, false)).chain(asked.train.iter().map(|source| (source, true)));
    for (source, training) in order {
        let candidates = folder.path().join(CANDIDATES);
        let rules = Rules { instruction: asked.instruction, keep_duplicates: asked.keep_duplicates, training };
        seen.next_source();
        let (read, to, mut memory) = (source.clone(), candidates.clone(), seen);
        let sifted = blocking(move || {
            let sifted = sift(&read, rules, &mut memory, &to);
            Ok((sifted?, memory))
        });
        let (Sifted { report, questions }, memory) = sifted.await?;
        seen = memory;
        let tokens = match &counter {
            Some(counter) if !questions.is_empty() => {
                let tokens = counter.count(&asked, &candidates, &source.name).await?;
                if tokens.len() != questions.len() {
                    let said = format!("{} counts came for {} rows", tokens.len(), questions.len());
                    return Err(Error::Lengths { source_name: source.name.clone(), said });
                }
                Some(tokens)
            }
            _ => None,
        };
        let plan = Plan::new(&asked, (training, &questions), tokens);
        let (to, name) = (folder.path().to_owned(), source.clone());
        sources.push(blocking(move || plan.write(&name, report, &candidates, &to)).await?);
    }
    let report = Report {
        version: 1,
        seed: asked.seed,
        validation: asked.validation,
        instruction: asked.instruction.map_or_else(|| "keep".to_owned(), |instruction| instruction.to_string()),
        tokenizer: asked.tokenizer.map(|model| model.to_string()),
        max_prompt_len: asked.tokenizer.map(|_| asked.max_prompt_len),
        sources,
    };
    let document = report.clone();
    blocking(move || {
        let candidates = folder.path().join(CANDIDATES);
        std::fs::remove_file(&candidates).map_err(io("remove", &candidates))?;
        let path = folder.path().join(REPORT);
        let text = serde_json::to_vec_pretty(&document).map_err(std::io::Error::from).map_err(io("write", &path))?;
        std::fs::write(&path, text).map_err(io("write", &path))?;
        folder.place()
    })
    .await?;
    Ok(report)
}

/// Runs file work where it may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    // The parquet library panics on some broken files.
    done.unwrap_or_else(|panic| Err(io("read", "a data file")(panic.into())))
}

/// Where each candidate goes.
struct Plan {
    /// Each candidate's tokens, where they were counted.
    tokens: Option<Vec<u32>>,
    max_prompt_len: u32,
    /// Whether each candidate is held out; empty for none.
    held_out: Vec<bool>,
    training: bool,
}

impl Plan {
    fn new(asked: &Preparation, (training, questions): (bool, &[u64]), tokens: Option<Vec<u32>>) -> Self {
        let max_prompt_len = u32::try_from(asked.max_prompt_len).unwrap_or(u32::MAX);
        let mut plan = Self { tokens, max_prompt_len, held_out: Vec::new(), training };
        if training && asked.validation > 0.0 {
            let keys: Vec<u64> =
                questions.iter().map(|question| mixed(question ^ mixed(asked.seed.wrapping_add(GAMMA)))).collect();
            let mut ranked: Vec<u64> =
                keys.iter().enumerate().filter(|(row, _)| plan.fits(*row)).map(|(_, key)| *key).collect();
            ranked.sort_unstable();
            let held_out = (ranked.len() as f64 * asked.validation).round() as usize;
            // By the key and not the place: rows with one question stay together.
            let below = ranked.get(held_out).copied();
            plan.held_out = keys.iter().map(|key| below.is_none_or(|below| *key < below)).collect();
        }
        plan
    }

    fn fits(&self, row: usize) -> bool {
        self.tokens.as_ref().is_none_or(|tokens| tokens[row] <= self.max_prompt_len)
    }

    /// Writes the candidates that fit, and completes the report.
    fn write(
        self,
        source: &Source,
        mut report: SourceReport,
        candidates: &Path,
        folder: &Path,
    ) -> Result<SourceReport, Error> {
        let main = if self.training { "train.jsonl".to_owned() } else { format!("eval-{}.jsonl", source.name) };
        let mut main = Output::create(folder, main)?;
        let mut validation = match self.held_out.is_empty() {
            true => None,
            false => Some(Output::create(folder, "validation.jsonl".to_owned())?),
        };
        let lines = BufReader::new(File::open(candidates).map_err(io("read", candidates))?).lines();
        let mut kept = Vec::new();
        for (index, line) in lines.enumerate() {
            let line = line.map_err(io("read", candidates))?;
            if !self.fits(index) {
                report.too_long += 1;
                continue;
            }
            report.kept += 1;
            kept.extend(self.tokens.as_ref().map(|tokens| tokens[index]));
            match &mut validation {
                Some(validation) if self.held_out[index] => validation.row(&line)?,
                _ => main.row(&line)?,
            }
        }
        if report.kept == 0 {
            let why = format!(
                "of {} rows {} were unusable, {} had no label, {} were in an evaluation, {} had too many tokens",
                report.read, report.unusable, report.unlabelled, report.in_evaluation, report.too_long
            );
            return Err(Error::NothingLeft { source_name: source.name.clone(), why });
        }
        report.tokens = Lengths::of(kept);
        report.written.push(main.finish()?);
        if let Some(validation) = validation {
            report.written.push(validation.finish()?);
        }
        Ok(report)
    }
}

/// A file of rows that is being written.
struct Output {
    path: std::path::PathBuf,
    name: String,
    out: BufWriter<File>,
    hash: Sha256,
    rows: u64,
}

impl Output {
    fn create(folder: &Path, name: String) -> Result<Self, Error> {
        let path = folder.join(&name);
        let out = BufWriter::new(File::create(&path).map_err(io("create", &path))?);
        Ok(Self { path, name, out, hash: Sha256::new(), rows: 0 })
    }

    /// A candidate, its metadata as columns again: so every reader of datasets finds prompt, label and the rest.
    fn row(&mut self, line: &str) -> Result<(), Error> {
        let write = |error: std::io::Error| io("write", &self.path)(error);
        let row: Row = serde_json::from_str(line).map_err(std::io::Error::from).map_err(write)?;
        let mut columns = Map::new();
        let prompt = serde_json::to_value(&row.prompt).map_err(std::io::Error::from).map_err(write)?;
        columns.insert("prompt".to_owned(), prompt);
        columns.insert("label".to_owned(), Value::String(row.label));
        for (name, value) in row.metadata {
            let taken = columns.contains_key(&name);
            columns.insert(if taken { format!("original_{name}") } else { name }, value);
        }
        let mut text = Value::Object(columns).to_string();
        text.push('\n');
        self.hash.update(text.as_bytes());
        self.rows += 1;
        self.out.write_all(text.as_bytes()).map_err(write)
    }

    fn finish(mut self) -> Result<Written, Error> {
        self.out.flush().map_err(io("write", &self.path))?;
        let sha256 = self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Written { file: self.name, rows: self.rows, sha256 })
    }
}
