//! Sharded actor checkpoints.

use std::fs;
use std::path::Path;

use safetensors::Dtype;
use serde_json::json;
use training_gym_runtime::convert;
use training_gym_runtime::settings::{ConvertOptions, Number};

use super::pickle::{self, Entry};
use super::{floats, json_of, options, refused, report, tensors};

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
        (
            "its placement asks for",
            Box::new(move |_| vec![entry(&[2, 1], count(2), Some((vec![3, 1], vec![2], vec![Some(0)])))]),
        ),
        (
            "not in the tensor's mesh",
            Box::new(move |_| vec![entry(&[3], count(3), Some((vec![3], vec![1], vec![Some(0)])))]),
        ),
        ("not on every rank", Box::new(move |rank| if rank == 0 { vec![] } else { vec![entry(&[1], count(1), None)] })),
        ("not on every rank", Box::new(move |rank| if rank == 1 { vec![] } else { vec![entry(&[1], count(1), None)] })),
        (
            "along dimension 2 of 1",
            Box::new(move |_| vec![entry(&[2], count(2), Some((vec![4], vec![2], vec![Some(2)])))]),
        ),
        (
            "2 placements on a mesh of 1",
            Box::new(move |_| vec![entry(&[2], count(2), Some((vec![4], vec![2], vec![Some(0), None])))]),
        ),
        (
            "along two dimensions of the mesh",
            Box::new(move |_| vec![entry(&[2], count(2), Some((vec![4], vec![2, 1], vec![Some(0), Some(0)])))]),
        ),
        (
            "LoRA",
            Box::new(move |_| vec![Entry { name: "q_proj.lora_A.default.weight", ..entry(&[1], count(1), None) }]),
        ),
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
