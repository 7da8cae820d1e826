//! Which tensors a checkpoint holds, and their shapes.

use super::config::ModelConfig;

pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(super) const FINAL_NORM: &str = "model.norm.weight";
pub(super) const HEAD: &str = "lm_head.weight";

/// Name of a layer's tensor.
pub(super) fn layer(index: usize, part: &str, kind: &str) -> String {
    format!("model.layers.{index}.{part}.{kind}")
}

/// Whether a tensor is a buffer that old checkpoints carry and nobody reads.
pub(super) fn is_ignored(name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq")
}

/// Every tensor of the architecture, with its shape.
pub(super) fn tensors(config: &ModelConfig) -> Vec<(String, Vec<i64>)> {
    let size = |count: usize| count as i64;
    let (hidden, wide) = (size(config.hidden_size), size(config.intermediate_size));
    let head = size(config.head_dim);
    let (query, key_value) = (size(config.num_attention_heads) * head, size(config.num_key_value_heads) * head);

    let mut all = vec![(EMBEDDING.to_owned(), vec![size(config.vocab_size), hidden])];
    for index in 0..config.num_hidden_layers {
        let mut add = |part: &str, kind: &str, shape: &[i64]| all.push((layer(index, part, kind), shape.to_vec()));
        add("input_layernorm", "weight", &[hidden]);
        add("post_attention_layernorm", "weight", &[hidden]);
        if config.qk_norm {
            add("self_attn.q_norm", "weight", &[head]);
            add("self_attn.k_norm", "weight", &[head]);
        }
        for (part, rows, columns, bias) in [
            ("self_attn.q_proj", query, hidden, config.qkv_bias),
            ("self_attn.k_proj", key_value, hidden, config.qkv_bias),
            ("self_attn.v_proj", key_value, hidden, config.qkv_bias),
            ("self_attn.o_proj", hidden, query, config.output_bias),
            ("mlp.gate_proj", wide, hidden, config.mlp_bias),
            ("mlp.up_proj", wide, hidden, config.mlp_bias),
            ("mlp.down_proj", hidden, wide, config.mlp_bias),
        ] {
            add(part, "weight", &[rows, columns]);
            if bias {
                add(part, "bias", &[rows]);
            }
        }
    }
    all.push((FINAL_NORM.to_owned(), vec![hidden]));
    if !config.tie_word_embeddings {
        all.push((HEAD.to_owned(), vec![size(config.vocab_size), hidden]));
    }
    all
}
