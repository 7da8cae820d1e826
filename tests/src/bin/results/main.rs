//! Whether the methods learn: each a row of a table, three seeds each, at tiny scale.
//!
//! What was measured is a line of `measured.jsonl` in the state folder; a row that is there is not measured
//! again, and a run that was cut goes on. `cargo xtask results` starts it.

mod measure;
mod page;
mod rows;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use training_gym::prelude::*;

use measure::{Assets, Ledger, Line};
use rows::{ROWS, SEEDS};

/// Measures the rows that are missing, and writes the page.
#[derive(Debug, Parser)]
struct Arguments {
    /// State folder: runs, and what was measured
    #[arg(long)]
    home: PathBuf,
    /// The repository
    #[arg(long)]
    root: PathBuf,
    /// Only these rows
    #[arg(long)]
    row: Vec<String>,
    /// Only this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Measure nothing: write the page, and say what is missing
    #[arg(long)]
    page: bool,
    /// Stop before a row that would begin later than this
    #[arg(long)]
    minutes: Option<f64>,
}

impl Arguments {
    fn asks_for(&self, row: &str, seed: u64) -> bool {
        let named = self.row.is_empty() || self.row.iter().any(|asked| asked == row);
        named && self.seed.is_none_or(|only| only == seed || seed == 0)
    }
}

#[training_gym::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let began = Instant::now();
    let gym = Gym::local(&arguments.home)?;
    let assets = Assets::of(&arguments.root);
    let mut ledger = Ledger::open(&arguments.home.join("measured.jsonl"))?;
    // Seed by seed: an unfinished table has every row before any has its second seed.
    let wanted = SEEDS.into_iter().flat_map(|seed| ROWS.iter().map(move |row| (row, seed)));
    let starts = measure::STARTS.into_iter().map(|start| (start, 0));
    if !arguments.page {
        for (name, seed) in starts {
            if !ledger.has(name, seed) && (arguments.row.is_empty() || arguments.asks_for(name, seed)) {
                let accuracy = measure::accuracy(&gym, assets.start(name), &assets).await?;
                ledger.add(Line::start(name, accuracy))?;
            }
        }
        for (row, seed) in wanted {
            let late = arguments.minutes.is_some_and(|most| began.elapsed().as_secs_f64() > 60.0 * most);
            if late || ledger.has(row.name, seed) || !arguments.asks_for(row.name, seed) {
                continue;
            }
            eprintln!("results: {} with seed {seed}", row.name);
            let line = measure::row(&gym, row, (seed, &assets)).await;
            let line = line.with_context(|| format!("the row {} with seed {seed}", row.name))?;
            ledger.add(line)?;
            page::write(&arguments.root.join("docs/results.md"), &ledger)?;
        }
    }
    page::write(&arguments.root.join("docs/results.md"), &ledger)?;
    let missing = page::missing(&ledger);
    println!("{} of {} measured", ROWS.len() * SEEDS.len() - missing.len(), ROWS.len() * SEEDS.len());
    for (row, seed) in missing {
        println!("missing: {row} with seed {seed}");
    }
    Ok(())
}
