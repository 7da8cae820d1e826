use std::collections::HashSet;

use super::super::{Family, Model, ModelSource, Recipe, models};
use super::{least, train};

#[test]
fn handles_are_copied_compared_and_kept_once() {
    let typed = Model::hub(&["Qwen/", "Qwen3.5-4B"].concat());
    assert_eq!(typed, models::QWEN3_5_4B);
    assert_eq!(typed.family(), Family::Qwen3_5);
    assert_eq!(typed.source(), ModelSource::Hub { repo: "Qwen/Qwen3.5-4B", revision: "main" });
    let pinned = typed.with_revision("abc123");
    assert_eq!(pinned.source(), ModelSource::Hub { repo: "Qwen/Qwen3.5-4B", revision: "abc123" });
    assert_eq!(pinned.to_string(), "Qwen/Qwen3.5-4B@abc123");
    assert_ne!(pinned, typed);
    let folder = Model::folder("/models/tiny/");
    assert_eq!((folder.name(), folder.family()), ("tiny", Family::Other));
    assert_eq!(folder, Model::folder("/models/tiny/"));
    assert!(folder.recipe().preset.is_none());
}

#[test]
fn every_preset_is_one_model_that_can_run() {
    let repos: HashSet<_> = models::PRESETS.iter().map(|preset| preset.repo).collect();
    assert_eq!(repos.len(), models::PRESETS.len(), "a repository is there twice");
    for preset in models::PRESETS {
        let model = Model::hub(preset.repo);
        let recipe = Recipe { custom_rm_function: least().custom_rm_function, ..model.recipe() };
        assert_eq!(recipe.preset, Some(model));
        train(model, recipe).check_values().unwrap();
    }
}

#[test]
fn names_that_cannot_be_models_are_refused() {
    let empty = tempfile::tempdir().unwrap();
    for (model, expected) in [
        (Model::hub(""), r#"model = "": a hub id is `org/name`"#),
        (Model::hub("a/b/c"), r#"model = "a/b/c": a hub id is `org/name`"#),
        (Model::hub("../etc"), r#"model = "../etc": a hub id is `org/name`"#),
        (Model::hub("org/na me"), r#"model = "org/na me": a hub id is `org/name`"#),
        (Model::hub("-a/b"), r#"model = "-a/b": a hub id is `org/name`"#),
        (Model::hub("a--b/c"), r#"model = "a--b/c": a hub id is `org/name`"#),
        (Model::hub("file://m"), r#"model = "file://m": a folder is written `file:///absolute/path`"#),
        (Model::hub("file:///no/such%20folder"), "model = /no/such folder: there is no such folder"),
        (Model::folder("/no/such/folder"), "model = /no/such/folder: there is no such folder"),
        (Model::folder(empty.path()), "the folder has no config.json"),
    ] {
        let message = train(model, least()).check_values().unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    std::fs::write(empty.path().join("config.json"), "{}").unwrap();
    let message =
        train(Model::folder(empty.path()).with_revision("v1"), least()).check_values().unwrap_err().to_string();
    assert!(message.contains("revision v1: a folder has no revisions"), "{message}");
    for known in [Model::hub("gpt2"), Model::hub("s3://bucket/m"), Model::folder("s3://bucket/m")] {
        train(known, least()).check_values().unwrap();
    }
    // What the hub takes is not refused here.
    train(Model::hub("org/ends-"), least()).check_values().unwrap();
    let url = format!("file://{}", empty.path().display());
    for model in [Model::hub(&url), Model::folder(&url)] {
        assert_eq!(model, Model::folder(empty.path()));
        train(model, least()).check_values().unwrap();
    }
}

#[test]
fn a_response_is_split_by_its_models_habit() {
    let parsed = models::QWEN3_5_4B.parse_response("let me see\n</think>\n\nAnswer: 4");
    assert_eq!((parsed.content.as_str(), parsed.reasoning_content.as_deref()), ("Answer: 4", Some("let me see")));
    assert_eq!(models::QWEN3_5_4B.parse_thinking("let me see").content, "");
    assert_eq!(models::LLAMA_3_1_8B_INSTRUCT.parse_response("</think>4").content, "</think>4");
}
