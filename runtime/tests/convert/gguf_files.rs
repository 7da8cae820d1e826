//! GGUF files of every family.

use std::fs;

use safetensors::Dtype;
use serde_json::{Value, json};
use training_gym_runtime::convert;
use training_gym_runtime::settings::ConvertOptions;
use training_gym_runtime::text::{ChatTemplate, RenderOptions, Tokenizer};

use super::{floats, gguf, json_of, options, refused, report, tensors};

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
fn end_tokens_are_found_in_text_even_where_no_types_say_so() {
    let place = tempfile::tempdir().unwrap();
    let (source, out) = (place.path().join("m.gguf"), place.path().join("m"));
    fs::write(&source, gguf::model("qwen3").0.without("tokenizer.ggml.token_type").bytes()).unwrap();
    convert::run(&options(&source, &out)).unwrap();
    let tokenizer = Tokenizer::from_folder(&out).unwrap();
    assert_eq!(tokenizer.encode("hel<|im_end|>", false).unwrap(), [257, 260]);
    assert!(tokenizer.is_special(260) && !tokenizer.is_special(257));
}

#[test]
fn begin_tokens_are_added_where_the_file_says_so() {
    let place = tempfile::tempdir().unwrap();
    for (pre, add, expected) in [
        ("gpt-2", Some(true), true),
        ("llama-bpe", None, true),
        ("llama-bpe", Some(false), false),
        ("smollm", None, false),
    ] {
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
    case("architecture `qwen35`; supported", &|file| {
        let mut file = file.without("general.architecture");
        file.text("general.architecture", "qwen35");
        file
    });
    case("pre-tokenizer `qwen35`", &|file| {
        let mut file = file.without("tokenizer.ggml.pre");
        file.text("tokenizer.ggml.pre", "qwen35");
        file
    });
    case("`llama.attention.layer_norm_rms_epsilon` = 0: must be positive", &|file| {
        let mut file = file.without("llama.attention.layer_norm_rms_epsilon");
        file.number("llama.attention.layer_norm_rms_epsilon", 0.0);
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
