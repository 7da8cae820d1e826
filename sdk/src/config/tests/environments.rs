//! Responses of several turns, in a recipe.

use super::super::{Facts, Model, Opd, Recipe, ResponseSource, ToolFormat, models};
use super::{REWARD, train};
use crate::reward::{Episode, Observation, RewardError, RolloutEnvironment, Sample, Turn};

struct ConfigTestWorld;

#[crate::rollout_environment]
impl RolloutEnvironment for ConfigTestWorld {
    fn tools() -> Vec<serde_json::Value> {
        vec![serde_json::json!({"type": "function", "function": {"name": "look"}})]
    }

    async fn reset(_episode: &Episode) -> Result<Self, RewardError> {
        Ok(Self)
    }

    async fn step(&mut self, _turn: &Turn) -> Result<Observation, RewardError> {
        Ok(Observation::done())
    }

    async fn reward(&mut self, _sample: &mut Sample) -> Result<f64, RewardError> {
        Ok(1.0)
    }
}

fn problems(recipe: Recipe, facts: &Facts) -> Vec<String> {
    let settled = super::super::settle::settle(&recipe, facts);
    settled.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn an_environment_is_the_reward_and_its_limits_have_defaults() {
    let recipe = Recipe { rollout_environment: Some(CONFIG_TEST_WORLD), ..models::QWEN3_0_6B.recipe() };
    assert!(recipe.needs_program());
    let settled = super::super::settle::settle(&recipe, &Facts::default());
    assert!(settled.problems.is_empty(), "{:?}", settled.problems);
    let environment = settled.environment.unwrap();
    assert_eq!((environment.max_assistant_turns, environment.max_tool_response_length), (8, 1024));
    assert_eq!((environment.tool_format, environment.tools.len()), (ToolFormat::Hermes, 1));
    assert_eq!(settled.reward.unwrap().function, "config_test_world");
    let none = super::super::settle::settle(&models::QWEN3_0_6B.recipe(), &Facts::default());
    assert!(none.environment.is_none() && none.reward.is_none());
}

#[test]
fn what_contradicts_an_environment_is_refused_with_the_way_out() {
    let world = Recipe { rollout_environment: Some(CONFIG_TEST_WORLD), ..models::QWEN3_0_6B.recipe() };
    for (recipe, words) in [
        (Recipe { custom_rm_function: Some(REWARD), ..world.clone() }, "would take its place"),
        (Recipe { max_assistant_turns: Some(0), ..world.clone() }, "max_assistant_turns = 0: must be ≥ 1"),
        (Recipe { max_tool_response_length: Some(0), ..world.clone() }, "max_tool_response_length = 0"),
        (
            Recipe { tool_format: Some(ToolFormat::Json), ..models::QWEN3_0_6B.recipe() },
            "there is no rollout_environment",
        ),
        (
            Recipe { max_assistant_turns: Some(3), ..models::QWEN3_0_6B.recipe() },
            "max_assistant_turns = 3: there is no",
        ),
    ] {
        let problems = problems(recipe, &Facts::default());
        assert!(problems.iter().any(|problem| problem.contains(words)), "{words}: {problems:?}");
    }
    let raw = Facts { chat_template: Some(false), ..Facts::default() };
    assert!(problems(world.clone(), &raw).iter().any(|problem| problem.contains("apply_chat_template(true)")));
    assert!(train(models::QWEN3_0_6B, world).explain().get("rollout_environment").is_some());
}

#[test]
fn an_environments_reward_is_one_whosever_responses_are_learnt_from() {
    let world = Recipe { rollout_environment: Some(CONFIG_TEST_WORLD), ..models::QWEN3_0_6B.recipe() };
    let taught = Some(Opd::co_resident(Model::hub("Qwen/Qwen3-8B")));
    for (recipe, words) in [
        (Recipe { responses: Some(ResponseSource::column("solution")), ..world.clone() }, "was told nothing"),
        (
            Recipe { responses: Some(ResponseSource::Teacher), opd: taught, ..world.clone() },
            "a reward teaches by what the student itself tried",
        ),
    ] {
        let problems = problems(recipe, &Facts::default());
        assert!(problems.iter().any(|problem| problem.contains(words)), "{words}: {problems:?}");
    }
    let recorded = Some(ResponseSource::Recorded { run_id: "r".parse().unwrap() });
    let explained = train(models::QWEN3_0_6B, Recipe { responses: recorded, ..world }).explain().to_string();
    assert!(!explained.contains("demonstrated") && !explained.contains("likelihood"), "{explained}");
}
