//! The graders as reward functions: 1 for a right answer, 0 for a wrong one, ungraded where nobody can say.

use training_gym::config::models;
use training_gym::eval::Grader;
use training_gym::reward::{RewardError, RewardFn, Sample};

fn judged(grader: Grader, sample: &mut Sample) -> Result<f64, RewardError> {
    // Which model it is does not matter: `<think>…</think>` is split off where there is one.
    let response = models::QWEN3_4B.parse_response(&sample.response);
    let score = grader.score(&response.content, &sample.label)?;
    sample.score = Some(score);
    Ok(score)
}

/// The MATH benchmark's rule, on the last `\boxed{}`.
#[training_gym::reward]
pub fn math_reward(sample: &mut Sample) -> Result<f64, RewardError> {
    judged(Grader::MathReward, sample)
}

/// DAPO's rule, on the last `Answer:`.
#[training_gym::reward]
pub fn math_dapo(sample: &mut Sample) -> Result<f64, RewardError> {
    judged(Grader::MathDapo, sample)
}

/// By value, whichever way the answer is written.
#[training_gym::reward]
pub fn math_by_value(sample: &mut Sample) -> Result<f64, RewardError> {
    judged(Grader::Math, sample)
}

/// The tutorial's rule.
#[training_gym::reward]
pub fn tutorial_answer(sample: &mut Sample) -> Result<f64, RewardError> {
    judged(Grader::Tutorial, sample)
}

/// The reward function of a grader.
pub fn of(grader: Grader) -> RewardFn {
    match grader {
        Grader::Math => MATH_BY_VALUE,
        Grader::MathReward => MATH_REWARD,
        Grader::MathDapo => MATH_DAPO,
        Grader::Tutorial => TUTORIAL_ANSWER,
    }
}
