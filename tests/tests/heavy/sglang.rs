//! What SGLang would do with a checkpoint, by inspection of the files: it is not installed or run here.
//! What its model classes and their configs expect (`python/sglang/srt/models` and `configs` of its
//! repository, as read in November 2026) is written down as tables of parameters and of how its loaders
//! rename what is stored.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use training_gym_tests::fixture::{Family, Size, write_model};

/// The classes it registers, of ours. One for Qwen3.5 without its vision tower is not among them.
const CLASSES: [&str; 5] = [
    "Qwen2ForCausalLM",
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration",
];

/// Parameters that it fills from several tensors, and these, in their order.
const FUSED: [(&str, &[&str]); 4] = [
    ("qkv_proj", &["q_proj", "k_proj", "v_proj"]),
    ("gate_up_proj", &["gate_proj", "up_proj"]),
    ("in_proj_qkvz", &["in_proj_qkv", "in_proj_z"]),
    ("in_proj_ba", &["in_proj_b", "in_proj_a"]),
];

/// Its parameters: (name, which part of it; empty for the whole) to the shape that is stored.
type Table = BTreeMap<(String, String), Vec<usize>>;

/// Whether SGLang has a class for the checkpoint in `folder`.
///
/// # Errors
/// When it has, and would leave a parameter unset, a tensor unread, or refuse a setting.
pub(super) fn inspect(folder: &Path) -> Result<bool> {
    let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    let class = config["architectures"][0].as_str().context("a class")?;
    if !CLASSES.contains(&class) {
        return Ok(false);
    }
    let mut expected = expected(class, &config)?;
    let bytes = std::fs::read(folder.join("model.safetensors"))?;
    let text = config.get("text_config").unwrap_or(&config);
    let dtype = text["dtype"].as_str().or(text["torch_dtype"].as_str()).context("a number type")?;
    for (name, view) in SafeTensors::deserialize(&bytes)?.tensors() {
        // It loads into the settings' type; the two that stay float32 it keeps so, or casts.
        let kept = name.ends_with(".A_log") || name.ends_with("linear_attn.norm.weight");
        let stored = format!("{:?}", view.dtype()).replace("BF", "bfloat").replace('F', "float");
        ensure!(stored == dtype || kept, "`{name}` is {stored}, the settings say {dtype}");
        let Some(place) = place(class, &name) else { continue };
        let shape = expected.remove(&place).with_context(|| format!("`{name}` would be {place:?}: no such"))?;
        ensure!(shape == view.shape(), "`{name}` is {:?}, to be {shape:?}", view.shape());
    }
    ensure!(expected.is_empty(), "left unset: {:?}", expected.keys());
    Ok(true)
}

/// Where its loader puts a stored tensor; `None` for what it passes over.
fn place(class: &str, name: &str) -> Option<(String, String)> {
    let mut name = name.to_owned();
    if class == "Qwen3_5ForConditionalGeneration" {
        if name.contains("mtp") {
            return None;
        }
        if name.contains("visual") {
            return Some((
                name.replace("model.visual.", "visual.").replace("attn.qkv.", "attn.qkv_proj."),
                String::new(),
            ));
        }
        name = name.replace("model.language_model.", "model.").replace(".self_attn", "");
    }
    if let Some((before, after)) = name.split_once(".experts.") {
        let (expert, part) = after.strip_suffix(".weight")?.split_once('.')?;
        let fused = if part == "down_proj" { "w2_weight" } else { "w13_weight" };
        return Some((format!("{before}.experts.{fused}"), format!("{expert}.{part}")));
    }
    for (fused, parts) in FUSED {
        if let Some(part) = parts.iter().find(|part| name.contains(&format!(".{part}."))) {
            return Some((name.replace(part, fused), (*part).to_owned()));
        }
    }
    Some((name, String::new()))
}

/// The parameters its class makes of the settings.
fn expected(class: &str, config: &Value) -> Result<Table> {
    let text = config.get("text_config").unwrap_or(config);
    let number =
        |key: &str| -> Result<usize> { Ok(text[key].as_u64().with_context(|| format!("no `{key}`"))? as usize) };
    ensure!(text["hidden_act"] == "silu", "only silu is computed");
    let (hidden, vocabulary) = (number("hidden_size")?, number("vocab_size")?);
    let mut table = Table::new();
    let mut put =
        |name: &str, part: &str, shape: &[usize]| table.insert((name.to_owned(), part.to_owned()), shape.to_vec());
    put("model.embed_tokens.weight", "", &[vocabulary, hidden]);
    put("model.norm.weight", "", &[hidden]);
    // Its Qwen3-MoE has a head of its own whatever the settings say, and fills it from the file alone.
    if text["tie_word_embeddings"] == false || class == "Qwen3MoeForCausalLM" {
        put("lm_head.weight", "", &[vocabulary, hidden]);
    }
    let interval = if class == "Qwen3_5ForConditionalGeneration" { number("full_attention_interval")? } else { 1 };
    for layer in 0..number("num_hidden_layers")? {
        let layer_name = format!("model.layers.{layer}");
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            put(&format!("{layer_name}.{norm}.weight"), "", &[hidden]);
        }
        let rows = if (layer + 1) % interval == 0 { attention(class, &number, text)? } else { delta_net(&number)? };
        for (name, part, shape) in rows.into_iter().chain(feed_forward(class, &number, text)?) {
            put(&format!("{layer_name}.{name}"), &part, &shape);
        }
    }
    if class == "Qwen3_5ForConditionalGeneration" {
        for (name, shape) in vision(&config["vision_config"])? {
            put(&format!("visual.{name}"), "", &shape);
        }
    }
    Ok(table)
}

/// Rows of a layer: parameter, part, shape.
type Rows = Vec<(String, String, Vec<usize>)>;

fn row(name: &str, part: &str, shape: &[usize]) -> (String, String, Vec<usize>) {
    (name.to_owned(), part.to_owned(), shape.to_vec())
}

fn attention(class: &str, number: &dyn Fn(&str) -> Result<usize>, text: &Value) -> Result<Rows> {
    let (hidden, heads, groups) =
        (number("hidden_size")?, number("num_attention_heads")?, number("num_key_value_heads")?);
    // Its Qwen2 knows no `head_dim`.
    let head = match text["head_dim"].as_u64() {
        Some(head) if class != "Qwen2ForCausalLM" => head as usize,
        _ => hidden / heads,
    };
    // Its Qwen3.5 has attention's parameters in the layer itself, and the gate's rows with the queries'.
    let (prefix, queries) =
        if class == "Qwen3_5ForConditionalGeneration" { ("", 2 * heads) } else { ("self_attn.", heads) };
    let mut rows = Vec::new();
    for (part, count) in [("q_proj", queries), ("k_proj", groups), ("v_proj", groups)] {
        rows.push(row(&format!("{prefix}qkv_proj.weight"), part, &[count * head, hidden]));
        if class == "Qwen2ForCausalLM" {
            rows.push(row(&format!("{prefix}qkv_proj.bias"), part, &[count * head]));
        }
    }
    rows.push(row(&format!("{prefix}o_proj.weight"), "", &[hidden, heads * head]));
    if class.starts_with("Qwen3") {
        rows.extend(["q_norm", "k_norm"].map(|norm| row(&format!("{prefix}{norm}.weight"), "", &[head])));
    }
    Ok(rows)
}

fn delta_net(number: &dyn Fn(&str) -> Result<usize>) -> Result<Rows> {
    let hidden = number("hidden_size")?;
    let heads = number("linear_num_value_heads")?;
    let keys = number("linear_num_key_heads")? * number("linear_key_head_dim")?;
    let values = heads * number("linear_value_head_dim")?;
    Ok(vec![
        row("linear_attn.in_proj_qkvz.weight", "in_proj_qkv", &[2 * keys + values, hidden]),
        row("linear_attn.in_proj_qkvz.weight", "in_proj_z", &[values, hidden]),
        row("linear_attn.in_proj_ba.weight", "in_proj_b", &[heads, hidden]),
        row("linear_attn.in_proj_ba.weight", "in_proj_a", &[heads, hidden]),
        row("linear_attn.conv1d.weight", "", &[2 * keys + values, 1, number("linear_conv_kernel_dim")?]),
        row("linear_attn.A_log", "", &[heads]),
        row("linear_attn.dt_bias", "", &[heads]),
        row("linear_attn.norm.weight", "", &[number("linear_value_head_dim")?]),
        row("linear_attn.out_proj.weight", "", &[hidden, values]),
    ])
}

fn feed_forward(class: &str, number: &dyn Fn(&str) -> Result<usize>, text: &Value) -> Result<Rows> {
    let hidden = number("hidden_size")?;
    if class != "Qwen3MoeForCausalLM" {
        let width = number("intermediate_size")?;
        return Ok(vec![
            row("mlp.gate_up_proj.weight", "gate_proj", &[width, hidden]),
            row("mlp.gate_up_proj.weight", "up_proj", &[width, hidden]),
            row("mlp.down_proj.weight", "", &[hidden, width]),
        ]);
    }
    // It gives every layer experts; a dense layer's tensors it would pass over in silence.
    if text["mlp_only_layers"].as_array().is_some_and(|layers| !layers.is_empty())
        || number("decoder_sparse_step")? != 1
    {
        bail!("its Qwen3-MoE has no dense layers");
    }
    let (experts, width) = (number("num_experts")?, number("moe_intermediate_size")?);
    let mut rows = vec![row("mlp.gate.weight", "", &[experts, hidden])];
    for expert in 0..experts {
        rows.push(row("mlp.experts.w13_weight", &format!("{expert}.gate_proj"), &[width, hidden]));
        rows.push(row("mlp.experts.w13_weight", &format!("{expert}.up_proj"), &[width, hidden]));
        rows.push(row("mlp.experts.w2_weight", &format!("{expert}.down_proj"), &[hidden, width]));
    }
    Ok(rows)
}

fn vision(config: &Value) -> Result<Vec<(String, Vec<usize>)>> {
    let number = |key: &str| -> Result<usize> {
        Ok(config[key].as_u64().with_context(|| format!("no vision `{key}`"))? as usize)
    };
    // It takes [8, 16, 24] where the settings do not say, and would want mergers for these.
    ensure!(config["deepstack_visual_indexes"] == json!([]), "deepstack mergers are wanted");
    let (width, inner) = (number("hidden_size")?, number("intermediate_size")?);
    let merged = width * number("spatial_merge_size")?.pow(2);
    let patch = number("patch_size")?;
    let mut rows = vec![
        ("pos_embed.weight".to_owned(), vec![number("num_position_embeddings")?, width]),
        (
            "patch_embed.proj.weight".to_owned(),
            vec![width, number("in_channels")?, number("temporal_patch_size")?, patch, patch],
        ),
        ("patch_embed.proj.bias".to_owned(), vec![width]),
        ("merger.norm.weight".to_owned(), vec![width]),
        ("merger.norm.bias".to_owned(), vec![width]),
    ];
    let mut linear = |name: &str, rows_out: usize, columns: usize| {
        rows.push((format!("{name}.weight"), vec![rows_out, columns]));
        rows.push((format!("{name}.bias"), vec![rows_out]));
    };
    linear("merger.linear_fc1", merged, merged);
    linear("merger.linear_fc2", number("out_hidden_size")?, merged);
    for block in 0..number("depth")? {
        linear(&format!("blocks.{block}.attn.qkv_proj"), 3 * width, width);
        linear(&format!("blocks.{block}.attn.proj"), width, width);
        linear(&format!("blocks.{block}.mlp.linear_fc1"), inner, width);
        linear(&format!("blocks.{block}.mlp.linear_fc2"), width, inner);
    }
    for block in 0..number("depth")? {
        for norm in ["norm1", "norm2"] {
            rows.push((format!("blocks.{block}.{norm}.weight"), vec![width]));
            rows.push((format!("blocks.{block}.{norm}.bias"), vec![width]));
        }
    }
    Ok(rows)
}

#[test]
fn a_checkpoint_that_sglang_would_misread_is_noticed() -> Result<()> {
    let cases = [
        (Family::Qwen3, "num_key_value_heads", json!(4), "to be [128, 64]"),
        (Family::Qwen3, "num_hidden_layers", json!(3), "left unset"),
        (Family::Llama, "num_hidden_layers", json!(1), "no such"),
        (Family::Llama, "torch_dtype", json!("bfloat16"), "the settings say bfloat16"),
        (Family::Qwen2, "tie_word_embeddings", json!(false), "lm_head"),
        (Family::Qwen3Moe, "mlp_only_layers", json!([0]), "no dense layers"),
        (Family::Qwen3_5, "vision_config", json!({}), "deepstack"),
    ];
    for (family, key, value, word) in cases {
        let folder = tempfile::tempdir()?;
        write_model(folder.path(), 1, Size { family, ..Size::default() })?;
        ensure!(inspect(folder.path())?, "{family:?} as it is");
        let path = folder.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        config[key] = value;
        std::fs::write(&path, config.to_string())?;
        let error = inspect(folder.path()).err().with_context(|| format!("{family:?} with another `{key}` passed"))?;
        ensure!(format!("{error:#}").contains(word), "{family:?}, `{key}`: {error:#}");
    }
    Ok(())
}
