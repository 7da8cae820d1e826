//! Whole datasets: files, folders and repositories to rows and into a store.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::json;
use training_gym_core::ids::ContentHash;
use training_gym_core::sample::{Message, Prompt, Row};
use training_gym_core::store::{MemoryStore, Store};

use super::card::{CardConfig, configs};
use super::files::plan;
use super::{Error, HuggingFaceDataset, OutputFormat, refuse_shared_rows, shared_rows};
use crate::hub::testing::{COMMIT, FakeHub, Fault};

/// `{"prompt": "q<i>", "label": i}` as JSON lines.
fn lines(numbers: std::ops::Range<usize>) -> String {
    numbers.map(|i| json!({"prompt": format!("q{i}"), "label": i}).to_string() + "\n").collect()
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path
}

fn labels(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| row.label.as_str()).collect()
}

async fn message(dataset: HuggingFaceDataset) -> String {
    dataset.load().await.unwrap_err().to_string()
}

#[tokio::test]
async fn files_of_every_format_give_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let array: Vec<_> = (0..10).map(|i| json!({"prompt": format!("q{i}"), "label": i})).collect();
    let rows = HuggingFaceDataset::file(write(folder.path(), "a.jsonl", &lines(0..10))).load().await.unwrap();
    assert_eq!(rows.len(), 10);
    assert_eq!(rows[3].prompt, Prompt::Messages(vec![Message::user("q3")]));
    let pretty = serde_json::to_string_pretty(&array).unwrap();
    let same = HuggingFaceDataset::file(write(folder.path(), "a.json", &pretty)).load().await.unwrap();
    assert_eq!(same, rows);
    // Blank lines, a byte order mark, Windows ends and a missing last newline change nothing.
    let odd = format!("\u{feff}\n{}", lines(0..10).trim_end().replace('\n', "\r\n\r\n"));
    let same = HuggingFaceDataset::file(write(folder.path(), "b.json", &odd)).load().await.unwrap();
    assert_eq!(same, rows);
    std::fs::write(folder.path().join("a.parquet"), super::parquet_file::write(&rows).unwrap()).unwrap();
    let parquet = HuggingFaceDataset::file(folder.path().join("a.parquet"));
    let mut same = parquet.clone().split("train[2:7]").unwrap().load().await.unwrap();
    same.iter_mut().for_each(|row| row.metadata.clear());
    assert_eq!(same, rows[2..7]);
}

#[tokio::test]
async fn slices_limits_and_sums_select() {
    let folder = tempfile::tempdir().unwrap();
    let file = HuggingFaceDataset::file(write(folder.path(), "a.jsonl", &lines(0..20)));
    let picked = |split: &str| file.clone().split(split).unwrap();
    assert_eq!(labels(&picked("train[3:5]").load().await.unwrap()), ["3", "4"]);
    assert_eq!(labels(&picked("train[-10%:]+train[:1]").load().await.unwrap()), ["18", "19", "0"]);
    assert_eq!(labels(&picked("train[5:]").limit(2).load().await.unwrap()), ["5", "6"]);
    assert_eq!(labels(&picked("train[:1]+train[5:9]").limit(3).load().await.unwrap()), ["0", "5", "6"]);
    assert_eq!(picked("all").limit(100).load().await.unwrap().len(), 20);
    let text = message(picked("train[:21]")).await;
    assert!(text.contains("there are 20 rows"), "{text}");
    let text = message(picked("test[:1]")).await;
    assert!(text.contains("no split `test`") && text.contains("`train`"), "{text}");
    assert!(message(picked("train[7:7]")).await.contains("selects no row"));
    assert!(message(file.clone().limit(0)).await.contains("limit = `0`"));
    assert!(message(file.clone().input_key("")).await.contains("input_key"));
    assert!(message(file.clone().config("x")).await.contains("config = `x`"));
    assert!(message(file.revision("x")).await.contains("revision = `x`"));
}

#[tokio::test]
async fn broken_files_name_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let load = |name: &str, text: &str| message(HuggingFaceDataset::file(write(folder.path(), name, text)));
    let text = load("empty.jsonl", "\n \n").await;
    assert!(text.contains("empty.jsonl` is empty"), "{text}");
    let text = load("empty.json", "[]").await;
    assert!(text.contains("is empty"), "{text}");
    let text = load("bad.jsonl", &format!("{}\n{{\"prompt\": }}\n", lines(0..2))).await;
    assert!(text.contains("bad.jsonl:4: not valid JSON at column 12"), "{text}");
    let text = load("bad.json", "[\n{\"prompt\": \"a\"},\n{]").await;
    assert!(text.contains("bad.json:3: not valid JSON"), "{text}");
    let text = load("list.jsonl", "3\n").await;
    assert!(text.contains("list.jsonl:1: a row is a JSON object, and this is a number"), "{text}");
    let text = load("list.json", "[3]").await;
    assert!(text.contains("element 0"), "{text}");
    let text = load("rows.csv", "a,b\n").await;
    assert!(text.contains("`.csv` file"), "{text}");
    assert!(load("none.parquet", "").await.contains("is empty"));
    assert!(load("bad.parquet", "PAR1 is not enough").await.contains("as parquet"));
    let text = load("ok.jsonl", "{\"problem\": \"a\", \"answer\": 1}\n").await;
    assert!(text.contains("input_key = `prompt`") && text.contains("`problem`, `answer`"), "{text}");
    for missing in ["./nowhere", "/nowhere", "nowhere/at/all", "nowhere.jsonl"] {
        let text = message(HuggingFaceDataset::new(missing)).await;
        assert!(text.contains(&format!("no file or folder `{missing}`")), "{text}");
    }
    assert!(message(HuggingFaceDataset::file(folder.path())).await.contains("no file or folder"));
}

/// The shape of verl's files: nested label, optional columns, chat messages, several row groups.
fn verl_like(path: &Path) {
    const SCHEMA: &str = "message schema {
        OPTIONAL GROUP prompt (LIST) { REPEATED GROUP list { OPTIONAL GROUP element {
            OPTIONAL BYTE_ARRAY content (UTF8); OPTIONAL BYTE_ARRAY role (UTF8); } } }
        OPTIONAL GROUP reward_model { OPTIONAL BYTE_ARRAY ground_truth (UTF8); }
        OPTIONAL INT64 id; OPTIONAL DOUBLE score; OPTIONAL BOOLEAN hard; }";
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    for start in [0, 3, 6] {
        let texts = |word: &str| (start..start + 3).map(|i| ByteArray::from(format!("{word}{i}").as_str())).collect();
        let (contents, truths): (Vec<_>, Vec<_>) = (texts("q"), texts("t"));
        let roles = vec![ByteArray::from("user"); 3];
        let mut group = writer.next_row_group().unwrap();
        for (values, definition, repetition) in
            [(&contents, 4, Some([0; 3])), (&roles, 4, Some([0; 3])), (&truths, 2, None)]
        {
            let mut column = group.next_column().unwrap().unwrap();
            let repetition = repetition.as_ref().map(|levels| &levels[..]);
            column.typed::<ByteArrayType>().write_batch(values, Some(&[definition; 3]), repetition).unwrap();
            column.close().unwrap();
        }
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&[start, start + 1, start + 2], Some(&[1; 3]), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<DoubleType>().write_batch(&[0.5, f64::NAN], Some(&[1, 1, 0]), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<BoolType>().write_batch(&[true; 3], Some(&[1; 3]), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

#[tokio::test]
async fn parquet_of_other_tools_is_read_over_row_groups() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.parquet");
    verl_like(&path);
    let dataset = HuggingFaceDataset::file(&path).label_key("reward_model.ground_truth");
    let rows = dataset.clone().split("train[2:7]").unwrap().load().await.unwrap();
    assert_eq!(labels(&rows), ["t2", "t3", "t4", "t5", "t6"]);
    assert_eq!(rows[1].prompt, Prompt::Messages(vec![Message::user("q3")]));
    let expected = json!({"reward_model": {"ground_truth": "t3"}, "id": 3, "score": 0.5, "hard": true});
    assert_eq!(json!(rows[1].metadata), expected);
    assert!(rows[2].metadata["score"].is_null(), "NaN has no JSON");
    let by_number = dataset.clone().label_key("score");
    assert_eq!(labels(&by_number.clone().limit(1).load().await.unwrap()), ["0.5"]);
    let text = message(by_number.split("train[:3]").unwrap()).await;
    assert!(text.contains("row 1") && text.contains("null"), "{text}");
    let text = message(dataset.split("train[:10]").unwrap()).await;
    assert!(text.contains("there are 9 rows"), "{text}");
}

#[test]
fn names_sort_files_into_splits() {
    let sorted = |files: &[&str]| {
        let files: Vec<_> = files.iter().map(|file| (*file).to_owned()).collect();
        plan("d", &files, None, None).map(|splits| {
            let text = splits.iter().map(|(split, files)| format!("{split}: {}", files.join(" ")));
            text.collect::<Vec<_>>().join("; ")
        })
    };
    let table: &[(&[&str], &str)] = &[
        (&["README.md", "rows.jsonl"], "train: rows.jsonl"),
        (&["test.jsonl", "train.jsonl"], "train: train.jsonl; test: test.jsonl"),
        (&["dev.json", "my_train_set.json"], "train: my_train_set.json; validation: dev.json"),
        (&["math-eval-1.parquet"], "test: math-eval-1.parquet"),
        (&["constraint.jsonl"], "train: constraint.jsonl"),
        (&["test/a.jsonl", "training/b.jsonl"], "train: training/b.jsonl; test: test/a.jsonl"),
        (&["x/train/a.jsonl", "x/train/b.jsonl"], "train: x/train/a.jsonl x/train/b.jsonl"),
        (
            &[
                "data/clean-00000-of-00001.parquet",
                "data/train-00000-of-00002.parquet",
                "data/train-00001-of-00002.parquet",
            ],
            "train: data/train-00000-of-00002.parquet data/train-00001-of-00002.parquet; \
             clean: data/clean-00000-of-00001.parquet",
        ),
        (&[".hidden/train.jsonl", "__pycache__/a.json", "rows.jsonl"], "train: rows.jsonl"),
        (&["dataset_infos.json", "config.json", "rows.parquet", "notes.md"], "train: rows.parquet"),
    ];
    for (files, expected) in table {
        assert_eq!(sorted(files).unwrap(), *expected, "{files:?}");
    }
    assert!(matches!(sorted(&["a.csv", "b.csv", "c.jsonl"]), Err(Error::Format { .. })));
    assert!(matches!(sorted(&["train.jsonl.gz"]), Err(Error::Format { .. })));
    assert!(matches!(sorted(&["README.md", "a.py"]), Err(Error::NoFiles { .. })));
}

const CARD: &str = r#"---
license: mit
tags: [a, "b"]   # a comment
dataset_info:
- config_name: ignored
  features:
    - name: x
configs:
- config_name: main
  default: true
  data_files:
  - split: train
    path: "data/train-*"   # shards
  - split: test
    path:
    - data/t1.parquet
    - 'data/t2.parquet'
- config_name: socratic
  data_dir: soc
- config_name: one
  data_files: "one/*.jsonl"
- config_name: flow
  data_files: [a.jsonl, "b.jsonl"]
-
  config_name: map
  data_files:
    train: m/train.jsonl
    dev: [m/d1.jsonl, m/d2.jsonl]
language:
- en
---
# configs: not this
"#;

#[test]
fn cards_are_read_in_the_forms_they_are_written_in() {
    let found = configs(CARD).unwrap();
    let files = |pairs: &[(&str, &[&str])]| {
        Some(pairs.iter().map(|(s, p)| ((*s).to_owned(), p.iter().map(|p| (*p).to_owned()).collect())).collect())
    };
    let config = |name: &str, folder: &str, files| CardConfig {
        name: name.to_owned(),
        is_default: name == "main",
        folder: folder.to_owned(),
        files,
    };
    let expected = [
        config("main", "", files(&[("train", &["data/train-*"]), ("test", &["data/t1.parquet", "data/t2.parquet"])])),
        config("socratic", "soc", None),
        config("one", "", files(&[("train", &["one/*.jsonl"])])),
        config("flow", "", files(&[("train", &["a.jsonl", "b.jsonl"])])),
        config("map", "", files(&[("train", &["m/train.jsonl"]), ("dev", &["m/d1.jsonl", "m/d2.jsonl"])])),
    ];
    assert_eq!(found, expected);
    assert_eq!(configs("# no front matter\nconfigs:\n- a\n").unwrap(), []);
    assert_eq!(configs("---\nlicense: mit\n---\n").unwrap(), []);
    assert_eq!(configs("---\nconfigs: []\n---\n").unwrap(), []);
}

#[test]
fn cards_not_understood_are_refused_with_their_line() {
    for (body, line, why) in [
        ("- config_name: a\n  data_files: {train: x}", 4, "not read"),
        ("- config_name: a\n  data_files: |\n    x", 4, "not read"),
        ("- config_name: a\n    data_files: x", 4, "indented"),
        ("- config_name: a\n  data_files: \"x", 4, "without its end"),
        ("- config_name: a\n  loose words", 4, "not `key: value`"),
        ("- config_name: a\n  config_name: b", 4, "twice"),
        ("- config_name: a\n  data_files:\n  - path: x", 3, "no `split`"),
        ("  a: b", 3, "not a list"),
    ] {
        let (at, problem) = configs(&format!("---\nconfigs:\n{body}\n---\n")).unwrap_err();
        assert!(problem.contains(why) && at == line, "{body}: line {at}: {problem}");
    }
}

#[test]
fn the_card_decides_before_names_do() {
    let files: Vec<_> = ["data/train-0.parquet", "data/t1.parquet", "data/t2.parquet", "one/x.jsonl", "soc/test.jsonl"]
        .map(str::to_owned)
        .to_vec();
    let splits = |config: Option<&str>| {
        plan("d", &files, Some(CARD), config).map(|splits| {
            splits.into_iter().map(|(split, files)| format!("{split}={}", files.len())).collect::<Vec<_>>().join(" ")
        })
    };
    assert_eq!(splits(None).unwrap(), "train=1 test=2");
    assert_eq!(splits(Some("socratic")).unwrap(), "test=1");
    assert_eq!(splits(Some("one")).unwrap(), "train=1");
    let text = splits(Some("map")).unwrap_err().to_string();
    assert!(text.contains("m/train.jsonl"), "{text}");
    let text = splits(Some("nope")).unwrap_err().to_string();
    assert!(text.contains("`nope`") && text.contains("`socratic`"), "{text}");
    let undecided = "---\nconfigs:\n- config_name: a\n- config_name: b\n---\n";
    let text = plan("d", &files, Some(undecided), None).unwrap_err().to_string();
    assert!(text.contains("`a`, `b`"), "{text}");
    assert!(plan("d", &files, None, Some("a")).is_err());
}

#[tokio::test]
async fn a_folder_is_read_like_a_repository() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "train/part-0.jsonl", &lines(0..5));
    write(folder.path(), "train/part-1.jsonl", &lines(5..8));
    write(folder.path(), "test/x.jsonl", &lines(100..102));
    let dataset = HuggingFaceDataset::new(folder.path().to_str().unwrap());
    let rows = dataset.clone().split("train[4:6]+test").unwrap().load().await.unwrap();
    assert_eq!(labels(&rows), ["4", "5", "100", "101"]);
    assert_eq!(dataset.clone().split("all").unwrap().load().await.unwrap().len(), 10);
    let text = message(dataset.split("validation").unwrap()).await;
    assert!(text.contains("`train`, `test`"), "{text}");
}

#[tokio::test]
async fn a_repository_is_fetched_once_and_only_where_needed() {
    let cache = tempfile::tempdir().unwrap();
    let (train, test) = (lines(0..10), lines(10..12));
    let files: &[(&str, &[u8])] =
        &[("README.md", b"# plain"), ("train.jsonl", train.as_bytes()), ("test.jsonl", test.as_bytes())];
    let server = FakeHub::serve(files).await;
    let dataset = HuggingFaceDataset::new("org/name").hub(server.hub(cache.path()));
    let train = dataset.clone().split("train[:4]").unwrap();
    server.fault("train.jsonl", Fault::Cut(20));
    assert_eq!(train.load().await.unwrap().len(), 4);
    assert!(server.seen_for("test.jsonl").is_empty());
    assert!(cache.path().join("datasets--org--name/snapshots").join(COMMIT).join("train.jsonl").exists());
    let store = MemoryStore::new();
    let made = train.materialise(&store).await.unwrap();
    assert!(made.notes[0].contains(COMMIT) && made.notes[0].contains("4 rows"), "{:?}", made.notes);
    let text = message(dataset.clone().split("validation").unwrap()).await;
    assert!(text.contains("no split `validation`"), "{text}");
    let text = message(dataset.revision("nope")).await;
    assert!(text.contains("no revision `nope`"), "{text}");
    let text = message(HuggingFaceDataset::new("org/nope").hub(server.hub(cache.path()))).await;
    assert!(text.contains("no dataset `org/nope`"), "{text}");
}

#[tokio::test]
async fn materialised_rows_are_what_the_runtime_reads() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.jsonl", &lines(0..6));
    let dataset = HuggingFaceDataset::file(&path).output_format(OutputFormat::Parquet);
    let store = MemoryStore::new();
    let made = dataset.materialise(&store).await.unwrap();
    let object = store.get(&made.rows.key).await.unwrap().bytes;
    assert_eq!(ContentHash::of(&object), made.rows.sha256);
    let read: Vec<Row> =
        std::str::from_utf8(&object).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, dataset.load().await.unwrap());
    assert_eq!((made.rows.rows, made.row_hashes.len()), (6, 6));
    // The parquet beside reads back as the same prompts and labels.
    let bytes = store.get(made.parquet.as_ref().unwrap()).await.unwrap().bytes;
    let copy = folder.path().join("copy.parquet");
    std::fs::write(&copy, &bytes).unwrap();
    let again = HuggingFaceDataset::file(copy).load().await.unwrap();
    assert!(again.iter().zip(&read).all(|(a, b)| (&a.prompt, &a.label) == (&b.prompt, &b.label)));
    // The same rows have the same key; prepared ones are taken as they are unless told otherwise.
    let second = dataset.materialise(&store).await.unwrap();
    assert_eq!((&second.rows, &second.row_hashes), (&made.rows, &made.row_hashes));
    assert!(second.notes.iter().any(|note| note.contains("prepared before")), "{:?}", second.notes);
    let third = dataset.clone().always_prepare(true).materialise(&store).await.unwrap();
    assert_eq!(third, made);
    // A changed file or setting is another preparation; damage in the store is repaired.
    assert_ne!(dataset.clone().system_prompt("s").materialise(&store).await.unwrap().rows, made.rows);
    store.put(&made.rows.key, "damaged".into()).await.unwrap();
    assert_eq!(dataset.materialise(&store).await.unwrap(), made);
    assert_eq!(store.get(&made.rows.key).await.unwrap().bytes, object);
    write(folder.path(), "a.jsonl", &lines(0..7));
    assert_eq!(dataset.materialise(&store).await.unwrap().rows.rows, 7);
}

#[test]
fn what_a_launch_awaits_may_move_between_threads() {
    fn is_send<T: Send>(_: T) {}
    let (dataset, store) = (HuggingFaceDataset::new("a/b"), MemoryStore::new());
    is_send(dataset.load());
    is_send(dataset.materialise(&store));
}

#[tokio::test]
async fn shared_rows_are_found_by_what_they_ask() {
    let folder = tempfile::tempdir().unwrap();
    let store = MemoryStore::new();
    let file = HuggingFaceDataset::file(write(folder.path(), "a.jsonl", &lines(0..20)));
    let part = |split: &str| file.clone().split(split).unwrap();
    let train = part("train[:10]").materialise(&store).await.unwrap();
    let apart = part("train[10:]").materialise(&store).await.unwrap();
    refuse_shared_rows(&train, &apart).unwrap();
    let overlapping = part("train[8:12]").system_prompt("Be brief.").materialise(&store).await.unwrap();
    assert_eq!(shared_rows(&train.row_hashes, &overlapping.row_hashes), [(8, 0), (9, 1)]);
    let text = refuse_shared_rows(&train, &overlapping).unwrap_err().to_string();
    assert!(text.contains("2 of 4 evaluation rows") && text.contains("training row 8"), "{text}");
    let twice = part("train[:3]+train[:2]").materialise(&store).await.unwrap();
    assert!(twice.notes.iter().any(|note| note.starts_with("2 rows have the prompt")), "{:?}", twice.notes);
}

#[tokio::test]
async fn the_shared_math_sets_load() {
    let shared = std::env::var("TRAINING_GYM_SHARED").map_or_else(|_| PathBuf::from("../../shared"), PathBuf::from);
    let mut checked = 0;
    for (file, input, label, rows) in [
        ("aime2024.jsonl", "problem", "answer", 30),
        ("aime2025.jsonl", "problem", "answer", 30),
        ("gsm8k_200.jsonl", "question", "final", 200),
        ("math500.jsonl", "problem", "answer", 500),
    ] {
        let path = shared.join("data").join(file);
        if !path.is_file() {
            println!("SKIPPED {}: not there; set TRAINING_GYM_SHARED", path.display());
            continue;
        }
        let dataset = HuggingFaceDataset::file(path).input_key(input).label_key(label);
        let loaded = dataset.load().await.unwrap();
        assert_eq!(loaded.len(), rows, "{file}");
        assert!(loaded.iter().all(|row| !row.label.is_empty() && !row.metadata.contains_key(label)), "{file}");
        checked += 1;
    }
    println!("checked {checked} of 4 files");
}
