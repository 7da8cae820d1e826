//! What `config.json` says, and the memory that follows from it.

use serde::Serialize;
use serde_json::Value;

use super::weights::Weights;
use crate::model::ModelConfig;

/// The model's shape, as far as its config tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Shape {
    /// The class in `architectures`, else `model_type`.
    pub(super) family: Option<String>,
    /// Whether this runtime computes it.
    pub(super) supported: bool,
    /// The longest sequence.
    pub(super) context_length: Option<u64>,
    /// Rows of the embedding.
    pub(super) vocab_size: Option<u64>,
    /// The output projection is the embedding.
    pub(super) tied: bool,
}

/// Bytes needed, in the type of the weights (bfloat16 where they are quantised).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Memory {
    /// The type.
    pub(super) dtype: &'static str,
    /// Weights.
    pub(super) serve_weights: u64,
    /// Keys and values of one token.
    pub(super) cache_per_token: Option<u64>,
    /// Keys and values of one sequence as long as the model allows.
    pub(super) cache_full_context: Option<u64>,
    /// Weights, float32 master weights, gradients and the two moments of AdamW. Activations and
    /// the rollouts' keys and values come on top: they depend on the batch.
    pub(super) train: u64,
}

/// Bytes of a float32: master weight, gradient, two moments.
const FLOAT: u64 = 4;

/// A setting, of the text part where the config is nested.
fn setting<'c>(config: &'c Value, key: &str) -> Option<&'c Value> {
    let nested = config.get("text_config").and_then(|text| text.get(key));
    nested.or_else(|| config.get(key)).filter(|value| !value.is_null())
}

fn count(config: &Value, key: &str) -> Option<u64> {
    setting(config, key).and_then(Value::as_u64)
}

/// Reads a config; and why this runtime does not compute it, where it does not.
pub(super) fn read(config: &Value) -> (Shape, Option<String>) {
    let named = config.pointer("/architectures/0").or_else(|| config.get("model_type")).and_then(Value::as_str);
    let refused = ModelConfig::from_json(config).err();
    let shape = Shape {
        family: named.map(str::to_owned),
        supported: refused.is_none(),
        context_length: count(config, "max_position_embeddings"),
        vocab_size: count(config, "vocab_size"),
        tied: setting(config, "tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
    };
    (shape, refused.map(|error| format!("this runtime does not compute the model: {error}")))
}

impl Shape {
    /// What serving and training take.
    pub(super) fn memory(&self, weights: &Weights, config: &Value) -> Memory {
        let (largest, _) = weights.dtypes.iter().max_by_key(|(_, count)| **count).unzip();
        let (dtype, size) = match largest.map(String::as_str) {
            Some("F32") => ("float32", 4),
            Some("F16") => ("float16", 2),
            _ => ("bfloat16", 2),
        };
        let parameters = weights.parameters;
        // A float32 weight is its own master.
        let master = if size == FLOAT { 0 } else { FLOAT };
        let cache_per_token = cache_per_token(config).and_then(|numbers| numbers.checked_mul(size));
        Memory {
            dtype,
            serve_weights: parameters.saturating_mul(size),
            cache_per_token,
            cache_full_context: cache_per_token
                .zip(self.context_length)
                .and_then(|(bytes, tokens)| bytes.checked_mul(tokens)),
            train: parameters.saturating_mul(size + master + 3 * FLOAT),
        }
    }
}

/// Keys and values of one token, over the layers that keep them.
fn cache_per_token(config: &Value) -> Option<u64> {
    let heads = count(config, "num_attention_heads")?;
    let kept = count(config, "num_key_value_heads").unwrap_or(heads);
    let head_dim = count(config, "head_dim").or_else(|| count(config, "hidden_size")?.checked_div(heads))?;
    let layers = count(config, "num_hidden_layers")?;
    let layers = match setting(config, "layer_types").and_then(Value::as_array) {
        Some(kinds) => kinds.iter().filter(|kind| *kind != "linear_attention").count() as u64,
        None => match count(config, "full_attention_interval") {
            Some(interval) => layers.checked_div(interval)?,
            None => layers,
        },
    };
    layers.checked_mul(kept)?.checked_mul(head_dim)?.checked_mul(2)
}
