//! Grouped-query attention with rotary positions, packed and cached.

use tch::Tensor;

use super::cache::{DecodeRows, LayerCache, WriteRows};
use super::config::ModelConfig;
use super::cpu;
use super::packing::Packing;
use super::projection::{Named, Norm, Projection};
use super::rotary::Angles;

/// The attention of one layer.
#[derive(Debug)]
pub(super) struct Attention {
    pub(super) qkv: Projection,
    pub(super) output: Projection,
    /// Norms of queries and of keys, per head.
    pub(super) norms: Option<(Norm, Norm)>,
    pub(super) heads: Heads,
}

/// `A`, `K` and `D`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    query: i64,
    key_value: i64,
    dimension: i64,
}

impl Heads {
    pub(super) fn new(config: &ModelConfig) -> Self {
        Self {
            query: config.num_attention_heads as i64,
            key_value: config.num_key_value_heads as i64,
            dimension: config.head_dim as i64,
        }
    }
}

impl Attention {
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
        let Heads { query, key_value, dimension } = self.heads;
        let mut q = self.qkv.part(0, x).view([-1, query, dimension]);
        let mut k = self.qkv.part(1, x).view([-1, key_value, dimension]);
        let v = self.qkv.part(2, x).view([-1, key_value, dimension]);
        if let Some((q_norm, k_norm)) = &self.norms {
            q = q_norm.forward(&q);
            k = k_norm.forward(&k);
        }
        packing.attend(&angles.rotate(&q), &angles.rotate(&k), &v)
    }

    /// Queries, keys (both normalised and rotated) and values of some tokens: `[n, A + 2K, D]`.
    fn heads_of(&self, x: &Tensor, angles: &Angles) -> Tensor {
        let Heads { query, key_value, dimension } = self.heads;
        let mut all = self.qkv.all(x).view([-1, query + 2 * key_value, dimension]);
        let (q_norm, k_norm) = self.norms.as_ref().map(|(q, k)| (q, k)).unzip();
        if cpu::applies(all.kind(), all.device(), dimension as usize / 2) {
            cpu::norm_rotate(cpu::Tokens {
                heads: cpu::numbers_mut(&mut all),
                all: (query + 2 * key_value) as usize,
                groups: [(query as usize, q_norm.map(Norm::numbers)), (key_value as usize, k_norm.map(Norm::numbers))],
                angles: cpu::numbers(angles.rows()),
                dimension: dimension as usize,
            });
            return all;
        }
        for (from, count, norm) in [(0, query, q_norm), (query, key_value, k_norm)] {
            let heads = all.narrow(1, from, count);
            let normal = norm.map_or_else(|| heads.shallow_clone(), |norm| norm.forward(&heads));
            angles.rotate_to(&normal, &heads);
        }
        all
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
        cache: Option<(&mut LayerCache, &WriteRows)>,
    ) -> Tensor {
        let Heads { query, key_value, .. } = self.heads;
        let all = self.heads_of(x, angles);
        if let Some((cache, rows)) = cache {
            cache.write(&all, rows);
        }
        packing.attend(
            &all.narrow(1, 0, query),
            &all.narrow(1, query, key_value),
            &all.narrow(1, query + key_value, key_value),
        )
    }

    /// For inference: one token a sequence, attending to what the cache holds.
    ///
    /// # Shapes
    /// `x [B, H]` → `[B, A·D]`.
    pub(super) fn decode(&self, x: &Tensor, angles: &Angles, cache: &mut LayerCache, rows: &DecodeRows) -> Tensor {
        let Heads { query, key_value, dimension } = self.heads;
        let all = self.heads_of(x, angles);
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
            return cpu::attend(cached, &rows.lengths);
        }
        // The query heads of one key head stand where a longer query would: no key is repeated.
        let q = all.narrow(1, 0, query).unflatten(1, [key_value, query / key_value]);
        let (k, v) = cache.read(rows);
        let mask = rows.mask(all.kind(), all.device());
        let out = Tensor::scaled_dot_product_attention(&q, &k, &v, mask, 0.0, false, None, false);
        out.reshape([-1, query * dimension])
    }
}
