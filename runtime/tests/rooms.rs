//! The house's own rules: which room may import which, and how long a file may be.
//!
//! Cargo checks edges between crates; this checks those between the modules of this one.

#[path = "rooms/imports.rs"]
mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use imports::imports;

/// A room and the rooms it may import. A room not listed may be imported by all and imports none.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("batch", &[]),
    ("model", &[]),
    ("text", &[]),
    ("telemetry", &[]),
    ("memory", &[]),
    ("supervise", &["settings"]),
    ("settings", &[]),
    ("data", &["batch"]),
    ("rollout", &["batch", "text", "model"]),
    ("sandbox", &[]),
    ("score", &["batch", "sandbox"]),
    ("advantage", &["batch"]),
    ("update", &["batch", "model"]),
    ("publish", &["model"]),
    ("serve", &["rollout", "text", "model", "settings"]),
    ("check", &["text", "model"]),
    ("fetch", &["settings"]),
    ("convert", &["model", "settings"]),
    ("inspect", &["convert", "model", "settings", "text"]),
    ("pretrain", &["text", "model", "update", "settings"]),
    (
        "pipeline",
        &[
            "advantage",
            "batch",
            "data",
            "model",
            "publish",
            "rollout",
            "sandbox",
            "score",
            "settings",
            "text",
            "update",
        ],
    ),
    (
        "main",
        &[
            "check",
            "convert",
            "fetch",
            "inspect",
            "memory",
            "pipeline",
            "pretrain",
            "sandbox",
            "serve",
            "settings",
            "supervise",
            "telemetry",
        ],
    ),
];

const LONGEST_FILE: usize = 500;

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a readable entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

#[test]
fn rooms_import_only_what_the_map_allows_and_the_map_allows_nothing_else() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut broken = Vec::new();
    let mut edges = BTreeSet::new();
    for file in rust_files(&source) {
        let relative = file.strip_prefix(&source).expect("below src").to_string_lossy().replace('\\', "/");
        let room = relative.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned();
        if room == "lib" {
            continue;
        }
        let Some(allowed) = allowed.get(room.as_str()) else {
            broken.push(format!("room `{room}` is not on the map: add it to MAY_IMPORT and docs/architecture.md"));
            continue;
        };
        for import in imports(&relative, &std::fs::read_to_string(&file).expect("a readable file")) {
            let known = MAY_IMPORT.iter().any(|(name, _)| *name == import);
            if known && import != room && !allowed.contains(&import.as_str()) {
                broken.push(format!("{relative} imports `{import}`"));
            }
            edges.insert((room.clone(), import));
        }
    }
    for (room, may) in MAY_IMPORT {
        for import in may.iter().filter(|import| !edges.contains(&((*room).to_owned(), (**import).to_owned()))) {
            broken.push(format!("`{room}` may import `{import}` and does not: take it off the map"));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn no_file_is_longer_than_a_person_reads() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let long: Vec<String> = ["sdk", "runtime", "examples", "tests", "xtask"]
        .iter()
        .flat_map(|folder| rust_files(&root.join(folder)))
        .filter_map(|file| {
            let lines = std::fs::read_to_string(&file).expect("a readable file").lines().count();
            (lines > LONGEST_FILE).then(|| format!("{}: {lines} lines", file.display()))
        })
        .collect();
    assert!(long.is_empty(), "over {LONGEST_FILE} lines:\n{}", long.join("\n"));
}
