//! `gym-runtime convert` and `inspect` from end to end, on files made here.

#[path = "convert/actor.rs"]
mod actor;
#[path = "../src/convert/gguf/sample.rs"]
mod gguf;
#[path = "convert/gguf_files.rs"]
mod gguf_files;
#[path = "../src/convert/pickle/sample.rs"]
mod pickle;
#[path = "convert/soundness.rs"]
mod soundness;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use training_gym_runtime::settings::{ConvertOptions, Number};
use training_gym_runtime::{convert, inspect};

fn options(source: &Path, out: &Path) -> ConvertOptions {
    ConvertOptions {
        source: source.to_owned(),
        out: out.to_owned(),
        dtype: None,
        max_shard_size: 5_000_000_000,
        overwrite: false,
        pre: None,
    }
}

fn sentence(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

fn refused(options: &ConvertOptions, word: &str) {
    let error = sentence(&convert::run(options).expect_err("refused"));
    assert!(error.contains(word), "`{word}` is not in: {error}");
    assert!(!options.out.exists(), "nothing is left of a refused conversion");
    let parent = options.out.parent().expect("a folder");
    let left = fs::read_dir(parent)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".converting"));
    assert_eq!(left.count(), 0, "nor of its beginnings");
}

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Every tensor of a folder, and its files.
fn tensors(folder: &Path) -> (Tensors, Vec<PathBuf>) {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .collect();
    files.sort();
    let mut all = Tensors::new();
    for file in &files {
        let bytes = fs::read(file).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            all.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
        }
    }
    (all, files)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn report(path: &Path) -> Value {
    serde_json::to_value(inspect::look(path).unwrap()).unwrap()
}

/// A folder with a config, a tokenizer's file, a licence and two tensors of each type.
fn folder(at: &Path) {
    fs::create_dir_all(at).unwrap();
    let config = json!({"architectures": ["NewForCausalLM"], "torch_dtype": "float32", "vocab_size": 4});
    fs::write(at.join("config.json"), config.to_string()).unwrap();
    fs::write(at.join("LICENSE"), "yes").unwrap();
    fs::write(at.join("old.bin"), "weights").unwrap();
    let data: Vec<(String, Dtype, Vec<u8>)> = vec![
        ("a".into(), Dtype::F32, [0.1_f32, 2.0, -3.0, 4.0].map(f32::to_le_bytes).concat()),
        ("b".into(), Dtype::BF16, [0.5_f32, -0.25].map(|x| bf16::from_f32(x).to_le_bytes()).concat()),
        ("c".into(), Dtype::F16, [1.5_f32, 6.0].map(|x| f16::from_f32(x).to_le_bytes()).concat()),
        ("steps".into(), Dtype::I64, 7_i64.to_le_bytes().to_vec()),
    ];
    let views = data.iter().map(|(name, dtype, bytes)| {
        let count = bytes.len() * 8 / dtype.bitsize();
        (name.as_str(), safetensors::tensor::TensorView::new(*dtype, vec![count], bytes).unwrap())
    });
    fs::write(at.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn a_folder_is_split_merged_and_stays_what_it_is() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    folder(&at("whole"));
    convert::run(&ConvertOptions { max_shard_size: 20, ..options(&at("whole"), &at("split")) }).unwrap();
    let (split, files) = tensors(&at("split"));
    assert!(files.len() > 1 && files[0].ends_with(format!("model-00001-of-{:05}.safetensors", files.len())));
    let index = json_of(&at("split").join("model.safetensors.index.json"));
    assert_eq!(index["metadata"]["total_size"], 32);
    assert_eq!(index["weight_map"].as_object().unwrap().len(), 4);
    convert::run(&options(&at("split"), &at("merged"))).unwrap();
    let (merged, files) = tensors(&at("merged"));
    assert_eq!(files.len(), 1);
    assert_eq!((&split, &merged), (&tensors(&at("whole")).0, &split));
    for name in ["split", "merged"] {
        let text = |folder: &str, file: &str| fs::read(at(folder).join(file)).unwrap();
        assert_eq!(text(name, "config.json"), text("whole", "config.json"), "byte for byte");
        assert_eq!(text(name, "LICENSE"), b"yes");
        assert!(!at(name).join("old.bin").exists(), "other formats' weights stay behind");
    }
    assert!(!at("merged").join("model.safetensors.index.json").exists());
}

#[test]
fn a_folder_gets_another_type() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    folder(&at("whole"));
    let to = ConvertOptions { dtype: Some(Number::Bf16), ..options(&at("whole"), &at("bf16")) };
    convert::run(&to).unwrap();
    let (found, _) = tensors(&at("bf16"));
    let types: Vec<Dtype> = found.values().map(|tensor| tensor.0).collect();
    assert_eq!(types, [Dtype::BF16, Dtype::BF16, Dtype::BF16, Dtype::I64], "numbers that are no floats stay");
    let expected = [0.1_f32, 2.0, -3.0, 4.0].map(|x| bf16::from_f32(x).to_le_bytes()).concat();
    assert_eq!(found["a"].2, expected);
    assert_eq!(json_of(&at("bf16").join("config.json"))["torch_dtype"], "bfloat16");
    let error = convert::run(&ConvertOptions { out: at("whole/config.json/x"), ..to.clone() }).unwrap_err();
    assert!(error.to_string().contains("cannot write"), "{error}");
    let error = convert::run(&to).unwrap_err().to_string();
    assert!(error.contains("--overwrite"), "{error}");
}

#[test]
fn damaged_folders_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let (source, out) = (place.path().join("m"), place.path().join("out"));
    let weights = source.join("model.safetensors");
    folder(&source);
    let sound = fs::read(&weights).unwrap();
    let header = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &[0; 16]].concat();
    let entry = r#""a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}"#;
    for (bytes, word) in [
        (sound[..sound.len() - 1].to_vec(), "ends at byte"),
        (sound[..20].to_vec(), "header"),
        (vec![0xff; 64], "header"),
        (header("[]"), "header"),
        (header(r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551615]}}"#), "do not fit"),
        (header(r#"{"a":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}}"#), "do not fit"),
        (header(r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[4,16]}}"#), "do not fit"),
        (header(&format!("{{{entry},{entry}}}")), "`a` is named twice"),
        (0_u64.to_le_bytes().to_vec(), "header"),
        ([&2_u64.to_le_bytes()[..], b"{}"].concat(), "no tensor"),
    ] {
        fs::write(&weights, bytes).unwrap();
        refused(&options(&source, &out), word);
        let report = report(&source);
        assert!(report["problems"].to_string().contains(word), "{report}");
    }
    fs::remove_file(&weights).unwrap();
    refused(&options(&source, &out), "neither");
    fs::write(source.join("part.safetensors"), &sound).unwrap();
    fs::write(source.join("other.safetensors"), &sound).unwrap();
    let all = |file: &str| json!({"a": file, "b": file, "c": file, "steps": file});
    let mut surplus = all("part.safetensors");
    surplus["z"] = json!("part.safetensors");
    let mut twice = all("part.safetensors");
    twice["a"] = json!("other.safetensors");
    for (index, word) in [
        (json!({"weight_map": {"a": "../m/part.safetensors"}}), "must be a file of the same folder"),
        (json!({"weight_map": {"a": "absent.safetensors"}}), "cannot read"),
        (json!({"weight_map": {"a": "part.safetensors"}}), "is not listed"),
        (json!({"weight_map": surplus}), "`z` is not in"),
        (json!({"weight_map": twice}), "not only in"),
        (json!({"weight_map": {"a": 1}}), "invalid type"),
        (json!({"weight_map": {}}), "no tensor"),
        (json!({}), "weight_map"),
    ] {
        fs::write(source.join("model.safetensors.index.json"), index.to_string()).unwrap();
        refused(&options(&source, &out), word);
    }
}

#[test]
fn inspect_says_what_is_wrong_with_text() {
    let place = tempfile::tempdir().unwrap();
    let (source, out) = (place.path().join("m.gguf"), place.path().join("m"));
    fs::write(&source, gguf::model("qwen3").0.bytes()).unwrap();
    convert::run(&options(&source, &out)).unwrap();
    let sound = inspect::look(&out).unwrap();
    assert!(sound.is_sound(), "{sound:?}");
    let memory = report(&out)["memory"].clone();
    // 2 layers, keys and values of 1 head of 8 in float32.
    assert_eq!((&memory["dtype"], &memory["cache_per_token"]), (&json!("float32"), &json!(2 * 2 * 8 * 4)));

    let write = |name: &str, text: &str| fs::write(out.join(name), text).unwrap();
    let problem = |word: &str| {
        let report = report(&out);
        assert!(report["problems"].to_string().contains(word), "`{word}` is not in: {report}");
    };
    write("chat_template.jinja", "{{ messages[0].content }}");
    problem("leaves out what the assistant said");
    write("chat_template.jinja", "{% for m in messages %}{{ m.nothing.at_all }}{% endfor %}");
    problem("chat template");
    write("chat_template.jinja", "{% for m in messages %}{{ m.content }}\n{% endfor %}");
    let notes = report(&out)["notes"].to_string();
    assert!(notes.contains("none of the end tokens"), "{notes}");
    write("generation_config.json", r#"{"eos_token_id": 9999}"#);
    problem("end token 9999 has no row");
    let mut config = json_of(&out.join("config.json"));
    config["vocab_size"] = json!(100);
    write("config.json", &config.to_string());
    problem("262 tokens, the embedding 100 rows");
    config["architectures"] = json!(["MambaForCausalLM"]);
    write("config.json", &config.to_string());
    let report = report(&out);
    assert_eq!(
        (&report["model"]["supported"], &report["model"]["family"]),
        (&json!(false), &json!("MambaForCausalLM"))
    );
    assert!(report["weights"]["parameters"].as_u64().is_some_and(|count| count > 0), "the rest is told");
}
