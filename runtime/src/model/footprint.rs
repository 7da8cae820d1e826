//! The memory a model takes.

use tch::Kind;

use super::config::{MixerKind, ModelConfig};
use super::layout;

/// Bytes of a float32: a master weight, a gradient, a moment.
const FLOAT: u128 = 4;

/// Bytes a model takes. Figures beyond `u64` stop there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// The weights that are loaded: a tied output projection once, tensors that are not computed
    /// not at all.
    pub(crate) weights: u64,
    /// Keys and values of one token, over the layers that attend.
    pub(crate) cache_per_token: u64,
    /// What the delta nets keep of one running sequence, however long.
    pub(crate) state_per_sequence: u64,
    /// Weights, float32 masters where a weight is narrower, float32 gradients and AdamW's two
    /// moments.
    pub(crate) train: u64,
}

impl Footprint {
    /// Of a model that computes in `kind`.
    pub(crate) fn of(config: &ModelConfig, kind: Kind) -> Self {
        let size = kind.elt_size_in_bytes() as u128;
        let (plain, float32) = layout::numbers(config);
        let masters = if size < FLOAT { plain.saturating_mul(FLOAT) } else { 0 };
        let weights = plain.saturating_mul(size).saturating_add(float32.saturating_mul(FLOAT));
        let moments = plain.saturating_add(float32).saturating_mul(3 * FLOAT);

        let with = |mixer| config.layers.iter().filter(|layer| layer.mixer == mixer).count() as u128;
        let keys = config.num_key_value_heads as u128 * config.head_dim as u128;
        let state = config.delta_net.map_or(0, |sizes| {
            let state = sizes.value_heads as u128 * sizes.key_head_dim as u128 * sizes.value_head_dim as u128;
            let inputs = (sizes.kernel as u128 - 1) * sizes.channels() as u128;
            state.saturating_mul(FLOAT).saturating_add(inputs.saturating_mul(size))
        });
        let bytes = |count: u128| u64::try_from(count).unwrap_or(u64::MAX);
        Self {
            weights: bytes(weights),
            cache_per_token: bytes((with(MixerKind::Attention) * 2 * size).saturating_mul(keys)),
            state_per_sequence: bytes(with(MixerKind::DeltaNet).saturating_mul(state)),
            train: bytes(weights.saturating_add(masters).saturating_add(moments)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tch::Device;

    use super::super::{LoadOptions, Model};
    use super::*;

    /// Four layers, of which the last attends.
    fn hybrid() -> ModelConfig {
        let text = json!({
            "model_type": "qwen3_5_text", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
            "linear_value_head_dim": 5, "linear_conv_kernel_dim": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        });
        let config = json!({
            "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
            "tie_word_embeddings": true, "text_config": text,
        });
        ModelConfig::from_json(&config).unwrap()
    }

    #[test]
    fn weights_are_those_of_a_loaded_model() {
        for kind in [Kind::Float, Kind::BFloat16] {
            let model = Model::init(hybrid(), LoadOptions { device: Device::Cpu, dtype: kind }, 1);
            let sizes = model.parameters().iter().map(|(_, weight)| (weight.numel(), weight.kind()));
            let expected: usize = sizes.clone().map(|(count, kind)| count * kind.elt_size_in_bytes()).sum();
            // The optimizer's float32 original is the weight itself where that is float32.
            let trained: usize = sizes
                .map(|(count, kind)| count * (kind.elt_size_in_bytes() + if kind == Kind::Float { 12 } else { 16 }))
                .sum();
            let found = Footprint::of(&hybrid(), kind);
            assert_eq!((found.weights, found.train), (expected as u64, trained as u64), "{kind:?}");
        }
    }

    #[test]
    fn delta_nets_take_the_same_of_every_sequence() {
        let found = Footprint::of(&hybrid(), Kind::BFloat16);
        // One layer attends: keys and values of 2 heads of 8.
        assert_eq!(found.cache_per_token, 2 * 2 * 8 * 2);
        // Three keep a state of 4 heads, 6 by 5, and the last 3 inputs of 2·(2·6) + 4·5 channels.
        assert_eq!(found.state_per_sequence, 3 * (4 * 6 * 5 * 4 + 3 * 44 * 2));
    }

    #[test]
    fn a_config_that_asks_for_anything_gets_a_short_answer() {
        let huge = json!({
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 1 << 28,
            "hidden_size": 1 << 28, "intermediate_size": 1 << 28, "num_hidden_layers": 1 << 16,
            "num_attention_heads": 1 << 28, "num_key_value_heads": 1 << 28, "head_dim": 1 << 28,
            "max_position_embeddings": 1 << 28, "num_experts": 1 << 16, "num_experts_per_tok": 1,
            "moe_intermediate_size": 1 << 28,
        });
        let found = Footprint::of(&ModelConfig::from_json(&huge).unwrap(), Kind::Float);
        assert_eq!((found.weights, found.train), (u64::MAX, u64::MAX));
    }
}
