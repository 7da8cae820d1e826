//! `losses.json` and `losses.safetensors` of the golden folder: divergences between whole
//! distributions with their gradients, and what single positions look like.
//!
//! Tolerances are the README's: loss 2e-5 relative or 1e-6 absolute; gradients 5e-6 absolute, 3e-4
//! for bfloat16 inputs; values of single positions 1e-5.

mod golden_files;

use std::collections::BTreeMap;

use serde_json::Value;
use tch::{Kind, Tensor};
use training_gym_core::spec::Divergence;
use training_gym_runtime::update::divergence::mean_divergence;
use training_gym_runtime::update::token_stats::{JsdOptions, entropy_and_jsd, teacher_stats};

struct Golden {
    json: Value,
    tensors: BTreeMap<String, Tensor>,
}

impl Golden {
    fn load() -> Option<Self> {
        let path = golden_files::golden_file("losses.json")?;
        let text = std::fs::read_to_string(&path).expect("losses.json reads");
        let tensors = Tensor::read_safetensors(path.with_extension("safetensors")).expect("losses.safetensors reads");
        Some(Self {
            json: serde_json::from_str(&text).expect("losses.json parses"),
            tensors: tensors.into_iter().collect(),
        })
    }

    fn tensor(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("losses.safetensors has no `{name}`"))
    }

    fn named(&self, name: &Value) -> &Tensor {
        self.tensor(name.as_str().expect("a tensor's name"))
    }

    /// Logits of teacher and student.
    fn inputs(&self, case: &Value) -> (&Tensor, &Tensor) {
        let set = case["inputs"].as_str().expect("a set's name");
        (self.tensor(&format!("{set}.teacher")), self.tensor(&format!("{set}.student")))
    }
}

fn number(value: &Value) -> f64 {
    match value {
        Value::String(text) => text.parse().expect("a number as text"),
        other => other.as_f64().unwrap_or_else(|| panic!("a number, not {other}")),
    }
}

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.flatten(0, -1).to_kind(Kind::Double)).expect("a tensor of numbers")
}

fn within(what: &str, ours: &Tensor, golden: &Tensor, tolerance: f64) {
    let (ours, golden) = (values(ours), values(golden));
    assert_eq!(ours.len(), golden.len(), "{what}: count");
    for (index, (a, b)) in ours.iter().zip(&golden).enumerate() {
        assert!((a - b).abs() <= tolerance, "{what}[{index}]: {a}, golden {b}");
    }
}

fn kind(case: &Value) -> Divergence {
    match case["kind"].as_str() {
        Some("reverse_kl") => Divergence::ReverseKl,
        Some("forward_kl") => Divergence::ForwardKl,
        Some("jsd") => Divergence::Jsd { beta: number(&case["beta"]) },
        other => panic!("a kind of divergence that is not known here: {other:?}"),
    }
}

#[test]
fn golden_divergences() {
    let Some(golden) = Golden::load() else { return };
    tch::set_num_threads(1);
    let (mut checked, mut infinite) = (0, 0);
    for case in golden.json["divergences"].as_array().expect("cases") {
        let (teacher, student) = golden.inputs(case);
        for (chunk, expected) in case["loss_by_chunk_size"].as_object().expect("losses by chunk size") {
            let what = format!("{} in chunks of {chunk}", case["id"]);
            let (loss, grad) = mean_divergence(teacher, student, kind(case), chunk.parse().expect("a count"));
            assert_eq!((loss.kind(), grad.size()), (Kind::Float, student.size()), "{what}");
            let (loss, expected) = (loss.double_value(&[]), number(expected));
            // Columns of −inf document that nothing finite comes of them.
            if case["inputs"] == "neg_inf" {
                assert!(!loss.is_finite() && !expected.is_finite(), "{what}: {loss}");
                infinite += 1;
                continue;
            }
            // The mean of no token was not derived again.
            let derived = Some(&case["loss_float64_rederived"]).filter(|value| !value.is_null()).map(number);
            for expected in [Some(expected), derived].into_iter().flatten() {
                let gap = (loss - expected).abs();
                assert!(gap <= 1e-6f64.max(2e-5 * expected.abs()), "{what}: {loss}, golden {expected}");
            }
            let tolerance = if student.kind() == Kind::BFloat16 { 3e-4 } else { 5e-6 };
            if case["grad"].is_null() {
                assert_eq!(grad.numel(), 0, "{what}: a gradient of no row");
            } else {
                within(&format!("{what}: gradient"), &grad, golden.named(&case["grad"]), tolerance);
            }
            checked += 1;
        }
    }
    println!("losses divergences: {checked} checked, {infinite} infinite as documented");
    assert!(checked > 0, "no case was checked");
}

#[test]
fn golden_token_statistics() {
    let Some(golden) = Golden::load() else { return };
    tch::set_num_threads(1);
    let mut checked = 0;
    for case in golden.json["entropy_jsd"].as_array().expect("cases") {
        let (teacher, student) = golden.inputs(case);
        let count = |key: &str| case[key].as_u64().expect("a count") as usize;
        let options = JsdOptions {
            top_k: Some(count("jsd_topk")).filter(|&k| k > 0),
            scale: number(&case["jsd_scale"]),
            chunk_size: count("chunk_size"),
        };
        let (entropy, jsd) = entropy_and_jsd(teacher, student, options);
        if case.get("error").is_some() {
            assert_eq!((entropy.size(), jsd.size()), (vec![0], vec![0]), "{}", case["id"]);
        } else if case["inputs"] != "neg_inf" {
            within(&format!("{} entropy", case["id"]), &entropy, golden.named(&case["norm_entropy"]), 1e-5);
            within(&format!("{} jsd", case["id"]), &jsd, golden.named(&case["norm_jsd"]), 1e-5);
        }
        checked += 1;
    }
    for case in golden.json["teacher_stats"].as_array().expect("cases") {
        let (teacher, _) = golden.inputs(case);
        let targets = golden.named(&case["target_ids"]);
        let chunk_size = case["chunk_size"].as_u64().expect("a count") as usize;
        let (entropy, drawn) = teacher_stats(teacher, targets, chunk_size);
        if case.get("error").is_some() {
            assert_eq!((entropy.size(), drawn.size()), (vec![0], vec![0]), "{}", case["id"]);
        } else if case["inputs"] != "neg_inf" {
            within(&format!("{} entropy", case["id"]), &entropy, golden.named(&case["teacher_norm_entropy"]), 1e-5);
            within(&format!("{} drawn", case["id"]), &drawn, golden.named(&case["teacher_token_prob"]), 1e-5);
        }
        checked += 1;
    }
    println!("losses token statistics: {checked} checked");
    assert!(checked > 0, "no case was checked");
}
