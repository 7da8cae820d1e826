//! The environment of the person's program: it speaks, or misbehaves, by the row's mood.

use std::time::Duration;

use training_gym::prelude::*;

/// Tells how many vowels it has heard, and is over after the third turn.
struct MoodyWorld {
    mood: String,
    turns: u32,
    vowels: usize,
    letters: usize,
}

/// The environment, for a recipe.
pub const WORLD: EnvironmentFn = MOODY_WORLD;

#[training_gym::rollout_environment]
impl RolloutEnvironment for MoodyWorld {
    async fn reset(episode: &Episode) -> Result<Self, RewardError> {
        let mood = episode.metadata.get("mood").and_then(|mood| mood.as_str()).unwrap_or("fine").to_owned();
        if mood == "broken" {
            return Err(RewardError::new("there is no such world"));
        }
        Ok(Self { mood, turns: 0, vowels: 0, letters: 0 })
    }

    async fn step(&mut self, turn: &Turn) -> Result<Observation, RewardError> {
        self.turns += 1;
        self.letters += turn.text.chars().count();
        self.vowels += turn.text.chars().filter(|c| "aeiou".contains(*c)).count();
        match (self.mood.as_str(), self.turns) {
            ("error", 2) => return Err(RewardError::new("the door is stuck")),
            ("panic", 1) => panic!("index out of bounds, says the person's world"),
            ("hang", 2) => std::thread::sleep(Duration::from_secs(3600)),
            ("die", 1) => std::process::abort(),
            ("mute", 1) => return Ok(Observation::default()),
            ("long", _) if self.turns < 3 => return Ok(Observation::user("x".repeat(1 << 20))),
            // As a clock or the network would: no two processes of a worker say the same.
            ("unsteady", _) if self.turns < 3 => return Ok(Observation::user(std::process::id().to_string())),
            _ => {}
        }
        if self.turns == 3 && self.mood != "endless" {
            return Ok(Observation::done());
        }
        Ok(Observation::user(self.vowels.to_string()))
    }

    async fn reward(&mut self, sample: &mut Sample) -> Result<f64, RewardError> {
        let share = self.vowels as f64 / self.letters.max(1) as f64;
        sample.score = Some(share);
        sample.metadata.insert("turns".to_owned(), self.turns.into());
        Ok(share)
    }
}
