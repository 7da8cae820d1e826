//! Grouped-query attention with rotary positions, packed and cached.

use tch::Tensor;

use super::config::ModelConfig;
use super::cpu;
use super::key_values::{DecodeRows, KeyValues, WriteRows};
use super::norm::Norm;
use super::packing::Packing;
use super::projection::{Named, Projection};
use super::rotary::Angles;
use super::weights::Weights;

/// The attention of one layer.
#[derive(Debug)]
pub(super) struct Attention {
    qkv: Projection,
    pub(super) output: Projection,
    /// Norms of queries and of keys, per head.
    norms: Option<(Norm, Norm)>,
    heads: Heads,
}

/// `A`, `K` and `D`.
#[derive(Clone, Copy, Debug)]
struct Heads {
    query: i64,
    key_value: i64,
    dimension: i64,
    /// Each query head is followed by a gate of the same size.
    gated: bool,
}

impl Heads {
    fn new(config: &ModelConfig) -> Self {
        Self {
            query: config.num_attention_heads as i64,
            key_value: config.num_key_value_heads as i64,
            dimension: config.head_dim as i64,
            gated: config.output_gate,
        }
    }

    /// Queries `[n, A, D]` and, where there are, their gates `[n, A·D]`.
    fn queries(&self, projected: &Tensor) -> (Tensor, Option<Tensor>) {
        let &Self { query, dimension, gated, .. } = self;
        if !gated {
            return (projected.reshape([-1, query, dimension]), None);
        }
        let pairs = projected.reshape([-1, query, 2, dimension]);
        (pairs.select(2, 0), Some(pairs.select(2, 1).reshape([-1, query * dimension])))
    }
}

/// What attention returned, behind its gate. # Shapes: `[n, A·D]`.
fn open_gate(mixed: Tensor, gate: Option<Tensor>) -> Tensor {
    match gate {
        None => mixed,
        Some(gate) => mixed * gate.sigmoid(),
    }
}

impl Attention {
    pub(super) fn new<E>(weights: &mut Weights<'_, E>) -> Result<Self, E> {
        let config = weights.config;
        let norms = match config.qk_norm {
            true => Some((weights.norm("self_attn.q_norm")?, weights.norm("self_attn.k_norm")?)),
            false => None,
        };
        let parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
        Ok(Self {
            qkv: weights.projection(&parts, config.qkv_bias)?,
            output: weights.projection(&["self_attn.o_proj"], config.output_bias)?,
            norms,
            heads: Heads::new(config),
        })
    }

    pub(super) fn share(&self) -> Self {
        Self {
            qkv: self.qkv.share(),
            output: self.output.share(),
            norms: self.norms.as_ref().map(|(q, k)| (q.share(), k.share())),
            heads: self.heads,
        }
    }

    pub(super) fn collect(&self, into: &mut Vec<Named>) {
        self.qkv.collect(into);
        self.output.collect(into);
        if let Some((q, k)) = &self.norms {
            q.collect(into);
            k.collect(into);
        }
    }

    /// Differentiable; the output projection is left to the caller.
    ///
    /// # Shapes
    /// `x [T, H]` → `[T, A·D]`.
    pub(super) fn mix(&self, x: &Tensor, angles: &Angles, packing: &Packing) -> Tensor {
        let Heads { key_value, dimension, .. } = self.heads;
        let (mut q, gate) = self.heads.queries(&self.qkv.part(0, x));
        let mut k = self.qkv.part(1, x).view([-1, key_value, dimension]);
        let v = self.qkv.part(2, x).view([-1, key_value, dimension]);
        if let Some((q_norm, k_norm)) = &self.norms {
            q = q_norm.forward(&q);
            k = k_norm.forward(&k);
        }
        open_gate(packing.attend(&angles.rotate(&q), &angles.rotate(&k), &v), gate)
    }

    /// Queries, keys (both normalised and rotated) and values of some tokens, `[n, A + 2K, D]`,
    /// and the gates.
    fn heads_of(&self, x: &Tensor, angles: &Angles) -> (Tensor, Option<Tensor>) {
        let Heads { query, key_value, dimension, gated } = self.heads;
        let mut all = self.qkv.all(x);
        let mut gate = None;
        if gated {
            let rows = 2 * query * dimension;
            let (q, found) = self.heads.queries(&all.narrow(1, 0, rows));
            let others = all.narrow(1, rows, 2 * key_value * dimension);
            all = Tensor::cat(&[q.flatten(1, 2), others], 1);
            gate = found;
        }
        let mut all = all.view([-1, query + 2 * key_value, dimension]);
        let (q_norm, k_norm) = self.norms.as_ref().map(|(q, k)| (q, k)).unzip();
        let rotated = angles.rows().size()[3];
        if cpu::applies(all.kind(), all.device(), rotated as usize / 2)
            && cpu::applies(all.kind(), all.device(), dimension as usize)
        {
            let scales = [q_norm, k_norm].map(|norm| norm.map(|norm| (norm.scale(), norm.eps() as f32)));
            let [q_scale, k_scale] =
                scales.each_ref().map(|scale| scale.as_ref().map(|(scale, eps)| (cpu::numbers(scale), *eps)));
            cpu::norm_rotate(cpu::Tokens {
                heads: cpu::numbers_mut(&mut all),
                all: (query + 2 * key_value) as usize,
                groups: [(query as usize, q_scale), (key_value as usize, k_scale)],
                angles: cpu::numbers(angles.rows()),
                dimension: dimension as usize,
                rotated: rotated as usize,
            });
            return (all, gate);
        }
        for (from, count, norm) in [(0, query, q_norm), (query, key_value, k_norm)] {
            let heads = all.narrow(1, from, count);
            let normal = norm.map_or_else(|| heads.shallow_clone(), |norm| norm.forward(&heads));
            angles.rotate_to(&normal, &heads);
        }
        (all, gate)
    }

    /// As [`Attention::mix`], for inference; keeps keys and values where `cache` says.
    ///
    /// # Shapes
    /// `x [T, H]` → `[T, A·D]`.
    pub(super) fn prefill(
        &self,
        x: &Tensor,
        angles: &Angles,
        packing: &Packing,
        cache: Option<(&mut KeyValues, &WriteRows)>,
    ) -> Tensor {
        let Heads { query, key_value, .. } = self.heads;
        let (all, gate) = self.heads_of(x, angles);
        if let Some((cache, rows)) = cache {
            cache.write(&all, rows);
        }
        let mixed = packing.attend(
            &all.narrow(1, 0, query),
            &all.narrow(1, query, key_value),
            &all.narrow(1, query + key_value, key_value),
        );
        open_gate(mixed, gate)
    }

    /// For inference: one token a sequence, attending to what the cache holds.
    ///
    /// # Shapes
    /// `x [B, H]` → `[B, A·D]`.
    pub(super) fn decode(&self, x: &Tensor, angles: &Angles, cache: &mut KeyValues, rows: &DecodeRows) -> Tensor {
        let Heads { query, key_value, dimension, .. } = self.heads;
        let (all, gate) = self.heads_of(x, angles);
        cache.write(&all, &rows.write);
        if cpu::applies(all.kind(), all.device(), dimension as usize) {
            let cached = cpu::Cached {
                heads: cpu::numbers(&all),
                all: (query + 2 * key_value) as usize,
                cache: cpu::numbers(cache.tensor()),
                positions: cache.tensor().size()[2] as usize,
                query: query as usize,
                key_value: key_value as usize,
                dimension: dimension as usize,
            };
            return open_gate(cpu::attend(cached, &rows.lengths), gate);
        }
        // The query heads of one key head stand where a longer query would: no key is repeated.
        let q = all.narrow(1, 0, query).unflatten(1, [key_value, query / key_value]);
        let (k, v) = cache.read(rows);
        let mask = rows.mask(all.kind(), all.device());
        let out = Tensor::scaled_dot_product_attention(&q, &k, &v, mask, 0.0, false, None, false);
        open_gate(out.reshape([-1, query * dimension]), gate)
    }
}
