//! Loading a checkpoint holds the model and no more than one shard beside it. Alone in its process,
//! so that the peak is its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};
use tch::Kind;
use training_gym_runtime::model::{LoadOptions, Model};

const LAYERS: usize = 6;

/// The most memory this process has held, in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Writes a bfloat16 file of zeros that takes no disk. Returns its bytes of data.
fn write_shard(path: &Path, tensors: &[(String, Vec<usize>)]) -> usize {
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}));
    }
    let header = Value::from(header).to_string();
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
    end
}

/// A sharded checkpoint of zeros: bytes of data in all, and in the largest shard.
fn write_checkpoint(folder: &Path, hidden: usize) -> (usize, usize) {
    let (wide, vocabulary) = (4 * hidden, 8 * hidden);
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": vocabulary, "hidden_size": hidden,
        "intermediate_size": wide, "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 8,
        "head_dim": hidden / 8, "max_position_embeddings": 128, "tie_word_embeddings": true,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut shards = vec![vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocabulary, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ]];
    for layer in 0..LAYERS {
        let tensor = |part: &str, shape: &[usize]| (format!("model.layers.{layer}.{part}.weight"), shape.to_vec());
        let mut shard = vec![
            tensor("mlp.gate_proj", &[wide, hidden]),
            tensor("mlp.up_proj", &[wide, hidden]),
            tensor("mlp.down_proj", &[hidden, wide]),
            tensor("self_attn.q_norm", &[hidden / 8]),
            tensor("self_attn.k_norm", &[hidden / 8]),
            tensor("input_layernorm", &[hidden]),
            tensor("post_attention_layernorm", &[hidden]),
        ];
        shard.extend(["q", "k", "v", "o"].map(|part| tensor(&format!("self_attn.{part}_proj"), &[hidden, hidden])));
        shards.push(shard);
    }
    let mut owners = BTreeMap::new();
    let (mut stored, mut largest) = (0, 0);
    for (index, shard) in shards.iter().enumerate() {
        let name = format!("part-{index}.safetensors");
        let bytes = write_shard(&folder.join(&name), shard);
        (stored, largest) = (stored + bytes, largest.max(bytes));
        owners.extend(shard.iter().map(|(tensor, _)| (tensor.clone(), name.clone())));
    }
    let index = json!({"metadata": {}, "weight_map": owners});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    (stored, largest)
}

#[test]
fn loading_holds_the_model_and_at_most_one_shard() {
    let folder = tempfile::tempdir().unwrap();
    let load = |dtype| Model::load(folder.path(), LoadOptions { dtype, ..LoadOptions::default() }).unwrap();
    // libtorch's own share, its code among it, is not the checkpoint's.
    write_checkpoint(folder.path(), 128);
    drop([Kind::BFloat16, Kind::Float].map(load));
    let (stored, largest) = write_checkpoint(folder.path(), 1024);
    for (dtype, factor) in [(Kind::BFloat16, 1), (Kind::Float, 2)] {
        let before = peak();
        let model = load(dtype);
        let held: usize = model.parameters().iter().map(|(_, tensor)| tensor.numel() * dtype.elt_size_in_bytes()).sum();
        assert_eq!(held, factor * stored);
        let grown = peak() - before;
        println!("{dtype:?}: a model of {held} bytes, shards of up to {largest}, grew the peak by {grown}");
        assert!(grown <= held + largest, "{dtype:?}: {grown} for {held} and {largest}");
        if dtype == Kind::BFloat16 {
            assert!(grown * 10 > held * 9, "the peak is not seen: {grown}");
        }
    }
}
