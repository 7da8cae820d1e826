//! What a checkpoint has beside the text model, and how all of it is written back.

use safetensors::{Dtype, SafeTensors};

use super::*;

fn bf16(size: i64) -> Tensor {
    (Tensor::arange(size, (Kind::Float, Device::Cpu)) * 0.37).to_kind(Kind::BFloat16)
}

/// A published folder: bfloat16, its vision tower and prediction heads beside it.
fn published() -> (tempfile::TempDir, Model) {
    let config = hybrid_json();
    let options = LoadOptions { dtype: Kind::BFloat16, ..LoadOptions::default() };
    let model = Model::init(ModelConfig::from_json(&config).unwrap(), options, 3);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    rewrite(&model, folder.path(), |tensors| {
        tensors.push(weight("model.visual.blocks.0.attn.qkv.weight", bf16(48).view([6, 8])));
        tensors.push(weight("mtp.fc.weight", bf16(10)));
    });
    (folder, model)
}

#[test]
fn what_is_not_computed_comes_back_to_the_bit() {
    let (source, model) = published();
    let bytes = std::fs::read(source.path().join(load::SINGLE)).unwrap();
    for dtype in [Kind::BFloat16, Kind::Float] {
        let loaded = Model::load(source.path(), LoadOptions { dtype, ..LoadOptions::default() }).unwrap();
        assert_eq!(loaded.carried().collect::<Vec<_>>(), ["model.visual.blocks.0.attn.qkv.weight", "mtp.fc.weight"]);
        assert_eq!(loaded.parameters().len(), model.parameters().len());
        let to = tempfile::tempdir().unwrap();
        loaded.share().save_weights(to.path()).unwrap();
        let again = std::fs::read(to.path().join(load::SINGLE)).unwrap();
        let (before, after) = (SafeTensors::deserialize(&bytes).unwrap(), SafeTensors::deserialize(&again).unwrap());
        let names = |file: &SafeTensors<'_>| {
            let mut names: Vec<_> = file.names().into_iter().map(str::to_owned).collect();
            names.sort();
            names
        };
        assert_eq!(names(&before), names(&after));
        for name in names(&before) {
            let (one, other) = (before.tensor(&name).unwrap(), after.tensor(&name).unwrap());
            let carried = name.starts_with("mtp.") || name.starts_with("model.visual.");
            let kept = name.ends_with("A_log") || name.ends_with("linear_attn.norm.weight");
            assert_eq!(one.dtype(), if kept { Dtype::F32 } else { Dtype::BF16 }, "{name}");
            assert_eq!(one.shape(), other.shape(), "{name}");
            if dtype == Kind::BFloat16 || carried || kept {
                assert!(one.dtype() == other.dtype() && one.data() == other.data(), "{name}");
            } else {
                assert_eq!(other.dtype(), Dtype::F32, "{name}");
            }
        }
    }
}

#[test]
fn carried_tensors_outlive_their_folder_and_go_into_shards() {
    let (source, _) = published();
    let loaded = load(source.path()).unwrap();
    let bytes = |model: &Model| -> Vec<Vec<u8>> {
        let bytes = |tensor: &FileTensor| {
            let mut bytes = Vec::new();
            let mut keep = |piece: &[u8]| -> Result<(), Error> {
                bytes.extend_from_slice(piece);
                Ok(())
            };
            tensor.pieces(7, &mut keep).unwrap();
            bytes
        };
        model.beside.carried.iter().map(bytes).collect()
    };
    let expected = bytes(&loaded);
    drop(source);
    let to = tempfile::tempdir().unwrap();
    save::save(&loaded.stored_tensors(), to.path(), 3_000).unwrap();
    std::fs::write(to.path().join("config.json"), hybrid_json().to_string()).unwrap();
    let again = load(to.path()).unwrap();
    assert!(same(&loaded, &again));
    assert_eq!(bytes(&again), expected);
}

#[test]
fn a_source_cut_short_fails_the_save_and_leaves_nothing() {
    let (source, _) = published();
    let loaded = load(source.path()).unwrap();
    std::fs::File::options().write(true).open(source.path().join(load::SINGLE)).unwrap().set_len(100).unwrap();
    let to = tempfile::tempdir().unwrap();
    let error = loaded.save_weights(to.path()).unwrap_err();
    assert!(matches!(error, Error::Read { .. }), "{error}");
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 0);
}

#[test]
fn other_families_carry_nothing() {
    let model = fresh(false, 3);
    let folder = folder_of(&model, false);
    for name in ["mtp.fc.weight", "model.visual.patch_embed.proj.weight"] {
        rewrite(&model, folder.path(), |tensors| tensors.push(weight(name, bf16(3))));
        assert!(matches!(load(folder.path()), Err(Error::Surplus { names }) if names == [name]));
    }
    // A text-only Qwen3.5 has no vision tower.
    let mut flat = hybrid_json()["text_config"].clone();
    flat["architectures"] = json!(["Qwen3_5ForCausalLM"]);
    let model = fresh_of(&flat);
    std::fs::write(folder.path().join("config.json"), flat.to_string()).unwrap();
    rewrite(&model, folder.path(), |tensors| tensors.push(weight("mtp.fc.weight", bf16(3))));
    assert!(load(folder.path()).is_ok());
    rewrite(&model, folder.path(), |tensors| tensors.push(weight("model.visual.x", bf16(3))));
    assert!(matches!(load(folder.path()), Err(Error::Surplus { .. })));
}
