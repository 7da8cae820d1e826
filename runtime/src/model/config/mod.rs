//! `config.json` of a Hugging Face folder, in both of its spellings.
//!
//! Checkpoints written by transformers 4 have `rope_theta`, `rope_scaling` and `torch_dtype`;
//! those of transformers 5 have `rope_parameters`, `dtype` and `layer_types`.
//!
//! | room | what it does |
//! |---|---|
//! | `settings` | values by key, with errors that name the key |
//! | `rope` | rotary base and scaling |
//! | `layers` | which mixer and feed-forward each layer has |

mod layers;
mod rope;
mod settings;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde_json::Value;

use super::architecture::Architecture;
use super::error::Error;
use super::file;
pub use layers::{DeltaNetConfig, ExpertsConfig, FeedForwardKind, LayerKind, MixerKind};
pub use rope::RopeScaling;
use settings::{Settings, bad};

/// A decoder's shape: everything its weights and arithmetic depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// `V`: rows of the embedding.
    pub vocab_size: usize,
    /// `H`.
    pub hidden_size: usize,
    /// Width of the dense gated feed-forward.
    pub intermediate_size: usize,
    /// `L`.
    pub num_hidden_layers: usize,
    /// `A`.
    pub num_attention_heads: usize,
    /// `K`, a divisor of `A`.
    pub num_key_value_heads: usize,
    /// `D`; not always `H / A`.
    pub head_dim: usize,
    /// How many of a head's first dimensions are rotated; even.
    pub rotary_dim: usize,
    /// The longest sequence the model was made for.
    pub max_position_embeddings: usize,
    /// ε of the norms.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Their scaling.
    pub rope_scaling: RopeScaling,
    /// The output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// Queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The attention's output projection has a bias.
    pub output_bias: bool,
    /// The dense feed-forward's projections have biases.
    pub mlp_bias: bool,
    /// Queries and keys are normalised per head.
    pub qk_norm: bool,
    /// Each query head has a gate on what attention returns.
    pub output_gate: bool,
    /// Norms scale by `1 + w`, in float32, instead of by `w`.
    pub norm_offset: bool,
    /// Mixer and feed-forward of each of the `L` layers.
    pub layers: Vec<LayerKind>,
    /// Sizes of the delta nets, where a layer has one.
    pub delta_net: Option<DeltaNetConfig>,
    /// Sizes of the experts, where a layer has them.
    pub experts: Option<ExpertsConfig>,
    /// Standard deviation of fresh weights.
    pub initializer_range: f64,
}

impl ModelConfig {
    /// Reads `config.json` of a folder.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::Json`] for the file, else as [`ModelConfig::from_json`].
    pub fn from_folder(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("config.json");
        let bytes = file::read_text(&path)?;
        let value = serde_json::from_slice(&bytes).map_err(|source| Error::Json { path, source })?;
        Self::from_json(&value)
    }

    /// Reads the contents of a `config.json`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an architecture, rotary scaling, activation, quantisation or
    /// layer that is not computed here; [`Error::Config`] for a missing or impossible setting.
    pub fn from_json(value: &Value) -> Result<Self, Error> {
        let root = Settings::of("config.json", value)?;
        let architecture = root.architecture()?;
        root.refuse_what_is_not_computed()?;
        let settings = if architecture.nested() { root.text_config()? } else { root };
        settings.refuse_what_is_not_computed()?;
        let qwen3_5 = architecture.is_qwen3_5();
        if qwen3_5 {
            settings.refuse_other_qwen3_5()?;
        }

        let num_hidden_layers = settings.count("num_hidden_layers")?;
        let layers = settings.layers(architecture, num_hidden_layers)?;
        let has_delta_net = layers.iter().any(|layer| layer.mixer == MixerKind::DeltaNet);
        let has_experts = layers.iter().any(|layer| layer.feed_forward == FeedForwardKind::Experts);
        let heads = settings.count("num_attention_heads")?;
        let hidden_size = settings.count("hidden_size")?;
        let head_dim = match settings.count_or("head_dim", 0)? {
            // transformers' defaults: a constant for these, the others divide.
            0 if qwen3_5 => 256,
            0 if architecture == Architecture::Qwen3 => 128,
            0 => hidden_size / heads,
            found => found,
        };
        let rope = settings.rope(qwen3_5)?;
        let attention_bias = settings.flag("attention_bias", false)?;
        let tied = if architecture.nested() && root.has("tie_word_embeddings") { &root } else { &settings };
        let config = Self {
            architecture,
            vocab_size: settings.count("vocab_size")?,
            hidden_size,
            intermediate_size: settings.count("intermediate_size")?,
            num_hidden_layers,
            num_attention_heads: heads,
            num_key_value_heads: settings.count_or("num_key_value_heads", heads)?,
            head_dim,
            rotary_dim: (head_dim as f64 * rope.rotated) as usize,
            max_position_embeddings: settings.count("max_position_embeddings")?,
            rms_norm_eps: settings.number("rms_norm_eps", 1e-6)?,
            rope_theta: rope.theta,
            rope_scaling: rope.scaling,
            tie_word_embeddings: tied.flag("tie_word_embeddings", false)?,
            qkv_bias: architecture == Architecture::Qwen2 || attention_bias,
            output_bias: architecture != Architecture::Qwen2 && attention_bias,
            mlp_bias: architecture == Architecture::Llama && settings.flag("mlp_bias", false)?,
            qk_norm: architecture.qk_norm(),
            output_gate: qwen3_5,
            norm_offset: qwen3_5,
            layers,
            delta_net: if has_delta_net { Some(settings.delta_net()?) } else { None },
            experts: if has_experts { Some(settings.experts()?) } else { None },
            initializer_range: settings.number("initializer_range", 0.02)?,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), Error> {
        let rotary = self.rotary_dim;
        if rotary == 0 || !rotary.is_multiple_of(2) {
            let problem = format!("= {}: {rotary} rotated dimensions must be even and positive", self.head_dim);
            return Err(bad("head_dim", &problem));
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let problem = format!(
                "= {}: must divide num_attention_heads = {}",
                self.num_key_value_heads, self.num_attention_heads
            );
            return Err(bad("num_key_value_heads", &problem));
        }
        for (key, number) in [("rms_norm_eps", self.rms_norm_eps), ("rope_theta", self.rope_theta)] {
            if !(number.is_finite() && number > 0.0) {
                return Err(bad(key, &format!("= {number}: must be positive")));
            }
        }
        if !(self.initializer_range.is_finite() && self.initializer_range >= 0.0) {
            return Err(bad("initializer_range", &format!("= {}: must be ≥ 0", self.initializer_range)));
        }
        Ok(())
    }

    /// What the model has beside what is computed, in words; `None`: nothing.
    pub fn note(&self) -> Option<String> {
        let carried = self.architecture.carried();
        let names: Vec<_> = carried.iter().map(|beginning| format!("`{beginning}*`")).collect();
        (!carried.is_empty()).then(|| {
            format!(
                "{}: only text is computed; tensors {} are skipped, and written back unchanged",
                self.architecture.name(),
                names.join(", ")
            )
        })
    }

    /// The first setting in which two configurations differ, as text.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let (ours, theirs) = (format!("{self:#?}"), format!("{other:#?}"));
        let (mine, new) = ours.lines().zip(theirs.lines()).find(|(a, b)| a != b)?;
        Some(format!("`{}` is now `{}`", mine.trim(), new.trim()))
    }
}
