//! `gym-runtime convert` and `inspect` from end to end, on files made here.

#[path = "../src/convert/gguf/sample.rs"]
mod gguf;
#[path = "../src/convert/pickle/sample.rs"]
mod pickle;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use pickle::Entry;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use training_gym_runtime::settings::{ConvertOptions, Number};
use training_gym_runtime::text::{ChatTemplate, RenderOptions, Tokenizer};
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
    let left = fs::read_dir(parent).unwrap().filter(|entry| {
        entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".converting")
    });
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

#[test]
fn every_family_of_gguf_comes_back_under_its_own_names() {
    let place = tempfile::tempdir().unwrap();
    for key in ["llama", "qwen2", "qwen3", "qwen3moe"] {
        let (file, named) = gguf::model(key);
        let (source, out) = (place.path().join(format!("{key}.gguf")), place.path().join(key));
        fs::write(&source, file.bytes()).unwrap();
        convert::run(&options(&source, &out)).unwrap();

        let (found, files) = tensors(&out);
        assert_eq!(files.len(), 1);
        assert_eq!(found.len(), named.len(), "{key}");
        for tensor in named {
            let (dtype, shape, bytes) = &found[&tensor.name];
            assert_eq!((*dtype, shape), (Dtype::F32, &tensor.shape), "{key}: {}", tensor.name);
            assert_eq!(floats(bytes), tensor.values, "{key}: {}", tensor.name);
        }
        let config = json_of(&out.join("config.json"));
        for (name, value) in [
            ("hidden_size", json!(8)),
            ("head_dim", json!(8)),
            ("num_key_value_heads", json!(1)),
            ("rms_norm_eps", json!(1e-5)),
            ("torch_dtype", json!("float32")),
            ("tie_word_embeddings", json!(key != "qwen2")),
            ("eos_token_id", json!(260)),
            ("vocab_size", json!(264)),
        ] {
            assert_eq!(config[name], value, "{key}: {name}");
        }
        if key == "qwen3moe" {
            assert_eq!(config["architectures"], json!(["Qwen3MoeForCausalLM"]));
            assert_eq!((&config["num_experts"], &config["num_experts_per_tok"]), (&json!(4), &json!(2)));
            assert_eq!((&config["norm_topk_prob"], &config["mlp_only_layers"]), (&json!(true), &json!([])));
        }
        let rope = &config["rope_scaling"];
        assert_eq!(rope["rope_type"], if key == "llama" { json!("llama3") } else { Value::Null }, "{key}: {rope}");

        let report = report(&out);
        assert_eq!(report["problems"], json!([]), "{key}");
        assert_eq!(report["chat_template"], "ok", "{key}");
        assert_eq!(report["tokenizer"]["tokens"], 262, "{key}: filling tokens are no tokens");
        assert_eq!(report["tokenizer"]["eos"], json!({"258": "<|endoftext|>", "260": "<|im_end|>"}), "{key}");
        // The report of the file is that of its folder, but for how its numbers are stored.
        let whole = self::report(&source);
        assert_eq!((&whole["model"], &whole["tokenizer"]), (&report["model"], &report["tokenizer"]), "{key}");
    }
}

#[test]
fn the_tokenizer_and_template_of_a_gguf_work() {
    let place = tempfile::tempdir().unwrap();
    let (source, out) = (place.path().join("m.gguf"), place.path().join("m"));
    fs::write(&source, gguf::model("qwen3").0.bytes()).unwrap();
    convert::run(&options(&source, &out)).unwrap();
    let tokenizer = Tokenizer::from_folder(&out).unwrap();
    let text = "hello <think>héhé 1234<|im_end|>";
    let ids = tokenizer.encode(text, true).unwrap();
    assert_eq!(ids[0], 257, "two merges: h, he, hel");
    assert!(ids.contains(&261) && ids.contains(&260), "added tokens are found in text: {ids:?}");
    assert_eq!(tokenizer.decode(&ids, false), text);
    assert_eq!(tokenizer.decode(&ids, true), "hello <think>héhé 1234", "control tokens alone are special");
    assert_eq!(tokenizer.eos_token_ids(), [260, 258], "the file's own first");
    let template = ChatTemplate::from_folder(&out).unwrap().expect("a template");
    let message = training_gym_core::sample::Message::new("user", "hel");
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let rendered = template.render(&[message], &options).unwrap();
    assert_eq!(rendered, "<|im_start|>user\nhel<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn begin_tokens_are_added_where_the_file_says_so() {
    let place = tempfile::tempdir().unwrap();
    for (pre, add, expected) in
        [("gpt-2", Some(true), true), ("llama-bpe", None, true), ("llama-bpe", Some(false), false), ("smollm", None, false)]
    {
        let (source, out) = (place.path().join("m.gguf"), place.path().join("m"));
        let (mut file, _) = gguf::model("qwen2");
        file = file.without("tokenizer.ggml.pre").without("tokenizer.ggml.add_bos_token");
        file.text("tokenizer.ggml.pre", pre);
        if let Some(add) = add {
            file.flag("tokenizer.ggml.add_bos_token", add);
        }
        fs::write(&source, file.bytes()).unwrap();
        convert::run(&ConvertOptions { overwrite: true, ..options(&source, &out) }).unwrap();
        let tokenizer = Tokenizer::from_folder(&out).unwrap();
        let ids = tokenizer.encode("hel", true).unwrap();
        assert_eq!(ids, if expected { vec![258, 257] } else { vec![257] }, "{pre} {add:?}");
        assert_eq!(tokenizer.encode("hel", false).unwrap(), [257]);
    }
}

#[test]
fn what_a_gguf_holds_that_is_not_converted_is_named() {
    let place = tempfile::tempdir().unwrap();
    let (source, out) = (place.path().join("m.gguf"), place.path().join("m"));
    let sample = |key: &str| gguf::model(key).0;
    let mut cases = Vec::new();
    let mut case = |word: &'static str, change: &dyn Fn(gguf::File) -> gguf::File| {
        cases.push((word, change(sample("llama"))));
    };
    case("architecture `gemma3`; supported: llama, qwen2, qwen3, qwen3moe", &|file| {
        let mut file = file.without("general.architecture");
        file.text("general.architecture", "gemma3");
        file
    });
    case("pre-tokenizer `tekken`", &|file| {
        let mut file = file.without("tokenizer.ggml.pre");
        file.text("tokenizer.ggml.pre", "tekken");
        file
    });
    case("--pre KIND", &|file| file.without("tokenizer.ggml.pre"));
    case("SentencePiece", &|file| {
        let mut file = file.without("tokenizer.ggml.model");
        file.text("tokenizer.ggml.model", "llama");
        file
    });
    case("`longrope`", &|mut file| {
        file.text("llama.rope.scaling.type", "longrope");
        file
    });
    case("sliding_window` = 512", &|mut file| {
        file.count("llama.attention.sliding_window", 512);
        file
    });
    case("with 8 experts", &|mut file| {
        file.count("llama.expert_count", 8);
        file
    });
    case("`blk.0.attn_surprise.weight`", &|mut file| {
        file.floats("blk.0.attn_surprise.weight", &[4], &[0.0; 4]);
        file
    });
    case("`llama.block_count` is missing", &|file| file.without("llama.block_count"));
    case("tensor `blk.2.attn_q.weight` is missing", &|file| {
        let mut file = file.without("llama.block_count");
        file.count("llama.block_count", 3);
        file
    });
    case("has shape", &|file| {
        let mut file = file.without("llama.feed_forward_length");
        file.count("llama.feed_forward_length", 13);
        file
    });
    case("3 key-value heads do not divide", &|file| {
        let mut file = file.without("llama.attention.head_count_kv");
        file.count("llama.attention.head_count_kv", 3);
        file
    });
    case("one of 2 parts", &|mut file| {
        file.raw("split.count", 2, &[2, 0]);
        file
    });
    case("merge 0 is `hel`", &|file| {
        let mut file = file.without("tokenizer.ggml.merges");
        file.texts("tokenizer.ggml.merges", &["hel".to_owned()]);
        file
    });
    case("name that is no file's", &|mut file| {
        file.texts("tokenizer.chat_templates", &["../../evil".to_owned()]);
        file
    });
    for (word, file) in cases {
        fs::write(&source, file.bytes()).unwrap();
        refused(&options(&source, &out), word);
    }
    fs::write(&source, b"not a model").unwrap();
    refused(&options(&source, &out), "does not begin with `GGUF`");
    refused(&options(place.path().join("absent").as_path(), &out), "cannot read");
    refused(&options(&fs::canonicalize("/dev/null").unwrap(), &out), "not a file");
}

#[test]
fn another_pre_tokenizer_can_be_asked_for() {
    let place = tempfile::tempdir().unwrap();
    let (source, out) = (place.path().join("m.gguf"), place.path().join("m"));
    fs::write(&source, gguf::model("qwen3").0.without("tokenizer.ggml.pre").bytes()).unwrap();
    convert::run(&ConvertOptions { pre: Some("smollm".into()), ..options(&source, &out) }).unwrap();
    let pre = &json_of(&out.join("tokenizer.json"))["pre_tokenizer"]["pretokenizers"][0]["type"];
    assert_eq!(pre, "Digits");
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
    refused(&ConvertOptions { out: at("whole/config.json/x"), ..to.clone() }, "cannot write");
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
    for (bytes, word) in [
        (sound[..sound.len() - 1].to_vec(), "asks for"),
        (sound[..20].to_vec(), "header"),
        (vec![0xff; 64], "header"),
        (header("[]"), "header"),
        (header(r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551615]}}"#), "asks for"),
        (header(r#"{"a":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}}"#), "safetensors"),
        (header(r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[4,16]}}"#), "safetensors"),
    ] {
        fs::write(&weights, bytes).unwrap();
        refused(&options(&source, &out), word);
        let report = report(&source);
        assert!(report["problems"].to_string().contains(word), "{report}");
    }
    fs::remove_file(&weights).unwrap();
    refused(&options(&source, &out), "neither");
    fs::write(source.join("part.safetensors"), &sound).unwrap();
    for (index, word) in [
        (json!({"weight_map": {"a": "../m/part.safetensors"}}), "no file of the folder"),
        (json!({"weight_map": {"a": "absent.safetensors"}}), "cannot read"),
        (json!({"weight_map": {"z": "part.safetensors"}}), "`z` is not in"),
        (json!({"weight_map": {"a": 1}}), "must map"),
        (json!({}), "must map"),
    ] {
        fs::write(source.join("model.safetensors.index.json"), index.to_string()).unwrap();
        refused(&options(&source, &out), word);
    }
}

/// Writes the shards of a world of `world`, the entries of each rank by `entries`.
fn actor(at: &Path, world: usize, entries: impl Fn(usize) -> Vec<Entry>) {
    let companions = at.join("actor/huggingface");
    fs::create_dir_all(&companions).unwrap();
    let config = json!({"model_type": "qwen3_moe", "tie_word_embeddings": true, "torch_dtype": "bfloat16"});
    fs::write(companions.join("config.json"), config.to_string()).unwrap();
    for rank in 0..world {
        let path = at.join(format!("actor/model_world_size_{world}_rank_{rank}.pt"));
        fs::write(path, pickle::shard(&entries(rank))).unwrap();
    }
}

fn count(count: usize) -> Vec<f32> {
    (0..count).map(|number| number as f32).collect()
}

#[test]
fn shards_are_merged_by_their_placements() {
    let place = tempfile::tempdir().unwrap();
    let (source, out) = (place.path().join("global_step_3"), place.path().join("out"));
    // A grid of two by two: copies along the first dimension, parts along the second.
    let mesh = || vec![2, 2];
    actor(&source, 4, |rank| {
        let second = rank % 2;
        let rows = if second == 0 { count(6) } else { count(10)[6..].to_vec() };
        let columns: Vec<f32> =
            (0..3).flat_map(|row| (0..2).map(move |column| (row * 4 + second * 2 + column) as f32)).collect();
        let tiny = if second == 0 { vec![5.0] } else { vec![] };
        vec![
            Entry {
                name: "model.embed_tokens.weight",
                shape: vec![if second == 0 { 3 } else { 2 }, 2],
                values: rows.clone(),
                of: Some((vec![5, 2], mesh(), vec![None, Some(0)])),
            },
            Entry {
                name: "columns",
                shape: vec![3, 2],
                values: columns,
                of: Some((vec![3, 4], mesh(), vec![None, Some(1)])),
            },
            Entry {
                name: "tiny",
                shape: vec![tiny.len()],
                values: tiny,
                of: Some((vec![1], mesh(), vec![None, Some(0)])),
            },
            Entry { name: "copied", shape: vec![2], values: count(2), of: Some((vec![2], mesh(), vec![None, None])) },
            Entry { name: "plain", shape: vec![3], values: count(3), of: None },
            Entry {
                name: "model.layers.0.mlp.experts.gate_up_proj",
                shape: vec![1, 4, 2],
                values: count(16)[second * 8..second * 8 + 8].to_vec(),
                of: Some((vec![2, 4, 2], mesh(), vec![None, Some(0)])),
            },
            Entry {
                name: "lm_head.weight",
                shape: vec![if second == 0 { 3 } else { 2 }, 2],
                values: rows,
                of: Some((vec![5, 2], mesh(), vec![None, Some(0)])),
            },
        ]
    });
    convert::run(&options(&source, &out)).unwrap();
    let (found, _) = tensors(&out);
    let expected: Vec<(&str, Vec<usize>, Vec<f32>)> = vec![
        ("columns", vec![3, 4], count(12)),
        ("copied", vec![2], count(2)),
        ("model.embed_tokens.weight", vec![5, 2], count(10)),
        ("model.layers.0.mlp.experts.0.gate_proj.weight", vec![2, 2], count(4)),
        ("model.layers.0.mlp.experts.0.up_proj.weight", vec![2, 2], count(8)[4..].to_vec()),
        ("model.layers.0.mlp.experts.1.gate_proj.weight", vec![2, 2], count(12)[8..].to_vec()),
        ("model.layers.0.mlp.experts.1.up_proj.weight", vec![2, 2], count(16)[12..].to_vec()),
        ("plain", vec![3], count(3)),
        ("tiny", vec![1], vec![5.0]),
    ];
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.iter().map(|entry| entry.0).collect::<Vec<_>>());
    for (name, shape, values) in expected {
        assert_eq!((&found[name].1, floats(&found[name].2)), (&shape, values), "{name}");
    }
    assert_eq!(json_of(&out.join("config.json"))["torch_dtype"], "float32", "as the shards are");
    assert_eq!(report(&source)["format"], "actor");

    let narrow = ConvertOptions { dtype: Some(Number::Bf16), overwrite: true, ..options(&source.join("actor"), &out) };
    convert::run(&narrow).unwrap();
    assert!(tensors(&out).0.values().all(|tensor| tensor.0 == Dtype::BF16));
    assert_eq!(json_of(&out.join("config.json"))["torch_dtype"], "bfloat16");
}

#[test]
fn shards_that_make_no_whole_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let entry = |shape: &[usize], values: Vec<f32>, of| Entry { name: "w", shape: shape.to_vec(), values, of };
    type Case = (&'static str, Box<dyn Fn(usize) -> Vec<Entry>>);
    let cases: Vec<Case> = vec![
        ("different copies", Box::new(move |rank| vec![entry(&[1], vec![rank as f32], None)])),
        ("its placement asks for", Box::new(move |_| {
            vec![entry(&[2, 1], count(2), Some((vec![3, 1], vec![2], vec![Some(0)])))]
        })),
        ("not in the tensor's mesh", Box::new(move |_| {
            vec![entry(&[3], count(3), Some((vec![3], vec![1], vec![Some(0)])))]
        })),
        ("not on every rank", Box::new(move |rank| if rank == 0 { vec![] } else { vec![entry(&[1], count(1), None)] })),
        ("not on every rank", Box::new(move |rank| if rank == 1 { vec![] } else { vec![entry(&[1], count(1), None)] })),
        ("along dimension 2 of 1", Box::new(move |_| {
            vec![entry(&[2], count(2), Some((vec![4], vec![2], vec![Some(2)])))]
        })),
        ("2 placements on a mesh of 1", Box::new(move |_| {
            vec![entry(&[2], count(2), Some((vec![4], vec![2], vec![Some(0), None])))]
        })),
        ("along two dimensions of the mesh", Box::new(move |_| {
            vec![entry(&[2], count(2), Some((vec![4], vec![2, 1], vec![Some(0), Some(0)])))]
        })),
        ("LoRA", Box::new(move |_| {
            vec![Entry { name: "q_proj.lora_A.default.weight", ..entry(&[1], count(1), None) }]
        })),
    ];
    for (index, (word, entries)) in cases.iter().enumerate() {
        let source = place.path().join(format!("case{index}"));
        actor(&source, 2, entries);
        refused(&options(&source, &out), word);
    }
    let source = place.path().join("hostile");
    actor(&source, 1, |_| vec![]);
    let mut evil = pickle::Pickle::new();
    evil.global("os", "system").text("touch hacked").op(b"\x85R.");
    fs::write(source.join("actor/model_world_size_1_rank_0.pt"), pickle::zip(&[("x/data.pkl", &evil.0)])).unwrap();
    refused(&options(&source, &out), "os.system");
    fs::write(source.join("actor/model_world_size_1_rank_0.pt"), b"\x80\x02}q\0.").unwrap();
    refused(&options(&source, &out), "no zip file");
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
    assert_eq!((&report["model"]["supported"], &report["model"]["family"]), (&json!(false), &json!("MambaForCausalLM")));
    assert!(report["weights"]["parameters"].as_u64().is_some_and(|count| count > 0), "the rest is told");
}
