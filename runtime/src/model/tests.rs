//! Loading, saving, packing and sharing.

use std::path::Path;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::*;

type Change<'a> = &'a dyn Fn(&mut Vec<(String, Tensor)>);

fn config_json(tied: bool) -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "max_position_embeddings": 128, "tie_word_embeddings": tied, "initializer_range": 0.2,
    })
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

fn same(one: &Model, other: &Model) -> bool {
    let pairs = one.parameters().iter().zip(other.parameters());
    one.parameters().len() == other.parameters().len() && pairs.into_iter().all(|(a, b)| a.0 == b.0 && a.1 == b.1)
}

/// Rewrites `model.safetensors` after `change` saw its tensors.
fn rewrite(model: &Model, folder: &Path, change: impl FnOnce(&mut Vec<(String, Tensor)>)) {
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
    let error = refused(&|tensors| tensors.retain(|(name, _)| !name.contains("layers.1.mlp.up")));
    assert!(matches!(&error, Error::Missing { names } if names == &["model.layers.1.mlp.up_proj.weight"]), "{error}");
    let error = refused(&|tensors| {
        tensors.push(("model.layers.2.extra".to_owned(), Tensor::ones([2], (Kind::Float, Device::Cpu))))
    });
    assert!(matches!(&error, Error::Surplus { names } if names == &["model.layers.2.extra"]), "{error}");
    let error = refused(&|tensors| tensors[1].1 = Tensor::ones([7], (Kind::Float, Device::Cpu)));
    assert!(
        error.to_string().contains("`model.layers.0.input_layernorm.weight` has shape [7], config.json asks for [16]"),
        "{error}"
    );
    rewrite(&model, folder.path(), |tensors| {
        tensors.push((
            "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(),
            Tensor::ones([2], (Kind::Float, Device::Cpu)),
        ));
    });
    assert!(load(folder.path()).is_ok());
}

#[test]
fn a_stored_copy_of_a_tied_head_is_kept_and_another_head_refused() {
    let model = fresh(true, 3);
    let folder = folder_of(&model, true);
    rewrite(&model, folder.path(), |tensors| tensors.push((layout::HEAD.to_owned(), model.output_weight().detach())));
    let loaded = load(folder.path()).unwrap();
    let again = folder_of(&loaded, true);
    let sizes = [&folder, &again].map(|folder| std::fs::metadata(folder.path().join(load::SINGLE)).unwrap().len());
    assert_eq!(sizes[0], sizes[1]);
    rewrite(&model, folder.path(), |tensors| tensors.push((layout::HEAD.to_owned(), model.output_weight() + 1.0)));
    assert!(matches!(load(folder.path()), Err(Error::TiedHeadDiffers { .. })));
}

#[test]
fn damaged_files_are_errors() {
    let model = fresh(true, 3);
    let folder = folder_of(&model, true);
    let path = folder.path().join(load::SINGLE);
    let bytes = std::fs::read(&path).unwrap();
    for kept in [0, 7, 20, 300, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..kept]).unwrap();
        let error = load(folder.path()).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{kept} bytes: {error}");
    }
    std::fs::write(&path, [0xff; 64]).unwrap();
    assert!(matches!(load(folder.path()), Err(Error::Damaged { .. })));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(load(folder.path()), Err(Error::NoWeights { .. })));
    assert!(matches!(load(&folder.path().join("none")), Err(Error::Read { .. })));
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
fn packed_sequences_do_not_see_each_other() {
    let model = fresh(true, 3);
    let _guard = tch::no_grad_guard();
    for lengths in [vec![5], vec![4, 4, 4], vec![1, 60, 2, 17, 60, 18], vec![3, 30, 3, 3], vec![100, 2, 100]] {
        let tokens: usize = lengths.iter().sum();
        let ids: Vec<i64> = (0..tokens as i64).map(|i| (i * i + 3 * i) % 40).collect();
        let packed = model.hidden(&Tensor::from_slice(&ids), &lengths);
        assert_eq!(packed.size(), [tokens as i64, 16]);
        let rows: Vec<i64> = (0..tokens as i64).rev().step_by(3).collect();
        let fused = model.prefill(&ids, &lengths, &rows, None);
        let difference = (packed.index_select(0, &Tensor::from_slice(&rows)) - fused).abs().max().double_value(&[]);
        assert!(difference < 1e-5, "inference road of {lengths:?}: {difference:e}");
        let some = model.hidden_rows(&Tensor::from_slice(&ids), &lengths, &Tensor::from_slice(&rows));
        let difference = (packed.index_select(0, &Tensor::from_slice(&rows)) - some).abs().max().double_value(&[]);
        assert!(difference < 1e-5, "some rows of {lengths:?}: {difference:e}");
        let mut start = 0;
        for &length in &lengths {
            let alone = model.hidden(&Tensor::from_slice(&ids[start..start + length]), &[length]);
            let difference = (packed.narrow(0, start as i64, length as i64) - alone).abs().max().double_value(&[]);
            assert!(difference < 1e-5, "{lengths:?} from {start}: {difference:e}");
            start += length;
        }
    }
}

#[test]
fn packed_gradients_are_the_sum_of_single_ones() {
    let apart: Vec<Vec<i64>> =
        [7, 25, 9, 1, 40].map(|length| (0..length).map(|i| (i * i + length) % 40).collect()).into();
    // Responses to two prompts, one of them a beginning of another.
    let begin = |prompt: i64, rest: &[i64]| (0..20).map(|i| (i * prompt) % 40).chain(rest.iter().copied()).collect();
    let alike = vec![begin(3, &[1, 2]), begin(3, &[1, 3, 4]), begin(7, &[9]), begin(3, &[]), begin(7, &[9, 9, 9])];
    let loss = |model: &Model, ids: &[i64], lengths: &[usize]| {
        model.logits(&model.hidden(&Tensor::from_slice(ids), lengths)).square().sum(Kind::Float)
    };
    for sequences in [apart, alike] {
        let (packed, single) = (fresh(false, 3), fresh(false, 3));
        packed.set_requires_grad(true);
        single.set_requires_grad(true);
        let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
        loss(&packed, &sequences.concat(), &lengths).backward();
        for ids in &sequences {
            loss(&single, ids, &[ids.len()]).backward();
        }
        for ((name, one), (_, other)) in packed.parameters().iter().zip(single.parameters()) {
            let scale = other.grad().abs().max().double_value(&[]);
            let difference = (one.grad() - other.grad()).abs().max().double_value(&[]);
            assert!(
                scale > 0.0 && difference < 1e-5 * scale.max(1.0),
                "`{name}` differs by {difference:e} of {scale:e}"
            );
        }
    }
}

#[test]
fn common_beginnings_are_one_row() {
    let ids = [1, 2, 3, 4, 1, 2, 3, 5, 6, 1, 2, 9, 3, 4];
    let packing = Packing::new(&ids, &[4, 5, 2, 3], Device::Cpu);
    assert_eq!(packing.rows(), [0, 1, 2, 3, 0, 1, 2, 4, 5, 0, 1, 6, 7, 8]);
    assert_eq!(Vec::<i64>::try_from(packing.ids()).unwrap(), [1, 2, 3, 4, 5, 6, 9, 3, 4]);
    assert_eq!(Vec::<i64>::try_from(packing.positions()).unwrap(), [0, 1, 2, 3, 3, 4, 0, 1, 2]);
    assert!(packing.shared());
    // One token in common is not worth the gathering.
    let ids: Vec<i64> = (0..30).map(|i| if i % 10 == 0 { 0 } else { i }).collect();
    assert!(!Packing::new(&ids, &[10, 10, 10], Device::Cpu).shared());
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
