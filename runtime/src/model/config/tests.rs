use serde_json::{Value, json};

use super::*;

fn qwen3() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 256, "rope_theta": 1e6, "sliding_window": null, "use_sliding_window": false,
        "rope_scaling": null, "torch_dtype": "bfloat16", "tie_word_embeddings": true,
    })
}

fn changed(mut config: Value, changes: &[(&str, Value)]) -> Value {
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    config
}

fn with(key: &str, value: Value) -> Value {
    changed(qwen3(), &[(key, value)])
}

fn moe() -> Value {
    changed(
        qwen3(),
        &[
            ("architectures", json!(["Qwen3MoeForCausalLM"])),
            ("num_experts", json!(8)),
            ("num_experts_per_tok", json!(2)),
            ("moe_intermediate_size", json!(32)),
            ("norm_topk_prob", json!(true)),
        ],
    )
}

fn qwen3_5() -> Value {
    changed(
        qwen3(),
        &[
            ("architectures", json!(["Qwen3_5ForCausalLM"])),
            ("num_hidden_layers", json!(5)),
            ("linear_num_key_heads", json!(2)),
            ("linear_num_value_heads", json!(4)),
            ("linear_key_head_dim", json!(16)),
            ("linear_value_head_dim", json!(8)),
            ("linear_conv_kernel_dim", json!(4)),
            ("head_dim", json!(32)),
        ],
    )
}

fn refusal(config: &Value) -> String {
    let error = ModelConfig::from_json(config).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unsupported { .. }), "{text}");
    assert!(text.contains("; supported: "), "{text}");
    text
}

#[test]
fn both_spellings_say_the_same() {
    let mut newer = qwen3();
    let map = newer.as_object_mut().unwrap();
    map.remove("rope_theta");
    map.remove("rope_scaling");
    map.insert("rope_parameters".into(), json!({"rope_theta": 1e6, "rope_type": "default"}));
    map.insert("layer_types".into(), json!(["full_attention", "full_attention"]));
    assert_eq!(ModelConfig::from_json(&newer).unwrap(), ModelConfig::from_json(&qwen3()).unwrap());
    let local = changed(moe(), &[("num_experts", json!(null)), ("num_local_experts", json!(8))]);
    assert_eq!(ModelConfig::from_json(&local).unwrap(), ModelConfig::from_json(&moe()).unwrap());
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0});
    for (config, word) in [
        (with("architectures", json!(["MambaForCausalLM"])), "MambaForCausalLM"),
        (with("architectures", json!(["Qwen3_5MoeForConditionalGeneration"])), "Qwen3_5MoeForConditionalGeneration"),
        (with("architectures", json!(["Qwen3_5MoeForCausalLM"])), "Qwen3_5MoeForCausalLM"),
        (with("architectures", json!(["Qwen3NextForCausalLM"])), "Qwen3NextForCausalLM"),
        (with("rope_scaling", yarn.clone()), "yarn"),
        (with("rope_parameters", yarn), "yarn"),
        (with("rope_scaling", json!({"type": "linear", "factor": 2.0})), "linear"),
        (with("quantization_config", json!({"quant_method": "awq"})), "awq"),
        (with("use_sliding_window", json!(true)), "sliding"),
        (with("layer_types", json!(["full_attention", "sliding_attention"])), "sliding_attention"),
        (with("layer_types", json!(["full_attention", "linear_attention"])), "linear_attention"),
        (with("hidden_act", json!("gelu")), "gelu"),
        (with("partial_rotary_factor", json!(0.5)), "partial_rotary_factor"),
        (changed(qwen3_5(), &[("num_experts", json!(64))]), "experts"),
        (changed(qwen3_5(), &[("attn_output_gate", json!(false))]), "attn_output_gate"),
        (changed(moe(), &[("shared_expert_intermediate_size", json!(32))]), "shared expert"),
    ] {
        let text = refusal(&config);
        assert!(text.contains(word), "{text}");
    }
    let text = refusal(&with("architectures", json!(["Other"])));
    assert!(Architecture::all().all(|architecture| text.contains(architecture.name())), "{text}");
}

#[test]
fn impossible_settings_name_the_key() {
    for (key, value) in [
        ("num_key_value_heads", json!(3)),
        ("num_key_value_heads", json!(0)),
        ("head_dim", json!(15)),
        ("hidden_size", json!(null)),
        ("hidden_size", json!(-4)),
        ("vocab_size", json!(1e30)),
        ("num_hidden_layers", json!("two")),
        ("num_hidden_layers", json!(1 << 20)),
        ("rms_norm_eps", json!(-1.0)),
        ("tie_word_embeddings", json!("yes")),
        ("layer_types", json!(["full_attention"])),
        ("layer_types", json!("full_attention")),
        ("model_type", json!("qwen2")),
    ] {
        let text = ModelConfig::from_json(&with(key, value)).unwrap_err().to_string();
        assert!(text.contains(&format!("`{key}`")), "{text}");
    }
    for (config, key, value) in [
        (moe(), "num_experts_per_tok", json!(9)),
        (moe(), "num_experts", json!(1 << 20)),
        (moe(), "mlp_only_layers", json!([2])),
        (moe(), "mlp_only_layers", json!(["a"])),
        (qwen3_5(), "linear_num_key_heads", json!(3)),
        (qwen3_5(), "linear_conv_kernel_dim", json!(1)),
        (qwen3_5(), "partial_rotary_factor", json!(1.5)),
    ] {
        let text = ModelConfig::from_json(&changed(config, &[(key, value)])).unwrap_err().to_string();
        assert!(text.contains(&format!("`{key}`")), "{text}");
    }
    assert!(ModelConfig::from_json(&json!([])).is_err());
}

#[test]
fn families_differ_in_data() {
    let qwen2 = ModelConfig::from_json(&with("architectures", json!(["Qwen2ForCausalLM"]))).unwrap();
    assert!(qwen2.qkv_bias && !qwen2.output_bias && !qwen2.qk_norm);
    let llama = ModelConfig::from_json(&with("architectures", json!(["LlamaForCausalLM"]))).unwrap();
    assert!(!llama.qkv_bias && !llama.qk_norm);
    assert_eq!(llama.difference(&qwen2).unwrap(), "`architecture: Llama,` is now `architecture: Qwen2,`");
}

#[test]
fn layers_are_chosen_by_the_settings() {
    let kinds = |config: &Value| {
        let layers = ModelConfig::from_json(config).unwrap().layers;
        let letter = |layer: &LayerKind| match (layer.mixer, layer.feed_forward) {
            (MixerKind::Attention, FeedForwardKind::Dense) => 'a',
            (MixerKind::Attention, FeedForwardKind::Experts) => 'e',
            (MixerKind::DeltaNet, _) => 'd',
        };
        layers.iter().map(letter).collect::<String>()
    };
    assert_eq!(kinds(&qwen3()), "aa");
    assert_eq!(kinds(&moe()), "ee");
    assert_eq!(kinds(&changed(moe(), &[("mlp_only_layers", json!([0]))])), "ae");
    let step = [("num_hidden_layers", json!(5)), ("decoder_sparse_step", json!(2)), ("mlp_only_layers", json!([3]))];
    assert_eq!(kinds(&changed(moe(), &step)), "aeaaa");
    assert_eq!(kinds(&qwen3_5()), "dddad");
    assert_eq!(kinds(&changed(qwen3_5(), &[("full_attention_interval", json!(2))])), "dadad");
    let types: Vec<_> = [0, 1, 1, 0, 0].map(|full| ["linear_attention", "full_attention"][full]).into();
    assert_eq!(kinds(&changed(qwen3_5(), &[("layer_types", json!(types))])), "daadd");
}

#[test]
fn nested_settings_are_those_of_the_text() {
    let mut text = qwen3_5();
    text.as_object_mut().unwrap().remove("architectures");
    text["model_type"] = json!("qwen3_5_text");
    let nested = json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text,
        "vision_config": {"hidden_act": "gelu_pytorch_tanh"}, "tie_word_embeddings": false,
    });
    let config = ModelConfig::from_json(&nested).unwrap();
    let flat = ModelConfig::from_json(&qwen3_5()).unwrap();
    assert!(!config.tie_word_embeddings && flat.tie_word_embeddings, "the outer level decides");
    let same = ModelConfig { architecture: flat.architecture, tie_word_embeddings: true, ..config.clone() };
    assert_eq!(same, flat);
    assert_eq!(config.rotary_dim, 8);
    assert!(config.note().unwrap().contains("model.visual."));

    let mut other = nested.clone();
    other["text_config"]["model_type"] = json!("qwen3_5_moe_text");
    assert!(refusal(&other).contains("qwen3_5_moe_text"));
    let mut other = nested.clone();
    other["text_config"]["quantization_config"] = json!({"quant_method": "fp8"});
    assert!(refusal(&other).contains("fp8"));
    let mut other = nested;
    other["text_config"] = json!(null);
    assert!(ModelConfig::from_json(&other).unwrap_err().to_string().contains("`text_config`"));
}
