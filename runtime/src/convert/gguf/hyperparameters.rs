//! Metadata to `config.json`.

use serde_json::{Map, Value, json};

use super::Gguf;
use super::rope;
use crate::convert::error::{Problem, damaged, unsupported};
use crate::model::Architecture;

/// Bounds a count far above any real model, so that products of a few of them stay in range.
const LARGEST_COUNT: u64 = 1 << 31;
/// More layers than any model has, fewer than would take long to name.
const MOST_LAYERS: u64 = 1 << 16;

/// The families that are converted, and what GGUF calls them.
const FAMILIES: [(&str, Architecture); 4] = [
    ("llama", Architecture::Llama),
    ("qwen2", Architecture::Qwen2),
    ("qwen3", Architecture::Qwen3),
    ("qwen3moe", Architecture::Qwen3Moe),
];

/// The family of a file.
fn family(file: &Gguf<'_>) -> Result<(&'static str, Architecture), Problem> {
    let Some(found) = file.text("general.architecture")? else {
        return damaged("metadata `general.architecture` is missing");
    };
    FAMILIES.into_iter().find(|family| family.0 == found).map_or_else(
        || {
            let supported = FAMILIES.map(|family| family.0).join(", ");
            unsupported(format!("architecture `{found}`; supported: {supported}"))
        },
        Ok,
    )
}

/// Experts of a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Experts {
    /// How many.
    pub(crate) count: usize,
    /// How many a token uses.
    pub(crate) used: usize,
    /// Width of one.
    pub(crate) width: usize,
}

/// A decoder's shape.
#[derive(Clone, Debug)]
pub(crate) struct Hyperparameters {
    /// The family.
    pub(crate) architecture: Architecture,
    /// What GGUF calls it.
    pub(crate) key: &'static str,
    /// Rows of the embedding.
    pub(crate) vocab_size: usize,
    /// `H`.
    pub(crate) hidden_size: usize,
    /// Width of the gated feed-forward.
    pub(crate) intermediate_size: usize,
    /// `L`.
    pub(crate) layers: usize,
    /// `A`.
    pub(crate) heads: usize,
    /// `K`.
    pub(crate) key_value_heads: usize,
    /// `D`.
    pub(crate) head_dim: usize,
    /// The longest sequence.
    pub(crate) context: usize,
    /// Experts, in the layers that have them.
    pub(crate) experts: Option<Experts>,
    rms_norm_eps: f64,
    rope: rope::Rope,
    /// What a person should know.
    pub(crate) notes: Vec<String>,
}

/// Keys (after the family's own) that say what other decoders do.
const NOT_COMPUTED: [&str; 10] = [
    "attention.sliding_window",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
    "expert_shared_count",
];
/// Keys that are read, or say nothing new.
const READ: [&str; 19] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scale_linear",
    "vocab_size",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_weights_norm",
    "use_parallel_residual",
];

impl Hyperparameters {
    /// Reads a file's metadata.
    ///
    /// # Errors
    /// For a missing or impossible value, or one that asks for what the family does not do.
    pub(crate) fn read(file: &Gguf<'_>) -> Result<Self, Problem> {
        let (key, architecture) = family(file)?;
        let settings = Settings { file, key, architecture };
        settings.refuse_what_is_not_computed()?;
        let heads = settings.required("attention.head_count")?;
        let hidden_size = settings.required("embedding_length")?;
        let key_value_heads = settings.count("attention.head_count_kv")?.unwrap_or(heads);
        if !heads.is_multiple_of(key_value_heads) {
            return damaged(format!("{key_value_heads} key-value heads do not divide {heads} heads"));
        }
        let head_dim = settings.count("attention.key_length")?.unwrap_or(hidden_size / heads);
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return damaged(format!("heads of {head_dim} dimensions: must be even and positive, for rotary pairs"));
        }
        for key in ["attention.value_length", "rope.dimension_count"] {
            if let Some(found) = settings.count(key)?.filter(|found| *found != head_dim) {
                return unsupported(format!(
                    "metadata `{}` = {found}; supported is the {head_dim} of a head",
                    settings.key(key)
                ));
            }
        }
        let Some(embedding) = file.tensors.get("token_embd.weight") else {
            return damaged("tensor `token_embd.weight` is missing");
        };
        let layers = settings.required("block_count")?;
        if layers as u64 > MOST_LAYERS {
            return damaged(format!("{layers} layers; at most {MOST_LAYERS} are possible"));
        }
        let context = settings.required("context_length")?;
        let rms_norm_eps = settings.epsilon()?;
        let mut read = Self {
            architecture,
            key,
            vocab_size: embedding.shape[0],
            hidden_size,
            intermediate_size: settings.required("feed_forward_length")?,
            layers,
            heads,
            key_value_heads,
            head_dim,
            context,
            experts: settings.experts()?,
            rms_norm_eps,
            rope: rope::Rope::read(file, key, head_dim, context)?,
            notes: settings.unknown_keys(),
        };
        read.notes.extend(read.rope.note());
        Ok(read)
    }

    /// The contents of `config.json`, without the ids of special tokens and the number type.
    pub(crate) fn config(&self, file: &Gguf<'_>) -> Map<String, Value> {
        let family = self.architecture;
        let has = |name: &str| file.tensors.contains_key(name);
        let mut config = json!({
            "architectures": [family.name()],
            "model_type": family.model_type(),
            "attention_dropout": 0.0,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.context,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.key_value_heads,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_scaling": self.rope.scaling(),
            "rope_theta": self.rope.theta(),
            "tie_word_embeddings": !has("output.weight"),
            "use_cache": true,
            "vocab_size": self.vocab_size,
        });
        let config = config.as_object_mut().expect("an object");
        // Qwen2's biases are part of the family; the others say so.
        if family != Architecture::Qwen2 {
            config.insert("attention_bias".into(), has("blk.0.attn_q.bias").into());
        }
        if family == Architecture::Llama {
            config.insert("mlp_bias".into(), has("blk.0.ffn_up.bias").into());
        } else {
            config.insert("use_sliding_window".into(), false.into());
            config.insert("sliding_window".into(), Value::Null);
        }
        if let Some(experts) = self.experts {
            let dense: Vec<usize> =
                (0..self.layers).filter(|layer| !has(&format!("blk.{layer}.ffn_gate_inp.weight"))).collect();
            let norm = file.get(&format!("{}.expert_weights_norm", self.key));
            let mixture = json!({
                "decoder_sparse_step": 1,
                "mlp_only_layers": dense,
                "moe_intermediate_size": experts.width,
                "norm_topk_prob": norm != Some(&super::reader::Value::Flag(false)),
                "num_experts": experts.count,
                "num_experts_per_tok": experts.used,
                "output_router_logits": false,
                "router_aux_loss_coef": 0.001,
            });
            config.extend(mixture.as_object().cloned().unwrap_or_default());
        }
        std::mem::take(config)
    }
}

struct Settings<'f, 'a> {
    file: &'f Gguf<'a>,
    key: &'static str,
    architecture: Architecture,
}

impl Settings<'_, '_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.key)
    }

    fn count(&self, name: &str) -> Result<Option<usize>, Problem> {
        let key = self.key(name);
        match self.file.count(&key)? {
            None => Ok(None),
            Some(count) if (1..=LARGEST_COUNT).contains(&count) => Ok(Some(count as usize)),
            Some(count) => damaged(format!("metadata `{key}` = {count}: must be from 1 to {LARGEST_COUNT}")),
        }
    }

    fn required(&self, name: &str) -> Result<usize, Problem> {
        self.count(name)?.map_or_else(|| damaged(format!("metadata `{}` is missing", self.key(name))), Ok)
    }

    /// ε of the norms. The format has no default for it, and families have different ones.
    fn epsilon(&self) -> Result<f64, Problem> {
        let key = self.key("attention.layer_norm_rms_epsilon");
        match self.file.number(&key)? {
            Some(epsilon) if epsilon > 0.0 => Ok(epsilon),
            Some(epsilon) => damaged(format!("metadata `{key}` = {epsilon}: must be positive")),
            None => damaged(format!("metadata `{key}` is missing")),
        }
    }

    fn experts(&self) -> Result<Option<Experts>, Problem> {
        let count = self.file.count(&self.key("expert_count"))?.unwrap_or(0);
        if self.architecture != Architecture::Qwen3Moe {
            return match count {
                0 => Ok(None),
                count => unsupported(format!("architecture `{}` with {count} experts", self.key)),
            };
        }
        let width = match self.count("expert_feed_forward_length")? {
            Some(width) => width,
            None => {
                let gate = self.file.tensors.iter().find(|(name, _)| name.ends_with(".ffn_gate_exps.weight"));
                match gate.map(|(_, gate)| gate.shape.as_slice()) {
                    Some(&[_, width, _]) => width,
                    _ => return damaged(format!("metadata `{}` is missing", self.key("expert_feed_forward_length"))),
                }
            }
        };
        let experts =
            Experts { count: self.required("expert_count")?, used: self.required("expert_used_count")?, width };
        if experts.used > experts.count {
            return damaged(format!("{} of {} experts are used by a token", experts.used, experts.count));
        }
        Ok(Some(experts))
    }

    fn refuse_what_is_not_computed(&self) -> Result<(), Problem> {
        if let Some(parts) = self.file.count("split.count")?.filter(|parts| *parts > 1) {
            return unsupported(format!("it is one of {parts} parts; join them with `llama-gguf-split --merge` first"));
        }
        for name in NOT_COMPUTED {
            let key = self.key(name);
            // Files of models without it may say so by a zero; a scale of one changes nothing.
            let set = self.file.number(&key)?.filter(|number| *number != 0.0);
            if let Some(found) = set.filter(|number| !(name.ends_with("scale") && *number == 1.0)) {
                return unsupported(format!("metadata `{key}` = {found}: this family has no such thing"));
            }
        }
        if self.file.flag(&self.key("attention.causal"))? == Some(false) {
            return unsupported("attention that is not causal; supported are decoders");
        }
        Ok(())
    }

    fn unknown_keys(&self) -> Vec<String> {
        let prefix = format!("{}.", self.key);
        let known =
            |name: &str| READ.contains(&name) || NOT_COMPUTED.contains(&name) || name.starts_with("rope.scaling.");
        let unknown = self.file.keys().filter(|key| key.strip_prefix(&prefix).is_some_and(|name| !known(name)));
        unknown.map(|key| format!("metadata `{key}` has no place in config.json and is left out")).collect()
    }
}
