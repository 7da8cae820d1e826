//! A tiny random model with a character tokenizer and a chat template, written from a seed: all a
//! whole-system test needs to drive the real programs in seconds.

use std::path::Path;

use anyhow::Result;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// Which layers the model has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// Attention and dense feed-forwards.
    #[default]
    Qwen3,
    /// Experts in every layer but the first.
    Qwen3Moe,
    /// As published: delta nets, attention in every second layer, a vision tower beside.
    Qwen3_5,
}

/// How large the model is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Hidden size, a multiple of 16.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Context.
    pub context: usize,
    /// Family.
    pub family: Family,
}

impl Default for Size {
    fn default() -> Self {
        Self { hidden: 32, layers: 2, context: 256, family: Family::Qwen3 }
    }
}

const SPECIAL: [&str; 3] = ["<|pad|>", "<|im_start|>", "<|im_end|>"];
const CHARACTERS: &str =
    "\n !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_abcdefghijklmnopqrstuvwxyz{|}~é";

const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                        {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Writes the model of `seed` into `folder`. Two seeds give two models with one tokenizer.
///
/// # Errors
/// When the folder cannot be written.
pub fn write_model(folder: &Path, seed: u64, size: Size) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let vocabulary: Vec<String> =
        SPECIAL.iter().map(|token| (*token).to_owned()).chain(CHARACTERS.chars().map(String::from)).collect();
    let write = |name: &str, value: &Value| {
        std::fs::write(folder.join(name), serde_json::to_vec_pretty(value)?).map_err(anyhow::Error::from)
    };
    write("config.json", &config(vocabulary.len(), size))?;
    write("generation_config.json", &json!({"eos_token_id": [2], "pad_token_id": 0}))?;
    write("tokenizer.json", &tokenizer(&vocabulary))?;
    write(
        "tokenizer_config.json",
        &json!({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[2], "pad_token": SPECIAL[0],
                "chat_template": TEMPLATE, "model_max_length": size.context}),
    )?;
    write_weights(&folder.join("model.safetensors"), vocabulary.len(), (seed, size))
}

fn config(vocab_size: usize, size: Size) -> Value {
    let mut config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false,
        "hidden_act": "silu", "hidden_size": size.hidden, "intermediate_size": 2 * size.hidden,
        "num_hidden_layers": size.layers, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": size.context, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "rope_scaling": null, "tie_word_embeddings": true, "use_sliding_window": false, "sliding_window": null,
        "vocab_size": vocab_size, "bos_token_id": null, "eos_token_id": 2, "pad_token_id": 0,
        "torch_dtype": "float32",
    });
    let mut set = |settings: Value| {
        for (key, value) in settings.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
    };
    match size.family {
        Family::Qwen3 => config,
        Family::Qwen3Moe => {
            set(json!({
                "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": EXPERTS,
                "num_experts_per_tok": 2, "moe_intermediate_size": size.hidden, "norm_topk_prob": true,
                "decoder_sparse_step": 1, "mlp_only_layers": [0],
            }));
            config
        }
        Family::Qwen3_5 => {
            set(json!({
                "model_type": "qwen3_5_text", "full_attention_interval": 2, "attn_output_gate": true,
                "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
                "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "rope_theta": null,
                "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5},
            }));
            config.as_object_mut().expect("an object").retain(|key, value| key != "architectures" && !value.is_null());
            json!({
                "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": config,
                "tie_word_embeddings": true, "dtype": "float32",
                "vision_config": {
                    "model_type": "qwen3_5", "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
                    "out_hidden_size": size.hidden, "patch_size": 2, "temporal_patch_size": 2,
                    "spatial_merge_size": 2, "num_position_embeddings": 16,
                },
            })
        }
    }
}

/// Experts of a layer that has them.
const EXPERTS: usize = 4;

fn tokenizer(vocabulary: &[String]) -> Value {
    let special: Vec<Value> = SPECIAL
        .iter()
        .enumerate()
        .map(|(id, token)| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    let ids: serde_json::Map<String, Value> =
        vocabulary.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": special, "normalizer": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false},
        "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": "?"},
    })
}

fn write_weights(path: &Path, vocab_size: usize, (seed, size): (u64, Size)) -> Result<()> {
    let mut noise = Noise(seed);
    let data: Vec<(String, Vec<usize>, Vec<u8>)> = shapes(vocab_size, size)
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product::<usize>();
            let vector = shape.len() == 1;
            // Norms of Qwen3.5 scale by 1 + w; so does a delta net forget at a middle rate.
            let start =
                if size.family == Family::Qwen3_5 && !name.ends_with("linear_attn.norm.weight") { 0.0 } else { 1.0 };
            let values =
                (0..count).flat_map(|_| if vector { start } else { 0.3 * noise.next() }.to_le_bytes()).collect();
            (name, shape, values)
        })
        .collect();
    let views: Vec<(&str, TensorView<'_>)> = data
        .iter()
        .map(|(name, shape, bytes)| Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect::<Result<_>>()?;
    std::fs::write(path, safetensors::serialize(views, None)?)?;
    Ok(())
}

/// Every tensor by name.
fn shapes(vocab_size: usize, size: Size) -> Vec<(String, Vec<usize>)> {
    let (hidden, width) = (size.hidden, 2 * size.hidden);
    let nested = size.family == Family::Qwen3_5;
    let root = if nested { "model.language_model" } else { "model" };
    let mut shapes = vec![(format!("{root}.embed_tokens.weight"), vec![vocab_size, hidden])];
    for layer in 0..size.layers {
        let mut add = |name: &str, shape: Vec<usize>| shapes.push((format!("{root}.layers.{layer}.{name}"), shape));
        add("input_layernorm.weight", vec![hidden]);
        if nested && layer % 2 == 0 {
            add("linear_attn.in_proj_qkv.weight", vec![64, hidden]);
            add("linear_attn.in_proj_z.weight", vec![32, hidden]);
            add("linear_attn.in_proj_b.weight", vec![4, hidden]);
            add("linear_attn.in_proj_a.weight", vec![4, hidden]);
            add("linear_attn.conv1d.weight", vec![64, 1, 4]);
            add("linear_attn.dt_bias", vec![4]);
            add("linear_attn.A_log", vec![4]);
            add("linear_attn.norm.weight", vec![8]);
            add("linear_attn.out_proj.weight", vec![hidden, 32]);
        } else {
            add("self_attn.q_proj.weight", vec![if nested { 128 } else { 64 }, hidden]);
            add("self_attn.k_proj.weight", vec![32, hidden]);
            add("self_attn.v_proj.weight", vec![32, hidden]);
            add("self_attn.o_proj.weight", vec![hidden, 64]);
            add("self_attn.q_norm.weight", vec![16]);
            add("self_attn.k_norm.weight", vec![16]);
        }
        add("post_attention_layernorm.weight", vec![hidden]);
        let mut feed_forward = |part: &str, width: usize| {
            add(&format!("{part}.gate_proj.weight"), vec![width, hidden]);
            add(&format!("{part}.up_proj.weight"), vec![width, hidden]);
            add(&format!("{part}.down_proj.weight"), vec![hidden, width]);
        };
        if size.family == Family::Qwen3Moe && layer > 0 {
            (0..EXPERTS).for_each(|expert| feed_forward(&format!("mlp.experts.{expert}"), hidden));
            add("mlp.gate.weight", vec![EXPERTS, hidden]);
        } else {
            feed_forward("mlp", width);
        }
    }
    shapes.push((format!("{root}.norm.weight"), vec![hidden]));
    if nested {
        vision(&mut shapes, hidden);
    }
    shapes
}

/// A vision tower as transformers names it, and a tensor of multi-token prediction.
fn vision(shapes: &mut Vec<(String, Vec<usize>)>, hidden: usize) {
    let mut linear = |name: &str, rows: usize, columns: usize| {
        shapes.push((format!("model.visual.{name}.weight"), vec![rows, columns]));
        shapes.push((format!("model.visual.{name}.bias"), vec![rows]));
    };
    for (name, rows, columns) in
        [("attn.qkv", 48, 16), ("attn.proj", 16, 16), ("mlp.linear_fc1", 16, 16), ("mlp.linear_fc2", 16, 16)]
    {
        linear(&format!("blocks.0.{name}"), rows, columns);
    }
    linear("merger.linear_fc1", 64, 64);
    linear("merger.linear_fc2", hidden, 64);
    for name in ["blocks.0.norm1", "blocks.0.norm2", "merger.norm"] {
        shapes.push((format!("model.visual.{name}.weight"), vec![16]));
        shapes.push((format!("model.visual.{name}.bias"), vec![16]));
    }
    shapes.push(("model.visual.patch_embed.proj.weight".to_owned(), vec![16, 3, 2, 2, 2]));
    shapes.push(("model.visual.patch_embed.proj.bias".to_owned(), vec![16]));
    shapes.push(("model.visual.pos_embed.weight".to_owned(), vec![16, 16]));
    shapes.push(("mtp.fc.weight".to_owned(), vec![hidden, 2 * hidden]));
}

/// Numbers of mean 0 and variance 1 (a sum of uniforms is normal enough here), by SplitMix64.
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) >> 40) as f32 / (1 << 24) as f32
    }

    fn next(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }
}
