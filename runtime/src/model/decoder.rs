//! The stack of layers: packed and differentiable, packed into a cache, one token a sequence.

use std::collections::HashMap;

use tch::Tensor;

use super::LoadOptions;
use super::cache::KvCache;
use super::config::{LayerKind, ModelConfig};
use super::feed_forward::FeedForward;
use super::layout;
use super::mixer::Mixer;
use super::norm::Norm;
use super::packing::Packing;
use super::projection::Named;
use super::rotary::{Angles, Rotary};
use super::weights::{Fill, Weights};

#[derive(Debug)]
struct Layer {
    input_norm: Norm,
    mixer: Mixer,
    post_norm: Norm,
    feed_forward: FeedForward,
}

impl Layer {
    fn new<E>(kind: LayerKind, mut weights: Weights<'_, E>) -> Result<Self, E> {
        Ok(Self {
            input_norm: weights.norm("input_layernorm")?,
            mixer: Mixer::new(kind.mixer, &mut weights)?,
            post_norm: weights.norm("post_attention_layernorm")?,
            feed_forward: FeedForward::new(kind.feed_forward, &mut weights)?,
        })
    }

    fn share(&self) -> Self {
        Self {
            input_norm: self.input_norm.share(),
            mixer: self.mixer.share(),
            post_norm: self.post_norm.share(),
            feed_forward: self.feed_forward.share(),
        }
    }

    fn collect(&self, into: &mut Vec<Named>) {
        self.input_norm.collect(into);
        self.mixer.collect(into);
        self.post_norm.collect(into);
        self.feed_forward.collect(into);
    }
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
    /// Makes each weight where it stays, and has `fill` give it its values.
    pub(super) fn new<E>(config: &ModelConfig, options: LoadOptions, fill: Fill<'_, E>) -> Result<Self, E> {
        let wanted: HashMap<_, _> = layout::tensors(config).map(|wanted| (wanted.name.clone(), wanted)).collect();
        let mut weights = Weights::new(config, options, &wanted, fill);
        let embedding = weights.named(&layout::embedding(config))?;
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for (index, &kind) in config.layers.iter().enumerate() {
            layers.push(Layer::new(kind, weights.layer(index))?);
        }
        let norm = Norm::new(weights.named(&layout::final_norm(config))?, config.rms_norm_eps, config.norm_offset);
        let head = if config.tie_word_embeddings { None } else { Some(weights.named(layout::HEAD)?) };
        Ok(Self { embedding, layers, norm, head, rotary: Rotary::new(config, options.device, options.dtype) })
    }

    /// The same memory, with leaves of its own.
    pub(super) fn share(&self) -> Self {
        let own = |named: &Named| (named.0.clone(), named.1.detach());
        Self {
            embedding: own(&self.embedding),
            layers: self.layers.iter().map(Layer::share).collect(),
            norm: self.norm.share(),
            head: self.head.as_ref().map(own),
            rotary: self.rotary.share(),
        }
    }

    /// Every weight once, by name.
    pub(super) fn parameters(&self) -> Vec<Named> {
        let same = |named: &Named| (named.0.clone(), named.1.shallow_clone());
        let mut all = vec![same(&self.embedding)];
        self.layers.iter().for_each(|layer| layer.collect(&mut all));
        self.norm.collect(&mut all);
        all.extend(self.head.as_ref().map(same));
        all
    }

    /// `[V, H]`.
    pub(super) fn output_weight(&self) -> &Tensor {
        &self.head.as_ref().unwrap_or(&self.embedding).1
    }

    /// The rows of the embedding.
    pub(super) fn embed(&self, ids: &Tensor) -> Tensor {
        Tensor::embedding(&self.embedding.1, ids, -1, false, false)
    }

    /// Differentiable; of some rows only, where given.
    ///
    /// # Shapes
    /// `rows [N]` → `[U, H]` or `[N, H]`.
    pub(super) fn forward(&self, packing: &Packing, rows: Option<&Tensor>) -> Tensor {
        let angles = self.angles(packing);
        let mut x = self.embed(packing.ids());
        for index in 0..self.layers.len() {
            x = self.layer(index, &x, &angles, (packing, rows));
        }
        self.norm.forward(&x)
    }

    /// What positions are turned by.
    pub(super) fn angles(&self, packing: &Packing) -> Angles {
        self.rotary.angles(packing.positions(), packing.longest())
    }

    /// One layer of [`forward`](Self::forward); the last one of `rows` only, where given.
    pub(super) fn layer(
        &self,
        index: usize,
        x: &Tensor,
        angles: &Angles,
        (packing, rows): (&Packing, Option<&Tensor>),
    ) -> Tensor {
        let layer = &self.layers[index];
        let mut mixed = layer.mixer.mix(&layer.input_norm.forward(x), angles, packing);
        let mut x = x.shallow_clone();
        if let Some(rows) = rows.filter(|_| index + 1 == self.layers.len()) {
            (x, mixed) = (x.index_select(0, rows), mixed.index_select(0, rows));
        }
        let x = &x + layer.mixer.output().part(0, &mixed);
        &x + layer.feed_forward.forward(&layer.post_norm.forward(&x))
    }

    /// Layers.
    pub(super) fn depth(&self) -> usize {
        self.layers.len()
    }

    /// The final norm.
    pub(super) fn last_norm(&self) -> &Norm {
        &self.norm
    }

    /// The embedding: the first of [`parameters`](Self::parameters).
    pub(super) fn embedding(&self) -> &Named {
        &self.embedding
    }

    /// A layer's weights, in their order among [`parameters`](Self::parameters).
    pub(super) fn layer_weights(&self, index: usize) -> Vec<Named> {
        let mut weights = Vec::new();
        self.layers[index].collect(&mut weights);
        weights
    }

    /// The final norm's weights.
    pub(super) fn norm_weights(&self) -> Vec<Named> {
        let mut weights = Vec::new();
        self.norm.collect(&mut weights);
        weights
    }

    /// Where the final norm's weights are among [`parameters`](Self::parameters): the embedding and the
    /// layers come before.
    pub(super) fn first_of_norm(&self) -> usize {
        1 + (0..self.layers.len()).map(|index| self.layer_weights(index).len()).sum::<usize>()
    }

    /// For inference: the hidden states of `rows`, with what later tokens need kept in a cache.
    ///
    /// # Shapes
    /// `rows [N]` (int64) → `[N, H]`.
    pub(super) fn prefill(&self, packing: &Packing, rows: &Tensor, mut cache: Option<Placing<'_>>) -> Tensor {
        let angles = self.rotary.angles(packing.positions(), packing.longest());
        let kept = cache.as_ref().map(|placing| placing.cache.kept(packing.rows(), placing.lengths, placing.slots));
        let mut x = self.embed(packing.ids());
        for (index, layer) in self.layers.iter().enumerate() {
            let place = cache.as_mut().map(|placing| placing.cache.layer(index)).zip(kept.as_ref());
            let mut mixed = layer.mixer.prefill(&layer.input_norm.infer(&x), &angles, packing, place);
            if index + 1 == self.layers.len() {
                (x, mixed) = (x.index_select(0, rows), mixed.index_select(0, rows));
            }
            x = layer.mixer.output().add_to(&x, &mixed);
            x = layer.feed_forward.add_to(&x, &layer.post_norm.infer(&x));
        }
        self.norm.infer(&x)
    }

    /// For inference: one more token of each of the first slots.
    ///
    /// # Shapes
    /// `ids [B]`, `positions` `B` of them → `[B, H]`.
    pub(super) fn decode(&self, ids: &Tensor, positions: &[i64], cache: &mut KvCache) -> Tensor {
        let rows = KvCache::decode_rows(positions);
        let limit = positions.iter().copied().max().unwrap_or(0) as usize + 1;
        let angles = self.rotary.angles(&Tensor::from_slice(positions).to_device(ids.device()), limit);
        let mut x = self.embed(ids);
        for (index, layer) in self.layers.iter().enumerate() {
            let mixed = layer.mixer.decode(&layer.input_norm.infer(&x), &angles, cache.layer(index), &rows);
            x = layer.mixer.output().add_to(&x, &mixed);
            x = layer.feed_forward.add_to(&x, &layer.post_norm.infer(&x));
        }
        self.norm.infer(&x)
    }
}

/// Where a prefill is kept.
#[derive(Debug)]
pub(crate) struct Placing<'a> {
    /// The cache, with room for them.
    pub(crate) cache: &'a mut KvCache,
    /// Tokens of each sequence of the pack.
    pub(crate) lengths: &'a [usize],
    /// The slots of each sequence: more than one for a prompt that several requests share.
    pub(crate) slots: &'a [Vec<usize>],
}
