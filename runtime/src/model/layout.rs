//! Which tensors a checkpoint holds, their shapes, and how fresh ones begin.

use super::config::{DeltaNetConfig, FeedForwardKind, MixerKind, ModelConfig};

pub(super) const HEAD: &str = "lm_head.weight";

/// How a fresh tensor begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fresh {
    /// N(0, `initializer_range`²).
    Normal,
    Ones,
    Zeros,
    /// ln of numbers evenly spread over (0, 16]: what a delta net forgets by.
    Decay,
}

/// One tensor of an architecture.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) shape: Vec<i64>,
    pub(super) fresh: Fresh,
    /// Kept in float32 whatever type the model computes in.
    pub(super) float32: bool,
}

pub(super) fn embedding(config: &ModelConfig) -> String {
    config.architecture.embedding()
}

pub(super) fn final_norm(config: &ModelConfig) -> String {
    format!("{}.norm.weight", config.architecture.root())
}

/// What a layer's tensors begin with.
pub(super) fn layer(config: &ModelConfig, index: usize) -> String {
    format!("{}.layers.{index}", config.architecture.root())
}

/// Whether a tensor is a buffer that old checkpoints carry and nobody reads.
pub(super) fn is_ignored(name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq")
}

/// Every tensor of the architecture, made while it is asked for: a config may name any number.
pub(super) fn tensors(config: &ModelConfig) -> impl Iterator<Item = Wanted> + '_ {
    let [embedding, behind] = outside(config);
    embedding
        .into_iter()
        .chain((0..config.num_hidden_layers).flat_map(move |index| layer_tensors(config, index)))
        .chain(behind)
}

/// The tensors before and behind the layers.
fn outside(config: &ModelConfig) -> [Vec<Wanted>; 2] {
    let (hidden, vocabulary) = (config.hidden_size, config.vocab_size);
    let list = || List { config, prefix: String::new(), wanted: Vec::new() };
    let (mut before, mut behind) = (list(), list());
    before.push(embedding(config), &[vocabulary, hidden], Fresh::Normal);
    behind.push(final_norm(config), &[hidden], norm(config));
    if !config.tie_word_embeddings {
        behind.push(HEAD, &[vocabulary, hidden], Fresh::Normal);
    }
    [before.wanted, behind.wanted]
}

/// Numbers of all tensors: of those in the model's type, and of those kept in float32. Layers of a
/// kind are alike, so each kind is looked at once.
pub(super) fn numbers(config: &ModelConfig) -> (u128, u128) {
    let (mut plain, mut float32) = (0_u128, 0_u128);
    let mut add = |wanted: &Wanted, times: usize| {
        let count = wanted.shape.iter().fold(times as u128, |product, &size| product.saturating_mul(size as u128));
        let sum = if wanted.float32 { &mut float32 } else { &mut plain };
        *sum = sum.saturating_add(count);
    };
    outside(config).iter().flatten().for_each(|wanted| add(wanted, 1));
    for (index, kind) in config.layers.iter().enumerate() {
        if !config.layers[..index].contains(kind) {
            let times = config.layers.iter().filter(|other| *other == kind).count();
            layer_tensors(config, index).iter().for_each(|wanted| add(wanted, times));
        }
    }
    (plain, float32)
}

/// Where a norm begins that scales by 1: at `w`, or at `1 + w`.
fn norm(config: &ModelConfig) -> Fresh {
    if config.norm_offset { Fresh::Zeros } else { Fresh::Ones }
}

fn layer_tensors(config: &ModelConfig, index: usize) -> Vec<Wanted> {
    let mut list = List { config, prefix: layer(config, index), wanted: Vec::new() };
    let hidden = config.hidden_size;
    let kind = config.layers[index];
    list.push(".input_layernorm.weight", &[hidden], norm(config));
    list.push(".post_attention_layernorm.weight", &[hidden], norm(config));
    match kind.mixer {
        MixerKind::Attention => list.attention(),
        MixerKind::DeltaNet => list.delta_net(&config.delta_net.expect("a layer that has one has its sizes")),
    }
    match (kind.feed_forward, &config.experts) {
        (FeedForwardKind::Experts, Some(experts)) => {
            list.linear(".mlp.gate", [experts.count, hidden], false);
            for expert in 0..experts.count {
                list.feed_forward(&format!(".mlp.experts.{expert}"), experts.intermediate_size, false);
            }
        }
        _ => list.feed_forward(".mlp", config.intermediate_size, config.mlp_bias),
    }
    list.wanted
}

/// The tensors of one layer while they are listed.
struct List<'a> {
    config: &'a ModelConfig,
    prefix: String,
    wanted: Vec<Wanted>,
}

impl List<'_> {
    fn push(&mut self, name: impl AsRef<str>, shape: &[usize], fresh: Fresh) {
        let name = format!("{}{}", self.prefix, name.as_ref());
        let shape = shape.iter().map(|&size| size as i64).collect();
        self.wanted.push(Wanted { name, shape, fresh, float32: false });
    }

    /// A matrix `[rows, columns]` and perhaps its bias.
    fn linear(&mut self, part: &str, [rows, columns]: [usize; 2], bias: bool) {
        self.push(format!("{part}.weight"), &[rows, columns], Fresh::Normal);
        if bias {
            self.push(format!("{part}.bias"), &[rows], Fresh::Zeros);
        }
    }

    fn attention(&mut self) {
        let config = self.config;
        let (hidden, head) = (config.hidden_size, config.head_dim);
        let (query, key_value) = (config.num_attention_heads * head, config.num_key_value_heads * head);
        if config.qk_norm {
            self.push(".self_attn.q_norm.weight", &[head], norm(config));
            self.push(".self_attn.k_norm.weight", &[head], norm(config));
        }
        let gated = if config.output_gate { 2 * query } else { query };
        self.linear(".self_attn.q_proj", [gated, hidden], config.qkv_bias);
        self.linear(".self_attn.k_proj", [key_value, hidden], config.qkv_bias);
        self.linear(".self_attn.v_proj", [key_value, hidden], config.qkv_bias);
        self.linear(".self_attn.o_proj", [hidden, query], config.output_bias);
    }

    fn delta_net(&mut self, sizes: &DeltaNetConfig) {
        let hidden = self.config.hidden_size;
        let (heads, values) = (sizes.value_heads, sizes.value_dim());
        self.linear(".linear_attn.in_proj_qkv", [sizes.channels(), hidden], false);
        self.linear(".linear_attn.in_proj_z", [values, hidden], false);
        self.linear(".linear_attn.in_proj_b", [heads, hidden], false);
        self.linear(".linear_attn.in_proj_a", [heads, hidden], false);
        self.push(".linear_attn.conv1d.weight", &[sizes.channels(), 1, sizes.kernel], Fresh::Normal);
        self.push(".linear_attn.dt_bias", &[heads], Fresh::Ones);
        for (name, size, fresh) in [("A_log", heads, Fresh::Decay), ("norm.weight", sizes.value_head_dim, Fresh::Ones)]
        {
            self.push(format!(".linear_attn.{name}"), &[size], fresh);
            self.wanted.last_mut().expect("one was just pushed").float32 = true;
        }
        self.linear(".linear_attn.out_proj", [hidden, values], false);
    }

    fn feed_forward(&mut self, part: &str, wide: usize, bias: bool) {
        let hidden = self.config.hidden_size;
        self.linear(&format!("{part}.gate_proj"), [wide, hidden], bias);
        self.linear(&format!("{part}.up_proj"), [wide, hidden], bias);
        self.linear(&format!("{part}.down_proj"), [hidden, wide], bias);
    }
}
