//! `gym-runtime check`: what needs a tokenizer or a template, asked without computing, so that the
//! SDK can refuse a launch before anything starts.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Map, Value};
use training_gym_core::sample::Row;

use crate::model::ModelConfig;
use crate::text::TextPipeline;

/// What to check.
#[derive(Debug)]
pub struct Request {
    /// The model's folder.
    pub model: PathBuf,
    /// Rows to render and count.
    pub rows: Option<PathBuf>,
    /// Treat prompts as raw text.
    pub raw: bool,
    /// The template's variables, a JSON object.
    pub chat_template_kwargs: String,
    /// Prompts of more tokens are counted as too long.
    pub max_prompt_len: Option<usize>,
    /// Say each row's tokens, and refuse none.
    pub each: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    family: String,
    vocab_size: usize,
    context_length: usize,
    eos_token_ids: Vec<i64>,
    vocab_sha256: String,
    rows: usize,
    longest_prompt: usize,
    too_long: usize,
    /// Prompts by their tokens: (at most so many, how many), in powers of two.
    lengths: Vec<(usize, usize)>,
    /// Each row's tokens, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<usize>>,
    /// What the model has and is not computed.
    note: Option<String>,
}

/// What is known of a model by its `config.json` alone.
#[derive(Debug, Serialize)]
struct Family {
    family: String,
    context_length: usize,
}

/// Prints a model's family as JSON, from its `config.json`: the question before a download.
///
/// # Errors
/// When the file cannot be read, or says something that is not computed here.
pub fn family(path: &Path) -> Result<()> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let value = serde_json::from_slice(&bytes).with_context(|| format!("{} is not JSON", path.display()))?;
    let config = ModelConfig::from_json(&value)?;
    let family = config.architecture.name().to_owned();
    println!("{}", serde_json::to_string(&Family { family, context_length: config.max_position_embeddings })?);
    Ok(())
}

/// Prints a JSON report.
///
/// # Errors
/// Whatever a run would fail on at its start: the model's config, its tokenizer or template, a row.
pub fn run(request: &Request) -> Result<()> {
    println!("{}", serde_json::to_string(&report(request)?)?);
    Ok(())
}

fn report(request: &Request) -> Result<Report> {
    let config = ModelConfig::from_folder(&request.model)?;
    let text = TextPipeline::from_folder(&request.model)?;
    let kwargs: Map<String, Value> =
        serde_json::from_str(&request.chat_template_kwargs).context("--chat-template-kwargs is not a JSON object")?;
    let context_length = config.max_position_embeddings;
    let limit = request.max_prompt_len.unwrap_or(context_length - 1);
    let (mut rows, mut longest, mut too_long) = (0, 0, 0);
    let mut lengths = BTreeMap::new();
    let mut tokens = request.each.then(Vec::new);
    if let Some(path) = &request.rows {
        let cannot_read = || format!("cannot read {}", path.display());
        let lines = BufReader::new(File::open(path).with_context(cannot_read)?).lines();
        // One line at a time: a whole dataset may be asked about.
        for (index, line) in lines.enumerate() {
            let line = line.with_context(cannot_read)?;
            if line.is_empty() {
                continue;
            }
            let row: Row =
                serde_json::from_str(&line).with_context(|| format!("line {} of {}", index + 1, path.display()))?;
            let ids = text
                .prompt_ids(&row.prompt, !request.raw, &kwargs)
                .with_context(|| format!("row {index} cannot be made a prompt"))?;
            rows += 1;
            *lengths.entry(ids.len().next_power_of_two()).or_insert(0) += 1;
            longest = longest.max(ids.len());
            too_long += usize::from(ids.len() > limit);
            if let Some(tokens) = &mut tokens {
                tokens.push(ids.len());
            }
        }
        if rows == 0 {
            bail!("{} has no row", path.display());
        }
        if too_long == rows && !request.each {
            bail!("every one of the {rows} prompts has more than {limit} tokens; raise recipe.rollout_max_prompt_len");
        }
    }
    Ok(Report {
        family: config.architecture.name().to_owned(),
        vocab_size: config.vocab_size,
        context_length: config.max_position_embeddings,
        eos_token_ids: text.tokenizer().eos_token_ids().to_vec(),
        rows,
        longest_prompt: longest,
        too_long,
        vocab_sha256: text.vocab_sha256(),
        lengths: lengths.into_iter().collect(),
        tokens,
        note: config.note(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::byte_tokenizer::write_byte_tokenizer;

    #[test]
    fn each_rows_tokens_are_said_and_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        write_byte_tokenizer(folder.path());
        let config = serde_json::json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 8, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
            "vocab_size": 512, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
            "tie_word_embeddings": true, "hidden_act": "silu", "eos_token_id": 510
        });
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let rows = folder.path().join("rows.jsonl");
        std::fs::write(&rows, "{\"prompt\": \"ab\"}\n\n{\"prompt\": \"abcd\"}\n").unwrap();
        let request = |each| Request {
            model: folder.path().to_owned(),
            rows: Some(rows.clone()),
            raw: true,
            chat_template_kwargs: "{}".to_owned(),
            max_prompt_len: Some(1),
            each,
        };
        let counted = report(&request(true)).unwrap();
        let tokens = counted.tokens.unwrap();
        assert_eq!((tokens.len(), tokens[1] - tokens[0]), (2, 2), "a byte a token");
        assert_eq!((counted.too_long, counted.longest_prompt), (2, tokens[1]));
        let error = report(&request(false)).unwrap_err().to_string();
        assert!(error.contains("every one of the 2 prompts"), "{error}");
    }
}
