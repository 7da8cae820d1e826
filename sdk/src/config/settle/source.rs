//! Whose responses are learnt from.

use training_gym_core::spec::{AdvantageEstimator, PolicyLoss, ResponseSource};

use crate::config::Recipe;
use crate::config::ledger::{Ledger, Shown, field};

/// Whether responses are demonstrations: nobody's word is asked for, their likelihood is raised.
pub(super) fn is_supervised(recipe: &Recipe) -> bool {
    let demonstrated =
        matches!(recipe.responses, Some(ResponseSource::Column { .. } | ResponseSource::Recorded { .. }));
    demonstrated && recipe.opd.is_none() && !recipe.is_rewarded()
}

/// A dataset has one response a prompt.
pub(super) fn group(recipe: &Recipe) -> usize {
    if matches!(recipe.responses, Some(ResponseSource::Column { .. })) { 1 } else { 4 }
}

const OF_THE_STUDENT: &str = "leave responses unset: the student's own";

pub(super) fn responses(ledger: &mut Ledger<'_>, n_samples_per_prompt: usize) -> ResponseSource {
    let recipe = ledger.recipe();
    let source = ledger.value(field!(responses), ResponseSource::Student);
    let rewarded = recipe.is_rewarded() && recipe.advantage != Some(AdvantageEstimator::Ignored);
    let co_resident = recipe.opd.as_ref().is_some_and(|opd| opd.co_resident.is_some());
    let refused = match &source {
        ResponseSource::Student => None,
        ResponseSource::Teacher if !co_resident => Some((
            "only a co-resident teacher draws responses here",
            "set opd: Some(Opd::co_resident(model)), or leave responses unset",
        )),
        ResponseSource::Column { name } if name.is_empty() => {
            Some(("the column must have a name", "name the column of the dataset that holds the responses"))
        }
        ResponseSource::Column { .. } if recipe.opd.is_some() && !co_resident => Some((
            "a teacher behind a URL is asked about what the student drew",
            "take a co-resident teacher, or leave opd unset for supervised fine-tuning",
        )),
        ResponseSource::Column { .. } if recipe.rollout_environment.is_some() => {
            Some(("a dataset's response was told nothing by an environment", "leave rollout_environment unset"))
        }
        ResponseSource::Teacher | ResponseSource::Column { .. } if rewarded => {
            Some(("a reward teaches by what the student itself tried", OF_THE_STUDENT))
        }
        ResponseSource::Column { .. } if n_samples_per_prompt != 1 => {
            Some(("the dataset has one response a prompt, so n_samples_per_prompt must be 1", "leave that one unset"))
        }
        ResponseSource::Teacher | ResponseSource::Column { .. } | ResponseSource::Recorded { .. } => None,
    };
    if let Some(rule) = refused {
        ledger.refuse("responses", source.shown(), rule);
    }
    let estimator = recipe.advantage.filter(|estimator| *estimator != AdvantageEstimator::Demonstrated);
    if is_supervised(recipe) {
        if let Some(estimator) = estimator {
            let rule = ("the responses are demonstrations, and there is no reward to compare", "leave it unset");
            ledger.refuse("advantage", estimator.shown(), rule);
        }
        if let Some(policy) = recipe.policy_loss.filter(|policy| *policy != PolicyLoss::Likelihood) {
            let rule = ("nobody drew a demonstration with a probability to compare with", "leave it unset");
            ledger.refuse("policy_loss", policy.shown(), rule);
        }
        if recipe.normalize_advantages == Some(true) {
            let rule = ("every token's advantage is 1, and would be 0", "leave it unset");
            ledger.refuse("normalize_advantages", "true".to_owned(), rule);
        }
    } else if recipe.advantage == Some(AdvantageEstimator::Demonstrated) {
        let rule = (
            "only a dataset's or recorded responses, without teacher and reward, are demonstrations",
            "set responses: Some(ResponseSource::column(…)), or leave it unset",
        );
        ledger.refuse("advantage", AdvantageEstimator::Demonstrated.shown(), rule);
    }
    source
}
