//! The stack of layers: packed and differentiable, packed into a cache, one token a sequence.

use tch::{Device, Kind, Tensor};

use super::attention::{Attention, Heads};
use super::cache::KvCache;
use super::config::ModelConfig;
use super::feed_forward::FeedForward;
use super::layout;
use super::packing::Packing;
use super::projection::{Named, Norm, Projection};
use super::rotary::Rotary;

#[derive(Debug)]
struct Layer {
    input_norm: Norm,
    attention: Attention,
    post_norm: Norm,
    feed_forward: FeedForward,
}

/// The weights and how they are applied.
#[derive(Debug)]
pub(super) struct Decoder {
    embedding: Named,
    layers: Vec<Layer>,
    norm: Norm,
    /// `None`: the embedding.
    head: Option<Named>,
    rotary: Rotary,
}

impl Decoder {
    /// Takes each weight by its checkpoint name from `weight`.
    pub(super) fn new<E>(
        config: &ModelConfig,
        device: Device,
        dtype: Kind,
        mut weight: impl FnMut(&str) -> Result<Tensor, E>,
    ) -> Result<Self, E> {
        let mut named = |name: String| weight(&name).map(|tensor| (name, tensor));
        let embedding = named(layout::EMBEDDING.to_owned())?;
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for index in 0..config.num_hidden_layers {
            let name = |part: &str, kind: &str| layout::layer(index, part, kind);
            let mut norm = |part: &str| Ok(Norm::new(named(name(part, "weight"))?, config.rms_norm_eps));
            let (input_norm, post_norm) = (norm("input_layernorm")?, norm("post_attention_layernorm")?);
            let norms =
                if config.qk_norm { Some((norm("self_attn.q_norm")?, norm("self_attn.k_norm")?)) } else { None };
            let mut projection = |parts: &[&str], bias: bool| -> Result<Projection, E> {
                let weights = parts.iter().map(|part| named(name(part, "weight"))).collect::<Result<_, E>>()?;
                let biased = if bias { parts } else { &[] };
                let biases = biased.iter().map(|part| named(name(part, "bias"))).collect::<Result<_, E>>()?;
                Ok(Projection::new(weights, biases))
            };
            let qkv = projection(&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], config.qkv_bias)?;
            let output = projection(&["self_attn.o_proj"], config.output_bias)?;
            let gate_up = projection(&["mlp.gate_proj", "mlp.up_proj"], config.mlp_bias)?;
            let down = projection(&["mlp.down_proj"], config.mlp_bias)?;
            let attention = Attention { qkv, output, norms, heads: Heads::new(config) };
            layers.push(Layer { input_norm, attention, post_norm, feed_forward: FeedForward { gate_up, down } });
        }
        let norm = Norm::new(named(layout::FINAL_NORM.to_owned())?, config.rms_norm_eps);
        let head = if config.tie_word_embeddings { None } else { Some(named(layout::HEAD.to_owned())?) };
        Ok(Self { embedding, layers, norm, head, rotary: Rotary::new(config, device, dtype) })
    }

    /// The same memory, with leaves of its own.
    pub(super) fn share(&self) -> Self {
        let own = |named: &Named| (named.0.clone(), named.1.detach());
        let layer = |layer: &Layer| Layer {
            input_norm: layer.input_norm.share(),
            attention: layer.attention.share(),
            post_norm: layer.post_norm.share(),
            feed_forward: layer.feed_forward.share(),
        };
        Self {
            embedding: own(&self.embedding),
            layers: self.layers.iter().map(layer).collect(),
            norm: self.norm.share(),
            head: self.head.as_ref().map(own),
            rotary: self.rotary.share(),
        }
    }

    /// Every weight once, by name.
    pub(super) fn parameters(&self) -> Vec<Named> {
        let same = |named: &Named| (named.0.clone(), named.1.shallow_clone());
        let mut all = vec![same(&self.embedding)];
        for layer in &self.layers {
            layer.input_norm.collect(&mut all);
            layer.attention.collect(&mut all);
            layer.post_norm.collect(&mut all);
            layer.feed_forward.collect(&mut all);
        }
        self.norm.collect(&mut all);
        all.extend(self.head.as_ref().map(same));
        all
    }

    /// `[V, H]`.
    pub(super) fn output_weight(&self) -> &Tensor {
        &self.head.as_ref().unwrap_or(&self.embedding).1
    }

    fn embed(&self, ids: &Tensor) -> Tensor {
        Tensor::embedding(&self.embedding.1, ids, -1, false, false)
    }

    /// Differentiable; of some rows only, where given.
    ///
    /// # Shapes
    /// `rows [N]` → `[U, H]` or `[N, H]`.
    pub(super) fn forward(&self, packing: &Packing, rows: Option<&Tensor>) -> Tensor {
        let angles = self.rotary.angles(packing.positions(), packing.longest());
        let mut x = self.embed(packing.ids());
        for (index, layer) in self.layers.iter().enumerate() {
            let mut mixed = layer.attention.mix(&layer.input_norm.forward(&x), &angles, packing);
            if let Some(rows) = rows.filter(|_| index + 1 == self.layers.len()) {
                (x, mixed) = (x.index_select(0, rows), mixed.index_select(0, rows));
            }
            x = &x + layer.attention.output.part(0, &mixed);
            x = &x + layer.feed_forward.forward(&layer.post_norm.forward(&x));
        }
        self.norm.forward(&x)
    }

    /// For inference: the hidden states of `rows`, with keys and values kept in a cache.
    ///
    /// # Shapes
    /// `rows [N]` (int64) → `[N, H]`.
    pub(super) fn prefill(&self, packing: &Packing, rows: &Tensor, mut cache: Option<Placing<'_>>) -> Tensor {
        let angles = self.rotary.angles(packing.positions(), packing.longest());
        let written =
            cache.as_ref().map(|placing| placing.cache.write_rows(packing.rows(), placing.lengths, placing.slots));
        let mut x = self.embed(packing.ids());
        for (index, layer) in self.layers.iter().enumerate() {
            let place = cache.as_mut().map(|placing| placing.cache.layer(index)).zip(written.as_ref());
            let mut mixed = layer.attention.prefill(&layer.input_norm.infer(&x), &angles, packing, place);
            if index + 1 == self.layers.len() {
                (x, mixed) = (x.index_select(0, rows), mixed.index_select(0, rows));
            }
            x = layer.attention.output.add_to(&x, &mixed);
            x = layer.feed_forward.add_to(&x, &layer.post_norm.infer(&x));
        }
        self.norm.infer(&x)
    }

    /// For inference: one more token of each of the first slots.
    ///
    /// # Shapes
    /// `ids [B]`, `positions` `B` of them → `[B, H]`.
    pub(super) fn decode(&self, ids: &Tensor, positions: &[i64], cache: &mut KvCache) -> Tensor {
        let rows = cache.decode_rows(positions);
        let limit = positions.iter().copied().max().unwrap_or(0) as usize + 1;
        let angles = self.rotary.angles(&Tensor::from_slice(positions).to_device(ids.device()), limit);
        let mut x = self.embed(ids);
        for (index, layer) in self.layers.iter().enumerate() {
            let mixed = layer.attention.decode(&layer.input_norm.infer(&x), &angles, cache.layer(index), &rows);
            x = layer.attention.output.add_to(&x, &mixed);
            x = layer.feed_forward.add_to(&x, &layer.post_norm.infer(&x));
        }
        self.norm.infer(&x)
    }
}

/// Where a prefill's keys and values go.
#[derive(Debug)]
pub(crate) struct Placing<'a> {
    /// The cache, with room for them.
    pub(crate) cache: &'a mut KvCache,
    /// Tokens of each sequence of the pack.
    pub(crate) lengths: &'a [usize],
    /// The slots of each sequence: more than one for a prompt that several requests share.
    pub(crate) slots: &'a [Vec<usize>],
}
