//! Loading, saving and sharing; further kinds of tests in rooms of their own.

mod carried;
mod delta_rule;
mod malformed;
mod packing;
mod recompute;

use std::path::Path;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::*;

type Change<'a> = &'a dyn Fn(&mut Vec<Stored>);

fn config_json(tied: bool) -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "max_position_embeddings": 128, "tie_word_embeddings": tied, "initializer_range": 0.2,
    })
}

/// With experts in one of three layers.
fn moe_json() -> Value {
    let mut config = config_json(false);
    for (key, value) in [
        ("architectures", json!(["Qwen3MoeForCausalLM"])),
        ("num_hidden_layers", json!(3)),
        ("mlp_only_layers", json!([0, 2])),
        ("num_experts", json!(6)),
        ("num_experts_per_tok", json!(2)),
        ("moe_intermediate_size", json!(8)),
        ("norm_topk_prob", json!(true)),
    ] {
        config[key] = value;
    }
    config
}

/// As published: two delta nets, then an attention; text settings nested.
fn hybrid_json() -> Value {
    let mut text = config_json(true);
    for (key, value) in [
        ("architectures", Value::Null),
        // Norms over small states make more of rounding than attention does.
        ("initializer_range", json!(0.1)),
        ("model_type", json!("qwen3_5_text")),
        ("num_hidden_layers", json!(3)),
        ("full_attention_interval", json!(3)),
        ("head_dim", json!(16)),
        ("linear_num_key_heads", json!(2)),
        ("linear_num_value_heads", json!(4)),
        ("linear_key_head_dim", json!(6)),
        ("linear_value_head_dim", json!(4)),
        ("linear_conv_kernel_dim", json!(4)),
    ] {
        text[key] = value;
    }
    json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "dtype": "float32",
        "text_config": text, "tie_word_embeddings": true,
    })
}

fn fresh_of(config: &Value) -> Model {
    Model::init(ModelConfig::from_json(config).unwrap(), LoadOptions::default(), 3)
}

/// A model of each kind of layer.
fn families() -> Vec<Model> {
    [config_json(true), moe_json(), hybrid_json()].iter().map(fresh_of).collect()
}

fn fresh(tied: bool, seed: u64) -> Model {
    Model::init(ModelConfig::from_json(&config_json(tied)).unwrap(), LoadOptions::default(), seed)
}

fn folder_of(model: &Model, tied: bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    model.save_weights(folder.path()).unwrap();
    std::fs::write(folder.path().join("config.json"), config_json(tied).to_string()).unwrap();
    folder
}

fn load(folder: &Path) -> Result<Model, Error> {
    Model::load(folder, LoadOptions::default())
}

fn weight(name: &str, tensor: Tensor) -> Stored {
    Stored::Weight(name.to_owned(), tensor)
}

fn ones(count: i64) -> Tensor {
    Tensor::ones([count], (Kind::Float, Device::Cpu))
}

fn same(one: &Model, other: &Model) -> bool {
    let pairs = one.parameters().iter().zip(other.parameters());
    one.parameters().len() == other.parameters().len() && pairs.into_iter().all(|(a, b)| a.0 == b.0 && a.1 == b.1)
}

/// Rewrites `model.safetensors` after `change` saw its tensors.
fn rewrite(model: &Model, folder: &Path, change: impl FnOnce(&mut Vec<Stored>)) {
    let mut tensors = model.stored_tensors();
    change(&mut tensors);
    save::save(&tensors, folder, usize::MAX).unwrap();
}

#[test]
fn weights_come_back_as_written() {
    for tied in [true, false] {
        let model = fresh(tied, 3);
        let folder = folder_of(&model, tied);
        let loaded = load(folder.path()).unwrap();
        assert!(same(&model, &loaded));
        assert_eq!(loaded.parameters().iter().any(|(name, _)| name == layout::HEAD), !tied);
        assert!(!same(&model, &fresh(tied, 4)) && same(&model, &fresh(tied, 3)));
    }
}

#[test]
fn shards_are_listed_in_an_index() {
    let model = fresh(false, 3);
    let folder = folder_of(&model, false);
    std::fs::remove_file(folder.path().join(load::SINGLE)).unwrap();
    save::save(&model.stored_tensors(), folder.path(), 4_000).unwrap();
    let shards = std::fs::read_dir(folder.path()).unwrap().count() - 2;
    assert!(shards > 3);
    assert!(same(&model, &load(folder.path()).unwrap()));

    let index = folder.path().join(load::INDEX);
    let written: Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
    assert_eq!(
        written["metadata"]["total_size"],
        json!(model.parameters().iter().map(|p| p.1.numel() * 4).sum::<usize>())
    );
    let first = written["weight_map"]["model.norm.weight"].as_str().unwrap().to_owned();
    std::fs::copy(folder.path().join(&first), folder.path().parent().unwrap().join(&first)).unwrap();
    for (key, value, word) in [
        ("model.norm.weight", json!(format!("../{first}")), "must be a file of the same folder"),
        ("model.norm.weight", json!(format!("/etc/{first}")), "must be a file of the same folder"),
        ("model.norm.weight", json!(".."), "must be a file of the same folder"),
        ("model.norm.weight", json!("model-00001-of-00002.safetensors"), "cannot read"),
        ("lm_head.bias", json!(first), "tensor `lm_head.bias` is not in"),
    ] {
        let mut changed = written.clone();
        changed["weight_map"][key] = value;
        std::fs::write(&index, changed.to_string()).unwrap();
        let text = load(folder.path()).unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
    }
    std::fs::remove_file(folder.path().parent().unwrap().join(&first)).unwrap();
}

#[test]
fn wrong_tensors_are_named() {
    let model = fresh(false, 3);
    let folder = folder_of(&model, false);
    let refused = |change: Change<'_>| {
        rewrite(&model, folder.path(), change);
        load(folder.path()).unwrap_err()
    };
    let error = refused(&|tensors| tensors.retain(|stored| !stored.name().contains("layers.1.mlp.up")));
    assert!(matches!(&error, Error::Missing { names } if names == &["model.layers.1.mlp.up_proj.weight"]), "{error}");
    let error = refused(&|tensors| tensors.push(weight("model.layers.2.extra", ones(2))));
    assert!(matches!(&error, Error::Surplus { names } if names == &["model.layers.2.extra"]), "{error}");
    let error = refused(&|tensors| tensors[1] = weight("model.layers.0.input_layernorm.weight", ones(7)));
    assert!(
        error.to_string().contains("`model.layers.0.input_layernorm.weight` has shape [7], config.json asks for [16]"),
        "{error}"
    );
    rewrite(&model, folder.path(), |tensors| {
        tensors.push(weight("model.layers.0.self_attn.rotary_emb.inv_freq", ones(2)));
    });
    assert!(load(folder.path()).is_ok());
}

#[test]
fn a_stored_copy_of_a_tied_head_is_kept_and_another_head_refused() {
    let model = fresh(true, 3);
    let folder = folder_of(&model, true);
    rewrite(&model, folder.path(), |tensors| tensors.push(weight(layout::HEAD, model.output_weight().detach())));
    let loaded = load(folder.path()).unwrap();
    let again = folder_of(&loaded, true);
    let sizes = [&folder, &again].map(|folder| std::fs::metadata(folder.path().join(load::SINGLE)).unwrap().len());
    assert_eq!(sizes[0], sizes[1]);
    rewrite(&model, folder.path(), |tensors| tensors.push(weight(layout::HEAD, model.output_weight() + 1.0)));
    assert!(matches!(load(folder.path()), Err(Error::TiedHeadDiffers { .. })));
}

#[test]
fn a_half_written_save_leaves_the_old_file() {
    let model = fresh(true, 3);
    let folder = folder_of(&model, true);
    let names = || {
        let mut names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    fresh(true, 5).save_weights(folder.path()).unwrap();
    assert_eq!(names(), before, "no temporary file is left");
    assert!(same(&load(folder.path()).unwrap(), &fresh(true, 5)));
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(model.save_weights(&file.path().join("under-a-file")), Err(Error::Write { .. })));
}

#[test]
fn types_are_converted_on_the_way() {
    let model = fresh(true, 3);
    let folder = folder_of(&model, true);
    let half = Model::load(folder.path(), LoadOptions { dtype: Kind::BFloat16, ..LoadOptions::default() }).unwrap();
    let ids = Tensor::from_slice(&[1_i64, 2, 3, 4]);
    let (exact, rounded) = (model.logits(&model.hidden(&ids, &[4])), half.logits(&half.hidden(&ids, &[4])));
    assert_eq!(rounded.kind(), Kind::BFloat16);
    assert!((exact - rounded).abs().max().double_value(&[]) < 0.1);
    let again = folder_of(&half, true);
    let bytes = |folder: &tempfile::TempDir| std::fs::metadata(folder.path().join(load::SINGLE)).unwrap().len();
    assert!(bytes(&again) < bytes(&folder) * 6 / 10);
    assert!(same(&half, &Model::load(again.path(), half.options()).unwrap()));
}

#[test]
fn a_shared_model_sees_updates_and_keeps_its_gradients_to_itself() {
    let model = fresh(true, 3);
    model.set_requires_grad(true);
    let shared = model.share();
    assert!(shared.parameters().iter().all(|(_, tensor)| !tensor.requires_grad()));
    let ids = Tensor::from_slice(&[1_i64, 2, 3]);
    let before = shared.hidden(&ids, &[3]);
    assert!(!before.requires_grad());
    model.hidden(&ids, &[3]).sum(Kind::Float).backward();
    tch::no_grad(|| {
        for (_, tensor) in model.parameters() {
            let _ = tensor.shallow_clone().g_sub_(&(tensor.grad() * 0.1));
        }
    });
    let after = tch::no_grad(|| model.hidden(&ids, &[3]));
    assert_ne!(before, after);
    assert_eq!(shared.hidden(&ids, &[3]), after);
    let fused = shared.prefill(&[1, 2, 3], &[3], &[0, 1, 2], None);
    assert!((fused - after).abs().max().double_value(&[]) < 1e-5);
}

#[test]
fn a_copy_has_the_same_weights_in_memory_of_its_own() {
    for model in families() {
        model.set_requires_grad(true);
        let copy = model.copy();
        let ids = Tensor::from_slice(&[1_i64, 2, 3]);
        let before = tch::no_grad(|| model.hidden(&ids, &[3]));
        assert_eq!(copy.hidden(&ids, &[3]), before, "{}", model.config().architecture.name());
        assert!(copy.parameters().iter().all(|(_, tensor)| !tensor.requires_grad()));
        tch::no_grad(|| {
            for ((name, mine), (same, theirs)) in model.parameters().iter().zip(copy.parameters()) {
                assert_eq!(name, same);
                assert_eq!(mine, theirs, "{name}");
                let _ = mine.shallow_clone().g_add_scalar_(1.0);
            }
        });
        assert_eq!(copy.hidden(&ids, &[3]), before);
    }
}
