use super::super::settle::settle;
use super::super::{AdvantageEstimator, Facts, Model, Opd, Origin, Recipe, models};
use super::{REWARD, least, train, tutorial};

#[test]
fn the_tutorials_recipe_is_explained_line_by_line() {
    let explanation = train(models::QWEN3_5_4B, tutorial()).explain();
    assert_eq!(explanation.to_string(), include_str!("tutorial.explain.txt"));
}

#[test]
fn a_value_is_the_presets_only_while_it_is_the_presets() {
    let student = models::QWEN3_8B;
    let preset = Origin::Preset(student);
    let recipe = Recipe { n_samples_per_prompt: Some(4), rollout_batch_size: None, seed: Some(42), ..student.recipe() };
    let explanation = recipe.explain();
    assert_eq!(explanation.origin("n_samples_per_prompt"), Some(Origin::Yours));
    assert_eq!(explanation.origin("rollout_batch_size"), Some(Origin::Default), "unset by hand");
    assert_eq!(explanation.origin("lr"), Some(preset));
    assert_eq!(explanation.origin("seed"), Some(Origin::Yours), "a default written down is yours");
    assert_eq!(explanation.origin("eps_clip"), Some(Origin::Default));
    assert_eq!(
        explanation.origin("global_batch_size"),
        Some(Origin::Derived("rollout_batch_size · n_samples_per_prompt"))
    );
    assert_eq!(explanation.get("global_batch_size").map(|setting| setting.value.as_str()), Some("64"));
}

#[test]
fn every_field_of_the_recipe_is_explained_once() {
    let fields = format!("{:#?}", Recipe::default());
    let explanation = least().explain();
    for line in fields.lines().filter(|line| line.starts_with("    ")) {
        let name = line.trim().split(':').next().unwrap();
        let mentions =
            explanation.settings.iter().filter(|setting| setting.name.split('.').next() == Some(name)).count();
        match name {
            "preset" => assert_eq!(mentions, 0),
            "extra_config" => assert_eq!(mentions, 4),
            _ => assert_eq!(mentions, 1, "{name}"),
        }
    }
}

#[test]
fn notes_tell_what_is_odd_but_not_wrong() {
    let notes = |recipe: &Recipe, facts: Facts| settle(recipe, &facts).explanation.notes;
    let cpu = Facts { gpus: Some(0), ..Facts::default() };
    assert_eq!(notes(&tutorial(), cpu), ["rollout_num_gpus = 8 on a CPU: one engine replica is used"]);
    let raw = Recipe {
        custom_rm_function: Some(REWARD),
        advantage: Some(AdvantageEstimator::Raw),
        opd: Some(Opd::to_url("http://teacher/generate")),
        ..Recipe::default()
    };
    assert!(notes(&raw, Facts::default())[0].starts_with("advantage = raw with a teacher"));
    let other = train(Model::hub("org/other"), tutorial()).explain();
    assert_eq!(other.notes, ["the recipe began as the preset of Qwen/Qwen3.5-4B; the model is org/other"]);
}

#[test]
fn unset_lengths_shrink_to_the_models_positions() {
    let lengths = |recipe: Recipe, positions| {
        let explanation = settle(&recipe, &Facts { context_length: Some(positions), ..Facts::default() }).explanation;
        ["rollout_max_prompt_len", "rollout_max_response_len"]
            .map(|name| explanation.get(name).unwrap().value.parse::<usize>().unwrap())
    };
    assert_eq!(lengths(least(), 40_960), [1024, 2048]);
    assert_eq!(lengths(least(), 512), [256, 256]);
    assert_eq!(lengths(least(), 2560), [1024, 1536]);
    assert_eq!(lengths(Recipe { rollout_max_response_len: Some(400), ..least() }, 512), [112, 400]);
    assert_eq!(lengths(Recipe { rollout_max_prompt_len: Some(100), ..least() }, 512), [100, 412]);
}
