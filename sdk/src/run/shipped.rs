//! What a reward function needs, where its job runs on another machine than this: seen before anything
//! is fetched or asked for.

use training_gym_core::spec::Egress;

use super::Error;
use crate::config::{self, Problem, Recipe};
use crate::program::{self, Program, abi::Image};

/// Whether `program` runs on `image`, and whether a pod has what `recipe` declares for its reward.
///
/// # Errors
/// What does not fit, with what to do.
pub(super) fn check(program: &Program, image: &Image, recipe: &Recipe) -> Result<(), Error> {
    let problems = not_in_a_pod(recipe);
    if !problems.is_empty() {
        return Err(config::Error::Refused(problems).into());
    }
    Ok(program.check(image).map_err(program::Error::from)?)
}

fn not_in_a_pod(recipe: &Recipe) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut refuse = |field: &str, value: String, bound: &str, remedy: &str| {
        let (field, bound, remedy) = (format!("recipe.{field}"), bound.to_owned(), remedy.to_owned());
        problems.push(Problem { field, value: Some(value), bound, remedy });
    };
    if let Some(Egress::Declared(hosts)) = &recipe.reward_egress {
        refuse(
            "reward_egress",
            hosts.join(" "),
            "on a cluster a reward function has no network: its container shares the trainer's, and a pod of its own for \
             it is not made yet",
            "leave it unset, ask the judge in the evaluation instead, or train on this machine",
        );
    }
    if let Some(files) = recipe.reward_files.as_ref().filter(|files| !files.is_empty()) {
        refuse(
            "reward_files",
            files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" "),
            "a pod does not share this machine's disk",
            "put them into the program, with include_str! or include_bytes!",
        );
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pod_does_not_have_is_refused_by_name() {
        assert!(not_in_a_pod(&Recipe::default()).is_empty());
        let recipe = Recipe {
            reward_egress: Some(Egress::Declared(vec!["judge.example.org:443".to_owned()])),
            reward_files: Some(vec!["/data/answers".into()]),
            ..Recipe::default()
        };
        let text: Vec<String> = not_in_a_pod(&recipe).iter().map(ToString::to_string).collect();
        assert!(text[0].contains("recipe.reward_egress") && text[0].contains("judge.example.org:443"), "{text:?}");
        assert!(text[1].contains("recipe.reward_files") && text[1].contains("include_str!"), "{text:?}");
        let none = Recipe { reward_egress: Some(Egress::None), reward_files: Some(Vec::new()), ..Recipe::default() };
        assert!(not_in_a_pod(&none).is_empty());
    }
}
