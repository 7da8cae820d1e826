//! The rows of the assets: what models are pretrained on, distilled on, and judged by.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::problem::{Problem, Split};
use super::random::Random;
use super::trace::{Corruption, Trace};

/// Fewest operations in a problem.
const FEWEST: i64 = 3;
/// Most.
const MOST: i64 = 4;

fn draw(random: &mut Random, split: Split) -> Problem {
    let operations = random.between(FEWEST, MOST) as usize;
    Problem::draw(random, operations, split)
}

/// Writes worked solutions for pretraining: `{"prompt", "response", "unscored"}` a line.
pub(super) fn write_traces(path: &Path, count: usize, corruption: Corruption, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let rows = (0..count).map(|_| {
        let problem = draw(&mut random, Split::Train);
        let prompt = problem.prompt(&mut random);
        Trace::write(&problem, corruption, &mut random).row(&prompt)
    });
    write_lines(path, rows)
}

/// Writes distinct problems with their answers, as a dataset of the hub holds them:
/// `{"prompt", "label"}` a line.
pub(super) fn write_problems(path: &Path, count: usize, split: Split, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let mut prompts = HashSet::with_capacity(count);
    let rows = std::iter::repeat_with(|| {
        let problem = draw(&mut random, split);
        (problem.prompt(&mut random), problem.answer())
    })
    .filter(|(prompt, _)| prompts.insert(prompt.clone()))
    .map(|(prompt, answer)| json!({ "prompt": [{ "role": "user", "content": prompt }], "label": answer.to_string() }))
    .take(count);
    write_lines(path, rows)
}

fn write_lines(path: &Path, rows: impl Iterator<Item = Value>) -> Result<()> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut out = BufWriter::new(file);
    for row in rows {
        serde_json::to_writer(&mut out, &row)?;
        out.write_all(b"\n")?;
    }
    out.flush().with_context(|| format!("cannot write {}", path.display()))
}
