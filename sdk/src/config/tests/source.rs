//! Whose responses are learnt from.

use super::super::{AdvantageEstimator, Model, Opd, PolicyLoss, Recipe, ResponseSource, models};
use super::{least, train};

fn supervised() -> Recipe {
    Recipe { custom_rm_function: None, responses: Some(ResponseSource::column("solution")), ..least() }
}

fn refusal(recipe: Recipe) -> String {
    train(models::QWEN3_4B, recipe).check_values().unwrap_err().to_string()
}

#[test]
fn a_datasets_responses_are_demonstrations_one_a_prompt() {
    let config = train(models::QWEN3_4B, supervised());
    config.check_values().unwrap();
    let explained = config.explain().to_string();
    for line in ["n_samples_per_prompt", "demonstrated", "likelihood", "the dataset's column \"solution\""] {
        assert!(explained.contains(line), "{line} is not in: {explained}");
    }
    let many = refusal(Recipe { n_samples_per_prompt: Some(2), ..supervised() });
    assert!(many.contains("the dataset has one response a prompt"), "{many}");
    let reward = refusal(Recipe { responses: Some(ResponseSource::column("solution")), ..least() });
    assert!(reward.contains("a reward teaches by what the student itself tried"), "{reward}");
    let server = Opd::to_url("http://127.0.0.1:9/generate");
    let server = refusal(Recipe { opd: Some(server), ..supervised() });
    assert!(server.contains("a teacher behind a URL is asked about what the student drew"), "{server}");
    for (recipe, words) in [
        (Recipe { policy_loss: Some(PolicyLoss::TokenRatio), ..supervised() }, "recipe.policy_loss = token-ratio"),
        (Recipe { advantage: Some(AdvantageEstimator::Raw), ..supervised() }, "recipe.advantage = raw"),
        (Recipe { normalize_advantages: Some(true), ..supervised() }, "recipe.normalize_advantages = true"),
        (Recipe { advantage: Some(AdvantageEstimator::Demonstrated), ..least() }, "recipe.advantage = demonstrated"),
        (Recipe { responses: Some(ResponseSource::column("")), ..supervised() }, "the column must have a name"),
    ] {
        let message = refusal(recipe);
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn only_a_co_resident_teacher_draws() {
    let teacher = Recipe { responses: Some(ResponseSource::Teacher), custom_rm_function: None, ..least() };
    let alone = refusal(teacher.clone());
    assert!(alone.contains("only a co-resident teacher draws responses here"), "{alone}");
    let opd = Some(Opd::co_resident(Model::hub("Qwen/Qwen3-8B")));
    train(models::QWEN3_4B, Recipe { opd: opd.clone(), ..teacher.clone() }).check_values().unwrap();
    let rewarded =
        refusal(Recipe { opd: opd.clone(), custom_rm_function: least().custom_rm_function, ..teacher.clone() });
    assert!(rewarded.contains("a reward teaches by what the student itself tried"), "{rewarded}");
    // A reward that only weighs what the teacher says is welcome.
    let weighed = Recipe {
        advantage: Some(AdvantageEstimator::Ignored),
        custom_rm_function: least().custom_rm_function,
        opd,
        ..teacher
    };
    train(models::QWEN3_4B, weighed).check_values().unwrap();
    // What was recorded needs neither, and may have either.
    let recorded = Some(ResponseSource::Recorded { run_id: "r".parse().unwrap() });
    train(models::QWEN3_4B, Recipe { responses: recorded.clone(), ..least() }).check_values().unwrap();
    train(models::QWEN3_4B, Recipe { responses: recorded, ..supervised() }).check_values().unwrap();
}
