//! Worked solutions as ids, with the tokens that carry loss.

use std::io::BufRead;
use std::path::Path;

use serde::Deserialize;
use serde_json::Map;
use training_gym_core::sample::Prompt;

use super::Error;
use crate::text::TextPipeline;

/// A line of the rows file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// Chat messages, or raw text.
    prompt: Prompt,
    /// What the model should answer; the end token is added here.
    response: String,
    /// Byte ranges of the response that are read but not learnt.
    #[serde(default)]
    unscored: Vec<(usize, usize)>,
}

/// A prompt with its response, ready to be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Example {
    /// Prompt, response and end token.
    pub(super) ids: Vec<i64>,
    /// Positions in `ids` whose token carries loss, each ≥ 1.
    pub(super) scored: Vec<usize>,
}

/// Reads a file of rows.
///
/// # Errors
/// Names the file and the line that cannot be read or has nothing to learn.
pub(super) fn read(path: &Path, text: &TextPipeline) -> Result<Vec<Example>, Error> {
    let unreadable = |source| Error::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut examples = Vec::new();
    for (index, line) in std::io::BufReader::new(file).lines().enumerate() {
        let line = line.map_err(unreadable)?;
        if line.trim().is_empty() {
            continue;
        }
        let bad = |problem: String| Error::Row { path: path.to_owned(), line: index + 1, problem };
        let row: Row = serde_json::from_str(&line).map_err(|error| bad(error.to_string()))?;
        let example = encode(&row, text)?;
        if example.scored.is_empty() {
            return Err(bad("no token of the response carries loss".to_owned()));
        }
        examples.push(example);
    }
    if examples.is_empty() {
        return Err(Error::NoRows { path: path.to_owned() });
    }
    Ok(examples)
}

fn encode(row: &Row, text: &TextPipeline) -> Result<Example, Error> {
    let tokenizer = text.tokenizer();
    let chat = matches!(row.prompt, Prompt::Messages(_));
    let mut ids = text.prompt_ids(&row.prompt, chat, &Map::new())?;
    let end = *tokenizer.eos_token_ids().first().ok_or(Error::NoEndToken)?;
    let start = ids.len();
    ids.extend(tokenizer.encode(&row.response, false)?);
    let mut scored = Vec::with_capacity(ids.len() - start + 1);
    let mut from = 0;
    for position in start..ids.len() {
        let to = tokenizer.decode(&ids[start..=position], false).len();
        if !row.unscored.iter().any(|&(low, high)| low < to && from < high) {
            scored.push(position);
        }
        from = to;
    }
    scored.push(ids.len());
    ids.push(end);
    if start == 0 {
        // Nothing precedes the first token, so nothing predicts it.
        scored.retain(|&position| position > 0);
    }
    Ok(Example { ids, scored })
}
