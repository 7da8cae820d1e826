use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use training_gym_core::store::{MemoryStore, Store};

use super::*;
use crate::dataset::{HuggingFaceDataset, OutputFormat};

fn lines(path: &Path, rows: impl IntoIterator<Item = Value>) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, rows.into_iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
    path.to_owned()
}

fn rows(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn question(row: &Value) -> &str {
    row["prompt"][0]["content"].as_str().unwrap()
}

/// A client whose runtime counts words.
fn counting(home: &Path) -> (Gym, Model) {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fake_runtime.py");
    let model = home.join("model");
    fs::create_dir_all(&model).unwrap();
    fs::write(model.join("config.json"), "{}").unwrap();
    (Gym::local(home.join("state")).unwrap().with_runtime(runtime), Model::folder(model))
}

fn numbered(count: usize) -> impl Iterator<Item = Value> {
    (0..count).map(|n| json!({"problem": format!("What is {n} + {n}?"), "answer": (2 * n).to_string(), "level": n % 5}))
}

#[tokio::test]
async fn the_seeds_inputs_become_rows() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    // DAPO as it is published: parquet, chat messages in its own frame, the label below `reward_model`.
    let dapo = (0..50).map(|n| {
        let content = Instruction::Dapo.frame(&format!("What is {n} + {n}?"));
        let asked = json!({"role": "user", "content": content});
        // What is said around a question does not hide it.
        let prompt = if n == 1 { json!([{"role": "system", "content": "Be brief."}, asked]) } else { json!([asked]) };
        json!({"prompt": prompt, "reward_model": {"ground_truth": (2 * n).to_string()}})
    });
    let source = HuggingFaceDataset::file(lines(&home.path().join("dapo.jsonl"), dapo))
        .label_key("reward_model.ground_truth")
        .output_format(OutputFormat::Parquet);
    let store = MemoryStore::new();
    let key = source.materialise(&store).await.unwrap().parquet.unwrap();
    fs::create_dir_all(data.join("DAPO-Math-17k-dedup")).unwrap();
    fs::write(data.join(DAPO), store.get(&key).await.unwrap().bytes).unwrap();
    // One question of each benchmark is a training question too.
    lines(&data.join("MATH-500/test.jsonl"), numbered(2));
    lines(&data.join("AIME_2025/train.jsonl"), [json!({"problem": " What is  7 + 7? ", "answer": "14", "id": 0})]);
    lines(&data.join("aime2024.jsonl"), [json!({"Problem": "Else?", "Answer": 3})]);

    let (gym, model) = counting(home.path());
    let out = home.path().join("prepared");
    let preparation = || Preparation::new(&out).data_folder(&data).unwrap().tokenizer(model).on(&gym);
    let report = preparation().await.unwrap();
    let train = report.sources.last().unwrap();
    assert_eq!((train.read, train.in_evaluation, train.kept), (50, 3, 47));
    assert_eq!((train.input_key.as_str(), train.label_key.as_str()), ("prompt", "label"));
    let (kept, held_out) = (rows(&out.join("train.jsonl")), rows(&out.join("validation.jsonl")));
    assert_eq!((kept.len(), held_out.len()), (38, 9), "a fifth of 47");
    assert_eq!(question(&kept[0]), Instruction::Boxed.frame("What is 2 + 2?"));
    assert_eq!((&kept[0]["label"], &kept[0]["source"]), (&json!("4"), &json!("train")));
    assert_eq!(rows(&out.join("eval-aime2024.jsonl"))[0]["label"], "3");
    assert_eq!(rows(&out.join("eval-math500.jsonl"))[1]["level"], 1);
    let both: HashSet<&str> = kept.iter().chain(&held_out).map(question).collect();
    assert_eq!(both.len(), 47, "no row is in both");
    // Words: 5 of the question, 11 of the frame.
    let tokens = train.tokens.unwrap();
    assert_eq!(tokens.max as usize, question(&kept[0]).split_whitespace().count());

    // The report is what was returned, and says what lies there.
    let written: Report = serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
    assert_eq!(written, report);
    for file in report.sources.iter().flat_map(|source| &source.written) {
        let hash = training_gym_core::ids::ContentHash::of(&fs::read(out.join(&file.file)).unwrap());
        assert_eq!(hash.to_string(), file.sha256);
    }
    let text = report.to_string();
    assert!(text.starts_with("SOURCE") && text.contains("wrote 38 rows to train.jsonl"), "{text}");
    let loaded = HuggingFaceDataset::file(out.join("train.jsonl")).load().await.unwrap();
    assert_eq!((loaded.len(), loaded[0].label.as_str()), (38, "4"));

    // The same seed and questions, the same split, whatever the order; and nothing half-made is left.
    let again = preparation().replace(true).await.unwrap();
    assert_eq!(again, report);
    let names: HashSet<String> =
        fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|name| !name.starts_with('.')), "{names:?}");
}

#[tokio::test]
async fn every_row_that_is_dropped_is_counted() {
    let home = tempfile::tempdir().unwrap();
    let file = lines(
        &home.path().join("rows.jsonl"),
        [
            json!({"problem": "one two", "answer": "1"}),
            json!({"problem": "one  two ", "answer": "1"}),
            json!({"problem": "one two", "answer": "2"}),
            json!({"problem": "three", "answer": ""}),
            json!({"problem": "", "answer": "4"}),
            json!({"problem": "no label", "answer": null}),
            json!({"problem": "five words are too many", "answer": "5"}),
            json!({"problem": "so", "answer": r"Well, \boxed{6}."}),
        ],
    );
    let (gym, model) = counting(home.path());
    let out = home.path().join("out");
    let preparation = || {
        let source = Source::file("s", &file).columns("problem", "answer");
        Preparation::new(&out).train(source).instruction(None).validation(0.0).on(&gym)
    };
    let report = preparation().tokenizer(model).max_prompt_len(4).await.unwrap();
    let SourceReport { read, unusable, unlabelled, duplicates, conflicting_labels, too_long, kept, .. } =
        report.sources[0].clone();
    assert_eq!((read, unusable, unlabelled, duplicates, conflicting_labels, too_long, kept), (8, 2, 1, 2, 1, 1, 2));
    assert!(report.sources[0].first_unusable.as_ref().unwrap().contains("row 4"), "{report}");
    let left = rows(&out.join("train.jsonl"));
    assert_eq!((question(&left[1]), left[1]["label"].as_str()), ("so", Some("6")));
    assert!(!out.join("validation.jsonl").exists());
    assert!(report.to_string().contains("1 duplicates give another answer"), "{report}");

    let report = preparation().keep_duplicates(true).replace(true).validation(0.5).await.unwrap();
    assert_eq!((report.sources[0].kept, report.sources[0].duplicates), (5, 0));
    let asks = |name: &str| -> HashSet<String> {
        rows(&out.join(name)).iter().map(|row| question(row).trim().to_owned()).collect()
    };
    assert!(asks("train.jsonl").is_disjoint(&asks("validation.jsonl")), "one question is on one side");
}

#[tokio::test]
async fn the_split_is_the_seeds_and_not_the_orders() {
    let home = tempfile::tempdir().unwrap();
    let held_out = async |order: Vec<Value>, seed| -> HashSet<String> {
        let file = lines(&home.path().join("rows.jsonl"), order);
        let out = home.path().join("out");
        let source = Source::file("s", file);
        Preparation::new(&out).train(source).seed(seed).replace(true).await.unwrap();
        rows(&out.join("validation.jsonl")).iter().map(|row| question(row).to_owned()).collect()
    };
    let first = held_out(numbered(200).collect(), 1).await;
    let mut backwards: Vec<Value> = numbered(200).collect();
    backwards.reverse();
    assert_eq!(first.len(), 40);
    assert_eq!(held_out(backwards, 1).await, first);
    assert_ne!(held_out(numbered(200).collect(), 2).await, first);
}

#[tokio::test]
async fn what_cannot_be_prepared_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let file = lines(&home.path().join("rows.jsonl"), numbered(3));
    let out = home.path().join("out");
    let source = || Source::file("s", &file);
    let (gym, model) = counting(home.path());
    fs::create_dir_all(home.path().join("no-template")).unwrap();
    fs::write(home.path().join("no-template/config.json"), "{}").unwrap();
    let broken = home.path().join("broken.jsonl");
    fs::write(&broken, "{\"problem\": \"a\", \"answer\": \"1\"}\n{\"prob").unwrap();
    let text = home.path().join("text.jsonl");
    fs::write(&text, "{\"text\": \"a\"}\n").unwrap();
    for (preparation, words) in [
        (Preparation::new(&out), "`sources` = none"),
        (Preparation::new(&out).train(source()).validation(1.0), "`validation` = 1"),
        (Preparation::new(&out).train(source()).max_prompt_len(0), "`max_prompt_len` = 0"),
        (Preparation::new(&out).train(Source::file("../x", &file)), "`source`"),
        (Preparation::new(&out).train(source()).eval(source()), "one source alone"),
        (Preparation::new(home.path()).train(source()), "there already"),
        (Preparation::new(home.path()).train(source()).replace(true), "no report.json"),
        (Preparation::new(&out).train(Source::file("s", "/nowhere.jsonl")), "/nowhere.jsonl"),
        (Preparation::new(&out).train(Source::file("s", &broken)), "broken.jsonl:2"),
        (Preparation::new(&out).train(Source::file("s", &text)), "problem and answer"),
        (Preparation::new(&out).train(source()).tokenizer(model).max_prompt_len(1).on(&gym), "3 had too many tokens"),
        (
            Preparation::new(&out).train(source()).tokenizer(Model::folder(home.path().join("no-template"))).on(&gym),
            "no chat template",
        ),
    ] {
        let error = preparation.await.unwrap_err();
        let said = format!("{error}");
        assert!(said.contains(words), "{words}: {said}");
        assert!(!out.exists());
    }
    let error = Preparation::new(&out).data_folder(home.path().join("empty")).unwrap_err().to_string();
    assert!(error.contains(DAPO) && error.contains("MATH-500/test.jsonl"), "{error}");
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
}
