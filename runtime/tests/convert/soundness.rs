//! What `inspect` calls sound is what loads, and its figures are those of what is loaded.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tch::{Device, Kind};
use training_gym_runtime::convert;
use training_gym_runtime::inspect;
use training_gym_runtime::model::{LoadOptions, Model, ModelConfig};

use super::pickle::{self, Entry};
use super::{floats, folder, gguf, json_of, options, refused, report, tensors};

fn problem(path: &Path, word: &str) {
    let found = inspect::look(path).unwrap();
    assert!(!found.is_sound(), "{found:?}");
    let problems = report(path)["problems"].to_string();
    assert!(problems.contains(word), "`{word}` is not in: {problems}");
}

/// Changes a folder's `config.json`.
fn configure(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config = json_of(&path);
    change(&mut config);
    fs::write(path, config.to_string()).unwrap();
}

#[test]
fn tensors_must_be_those_the_config_asks_for() {
    let place = tempfile::tempdir().unwrap();
    let (source, out) = (place.path().join("m.gguf"), place.path().join("m"));
    let file = gguf::model("qwen3").0;
    fs::write(&source, file.bytes()).unwrap();
    convert::run(&options(&source, &out)).unwrap();
    assert!(inspect::look(&out).unwrap().is_sound() && inspect::look(&source).unwrap().is_sound());

    let whole = json_of(&out.join("config.json"));
    configure(&out, |config| config["num_hidden_layers"] = json!(5));
    problem(&out, "lacks 33 tensor(s)");
    configure(&out, |config| config["num_hidden_layers"] = json!(1));
    problem(&out, "no place for");
    configure(&out, |config| {
        config["num_hidden_layers"] = json!(2);
        config["intermediate_size"] = json!(13);
    });
    problem(&out, "has shape");
    configure(&out, |config| *config = whole.clone());
    configure(&out, |config| drop(config.as_object_mut().unwrap().remove("hidden_size")));
    problem(&out, "`hidden_size` is missing");
    configure(&out, |config| *config = whole);
    assert!(inspect::look(&out).unwrap().is_sound());
    fs::write(out.join("model.safetensors"), [&2_u64.to_le_bytes()[..], b"{}"].concat()).unwrap();
    problem(&out, "hold no tensor");

    for (key, value) in [("qwen3.block_count", 5), ("qwen3.feed_forward_length", 13)] {
        let mut file = file.clone().without(key);
        file.count(key, value);
        fs::write(&source, file.bytes()).unwrap();
        problem(&source, if value == 5 { "is missing" } else { "has shape" });
    }
    fs::write(&source, file.without("qwen3.attention.layer_norm_rms_epsilon").bytes()).unwrap();
    problem(&source, "`qwen3.attention.layer_norm_rms_epsilon` is missing");
    refused(&options(&source, &place.path().join("other")), "`qwen3.attention.layer_norm_rms_epsilon` is missing");
}

#[test]
fn links_out_of_a_folder_are_not_followed() {
    let place = tempfile::tempdir().unwrap();
    let (source, out) = (place.path().join("m"), place.path().join("out"));
    folder(&source);
    fs::rename(source.join("model.safetensors"), place.path().join("elsewhere")).unwrap();
    symlink("../elsewhere", source.join("part.safetensors")).unwrap();
    let part = "part.safetensors";
    let index = json!({"weight_map": {"a": part, "b": part, "c": part, "steps": part}});
    fs::write(source.join("model.safetensors.index.json"), index.to_string()).unwrap();
    refused(&options(&source, &out), "is a link to");
    problem(&source, "is a link to");
}

/// Qwen3.5's config as published: the text model nested, four layers of which the last attends.
fn nested() -> Value {
    json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "qwen3_5_text", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
            "linear_value_head_dim": 5, "linear_conv_kernel_dim": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
    })
}

const EMBEDDING: &str = "model.language_model.embed_tokens.weight";

#[test]
fn memory_is_that_of_what_is_loaded() {
    let place = tempfile::tempdir().unwrap();
    let dtype = Kind::BFloat16;
    let model = Model::init(ModelConfig::from_json(&nested()).unwrap(), LoadOptions { device: Device::Cpu, dtype }, 1);
    model.save_weights(place.path()).unwrap();
    let loaded: usize = model.parameters().iter().map(|(_, one)| one.numel() * one.kind().elt_size_in_bytes()).sum();

    // Beside them, as published: a tower, prediction heads, and the tied head a second time.
    let mut all = tensors(place.path()).0;
    let head = all[EMBEDDING].clone();
    all.insert("lm_head.weight".into(), head);
    for name in ["model.visual.patch_embed.weight", "mtp.fc.weight"] {
        all.insert(name.into(), (Dtype::BF16, vec![1000], vec![0; 2000]));
    }
    let views = all
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    fs::write(place.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    fs::write(place.path().join("config.json"), nested().to_string()).unwrap();
    let found = report(place.path());
    let memory = &found["memory"];
    assert_eq!(memory["serve_weights"], json!(loaded));
    // Keys and values of one layer, 2 heads of 8; three states of 4 heads of 6 by 5 in float32, each
    // with the convolution's last 3 inputs of 44 channels.
    let (token, state) = (2 * 2 * 8 * 2, 3 * (4 * 6 * 5 * 4 + 3 * 44 * 2));
    assert_eq!((&memory["cache_per_token"], &memory["state_per_sequence"]), (&json!(token), &json!(state)));
    assert_eq!(memory["cache_full_context"], json!(token * 64 + state));
    assert!(found["notes"].to_string().contains("only text is computed"), "{found}");
    let unsound = found["problems"].to_string();
    assert!(!unsound.contains("tensor"), "the weights are sound: {unsound}");
}

#[test]
fn a_nested_actor_leaves_its_tied_head_out() {
    let place = tempfile::tempdir().unwrap();
    let (source, out) = (place.path().join("global_step_1"), place.path().join("out"));
    let companions = source.join("actor/huggingface");
    fs::create_dir_all(&companions).unwrap();
    fs::write(companions.join("config.json"), nested().to_string()).unwrap();
    let write = |head: f32| {
        let entry = |name, value: f32| Entry { name, shape: vec![2, 2], values: vec![value; 4], of: None };
        let entries = [entry(EMBEDDING, 1.0), entry("lm_head.weight", head)];
        fs::write(source.join("actor/model_world_size_1_rank_0.pt"), pickle::shard(&entries)).unwrap();
    };
    write(2.0);
    refused(&options(&source, &out), "yet it holds other numbers");
    problem(&source, "yet it holds other numbers");
    write(1.0);
    problem(&source, "lacks");
    convert::run(&options(&source, &out)).unwrap();
    let names: BTreeMap<String, Vec<f32>> =
        tensors(&out).0.into_iter().map(|(name, (_, _, bytes))| (name, floats(&bytes))).collect();
    assert_eq!(names, BTreeMap::from([(EMBEDDING.to_owned(), vec![1.0; 4])]));
}

#[test]
fn a_pipe_in_place_of_an_actors_config_does_not_hang() {
    let place = tempfile::tempdir().unwrap();
    let (source, out) = (place.path().join("step"), place.path().join("out"));
    let companions = source.join("actor/huggingface");
    fs::create_dir_all(&companions).unwrap();
    let entry = Entry { name: "a", shape: vec![1], values: vec![1.0], of: None };
    fs::write(source.join("actor/model_world_size_1_rank_0.pt"), pickle::shard(&[entry])).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(companions.join("config.json")).status().unwrap();
    assert!(pipe.success());
    refused(&options(&source, &out), "it is not a file");
}

#[test]
fn several_pickles_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let (source, out) = (place.path().join("step"), place.path().join("out"));
    fs::create_dir_all(source.join("actor/huggingface")).unwrap();
    fs::write(source.join("actor/huggingface/config.json"), "{}").unwrap();
    let file = pickle::zip(&[("b/data.pkl", b"\x80\x02}."), ("a/data.pkl", b"\x80\x02}.")]);
    fs::write(source.join("actor/model_world_size_1_rank_0.pt"), file).unwrap();
    refused(&options(&source, &out), "several pickles, `a/data.pkl` and `b/data.pkl`");
}
