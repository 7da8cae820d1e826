//! `gym eval`, `gym grade` and `gym data prepare` as a person uses them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use training_gym::external::serde_json::{self, Value, json};

fn command(home: &Path, arguments: &[&str]) -> Command {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/fake_runtime.py");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gym"));
    command.args(arguments).arg("--home").arg(home.join("state")).env("TRAINING_GYM_RUNTIME", runtime);
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", home.join("hf"));
    command.env_remove("TRAINING_GYM_BACKEND").env_remove("TRAINING_GYM_STORE");
    command
}

fn gym(home: &Path, arguments: &[&str]) -> Output {
    command(home, arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn file(home: &Path, name: &str, rows: &[Value]) -> String {
    let path = home.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A folder that the stand-in for the runtime takes for a model; it says back what it is asked.
fn model(home: &Path) -> String {
    let model: PathBuf = home.join("models/steady");
    fs::create_dir_all(&model).unwrap();
    fs::write(model.join("config.json"), r#"{"max_position_embeddings": 8192}"#).unwrap();
    model.to_str().unwrap().to_owned()
}

#[test]
fn a_model_is_deployed_evaluated_and_stopped() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let rows = [
        json!({"prompt": "Answer: 5", "label": "5"}),
        json!({"prompt": "Answer: 4", "label": "5"}),
        json!({"prompt": r"\boxed{9^{9^{9^9}}}", "label": "5"}),
    ];
    let data = file(home, "rows.jsonl", &rows);
    let out = home.join("report.json");
    let (model, out) = (model(home), out.to_str().unwrap());
    let arguments = ["eval", "--model", &model, "--data", &data, "-n", "2", "--temperature", "1", "--out", out];
    let said = text(&gym(home, &arguments));
    for part in ["mean@2", "50.0 %", "pass@2", "maj@2", "truncated", "2  of 6 replies", "grader math"] {
        assert!(said.contains(part), "{part} in\n{said}");
    }
    let deployments: Value = serde_json::from_slice(&gym(home, &["deployments", "--json"]).stdout).unwrap();
    assert!(deployments.as_array().unwrap().iter().all(|one| one["live"] == false), "{deployments}");

    // The report is graded again, by another grader and against one.
    let said = text(&gym(home, &["grade", "--grader", "tutorial", out]));
    assert!(said.contains("tutorial: 2 right, 4 wrong, 0 ungradable of 6"), "{said}");
    let said = text(&gym(home, &["grade", "--compare", "math", "tutorial", out]));
    assert!(said.contains("2.0") && said.contains("they disagree on 2 of 6"), "{said}");

    // A benchmark from files of this machine, against a deployment that is there.
    file(home, "data/MATH-500/test.jsonl", &[json!({"problem": "1 + 1?", "answer": "2"})]);
    let data = home.join("data");
    let data = data.to_str().unwrap();
    let arguments = ["eval", "--model", &model, "--benchmark", "math500", "--data-dir", data, "--json"];
    let document: Value = serde_json::from_slice(&gym(home, &arguments).stdout).unwrap();
    assert_eq!((&document[0]["summary"]["rows"], &document[0]["data"]), (&json!(1), &json!("math500")));
    let said = refused(&gym(home, &["eval", "--model", &model, "--benchmark", "gsm8k", "--data-dir", data]));
    assert!(said.contains("GSM8K/test.jsonl"), "{said}");
    let said = refused(&gym(home, &["eval", "--url", "nowhere", "--benchmark", "math500", "--data-dir", data]));
    assert!(said.contains("`url` = nowhere"), "{said}");
    let said =
        refused(&gym(home, &["eval", "--model", &model, "--data", &file(home, "x.jsonl", &rows), "--grader", "x"]));
    assert!(said.contains("math, math_reward, math_dapo, tutorial"), "{said}");
    assert_eq!(gym(home, &["eval", "--model", &model]).status.code(), Some(2), "no questions");
    assert_eq!(gym(home, &["eval", "--data", data]).status.code(), Some(2), "no target");
}

#[test]
fn graders_are_compared_row_by_row() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let rows = [
        json!({"id": "a", "response": r"\boxed{1,024}", "ground_truth": "1024"}),
        json!({"id": "b", "response": r"\boxed{7}", "ground_truth": 7}),
        json!({"id": "c", "response": "Answer: 5.", "ground_truth": "5"}),
    ];
    let path = file(home, "rows.jsonl", &rows);
    let said = text(&gym(home, &["grade", "--compare", "math", "math_reward", &path]));
    assert!(said.contains("1,024") && said.contains("they disagree on 2 of 3"), "{said}");
    assert!(!said.contains("\nb "), "{said}");
    let said = text(&gym(home, &["grade", "--json", "--compare", "math", "math_reward", &path]));
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[0]["row"], &lines[0]["graders"]["math_reward"]["verdict"]), (&json!("a"), &json!("wrong")));
    assert_eq!((&lines[2]["disagree"], &lines[2]["graders"]["math"]["right"]), (&json!(2), &json!(3)));
    let said = text(&gym(home, &["grade", "--grader", "math_dapo", &path]));
    assert!(said.contains("math_dapo: 0 right, 3 wrong"), "{said}");
    let said = text(&gym(home, &["grade", "--json", &path]));
    assert_eq!(said.lines().count(), 4, "a line a row, and the sum");

    let said = refused(&gym(home, &["grade", "--response-key", "text", &path]));
    assert!(said.contains("rows.jsonl:1") && said.contains("id, response, ground_truth"), "{said}");
    let said = refused(&gym(home, &["grade", "--compare", "math", "math", &path]));
    assert!(said.contains("two graders"), "{said}");
    fs::write(home.join("broken.jsonl"), format!("{}\n{{", rows[0])).unwrap();
    let said = refused(&gym(home, &["grade", home.join("broken.jsonl").to_str().unwrap()]));
    assert!(said.contains("broken.jsonl:2"), "{said}");
    assert!(refused(&gym(home, &["grade", "/nowhere"])).contains("/nowhere"));
}

/// The rows of the golden file that the references were run on, through the command.
#[test]
fn the_references_rows_are_graded_alike() {
    let shared = std::env::var("TRAINING_GYM_SHARED").unwrap_or_else(|_| "../../../shared".to_owned());
    let golden = Path::new(&shared).join("golden/rewards.jsonl");
    let Ok(rows) = fs::read_to_string(&golden) else {
        println!("skipped: {} is absent", golden.display());
        return;
    };
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let home = tempfile::tempdir().unwrap();
    for (grader, right) in [
        ("math_reward", (|row: &Value| row["boxed"] == 1.0) as fn(&Value) -> bool),
        ("math_dapo", |row| row["dapo"]["score"] == 1.0),
        ("tutorial", |row| row["simple"]["score"] == 1.0),
    ] {
        let output = gym(home.path(), &["grade", "--grader", grader, golden.to_str().unwrap()]);
        let expected = rows.iter().filter(|row| right(row)).count();
        assert!(text(&output).starts_with(&format!("{grader}: {expected} right")), "{}", text(&output));
    }
}

/// Within hard limits of the process: 2 GiB of address space (threads' stacks are most of it), 60 s of CPU.
#[test]
fn answers_made_to_hurt_are_cut_off() {
    let home = tempfile::tempdir().unwrap();
    let hostile = [
        "9^{9^{9^{9^{9^{9^{9}}}}}}".to_owned(),
        "{".repeat(1 << 20),
        format!("{}1{}", "(".repeat(5_000), ")".repeat(5_000)),
        format!("{}1{}", "x_{".repeat(60), "}".repeat(60)),
        format!("5{}", "!".repeat(1_900)),
        "9".repeat(1_000_000),
        format!("0.{}", "1".repeat(10_000_000)),
    ];
    let rows: Vec<Value> = hostile
        .iter()
        .flat_map(|answer| [format!(r"So \boxed{{{answer}}}"), format!("Answer: {answer}")])
        .map(|response| json!({"response": response, "label": "5"}))
        .collect();
    let path = file(home.path(), "hostile.jsonl", &rows);
    for grader in ["math", "math_reward", "math_dapo", "tutorial"] {
        let begun = Instant::now();
        let output = Command::new("sh")
            .args(["-c", "ulimit -v 2097152 -t 60; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_gym")])
            .args(["grade", "--grader", grader, &path])
            .output()
            .unwrap();
        let said = text(&output);
        assert!(said.contains(&format!("{grader}: 0 right")) && said.contains("of 14"), "{said}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{grader}: {:?}", begun.elapsed());
    }
}

#[test]
fn data_is_prepared_whole_or_not_at_all_and_rows_are_not_held() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    // 100 MB, of which the process may hold a fraction.
    let padding = "x".repeat(100_000);
    let rows: Vec<Value> = (0..1_000)
        .map(|n| json!({"problem": format!("What is {}?", n % 990), "answer": n.to_string(), "solution": padding}))
        .collect();
    let train = file(home, "train.jsonl", &rows);
    let eval = format!("math500={}", file(home, "eval.jsonl", &[json!({"problem": "What is 3?", "answer": "3"})]));
    let out = home.join("prepared");
    let (out, model) = (out.to_str().unwrap(), model(home));
    let arguments = ["data", "prepare", "--out", out, "--train", &train, "--eval", &eval];
    let output = Command::new("sh")
        .args(["-c", "ulimit -d 81920; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_gym")])
        .args([&arguments[..], &["--home", home.join("state").to_str().unwrap(), "--json"]].concat())
        .env("TRAINING_GYM_RUNTIME", Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/fake_runtime.py"))
        .output()
        .unwrap();
    let report: Value = serde_json::from_str(&text(&output)).unwrap();
    let source = &report["sources"][1];
    let count = |key: &str| source[key].as_u64().unwrap();
    assert_eq!((count("read"), count("duplicates"), count("conflicting_labels")), (1_000, 9, 9), "{report}");
    assert_eq!((count("in_evaluation"), count("kept")), (2, 989), "{report}");
    let written: Value = serde_json::from_slice(&fs::read(home.join("prepared/report.json")).unwrap()).unwrap();
    assert_eq!(written, report);

    let said = refused(&gym(home, &arguments));
    assert!(said.contains("there already"), "{said}");
    let counted = ["--replace", "--validation", "0", "--model", &model, "--max-prompt-len", "30"];
    let said = text(&gym(home, &[&arguments[..], &counted].concat()));
    assert!(said.starts_with("SOURCE") && said.contains("wrote 989 rows to train.jsonl"), "{said}");
    let said = refused(&gym(home, &["data", "prepare", "--out", out, "--data-dir", home.to_str().unwrap()]));
    assert!(said.contains("DAPO-Math-17k-dedup"), "{said}");
    assert_eq!(gym(home, &["data", "prepare", "--out", out, "--eval", "x"]).status.code(), Some(2));
}
