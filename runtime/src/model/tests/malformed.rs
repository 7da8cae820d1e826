//! Files that are not what they say: each kind is refused by name, without a crash or a large
//! allocation.

use std::os::unix::fs::symlink;

use super::super::shard::Shard;
use super::*;

/// A file of this header and so many bytes of data.
fn craft(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn headers_that_are_not_sound_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let two = |first: &str, second: &str| {
        let entry = |name, offsets| format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":{offsets}}}"#);
        format!("{{{},{}}}", entry("a", first), entry("b", second))
    };
    let twice = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    for (bytes, word) in [
        (Vec::new(), "too few for a header"),
        (vec![1, 2, 3], "too few for a header"),
        (vec![0xff; 64], "its header claims"),
        ((1_u64 << 40).to_le_bytes().to_vec(), "its header claims"),
        ([&200_u64.to_le_bytes()[..], b"{}"].concat(), "its header claims"),
        (craft("not json", 0), "its header is not sound"),
        (craft("[]", 0), "its header is not sound"),
        (craft(&"[".repeat(100_000), 0), "its header is not sound"),
        (craft(twice, 8), "`a` is named twice"),
        (craft(r#"{"a":3}"#, 8), "tensor `a` is not described"),
        (craft(r#"{"a":{"dtype":"F32","shape":[2]}}"#, 8), "tensor `a` is not described"),
        (craft(&one("F33", "[2]", "[0,8]"), 8), "tensor `a` has type \"F33\""),
        (craft(&one("F32", "[-2]", "[0,8]"), 8), "tensor `a` is not described"),
        (craft(&one("F32", "[3]", "[0,8]"), 8), "do not fit bytes 0 to 8"),
        (craft(&one("F32", "[2]", "[8,0]"), 8), "do not fit bytes 8 to 0"),
        (craft(&one("F32", "[4294967296,4294967296,4]", "[0,8]"), 8), "do not fit"),
        (craft(&one("F32", "[2]", "[18446744073709551607,18446744073709551615]"), 8), "beyond any file"),
        (craft(&one("F32", "[2]", "[0,8]"), 7), "tensor `a` ends at byte"),
        (craft(&one("F32", "[268435456]", "[0,1073741824]"), 8), "tensor `a` ends at byte"),
        (craft(&one("F32", "[2]", "[0,8]"), 9), "1 bytes after the last tensor"),
        (craft(&one("F32", "[2]", "[4,12]"), 12), "tensor `a` leaves a hole after the header"),
        (craft(&two("[0,8]", "[4,12]"), 12), "tensor `b` overlaps tensor `a`"),
        (craft(&two("[0,8]", "[0,8]"), 8), "overlaps tensor"),
        (craft(&two("[0,8]", "[12,20]"), 20), "tensor `b` leaves a hole after tensor `a`"),
    ] {
        std::fs::write(&path, &bytes).unwrap();
        let error = Shard::open(&path).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Damaged { .. }), "{text}");
        assert!(text.contains(word) && text.contains("x.safetensors"), "`{word}` in: {text}");
    }
    // Nothing, tensors of no elements, and metadata are sound.
    for (header, data) in [("{}", 0), (&one("F32", "[0,5]", "[0,0]"), 0), (r#"{"__metadata__":{"format":"pt"}}"#, 0)] {
        std::fs::write(&path, craft(header, data)).unwrap();
        Shard::open(&path).unwrap();
    }
}

#[test]
fn a_truncated_file_is_refused_at_every_length() {
    let model = fresh(true, 3);
    let folder = folder_of(&model, true);
    let path = folder.path().join(load::SINGLE);
    let bytes = std::fs::read(&path).unwrap();
    for kept in (0..bytes.len()).step_by(61).chain([bytes.len() - 1]) {
        std::fs::write(&path, &bytes[..kept]).unwrap();
        let error = load(folder.path()).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{kept} bytes: {error}");
    }
    // A file that shrinks while it is read is an error too, not a fault.
    std::fs::write(&path, &bytes).unwrap();
    let checkpoint = load::Checkpoint::open(folder.path()).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let read = model.parameters().iter().map(|(name, tensor)| checkpoint.fill(name, tensor));
    assert!(matches!(read.collect::<Result<Vec<_>, _>>(), Err(Error::Read { .. })));
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let folder = folder_of(&fresh(true, 3), true);
    let path = folder.path().join(load::SINGLE);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(load(folder.path()), Err(Error::NoWeights { .. })));
    assert!(matches!(load(&folder.path().join("none")), Err(Error::Read { .. })));
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(load(folder.path()), Err(Error::Read { .. })));
    std::fs::remove_dir(&path).unwrap();
    // Reading a pipe would wait for ever.
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(matches!(load(folder.path()), Err(Error::Read { .. })));
}

#[test]
fn types_that_are_not_computed_with_are_refused_by_name() {
    let model = fresh(true, 3);
    let folder = folder_of(&model, true);
    for kind in [Kind::Int64, Kind::Double, Kind::Int8] {
        let tensors: Vec<(String, Tensor)> = model
            .parameters()
            .iter()
            .map(|(name, tensor)| {
                let wrong = name == "model.norm.weight";
                (name.clone(), if wrong { tensor.to_kind(kind) } else { tensor.shallow_clone() })
            })
            .collect();
        Tensor::write_safetensors(&tensors, folder.path().join(load::SINGLE)).unwrap();
        let text = load(folder.path()).unwrap_err().to_string();
        assert!(text.contains("`model.norm.weight` is stored as") && text.contains("BF16"), "{text}");
    }
}

#[test]
fn a_config_that_asks_for_anything_gets_a_short_answer() {
    let folder = folder_of(&fresh(true, 3), true);
    let mut asked = moe_json();
    asked["num_hidden_layers"] = json!(1 << 16);
    asked["num_experts"] = json!(1 << 16);
    asked["mlp_only_layers"] = json!([]);
    std::fs::write(folder.path().join("config.json"), asked.to_string()).unwrap();
    let error = load(folder.path()).unwrap_err();
    assert!(matches!(&error, Error::Missing { names } if names.len() == 1000), "{error}");
    let mut wide = config_json(true);
    wide["vocab_size"] = json!(1 << 28);
    wide["hidden_size"] = json!(1 << 28);
    std::fs::write(folder.path().join("config.json"), wide.to_string()).unwrap();
    assert!(matches!(load(folder.path()), Err(Error::Shape { .. })));
}

#[test]
fn an_index_names_files_of_its_folder() {
    let model = fresh(false, 3);
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("models--a--b/snapshots/main");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), config_json(false).to_string()).unwrap();
    save::save(&model.stored_tensors(), &folder, 4_000).unwrap();
    let index = folder.join(load::INDEX);
    let written = std::fs::read_to_string(&index).unwrap();
    let first = "model-00001-of-";
    let first = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .find(|name| name.starts_with(first))
        .unwrap();
    let shard = folder.join(&first);
    let refused = || {
        let error = load(&folder).unwrap_err();
        assert!(matches!(error, Error::Index { .. }), "{error}");
        error.to_string()
    };

    // A link out of the folder, whether relative or absolute; but hubs link to their blobs.
    let outside = outer.path().join("elsewhere");
    std::fs::rename(&shard, &outside).unwrap();
    for target in [outside.clone(), Path::new("../../../elsewhere").to_owned()] {
        symlink(target, &shard).unwrap();
        assert!(refused().contains("is a link to"));
        std::fs::remove_file(&shard).unwrap();
    }
    let blobs = outer.path().join("models--a--b/blobs");
    std::fs::create_dir(&blobs).unwrap();
    std::fs::rename(&outside, blobs.join("0123")).unwrap();
    symlink("../../blobs/0123", &shard).unwrap();
    assert!(same(&model, &load(&folder).unwrap()));
    std::fs::rename(blobs.join("0123"), folder.join("other-name")).unwrap();
    std::fs::remove_file(&shard).unwrap();
    symlink("other-name", &shard).unwrap();
    assert!(same(&model, &load(&folder).unwrap()));
    std::fs::remove_file(&shard).unwrap();
    symlink("gone", &shard).unwrap();
    assert!(matches!(load(&folder), Err(Error::Read { .. })));

    let doubled = written.replacen("\"weight_map\": {", "\"weight_map\": {\"model.norm.weight\": \"x\",", 1);
    for text in [doubled.as_str(), "{", "[]", r#"{"weight_map": 3}"#, r#"{"weight_map": {"a": 3}}"#] {
        std::fs::write(&index, text).unwrap();
        assert!(matches!(load(&folder), Err(Error::Json { .. })), "{text}");
    }
    std::fs::write(&index, r#"{"weight_map": {}}"#).unwrap();
    assert!(matches!(load(&folder), Err(Error::Missing { .. })));
}
