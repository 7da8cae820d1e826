//! What a reward function needs, where its job runs on another machine than this: seen before anything
//! is fetched or asked for.

use training_gym_core::spec::Egress;

use super::Error;
use crate::config::{self, Destination, Problem, Recipe};
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
        for host in hosts.iter().filter(|host| Destination::parse(host).is_none()) {
            refuse(
                "reward_egress",
                host.clone(),
                "on a cluster a NetworkPolicy keeps the reward function to its hosts, and it knows addresses alone: those \
                 of a name may be others tomorrow",
                "name the host's addresses, such as `192.0.2.7:443` or `192.0.2.0/24:443`, or `0.0.0.0/0:443` for every \
                 host; the program still asks for it by name",
            );
        }
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
            reward_egress: Some(Egress::Declared(vec!["192.0.2.7:443".to_owned(), "judge.example.org:443".to_owned()])),
            reward_files: Some(vec!["/data/answers".into()]),
            ..Recipe::default()
        };
        let text: Vec<String> = not_in_a_pod(&recipe).iter().map(ToString::to_string).collect();
        assert!(text[0].contains("recipe.reward_egress") && text[0].contains("judge.example.org:443"), "{text:?}");
        assert!(text[0].contains("0.0.0.0/0:443") && text.len() == 2, "{text:?}");
        assert!(text[1].contains("recipe.reward_files") && text[1].contains("include_str!"), "{text:?}");
        let none = Recipe { reward_egress: Some(Egress::None), reward_files: Some(Vec::new()), ..Recipe::default() };
        assert!(not_in_a_pod(&none).is_empty());
    }
}
