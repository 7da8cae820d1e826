//! The models of the demo and of sparse-to-dense: their shapes, and how long each learns.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::trace::Corruption;
use super::vocabulary::{END_OF_TEXT, MESSAGE_END, id_of, pieces, tokenizer_config_json, tokenizer_json};

/// Tokens a sequence may have.
const CONTEXT_LENGTH: usize = 256;

/// A model and its pretraining.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Its folder.
    pub(super) name: &'static str,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) key_value_heads: usize,
    pub(super) head_dim: usize,
    /// Worked solutions of the whole schedule, each read once.
    pub(super) traces: usize,
    /// Optimizer steps after which it is taken away from them; `None` is the whole schedule.
    pub(super) stop_after: Option<usize>,
    pub(super) corruption: Corruption,
    pub(super) batch_size: usize,
    pub(super) lr: f64,
    pub(super) seed: u64,
}

/// Learnt well, from solutions with mistakes in them too: it knows how to go on from one.
pub(super) const TEACHER: Plan = Plan {
    name: "teacher",
    hidden_size: 96,
    intermediate_size: 256,
    layers: 3,
    heads: 4,
    key_value_heads: 2,
    head_dim: 24,
    traces: 48_000,
    stop_after: None,
    corruption: Corruption { result: 0.12, operand: 0.03 },
    batch_size: 32,
    lr: 5e-3,
    seed: 1,
};

/// The teacher before it knew enough: the beginning of sparse-to-dense, where a reward still improves it.
pub(super) const EARLY_TEACHER: Plan = Plan { name: "early-teacher", stop_after: Some(500), ..TEACHER };

/// Smaller, and stopped early, before the learning rate has come down: it writes the form, and gets fewer than half of the problems right.
pub(super) const STUDENT: Plan = Plan {
    name: "student",
    hidden_size: 64,
    intermediate_size: 192,
    layers: 2,
    heads: 4,
    key_value_heads: 2,
    head_dim: 16,
    traces: 32_000,
    stop_after: Some(410),
    corruption: Corruption::NONE,
    batch_size: 32,
    lr: 8e-3,
    seed: 2,
};

impl Plan {
    /// Writes everything of the Hugging Face folder but the weights.
    pub(super) fn write_folder(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let files = [
            ("config.json", self.config_json()),
            ("generation_config.json", generation_config_json()),
            ("tokenizer.json", tokenizer_json()),
            ("tokenizer_config.json", tokenizer_config_json(CONTEXT_LENGTH)),
        ];
        for (name, value) in files {
            let path = folder.join(name);
            let text = serde_json::to_string_pretty(&value)? + "\n";
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    fn config_json(&self) -> Value {
        json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": pieces().len(),
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": CONTEXT_LENGTH,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            "attention_bias": false,
            "attention_dropout": 0.0,
            "initializer_range": 0.08,
            "tie_word_embeddings": true,
            "use_cache": true,
            "torch_dtype": "float32",
            "bos_token_id": null,
            "eos_token_id": id_of(MESSAGE_END),
            "pad_token_id": id_of(END_OF_TEXT),
        })
    }
}

fn generation_config_json() -> Value {
    json!({
        "do_sample": true,
        "temperature": 1.0,
        "eos_token_id": [id_of(MESSAGE_END), id_of(END_OF_TEXT)],
        "pad_token_id": id_of(END_OF_TEXT),
    })
}
