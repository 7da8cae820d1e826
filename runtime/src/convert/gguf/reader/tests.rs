use super::*;
use crate::convert::gguf::hyperparameters::Hyperparameters;
use crate::convert::gguf::sample::{File, model};
use crate::convert::gguf::tokenizer::Vocabulary;
use crate::convert::gguf::weights;
use crate::convert::plan::Failure;

/// Everything a conversion does with a file, its numbers thrown away.
fn convert(bytes: &[u8]) -> Result<usize, Problem> {
    let file = Gguf::read(bytes)?;
    let model = Hyperparameters::read(&file)?;
    let vocabulary = Vocabulary::read(&file, None, model.vocab_size, model.context)?;
    let text = [vocabulary.tokenizer(), vocabulary.tokenizer_config(), vocabulary.generation_config()];
    assert!(text.iter().all(serde_json::Value::is_object));
    assert!(!model.config(&file).is_empty());
    let number = weights::lossless(&file);
    let tensors = weights::plan(&file, &model, number)?;
    for tensor in &tensors {
        match tensor.emit(&mut |_| Ok(())) {
            Ok(_) => {}
            Err(Failure::Problem(problem)) => return Err(problem),
            Err(Failure::Error(error)) => panic!("nothing is written: {error}"),
        }
    }
    Ok(tensors.len())
}

#[test]
fn both_versions_are_read() {
    for version in [2, 3] {
        let (mut file, named) = model("qwen3");
        file.version = version;
        assert_eq!(convert(&file.bytes()), Ok(named.len()), "version {version}");
    }
}

#[test]
fn a_missing_value_is_named() {
    for key in [
        "general.architecture",
        "qwen3.embedding_length",
        "qwen3.attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.tokens",
    ] {
        let error = convert(&model("qwen3").0.without(key).bytes()).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}` is missing")), "{error}");
    }
}

#[test]
fn values_of_every_type() {
    let mut file = File::new();
    file.raw("u8", 0, &[200])
        .raw("i8", 1, &[0xff])
        .raw("u16", 2, &[1, 2])
        .raw("i16", 3, &[0xfe, 0xff])
        .raw("i32", 5, &(-7_i32).to_le_bytes())
        .number("f32", 1e-5)
        .raw("u64", 10, &u64::MAX.to_le_bytes())
        .raw("i64", 11, &(-9_i64).to_le_bytes())
        .raw("f64", 12, &0.1_f64.to_le_bytes())
        .signed("same", &[3, 3])
        .signed("several", &[3, 4]);
    let bytes = file.bytes();
    let read = Gguf::read(&bytes).unwrap();
    assert_eq!(read.count("u8"), Ok(Some(200)));
    assert_eq!(read.number("i8"), Ok(Some(-1.0)));
    assert_eq!(read.count("u16"), Ok(Some(0x201)));
    assert_eq!(read.number("i16"), Ok(Some(-2.0)));
    assert_eq!(read.number("f32"), Ok(Some(1e-5)), "the decimal a person wrote, not the nearest float32's");
    assert_eq!(read.count("u64"), Ok(Some(u64::MAX)));
    assert_eq!(read.number("f64"), Ok(Some(0.1)));
    assert_eq!(read.count("same"), Ok(Some(3)));
    assert_eq!(read.count("absent"), Ok(None));
    for (key, word) in [("i64", "whole number"), ("several", "differs between layers"), ("f32", "whole number")] {
        assert!(read.count(key).unwrap_err().to_string().contains(word), "{key}");
    }
}

/// The smallest head of a file with one value or tensor, then `rest`.
fn head(tensors: u64, values: u64, rest: &[u8]) -> Vec<u8> {
    [b"GGUF", &3_u32.to_le_bytes()[..], &tensors.to_le_bytes(), &values.to_le_bytes(), rest].concat()
}

#[test]
fn what_cannot_be_is_refused_with_its_place() {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let array =
        |kind: u32, count: u64| [&text("key"), &[9, 0, 0, 0, kind as u8, 0, 0, 0][..], &count.to_le_bytes()].concat();
    let tensor = |sizes: &[u64], kind: u32, offset: u64| {
        let sizes: Vec<u8> = sizes.iter().flat_map(|size| size.to_le_bytes()).collect();
        let dimensions = (sizes.len() / 8) as u32;
        [&text("t"), &dimensions.to_le_bytes()[..], &sizes, &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
    };
    let padded = |mut bytes: Vec<u8>| {
        bytes.extend([0; 256]);
        bytes
    };
    let nested = [array(9, 1), 9_u32.to_le_bytes().to_vec(), vec![1; 64]].concat();
    let twice = [text("k"), vec![0, 0, 0, 0, 1], text("k"), vec![0, 0, 0, 0, 1]].concat();
    for (bytes, word) in [
        (b"GGML".to_vec(), "does not begin"),
        (b"GGUF\x01\0\0\0".to_vec(), "version 1"),
        (b"GGUF\0\0\0\x03".to_vec(), "big-endian"),
        (b"GGUF\x07\0\0\0".to_vec(), "version 7"),
        (head(u64::MAX, 0, &[]), "tensors"),
        (head(0, 1 << 60, &[0; 64]), "metadata values"),
        (head(0, 1, &padded(u64::MAX.to_le_bytes().to_vec())), "bytes"),
        (head(0, 1, &padded([text("key"), vec![77, 0, 0, 0]].concat())), "type 77"),
        (head(0, 1, &padded(array(4, u64::MAX))), "an array of"),
        (head(0, 1, &padded(array(8, 1 << 50))), "an array of"),
        (head(0, 1, &padded(nested)), "array of arrays"),
        (head(0, 1, &padded([text("k"), vec![7, 0, 0, 0, 9]].concat())), "truth value"),
        (head(0, 2, &padded(twice)), "twice"),
        (head(1, 0, &padded(tensor(&[], 0, 0))), "dimensions"),
        (head(1, 0, &padded(tensor(&[1; 9], 0, 0))), "dimensions"),
        (head(1, 0, &padded(tensor(&[0], 0, 0))), "size 0"),
        (head(1, 0, &padded(tensor(&[1 << 40, 1 << 40], 0, 0))), "beyond any memory"),
        (head(1, 0, &padded(tensor(&[1 << 40], 0, 0))), "needs bytes"),
        (head(1, 0, &padded(tensor(&[4], 0, 1 << 62))), "needs bytes"),
        (head(1, 0, &padded(tensor(&[4], 0, 3))), "no multiple"),
        (head(1, 0, &padded(tensor(&[33], 2, 0))), "whole blocks"),
        (head(1, 0, &padded(tensor(&[32], 16, 0))), "IQ"),
        (head(2, 0, &padded([tensor(&[4], 0, 0), tensor(&[4], 0, 0)].concat())), "twice"),
    ] {
        let error = Gguf::read(&bytes).unwrap_err().to_string();
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

#[test]
fn overlapping_tensors_are_refused() {
    let mut file = File::new();
    file.floats("a", &[16], &[1.0; 16]).floats("b", &[16], &[2.0; 16]);
    let mut bytes = file.bytes();
    assert!(Gguf::read(&bytes).is_ok());
    // The second offset is the last field before the padding.
    let at = bytes.windows(8).rposition(|window| window == 64_u64.to_le_bytes()).unwrap();
    bytes[at..at + 8].copy_from_slice(&32_u64.to_le_bytes());
    assert!(Gguf::read(&bytes).unwrap_err().to_string().contains("overlap"));
}

#[test]
fn every_truncation_is_refused() {
    let bytes = model("qwen3moe").0.bytes();
    assert!(convert(&bytes).is_ok());
    for cut in (0..bytes.len()).step_by(61) {
        assert!(convert(&bytes[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn flipped_bytes_never_crash() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut refused = 0;
    for key in ["llama", "qwen3moe"] {
        let whole = model(key).0.bytes();
        // Mostly the metadata and the entries: the numbers have nothing to say.
        let entries = whole.len() * 2 / 5;
        for _ in 0..1_500 {
            let mut bytes = whole.clone();
            for _ in 0..1 + next() % 3 {
                let at = next() as usize % if next() % 8 == 0 { whole.len() } else { entries };
                bytes[at] = if next() % 2 == 0 { next() as u8 } else { bytes[at] ^ 1 << (next() % 8) };
            }
            refused += usize::from(convert(&bytes).is_err());
        }
    }
    assert!(refused > 300, "only {refused} of 3000 were refused: are the right bytes flipped?");
}
