//! A tiny random Qwen3 with a character tokenizer and a chat template, written from a seed: all a
//! whole-system test needs to drive the real programs in seconds.

use std::path::Path;

use anyhow::Result;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// How large the model is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Hidden size, a multiple of 16.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Context.
    pub context: usize,
}

impl Default for Size {
    fn default() -> Self {
        Self { hidden: 32, layers: 2, context: 256 }
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
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false,
        "hidden_act": "silu", "hidden_size": size.hidden, "intermediate_size": 2 * size.hidden,
        "num_hidden_layers": size.layers, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": size.context, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "rope_scaling": null, "tie_word_embeddings": true, "use_sliding_window": false, "sliding_window": null,
        "vocab_size": vocab_size, "bos_token_id": null, "eos_token_id": 2, "pad_token_id": 0,
        "torch_dtype": "float32",
    })
}

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
    let (hidden, width) = (size.hidden, 2 * size.hidden);
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![vocab_size, hidden])];
    for layer in 0..size.layers {
        let mut add =
            |name: &str, shape: Vec<usize>| shapes.push((format!("model.layers.{layer}.{name}.weight"), shape));
        add("input_layernorm", vec![hidden]);
        add("self_attn.q_proj", vec![64, hidden]);
        add("self_attn.k_proj", vec![32, hidden]);
        add("self_attn.v_proj", vec![32, hidden]);
        add("self_attn.o_proj", vec![hidden, 64]);
        add("self_attn.q_norm", vec![16]);
        add("self_attn.k_norm", vec![16]);
        add("post_attention_layernorm", vec![hidden]);
        add("mlp.gate_proj", vec![width, hidden]);
        add("mlp.up_proj", vec![width, hidden]);
        add("mlp.down_proj", vec![hidden, width]);
    }
    shapes.push(("model.norm.weight".to_owned(), vec![hidden]));
    let mut noise = Noise(seed);
    let data: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product::<usize>();
            let norm = shape.len() == 1;
            let values =
                (0..count).flat_map(|_| if norm { 1.0_f32 } else { 0.3 * noise.next() }.to_le_bytes()).collect();
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
