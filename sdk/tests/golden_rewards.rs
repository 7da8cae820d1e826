//! The built-in scorers against their Python references, row by row.
//!
//! Reads `golden/rewards.jsonl`; every row found there is checked, and equality is exact.

#[path = "../../runtime/tests/golden_files/mod.rs"]
mod golden_files;

use serde_json::{Value, json};
use training_gym::scorers::{Graded, boxed, dapo, tutorial};

fn verdict(graded: &Graded) -> Value {
    json!({ "score": graded.score, "acc": graded.is_correct(), "pred": graded.pred })
}

fn simple(response: &str, label: &str) -> Value {
    let graded = tutorial::grade(response, label);
    json!({ "score": graded.score, "pred": graded.pred, "gt": graded.gt })
}

#[test]
fn scorers_equal_their_references_on_every_row() {
    let Some(path) = golden_files::golden_file("rewards.jsonl") else { return };
    let lines = std::fs::read_to_string(&path).unwrap();
    type Scorer = fn(&str, &str) -> Value;
    let columns: [(&str, Scorer); 4] = [
        ("simple", simple),
        ("dapo", |response, label| verdict(&dapo::grade(response, label))),
        ("dapo_strict", |response, label| verdict(&dapo::grade_strict(response, label))),
        ("boxed", |response, label| json!(boxed::score(response, label))),
    ];
    let mut checked = [0_usize; 4];
    let mut wrong = Vec::new();
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        let row: Value = serde_json::from_str(line).unwrap();
        let (response, label) = (row["response"].as_str().unwrap(), row["ground_truth"].as_str().unwrap());
        for ((name, scorer), checked) in columns.iter().zip(&mut checked) {
            let Some(expected) = row.get(*name) else { continue };
            *checked += 1;
            let got = scorer(response, label);
            if got != *expected {
                wrong.push(format!("row {} {name}: expected {expected}, got {got}\n  {response:?}", row["id"]));
            }
        }
    }
    for ((name, _), checked) in columns.iter().zip(checked) {
        println!("golden rewards, {name}: {checked} rows checked");
        assert!(checked > 0, "no row of {} has a column `{name}`", path.display());
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
}
