//! The first reading: what is no good is counted and dropped, what stays is written down.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use training_gym_core::sample::{Message, Prompt, Row};

use super::report::SourceReport;
use super::{Error, Source, io};
use crate::dataset::{self, RowReader};
use crate::eval::{COLUMNS, Instruction, final_answer};

/// A question, as hashes.
#[derive(Clone, Copy, Debug)]
struct Question {
    /// Of its own words.
    words: u128,
    /// With all that is said around it.
    whole: u128,
}

/// The questions that were asked already: 48 bytes for each, about.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Whole, each with its answer's hash.
    here: HashMap<u128, u64>,
    words_here: HashSet<u128>,
    /// Words alone: whatever is said around it, it is the same question.
    in_evaluation: HashSet<u128>,
}

impl Seen {
    /// Between two evaluation sources: one may ask what another does.
    pub(super) fn next_source(&mut self) {
        self.here.clear();
        self.in_evaluation.extend(self.words_here.drain());
    }
}

/// What is done to each row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) instruction: Option<Instruction>,
    pub(super) keep_duplicates: bool,
    /// Drop what an evaluation source asks.
    pub(super) training: bool,
}

/// What stayed, in the order of the candidates' file.
pub(super) struct Sifted {
    pub(super) report: SourceReport,
    pub(super) questions: Vec<u64>,
}

/// Reads a source and writes the rows that stay to `candidates`, as JSON lines of [`Row`].
pub(super) fn sift(source: &Source, rules: Rules, seen: &mut Seen, candidates: &Path) -> Result<Sifted, Error> {
    let columns = source.columns.as_ref().map(|(question, answer)| (question.as_str(), answer.as_str()));
    let reader = RowReader::open(&source.file, columns, COLUMNS)?;
    let (input_key, label_key) = reader.columns();
    let mut report = SourceReport {
        name: source.name.clone(),
        file: source.file.display().to_string(),
        input_key: input_key.to_owned(),
        label_key: label_key.to_owned(),
        ..SourceReport::default()
    };
    let mut out = BufWriter::new(File::create(candidates).map_err(io("create", candidates))?);
    let mut questions = Vec::new();
    let mut failed = None;
    reader
        .each(&mut |row| {
            report.read += 1;
            let row = match row {
                Ok(row) => row,
                Err(error @ dataset::Error::Value { .. } | error @ dataset::Error::NoColumn { .. }) => {
                    report.unusable += 1;
                    report.first_unusable.get_or_insert_with(|| error.to_string());
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let Some(row) = framed(row, rules.instruction, &source.name) else {
                report.unusable += 1;
                report.first_unusable.get_or_insert_with(|| format!("row {}: no message of the user", report.read - 1));
                return Ok(());
            };
            let (row, question) = row;
            if row.label.is_empty() {
                report.unlabelled += 1;
                return Ok(());
            }
            if rules.training && seen.in_evaluation.contains(&question.words) {
                report.in_evaluation += 1;
                return Ok(());
            }
            let label = hash(&row.label) as u64;
            seen.words_here.insert(question.words);
            match seen.here.entry(question.whole) {
                Entry::Occupied(first) if !rules.keep_duplicates => {
                    report.duplicates += 1;
                    report.conflicting_labels += u64::from(*first.get() != label);
                    return Ok(());
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(place) => {
                    place.insert(label);
                }
            }
            questions.push(question.whole as u64);
            let written = serde_json::to_writer(&mut out, &row).map_err(std::io::Error::from);
            if let Err(error) = written.and_then(|()| out.write_all(b"\n")) {
                failed = Some(error);
                // What stops the reading; the disk's own error is reported below.
                return Err(dataset::Error::EmptyFile { file: source.name.clone() });
            }
            Ok(())
        })
        .map_err(|error| failed.take().map_or_else(|| error.into(), io("write", candidates)))?;
    out.flush().map_err(io("write", candidates))?;
    if report.read == 0 {
        return Err(dataset::Error::EmptyFile { file: report.file }.into());
    }
    Ok(Sifted { report, questions })
}

/// The row with its question in another frame, its label short, and where it came from; and the question.
fn framed(mut row: Row, instruction: Option<Instruction>, source: &str) -> Option<(Row, Question)> {
    let messages = match row.prompt {
        Prompt::Text(text) => vec![Message::user(text)],
        Prompt::Messages(messages) => messages,
    };
    let mut messages = messages;
    let last = messages.iter().rposition(|message| message.role == "user")?;
    let text = messages[last].content.as_str()?.to_owned();
    let bare = Instruction::bare(&text);
    if let Some(instruction) = instruction {
        messages[last].content = instruction.frame(bare).into();
    }
    let words = bare.split_whitespace().collect::<Vec<_>>().join(" ");
    let around = messages.iter().enumerate().filter(|(at, _)| *at != last);
    let around: String = around.map(|(_, message)| message.content.to_string()).collect();
    let question = Question { words: hash(&words), whole: hash(&format!("{around}{words}")) };
    row.prompt = Prompt::Messages(messages);
    row.label = final_answer(&row.label).to_owned();
    row.metadata.insert("source".to_owned(), source.into());
    Some((row, question))
}

fn hash(text: &str) -> u128 {
    let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    digest[..16].iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}
