use std::path::Path;

use serde_json::json;

use super::*;

/// A folder with a character tokenizer, a ChatML-like template and a one-layer decoder.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let pieces = ["<unk>", "<end>", "<user>", "<bot>", "0", "1", "2", "3", "="];
    let special: Vec<_> = (0..4)
        .map(|id| {
            json!({ "id": id, "content": pieces[id], "special": true, "single_word": false,
                    "lstrip": false, "rstrip": false, "normalized": false })
        })
        .collect();
    let vocabulary: Vec<_> = pieces.iter().map(|piece| json!([piece, -1.0])).collect();
    let files = [
        (
            "tokenizer.json",
            json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": special,
                    "normalizer": null, "pre_tokenizer": null, "post_processor": null,
                    "decoder": { "type": "Fuse" },
                    "model": { "type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": false } }),
        ),
        (
            "tokenizer_config.json",
            json!({ "eos_token": "<end>",
                    "chat_template": "{% for m in messages %}<user>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}" }),
        ),
        ("generation_config.json", json!({ "eos_token_id": 1 })),
        (
            "config.json",
            json!({ "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": pieces.len(),
                    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 32, "rms_norm_eps": 1e-6,
                    "rope_theta": 10000.0, "initializer_range": 0.1, "tie_word_embeddings": true }),
        ),
    ];
    for (name, value) in files {
        std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    }
    folder
}

fn options(folder: &Path, rows: &str) -> PretrainOptions {
    let path = folder.join("rows.jsonl");
    std::fs::write(&path, rows).unwrap();
    PretrainOptions {
        model: folder.to_owned(),
        rows: path,
        batch_size: 8,
        lr: 2e-2,
        warmup: 5,
        stop_after: None,
        weight_decay: 0.0,
        seed: 1,
        threads: 1,
    }
}

fn row(digit: usize, response: &str, unscored: &[[usize; 2]]) -> String {
    let prompt = json!([{ "role": "user", "content": digit.to_string() }]);
    json!({ "prompt": prompt, "response": response, "unscored": unscored }).to_string() + "\n"
}

#[test]
fn unscored_bytes_carry_no_loss_and_the_end_token_does() {
    let folder = folder();
    let options = options(folder.path(), &row(2, "2=13", &[[2, 3]]));
    let text = TextPipeline::from_folder(folder.path()).unwrap();
    let examples = rows::read(&options.rows, &text).unwrap();
    // <user> 2 <bot> 2 = 1 3 <end>
    assert_eq!(examples, [Example { ids: vec![2, 6, 3, 6, 8, 5, 7, 1], scored: vec![3, 4, 6, 7] }]);
}

#[test]
fn learns_to_answer_and_leaves_a_folder_that_loads() {
    let folder = folder();
    // The digit, then one token that cannot be known and is not scored, then the digit's successor.
    let rows: String = (0..1600)
        .map(|index| {
            let digit = index * 7 % 11 % 4;
            row(digit, &format!("={}{}", (index / 3) % 4, (digit + 1) % 4), &[[1, 2]])
        })
        .collect();
    let options = options(folder.path(), &rows);
    let report = run(&options).unwrap();
    assert_eq!(report.steps, 200);
    assert!(report.loss < 0.05, "{report:?}");

    let load = LoadOptions { device: Device::Cpu, dtype: Kind::Float };
    let model = Model::load(folder.path(), load).unwrap();
    // <user> 1 <bot> = 3 -> 2
    let ids = [2i64, 5, 3, 8, 7];
    let logits = tch::no_grad(|| model.logits(&model.hidden(&Tensor::from_slice(&ids), &[ids.len()])));
    assert_eq!(logits.get(4).argmax(-1, false).int64_value(&[]), 6);
}

#[test]
fn bad_rows_are_named_by_line_and_nothing_is_written() {
    let folder = folder();
    let cases = [
        (format!("{}{{\"prompt\": 3}}\n", row(1, "1", &[])), "line 2"),
        (row(1, "1", &[]).replace("unscored", "unscord"), "unscord"),
        (String::new(), "holds no rows"),
    ];
    for (rows, needle) in cases {
        let error = run(&options(folder.path(), &rows)).unwrap_err().to_string();
        assert!(error.contains(needle), "{error}");
    }
    assert!(!folder.path().join("model.safetensors").exists());
}
