//! Tokenizer, end tokens and chat template.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use training_gym_core::sample::Message;

use super::{Report, sentence};
use crate::text::{ChatTemplate, RenderOptions, Tokenizer};

/// What the tokenizer holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Tokens {
    /// Tokens, added ones included.
    pub(super) tokens: u64,
    /// Rows of the embedding.
    pub(super) rows: Option<u64>,
    /// End tokens by id, with their text.
    pub(super) eos: BTreeMap<i64, String>,
}

/// What a probe of the template says.
const QUESTION: &str = "What is two and two?";
const ANSWER: &str = "Four, as a probe.";

/// Looks at the text files of a folder whose model has `rows` embeddings.
pub(super) fn look(folder: &Path, rows: Option<u64>, report: &mut Report) {
    let tokenizer = match Tokenizer::from_folder(folder) {
        Ok(tokenizer) => {
            tokens(&tokenizer, rows, report);
            Some(tokenizer)
        }
        Err(error @ crate::text::Error::NoTokenizer { .. }) => {
            report.notes.push(sentence(&error));
            None
        }
        Err(error) => {
            report.problem(&error);
            None
        }
    };
    let template = match ChatTemplate::from_folder(folder) {
        Ok(Some(template)) => template,
        Ok(None) => {
            report.chat_template = Some("none".to_owned());
            report.notes.push("there is no chat template: prompts must be raw text".to_owned());
            return;
        }
        Err(error) => return failed(&error, report),
    };
    match probe(&template) {
        Ok(text) => {
            report.chat_template = Some("ok".to_owned());
            check_probe(&text, tokenizer.as_ref(), report);
        }
        Err(error) => failed(&error, report),
    }
}

fn failed(error: &crate::text::Error, report: &mut Report) {
    report.chat_template = Some(sentence(error));
    report.problem(error);
}

fn tokens(tokenizer: &Tokenizer, rows: Option<u64>, report: &mut Report) {
    let count = tokenizer.vocab_size() as u64;
    if let Some(rows) = rows.filter(|rows| *rows < count) {
        report.problems.push(format!("the tokenizer has {count} tokens, the embedding {rows} rows"));
    }
    let ids = tokenizer.eos_token_ids();
    if ids.is_empty() {
        report.problems.push(
            "no file names an end token: responses would never end (set eos_token_id in generation_config.json)"
                .to_owned(),
        );
    }
    let mut eos = BTreeMap::new();
    for &id in ids {
        let text = tokenizer.token_text(id);
        if text.is_empty() {
            report.problems.push(format!("end token {id} is not in the tokenizer"));
        }
        if rows.is_some_and(|rows| id < 0 || id as u64 >= rows) {
            report.problems.push(format!("end token {id} has no row of the embedding"));
        }
        eos.insert(id, text);
    }
    for attribute in ["bos_token", "eos_token", "pad_token", "unk_token"] {
        let Some(text) = tokenizer.special_tokens().get(attribute) else { continue };
        let id = match tokenizer.encode(text, false).as_deref() {
            Ok(&[id]) => id,
            _ => {
                report.problems.push(format!("{attribute} `{text}` is no token of the tokenizer"));
                continue;
            }
        };
        if attribute == "eos_token" && !ids.is_empty() && !ids.contains(&id) {
            report.notes.push(format!("the tokenizer's eos_token `{text}` ({id}) is not among the end tokens {ids:?}"));
        }
    }
    report.tokenizer = Some(Tokens { tokens: count, rows, eos });
}

fn probe(template: &ChatTemplate) -> Result<String, crate::text::Error> {
    let talk = [Message::new("user", QUESTION), Message::new("assistant", ANSWER), Message::new("user", QUESTION)];
    template.render(&talk, &RenderOptions { add_generation_prompt: true, ..RenderOptions::default() })
}

/// What a rendered conversation must hold: the words, and an end of the assistant's turn.
fn check_probe(text: &str, tokenizer: Option<&Tokenizer>, report: &mut Report) {
    let Some((_, after)) = text.split_once(ANSWER) else {
        report.problems.push("the chat template leaves out what the assistant said".to_owned());
        return;
    };
    if text.matches(QUESTION).count() != 2 {
        report.problems.push("the chat template leaves out what the user said".to_owned());
    }
    let Some(tokenizer) = tokenizer else { return };
    let turn = after.split(QUESTION).next().unwrap_or_default();
    let mut ends = tokenizer.eos_token_ids().iter().map(|&id| tokenizer.token_text(id));
    if !ends.any(|end| !end.is_empty() && turn.contains(&end)) {
        report.notes.push(
            "the chat template ends the assistant's turn with none of the end tokens: chats may run on".to_owned(),
        );
    }
}
