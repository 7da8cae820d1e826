//! What each layer is made of.

use super::super::architecture::Architecture;
use super::super::error::Error;
use super::settings::{Settings, bad, unsupported};

/// More layers, or experts, than any model has; a list is made of them.
const MOST: usize = 1 << 16;

/// How a layer lets tokens see those before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixerKind {
    /// Grouped-query attention over all of them.
    Attention,
    /// A gated delta net: a state of fixed size.
    DeltaNet,
}

/// How a layer transforms each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForwardKind {
    /// One gated feed-forward.
    Dense,
    /// Several, of which a router picks a few for each token.
    Experts,
}

/// The two halves of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerKind {
    /// First half.
    pub mixer: MixerKind,
    /// Second half.
    pub feed_forward: FeedForwardKind,
}

/// Sizes of gated delta nets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNetConfig {
    /// Heads of queries and of keys, a divisor of `value_heads`.
    pub key_heads: usize,
    /// Heads of values, of gates, and of the state.
    pub value_heads: usize,
    /// Dimension of a query or key head.
    pub key_head_dim: usize,
    /// Dimension of a value head.
    pub value_head_dim: usize,
    /// Tokens the causal convolution sees, its own included.
    pub kernel: usize,
}

impl DeltaNetConfig {
    /// Queries of a token, and so many keys.
    pub fn key_dim(&self) -> usize {
        self.key_heads * self.key_head_dim
    }

    /// Values of a token.
    pub fn value_dim(&self) -> usize {
        self.value_heads * self.value_head_dim
    }

    /// Queries, keys and values of a token together: the convolution's channels.
    pub fn channels(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }
}

/// Sizes of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// How many there are.
    pub count: usize,
    /// How many a token goes to.
    pub per_token: usize,
    /// Width of each.
    pub intermediate_size: usize,
    /// The chosen experts' weights are divided by their sum.
    pub normalised: bool,
}

impl Settings<'_> {
    pub(super) fn layers(&self, architecture: Architecture, count: usize) -> Result<Vec<LayerKind>, Error> {
        if count > MOST {
            return Err(bad("num_hidden_layers", &format!("= {count}: must be at most {MOST}")));
        }
        let mixers = self.mixers(architecture, count)?;
        let sparse = self.sparse(architecture, count)?;
        let kind = |(mixer, sparse)| LayerKind {
            mixer,
            feed_forward: if sparse { FeedForwardKind::Experts } else { FeedForwardKind::Dense },
        };
        Ok(mixers.into_iter().zip(sparse).map(kind).collect())
    }

    fn mixers(&self, architecture: Architecture, count: usize) -> Result<Vec<MixerKind>, Error> {
        let hybrid = architecture.is_qwen3_5();
        if !self.has("layer_types") {
            let interval = if hybrid { self.count_or("full_attention_interval", 4)? } else { 1 };
            let full = |index: usize| (index + 1).is_multiple_of(interval);
            return Ok((0..count)
                .map(|index| if full(index) { MixerKind::Attention } else { MixerKind::DeltaNet })
                .collect());
        }
        let types = self.list("layer_types")?;
        let mixers = types.iter().map(|kind| match kind.as_str() {
            Some("full_attention") => Ok(MixerKind::Attention),
            Some("linear_attention") if hybrid => Ok(MixerKind::DeltaNet),
            other => {
                let found = other.map_or_else(|| kind.to_string(), str::to_owned);
                let supported = if hybrid { "full_attention, linear_attention" } else { "full_attention" };
                unsupported("layer type", &found, supported)
            }
        });
        let mixers = mixers.collect::<Result<Vec<_>, _>>()?;
        if mixers.len() != count {
            let problem = format!("has {} entries, num_hidden_layers = {count}", mixers.len());
            return Err(bad("layer_types", &problem));
        }
        Ok(mixers)
    }

    /// Which layers have experts.
    fn sparse(&self, architecture: Architecture, count: usize) -> Result<Vec<bool>, Error> {
        if architecture != Architecture::Qwen3Moe {
            return Ok(vec![false; count]);
        }
        let step = self.count_or("decoder_sparse_step", 1)?;
        let mut sparse: Vec<bool> = (0..count).map(|index| (index + 1).is_multiple_of(step)).collect();
        for value in self.list("mlp_only_layers")? {
            let place = value.as_u64().and_then(|index| sparse.get_mut(usize::try_from(index).ok()?));
            match place {
                Some(place) => *place = false,
                None => return Err(bad("mlp_only_layers", &format!("names layer {value} of {count}"))),
            }
        }
        Ok(sparse)
    }

    pub(super) fn delta_net(&self) -> Result<DeltaNetConfig, Error> {
        let config = DeltaNetConfig {
            key_heads: self.count("linear_num_key_heads")?,
            value_heads: self.count("linear_num_value_heads")?,
            key_head_dim: self.count("linear_key_head_dim")?,
            value_head_dim: self.count("linear_value_head_dim")?,
            kernel: self.count("linear_conv_kernel_dim")?,
        };
        if !config.value_heads.is_multiple_of(config.key_heads) {
            let problem =
                format!("= {}: must divide linear_num_value_heads = {}", config.key_heads, config.value_heads);
            return Err(bad("linear_num_key_heads", &problem));
        }
        if !(2..=MOST).contains(&config.kernel) {
            return Err(bad("linear_conv_kernel_dim", &format!("= {}: must be from 2 to {MOST}", config.kernel)));
        }
        Ok(config)
    }

    pub(super) fn experts(&self) -> Result<ExpertsConfig, Error> {
        // transformers 5 writes the second.
        let key = if self.has("num_experts") { "num_experts" } else { "num_local_experts" };
        let config = ExpertsConfig {
            count: self.count(key)?,
            per_token: self.count("num_experts_per_tok")?,
            intermediate_size: self.count("moe_intermediate_size")?,
            normalised: self.flag("norm_topk_prob", false)?,
        };
        if config.count > MOST {
            return Err(bad(key, &format!("= {}: must be at most {MOST}", config.count)));
        }
        if config.per_token > config.count {
            let problem = format!("= {}: must be at most {key} = {}", config.per_token, config.count);
            return Err(bad("num_experts_per_tok", &problem));
        }
        match self.get("shared_expert_intermediate_size").filter(|size| size.as_u64() != Some(0)) {
            None => Ok(config),
            Some(size) => unsupported("shared expert of width", &size.to_string(), "experts without a shared one"),
        }
    }
}
