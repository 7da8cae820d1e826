use serde_json::{Map, Value};
use training_gym_core::sample::{Message, Prompt};

use super::*;
use crate::text::TextPipeline;

use crate::text::byte_tokenizer::write_byte_tokenizer;

fn byte_tokenizer() -> (tempfile::TempDir, Tokenizer) {
    let folder = tempfile::tempdir().unwrap();
    write_byte_tokenizer(folder.path());
    let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
    (folder, tokenizer)
}

#[test]
fn text_goes_there_and_back() {
    let (_folder, tokenizer) = byte_tokenizer();
    let text = "café 你好 🚀\n";
    let ids = tokenizer.encode(text, false).unwrap();
    assert_eq!(ids.len(), text.len());
    assert_eq!(tokenizer.decode(&ids, true), text);
    assert_eq!(tokenizer.encode("a", true).unwrap(), [511, i64::from(b'a')]);
    assert_eq!(tokenizer.encode("<|begin|>a", true).unwrap(), [511, i64::from(b'a')], "no double begin token");
    assert_eq!(tokenizer.vocab_size(), 512);
    assert_eq!(tokenizer.eos_token_ids(), [510]);
    assert_eq!(
        (tokenizer.decode(&[97, 510], true), tokenizer.decode(&[97, 510], false)),
        ("a".into(), "a<|end|>".into())
    );
    assert_eq!(tokenizer.decode(&[-1, 97, 99_999], true), "a");
    assert_eq!(tokenizer.vocab_sha256().len(), 64);
    assert_eq!((tokenizer.token_bytes(97), tokenizer.token_bytes(0xe4)), (Some(vec![97]), None));
}

#[test]
fn incremental_text_is_the_whole_text_in_whole_characters() {
    let (_folder, tokenizer) = byte_tokenizer();
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let pool: Vec<i64> = tokenizer.encode("aé你🚀 \u{fffd}", false).unwrap();
    for round in 0..400 {
        let ids: Vec<i64> = (0..random(40))
            .map(|_| if round % 2 == 0 { random(512) as i64 } else { pool[random(pool.len() as u64) as usize] })
            .collect();
        for skip in [true, false] {
            let mut decoder = tokenizer.decoder(skip);
            let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
            text.push_str(&decoder.finish());
            assert_eq!(text, tokenizer.decode(&ids, skip), "{ids:?}");
        }
    }
    let mut decoder = tokenizer.decoder(true);
    let pieces: Vec<String> = tokenizer.encode("é🚀", false).unwrap().iter().map(|&id| decoder.push(id)).collect();
    assert_eq!(pieces, ["", "é", "", "", "", "🚀"]);
}

#[test]
fn a_stop_text_is_found_inside_split_characters() {
    let (_folder, tokenizer) = byte_tokenizer();
    let mut watcher = tokenizer.stop_watcher(&["好!".to_owned()], true);
    let ids = tokenizer.encode("你好!x", false).unwrap();
    let stopped: Vec<bool> = ids.iter().map(|&id| watcher.push(id)).collect();
    assert_eq!(stopped, [false, false, false, false, false, false, true, true]);
    assert_eq!(watcher.matched(), Some("好!"));
    let mut watcher = tokenizer.stop_watcher(&["好!".to_owned()], true);
    let text: String = ids.iter().map(|&id| watcher.push_text(id)).collect();
    assert_eq!((text + &watcher.finish()).as_str(), "你");
}

#[test]
fn prompts_are_rendered_once_and_get_no_second_begin_token() {
    let folder = tempfile::tempdir().unwrap();
    write_byte_tokenizer(folder.path());
    let pipeline = TextPipeline::from_folder(folder.path()).unwrap();
    let kwargs = Map::<String, Value>::new();
    let text = Prompt::Text("hi".into());
    let messages = Prompt::Messages(vec![Message::user("hi")]);
    let rendered = pipeline.tokenizer().encode("<|begin|>user: hi\n", false).unwrap();
    assert_eq!(pipeline.prompt_ids(&text, false, &kwargs).unwrap(), [511, 104, 105]);
    assert_eq!(pipeline.prompt_ids(&text, true, &kwargs).unwrap(), rendered);
    assert_eq!(pipeline.prompt_ids(&messages, true, &kwargs).unwrap(), rendered);

    std::fs::write(
        folder.path().join("tokenizer_config.json"),
        r#"{"bos_token": "<|begin|>", "add_bos_token": false}"#,
    )
    .unwrap();
    let pipeline = TextPipeline::from_folder(folder.path()).unwrap();
    assert_eq!(pipeline.prompt_ids(&text, false, &kwargs).unwrap(), [104, 105]);
    let error = pipeline.prompt_ids(&messages, true, &kwargs).unwrap_err().to_string();
    assert!(error.contains("no chat template"), "{error}");
}

#[test]
fn bad_folders_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_folder(folder.path()).unwrap_err().to_string();
    assert!(error.contains("no tokenizer.json"), "{error}");
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    assert!(matches!(Tokenizer::from_folder(folder.path()), Err(Error::Invalid { .. })));
    write_byte_tokenizer(folder.path());
    let wrong = r#"{"added_tokens_decoder": {"9": {"content": "<|end|>", "special": true}}}"#;
    std::fs::write(folder.path().join("tokenizer_config.json"), wrong).unwrap();
    let error = Tokenizer::from_folder(folder.path()).unwrap_err().to_string();
    assert!(error.contains("<|end|>") && error.contains("510"), "{error}");
}
