//! Settles every value of a recipe in one pass: what it is, where it came from, what is wrong.
//!
//! `explain()` prints the outcome, `check()` reports its problems, `resolve()` builds the spec from
//! it; there is no second place that knows a default.

mod cadence;
mod engine;
mod environment;
mod job;
mod memory;
mod rewards;
mod rollout;
mod score;
mod source;
mod teacher;
mod update;

use training_gym_core::spec::{
    AdvantageEstimator, AdvantageSpec, EnvironmentSpec, MemorySpec, ResponseSource, RolloutSpec, SaveSpec, TeacherSpec,
    UpdateSpec,
};

pub(super) use cadence::Evaluation;
pub(super) use job::Job;
pub(super) use score::Reward;
pub(super) use teacher::{BY_NAME, Distilled};

use super::ledger::{Ledger, Shown, field};
use super::{Explanation, Facts, Problem, Recipe};

/// A recipe with nothing left to default.
pub(super) struct Settled {
    pub(super) explanation: Explanation,
    pub(super) problems: Vec<Problem>,
    pub(super) num_rollout: u64,
    pub(super) rollout: RolloutSpec,
    pub(super) max_prompt_len: usize,
    pub(super) reward: Option<Reward>,
    pub(super) environment: Option<EnvironmentSpec>,
    pub(super) teacher: Option<TeacherSpec>,
    pub(super) distill: Option<Distilled>,
    pub(super) advantage: AdvantageSpec,
    pub(super) update: UpdateSpec,
    pub(super) save: SaveSpec,
    pub(super) eval: Evaluation,
    pub(super) job: Job,
    pub(super) responses: ResponseSource,
    pub(super) memory: MemorySpec,
}

/// Sizes that several groups of fields need.
#[derive(Clone, Copy)]
struct Sizes {
    num_rollout: u64,
    /// Whether `num_rollout` stands in for rows nobody has counted yet.
    uncounted: bool,
    rollout_batch_size: usize,
    n_samples_per_prompt: usize,
}

impl Sizes {
    /// Samples a step; saturates, and the product is then refused.
    fn samples(self) -> usize {
        self.rollout_batch_size.saturating_mul(self.n_samples_per_prompt)
    }
}

pub(super) fn settle(recipe: &Recipe, facts: &Facts) -> Settled {
    let mut ledger = Ledger::new(recipe);
    let sizes = sizes(&mut ledger, facts);
    let lengths = rollout::lengths(&mut ledger, facts);
    let rollout = rollout::rollout(&mut ledger, facts, sizes);
    let job = job::job(&mut ledger, facts);
    let environment = environment::environment(&mut ledger, facts);
    let reward = score::reward(&mut ledger);
    // Rewards that only weigh samples are nothing to learn from beside the teacher.
    let ignored = recipe.advantage == Some(AdvantageEstimator::Ignored) && recipe.opd.is_some();
    let responses = source::responses(&mut ledger, sizes.n_samples_per_prompt);
    let learns = (reward.is_some() && !ignored) || source::is_supervised(recipe);
    let (teacher, distill) = teacher::teacher(&mut ledger, learns);
    let signals = rewards::Signals {
        reward: reward.as_ref(),
        teacher: teacher.is_some() || distill.is_some(),
        max_response_len: lengths.response,
    };
    let advantage = rewards::advantage(&mut ledger, sizes, &signals);
    let update = update::update(&mut ledger, sizes);
    let memory = memory::memory(&mut ledger);
    let save = cadence::save(&mut ledger);
    let eval = cadence::evaluation(&mut ledger, facts, &rollout, (lengths.response, sizes.num_rollout));
    let evaluated = lengths.prompt.saturating_add(eval.eval_max_response_len);
    if let Some(limit) = facts.context_length.filter(|limit| evaluated > *limit)
        && recipe.eval_max_response_len.is_some()
    {
        let sum = format!("with rollout_max_prompt_len = {} it makes {evaluated} tokens", lengths.prompt);
        let rule = (format!("{sum}; the model has {limit} positions"), "lower it");
        ledger.refuse("eval_max_response_len", eval.eval_max_response_len.shown(), (&rule.0, rule.1));
    }
    let longest_response = lengths.response.max(eval.eval_max_response_len);
    let engine = engine::engine(&mut ledger, sizes.samples(), lengths.prompt.saturating_add(longest_response), facts);
    if eval.wanted && reward.is_none() {
        ledger.refuse(
            "eval_interval",
            None,
            (
                "evaluation inside a run grades with the reward function, and there is none",
                "set custom_rm_function, or evaluate the checkpoints after the run with evaluate()",
            ),
        );
    }
    Settled {
        explanation: ledger.explanation,
        problems: ledger.problems,
        num_rollout: sizes.num_rollout,
        rollout: RolloutSpec { rollout_max_response_len: lengths.response, engine, ..rollout },
        max_prompt_len: lengths.prompt,
        reward,
        environment,
        teacher,
        distill,
        advantage,
        update,
        save,
        eval,
        job,
        responses,
        memory,
    }
}

const ROLLOUT_BATCH_SIZE: usize = 16;

fn sizes(ledger: &mut Ledger<'_>, facts: &Facts) -> Sizes {
    let batch = ledger.given(&field!(rollout_batch_size)).map_or(ROLLOUT_BATCH_SIZE, |(size, _)| size);
    let one_pass = facts.rows.map_or(1, |rows| rows.div_ceil(batch.max(1) as u64).max(1));
    let num_rollout = ledger.derived(field!(num_rollout), one_pass, "one pass over the training rows");
    let uncounted = facts.rows.is_none() && ledger.recipe().num_rollout.is_none();
    if uncounted {
        ledger.show_last_as("rows / rollout_batch_size");
    }
    ledger.need("num_rollout", &num_rollout, num_rollout >= 1, (AT_LEAST_1, "set the rollout steps of the run"));
    let rollout_batch_size = ledger.value(field!(rollout_batch_size), ROLLOUT_BATCH_SIZE);
    let n_samples_per_prompt = ledger.value(field!(n_samples_per_prompt), source::group(ledger.recipe()));
    at_least_1(ledger, "rollout_batch_size", rollout_batch_size, "set the prompts of one step, such as 16");
    at_least_1(ledger, "n_samples_per_prompt", n_samples_per_prompt, "set the responses of one prompt, such as 4");
    if rollout_batch_size.checked_mul(n_samples_per_prompt).is_none() {
        ledger.refuse(
            "rollout_batch_size",
            rollout_batch_size.shown(),
            ("times n_samples_per_prompt it is more than a computer can count", "lower one of them"),
        );
    }
    Sizes { num_rollout, uncounted, rollout_batch_size, n_samples_per_prompt }
}

const AT_LEAST_1: &str = "must be ≥ 1";

fn at_least_1(ledger: &mut Ledger<'_>, name: &str, value: usize, remedy: &str) {
    ledger.need(name, &value, value >= 1, (AT_LEAST_1, remedy));
}

/// Refuses NaN, infinities and whatever `fits` does not take.
fn number(ledger: &mut Ledger<'_>, name: &str, value: f64, fits: fn(f64) -> bool, rule: (&str, &str)) {
    ledger.need(name, &value, value.is_finite() && fits(value), rule);
}
