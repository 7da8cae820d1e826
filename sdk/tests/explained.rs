//! The corpus of failures on a cluster: `tests/fixtures/failures/*.json`, one file each.
//!
//! A file has the objects as the API server gives them (`status.json` among them), the log's last lines,
//! and what is expected: `expect` is null where nothing is wrong.

#![cfg(feature = "kubernetes")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use training_gym::backend::explain::{Evidence, Explanation, explain};

/// 2026-11-30T10:10:00Z
const NOW: f64 = 1_796_033_400.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixture {
    objects: Vec<Value>,
    #[serde(default)]
    log: Vec<String>,
    #[serde(default)]
    start_timeout: Option<f64>,
    expect: Option<Expected>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    cause: String,
    retryable: bool,
    /// In the sentence.
    says: Vec<String>,
    /// In the next step.
    todo: Vec<String>,
    /// Nowhere.
    never: Vec<String>,
    #[serde(default)]
    outlook: Option<String>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/failures")
}

fn fixtures() -> Vec<(String, Fixture)> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read(&path).unwrap();
        let fixture = serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.file_stem().unwrap().to_string_lossy().into_owned(), fixture)
    };
    files.into_iter().map(read).collect()
}

fn evidence(fixture: &Fixture) -> Evidence {
    let mut evidence = Evidence::from_objects(fixture.objects.clone(), NOW);
    evidence.log.clone_from(&fixture.log);
    evidence.start_timeout = fixture.start_timeout;
    evidence
}

/// What differs from what is expected.
fn differences(expect: Option<&Expected>, found: Option<&Explanation>) -> Vec<String> {
    let (expect, found) = match (expect, found) {
        (None, None) => return Vec::new(),
        (None, Some(found)) => return vec![format!("nothing is wrong, but: {} ({})", found.sentence, found.cause)],
        (Some(expect), None) => return vec![format!("`{}` is not seen", expect.cause)],
        (Some(expect), Some(found)) => (expect, found),
    };
    let mut wrong = Vec::new();
    let mut check = |right: bool, what: String| {
        if !right {
            wrong.push(what);
        }
    };
    check(expect.cause == found.cause.name(), format!("cause `{}`, expected `{}`", found.cause, expect.cause));
    check(expect.retryable == found.retryable, format!("retryable {}", found.retryable));
    let outlook = serde_json::to_value(found.outlook).unwrap();
    check(expect.outlook.as_deref().is_none_or(|expected| outlook == expected), format!("outlook {outlook}"));
    for part in &expect.says {
        check(found.sentence.contains(part), format!("the sentence lacks `{part}`"));
    }
    for part in &expect.todo {
        check(found.next_step.contains(part), format!("the next step lacks `{part}`"));
    }
    for part in &expect.never {
        let text = format!("{} {}", found.sentence, found.next_step);
        check(!text.contains(part), format!("`{part}` is in it"));
    }
    let one_line = !found.sentence.contains('\n') && !found.next_step.is_empty();
    check(one_line && found.sentence.len() < 1600, "not one sentence with a next step".to_owned());
    if !wrong.is_empty() {
        wrong.push(format!("sentence: {}\n    next step: {}", found.sentence, found.next_step));
    }
    wrong
}

#[test]
fn every_failure_of_the_corpus_is_explained() {
    let fixtures = fixtures();
    assert!(fixtures.len() > 100, "the corpus is not where it should be: {}", folder().display());
    let mut report = String::new();
    for (name, fixture) in &fixtures {
        let found = explain(&evidence(fixture));
        for difference in differences(fixture.expect.as_ref(), found.as_ref()) {
            report.push_str(&format!("{name}: {difference}\n"));
        }
    }
    assert!(report.is_empty(), "\n{report}");
}

/// A watch delivers objects in any order, and lists of them.
#[test]
fn the_order_of_the_objects_does_not_matter() {
    for (name, fixture) in fixtures() {
        let found = explain(&evidence(&fixture));
        let reversed = Fixture { objects: fixture.objects.iter().rev().cloned().collect(), ..fixture };
        assert_eq!(explain(&evidence(&reversed)), found, "{name}");
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": reversed.objects});
        let listed = Fixture { objects: vec![list], ..reversed };
        assert_eq!(explain(&evidence(&listed)), found, "{name}, as a list");
    }
}

/// Evidence is what a cluster happens to give: any part of it may be missing, and nothing panics.
#[test]
fn missing_parts_are_borne() {
    for (_, fixture) in fixtures() {
        for left_out in 0..fixture.objects.len() {
            let mut objects = fixture.objects.clone();
            objects.remove(left_out);
            explain(&Evidence::from_objects(objects, NOW));
            for key in ["message", "status", "spec", "metadata", "involvedObject", "lastTimestamp", "reason"] {
                let mut objects = fixture.objects.clone();
                objects[left_out].as_object_mut().unwrap().remove(key);
                explain(&Evidence::from_objects(objects, 0.0));
            }
        }
    }
}

#[test]
fn every_cause_is_in_the_reference() {
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/failures.md");
    let reference = std::fs::read_to_string(reference).unwrap();
    let causes: BTreeSet<String> =
        fixtures().into_iter().filter_map(|(_, fixture)| Some(fixture.expect?.cause)).collect();
    for cause in causes {
        assert!(reference.contains(&format!("`{cause}`")), "docs/reference/failures.md lacks `{cause}`");
    }
}
