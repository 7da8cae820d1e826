//! What `config.json` says, and the memory that follows from it.

use serde::Serialize;
use serde_json::Value;
use tch::Kind;

use super::weights::Weights;
use crate::model::{Footprint, ModelConfig};

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
    /// Weights that are loaded; of a model this runtime does not compute, all that are stored.
    pub(super) serve_weights: u64,
    /// Keys and values of one token; not known of a model this runtime does not compute.
    pub(super) cache_per_token: Option<u64>,
    /// What a running sequence takes however long it is; as known.
    pub(super) state_per_sequence: Option<u64>,
    /// Both, of one sequence as long as the model allows.
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

impl Shape {
    /// Of a model this runtime computes.
    pub(super) fn known(config: &ModelConfig) -> Self {
        Self {
            family: Some(config.architecture.name().to_owned()),
            supported: true,
            context_length: Some(config.max_position_embeddings as u64),
            vocab_size: Some(config.vocab_size as u64),
            tied: config.tie_word_embeddings,
        }
    }

    /// What a config says that is not understood as a whole.
    pub(super) fn unknown(config: &Value) -> Self {
        let named = config.pointer("/architectures/0").or_else(|| config.get("model_type")).and_then(Value::as_str);
        let count = |key: &str| setting(config, key).and_then(Value::as_u64);
        Self {
            family: named.map(str::to_owned),
            supported: false,
            context_length: count("max_position_embeddings"),
            vocab_size: count("vocab_size"),
            tied: setting(config, "tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
        }
    }
}

/// What serving and training take.
pub(super) fn memory(weights: &Weights, config: Option<&ModelConfig>) -> Memory {
    let (largest, _) = weights.dtypes.iter().max_by_key(|(_, count)| **count).unzip();
    let (dtype, kind) = match largest.map(String::as_str) {
        Some("F32") => ("float32", Kind::Float),
        Some("F16") => ("float16", Kind::Half),
        _ => ("bfloat16", Kind::BFloat16),
    };
    let Some(config) = config else {
        let size = kind.elt_size_in_bytes() as u64;
        // A float32 weight is its own master.
        let master = if size == FLOAT { 0 } else { FLOAT };
        return Memory {
            dtype,
            serve_weights: weights.parameters.saturating_mul(size),
            cache_per_token: None,
            state_per_sequence: None,
            cache_full_context: None,
            train: weights.parameters.saturating_mul(size + master + 3 * FLOAT),
        };
    };
    let Footprint { weights, cache_per_token, state_per_sequence, train } = Footprint::of(config, kind);
    let context = config.max_position_embeddings as u64;
    Memory {
        dtype,
        serve_weights: weights,
        cache_per_token: Some(cache_per_token),
        state_per_sequence: Some(state_per_sequence),
        cache_full_context: Some(cache_per_token.saturating_mul(context).saturating_add(state_per_sequence)),
        train,
    }
}
