//! The house's own rules: which room may import which, and how long a file may be.
//!
//! Cargo checks edges between crates; this checks those between the modules of this one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A room and the rooms it may import. A room not listed may be imported by all and imports none.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("batch", &[]),
    ("splitmix", &[]),
    ("model", &["splitmix"]),
    ("text", &[]),
    ("telemetry", &[]),
    ("memory", &[]),
    ("supervise", &[]),
    ("settings", &[]),
    ("data", &["batch", "splitmix", "text"]),
    ("rollout", &["batch", "text", "model", "splitmix"]),
    ("score", &["batch"]),
    ("advantage", &["batch"]),
    ("update", &["batch", "model"]),
    ("publish", &["batch", "model", "update"]),
    ("serve", &["rollout", "text", "model", "settings", "splitmix"]),
    ("check", &["text", "model"]),
    ("convert", &["publish", "settings"]),
    ("inspect", &["convert", "model", "settings", "text"]),
    ("pretrain", &["batch", "text", "model", "update", "publish", "settings"]),
    ("pipeline", &["advantage", "batch", "data", "model", "publish", "rollout", "score", "settings", "text", "update"]),
    (
        "main",
        &[
            "check",
            "convert",
            "inspect",
            "memory",
            "pipeline",
            "pretrain",
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

/// The rooms that `text` imports by `crate::ROOM` (in the library) or `training_gym_runtime::ROOM`.
fn imports(text: &str) -> Vec<String> {
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut rooms = Vec::new();
    for prefix in ["crate::", "training_gym_runtime::"] {
        for (at, _) in code.match_indices(prefix) {
            let rest = &code[at + prefix.len()..];
            let names = match rest.strip_prefix('{') {
                // `use crate::{a, b::C}`: the first word of each part.
                Some(list) => list.split('}').next().unwrap_or_default().split(',').map(str::trim).collect::<Vec<_>>(),
                None => vec![rest],
            };
            for name in names {
                let word: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if !word.is_empty() {
                    rooms.push(word);
                }
            }
        }
    }
    rooms
}

#[test]
fn rooms_import_only_what_the_map_allows() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut broken = Vec::new();
    let mut edges = 0;
    for file in rust_files(&source) {
        let relative = file.strip_prefix(&source).expect("below src");
        let first = relative.components().next().and_then(|part| part.as_os_str().to_str()).unwrap_or_default();
        let room = first.trim_end_matches(".rs");
        if room == "lib" {
            continue;
        }
        let Some(allowed) = allowed.get(room) else {
            broken.push(format!("room `{room}` is not on the map: add it to MAY_IMPORT and docs/architecture.md"));
            continue;
        };
        for import in imports(&std::fs::read_to_string(&file).expect("a readable file")) {
            edges += 1;
            let known = MAY_IMPORT.iter().any(|(name, _)| *name == import);
            if known && import != room && !allowed.contains(&import.as_str()) {
                broken.push(format!("{} imports `{import}`", relative.display()));
            }
        }
    }
    assert!(edges > 20, "found only {edges} imports: is the scan broken?");
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

#[test]
fn the_scan_sees_every_form_of_import() {
    let text =
        "use crate::batch::X;\n// use crate::serve::No;\nuse crate::{model, text::T};\nfn f() { crate::update::g() }";
    assert_eq!(imports(text), ["batch", "model", "text", "update"]);
}
