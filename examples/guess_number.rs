//! A game of several turns: the model guesses a number from 1 to 20 and is told `higher` or `lower`.
//!
//! ```sh
//! cargo xtask runtime && cargo run -p training-gym-examples --bin guess_number
//! ```
//!
//! Up to six turns; the reward is 2 − 0.1·(turns − 1) for the right number, −2 for a turn that is no number
//! from 1 to 20, and −1 otherwise. It trains on odd numbers and is evaluated on even ones. Two tiny models are
//! made first: a student that plays badly, and a teacher that knows how to halve what is left; the student
//! learns from the game's reward and from the teacher's word on what it drew itself, never on what the game
//! said: that is masked.

mod tiny_player;

use std::path::PathBuf;

use clap::Parser;
use tiny_player::{Dice, Player, Said, Transcript};
use training_gym::config::{Dtype, LrDecayStyle};
use training_gym::prelude::*;

const NUMBERS: i64 = 20;
const TURNS: usize = 6;
const PROMPT: &str = "I think of a number from 1 to 20. Which one?";

/// The game.
struct GuessNumber {
    hidden: i64,
    turns: usize,
    outcome: Outcome,
}

#[derive(PartialEq)]
enum Outcome {
    Open,
    Found,
    Malformed,
}

#[training_gym::rollout_environment]
impl RolloutEnvironment for GuessNumber {
    async fn reset(episode: &Episode) -> Result<Self, RewardError> {
        Ok(Self { hidden: episode.label.parse()?, turns: 0, outcome: Outcome::Open })
    }

    async fn step(&mut self, turn: &Turn) -> Result<Observation, RewardError> {
        self.turns += 1;
        let guess = turn.content.parse().ok().filter(|guess| (1..=NUMBERS).contains(guess));
        self.outcome = match guess {
            None => Outcome::Malformed,
            Some(guess) if guess == self.hidden => Outcome::Found,
            Some(_) => Outcome::Open,
        };
        Ok(match guess {
            Some(guess) if self.outcome == Outcome::Open && self.turns < TURNS => {
                Observation::user(hint(guess, self.hidden))
            }
            _ => Observation::done(),
        })
    }

    async fn reward(&mut self, sample: &mut Sample) -> Result<f64, RewardError> {
        sample.metadata.insert("turns".into(), self.turns.into());
        Ok(match self.outcome {
            Outcome::Found => 2.0 - 0.1 * (self.turns as f64 - 1.0),
            Outcome::Malformed => -2.0,
            Outcome::Open => -1.0,
        })
    }
}

fn hint(guess: i64, hidden: i64) -> &'static str {
    if hidden > guess { "higher" } else { "lower" }
}

/// A game of guessing.
#[derive(Debug, Parser)]
struct Arguments {
    /// Seed of all randomness of the training
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rollout steps
    #[arg(long, default_value_t = 60)]
    steps: u64,
    /// State folder; unset: TRAINING_GYM_HOME, or the usual one
    #[arg(long)]
    home: Option<PathBuf>,
    /// Learn from the game's reward alone
    #[arg(long)]
    no_teacher: bool,
    /// End with one line of JSON
    #[arg(long)]
    json: bool,
}

#[training_gym::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let gym = match &arguments.home {
        Some(home) => Gym::local(home)?,
        None => Gym::from_env()?,
    };
    let folder = gym.home().join("examples/guess_number");
    let student =
        player("student", 64, 2).make(&folder, || (0..6000).map(|game| careless(&mut Dice(game))).collect())?;
    let teacher =
        player("teacher", 96, 3).make(&folder, || (0..16_000).map(|game| careful(&mut Dice(!game))).collect())?;

    // Odd numbers to learn from, even ones to be judged by.
    let rows = |name: &str, first: i64| {
        let numbers = (first..=NUMBERS).step_by(2);
        tiny_player::write_rows(&folder.join(name), numbers.map(|number| (PROMPT.to_owned(), number.to_string())))
    };
    let (train, eval) = (rows("odd.jsonl", 1)?, rows("even.jsonl", 2)?);
    let recipe = Recipe {
        rollout_environment: Some(GUESS_NUMBER),
        max_assistant_turns: Some(TURNS),
        num_rollout: Some(arguments.steps),
        rollout_batch_size: Some(10),
        n_samples_per_prompt: Some(8),
        rollout_max_prompt_len: Some(64),
        rollout_max_response_len: Some(120),
        grade_truncated: Some(true),
        opd: (!arguments.no_teacher).then(|| Opd::co_resident(teacher)),
        lr: Some(1e-3),
        lr_warmup_iters: Some(5),
        lr_decay_style: Some(LrDecayStyle::Cosine),
        weight_decay: Some(0.0),
        eval_interval: Some((arguments.steps / 4).max(1)),
        n_samples_per_eval_prompt: Some(16),
        dtype: Some(Dtype::Float32),
        seed: Some(arguments.seed),
        ..student.recipe()
    };
    let before = baseline(&gym, student, &eval, &recipe).await?;
    // One and the same question, about other numbers.
    let run = TrainConfig { model: student, dataset: train, recipe }
        .launch()
        .eval(eval)
        .allow_shared_rows(true)
        .on(&gym)
        .await?;
    println!("run id: {}", run.training_run_id());
    let result = run.result().await?;
    tiny_player::show(&gym, &run, 1).await?;
    tiny_player::show(&gym, &run, arguments.steps).await?;
    let after = tiny_player::progress(&result).map(|(_, last)| last);
    let last = result.metrics().last().and_then(|metrics| metrics.multi_turn.clone());
    println!("\neven numbers: reward {before:.2} before, {:.2} after", after.unwrap_or(f64::NAN));
    if arguments.json {
        println!(
            "{}",
            serde_json::json!({"before": before, "after": after, "seed": arguments.seed, "last_step": last})
        );
    }
    Ok(())
}

/// The student's reward before it learns anything: a run of one step with next to no learning rate.
async fn baseline(gym: &Gym, student: Model, eval: &HuggingFaceDataset, recipe: &Recipe) -> anyhow::Result<f64> {
    let recipe = Recipe {
        num_rollout: Some(1),
        eval_interval: Some(1),
        opd: None,
        lr: Some(1e-6),
        lr_warmup_iters: None,
        lr_decay_style: None,
        ..recipe.clone()
    };
    // What is drawn for its one step does not matter, and nothing is learnt from even numbers.
    let launch = TrainConfig { model: student, dataset: eval.clone(), recipe }.launch().eval(eval.clone());
    let result = launch.allow_shared_rows(true).on(gym).await?.result().await?;
    tiny_player::progress(&result).map(|(first, _)| first).ok_or_else(|| anyhow::anyhow!("nothing was evaluated"))
}

fn player(name: &str, hidden_size: usize, layers: usize) -> Player<'_> {
    let mut phrases: Vec<String> = (1..=NUMBERS).map(|number| number.to_string()).collect();
    phrases.extend(["higher", "lower", PROMPT].map(String::from));
    Player { name, phrases, hidden_size, layers, seed: 1 }
}

/// A game of somebody who forgets what was said half of the time, and sometimes that it is about numbers.
fn careless(dice: &mut Dice) -> Transcript {
    play(dice, |dice, low, high| {
        if dice.chance(0.1) {
            return ("?".to_owned(), true);
        }
        let guess =
            if dice.chance(0.5) { low + dice.roll((high - low + 1) as usize) as i64 } else { 1 + dice.roll(20) as i64 };
        (guess.to_string(), true)
    })
}

/// A game of somebody who halves what is left; now and then a careless hand plays, which it has to go on from.
fn careful(dice: &mut Dice) -> Transcript {
    play(dice, |dice, low, high| {
        if dice.chance(0.3) {
            return ((1 + dice.roll(20)).to_string(), false);
        }
        let middle = low + high + dice.roll(2) as i64;
        ((middle / 2).min(high).to_string(), true)
    })
}

/// `choose` sees what is left, and says what is said and whether that is learnt.
fn play(dice: &mut Dice, mut choose: impl FnMut(&mut Dice, i64, i64) -> (String, bool)) -> Transcript {
    let hidden = 1 + dice.roll(NUMBERS as usize) as i64;
    let (mut low, mut high, mut turns) = (1, NUMBERS, Vec::new());
    while turns.len() < TURNS {
        let (text, learnt) = choose(dice, low, high);
        let guess = text.parse().ok();
        let told = guess.filter(|guess| *guess != hidden && turns.len() + 1 < TURNS).map(|guess| {
            if hidden > guess {
                low = low.max(guess + 1)
            } else {
                high = high.min(guess - 1)
            }
            ("user", hint(guess, hidden).to_owned())
        });
        let over = told.is_none();
        turns.push(Said { text, learnt, told });
        if over {
            break;
        }
    }
    Transcript { prompt: PROMPT.to_owned(), turns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use training_gym::reward::ToolFormat;

    /// Plays the turns against a hidden number; the reward, and what was said.
    async fn played(hidden: &str, turns: &[&str]) -> (f64, Vec<Observation>) {
        let mut game = GuessNumber::reset(&Episode::for_test(PROMPT, hidden)).await.unwrap();
        let mut said = Vec::new();
        for turn in turns {
            said.push(game.step(&Turn::parse(turn, ToolFormat::Hermes)).await.unwrap());
        }
        (game.reward(&mut Sample::for_test(PROMPT, "", hidden)).await.unwrap(), said)
    }

    #[tokio::test]
    async fn the_rules_hold() {
        let (reward, said) = played("7", &["10", "5", "7"]).await;
        assert_eq!(said, [Observation::user("lower"), Observation::user("higher"), Observation::done()]);
        assert!((reward - 1.8).abs() < 1e-12);
        assert_eq!(played("7", &["seven"]).await, (-2.0, vec![Observation::done()]));
        assert_eq!(played("7", &["21"]).await.0, -2.0);
        let (reward, said) = played("7", &["1", "2", "3", "4", "5", "6"]).await;
        assert_eq!((reward, said.last()), (-1.0, Some(&Observation::done())));
        assert_eq!(played("7", &["7"]).await.0, 2.0);
    }
}
