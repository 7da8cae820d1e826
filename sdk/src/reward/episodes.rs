//! The environments that are on their way in this worker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use training_gym_core::episode::{Episode, Observation, Turn};
use training_gym_core::worker::{EpisodeReward, StepRequest};

use super::environment::Running;
use super::{EnvironmentFn, RewardError, Sample};

/// Which episode.
type Key = (bool, u64, u64);

/// One that waits for its next turn.
struct Live {
    environment: Box<dyn Running>,
    /// Turns it was stepped through.
    stepped: usize,
}

/// Environments by episode. One is taken out while it is asked: what fails does not come back.
#[derive(Clone, Default)]
pub(super) struct Episodes(Arc<Mutex<HashMap<Key, Live>>>);

fn key(episode: &Episode) -> Key {
    (episode.evaluation, episode.step, episode.index)
}

impl Episodes {
    /// Steps an environment through the last turn, and through those before that it has not seen.
    pub(super) async fn step(&self, function: EnvironmentFn, request: StepRequest) -> Result<Observation, RewardError> {
        let StepRequest { episode, turns, limit } = request;
        let Some((last, before)) = turns.split_last() else {
            return Err(RewardError::new("a step without a turn"));
        };
        let mut live = self.at(function, &episode, before).await?;
        let observation = live.environment.step(last).await?;
        live.stepped += 1;
        self.lock().insert(key(&episode), live);
        Ok(observation.limited(limit))
    }

    /// The reward, and the end of the environment.
    pub(super) async fn reward(
        &self,
        function: EnvironmentFn,
        request: EpisodeReward,
    ) -> Result<(f64, Sample), RewardError> {
        let EpisodeReward { episode, turns, mut sample } = request;
        let mut live = self.at(function, &episode, &turns).await?;
        let reward = live.environment.reward(&mut sample).await?;
        Ok((reward, sample))
    }

    /// The environment as it is after `turns`.
    async fn at(&self, function: EnvironmentFn, episode: &Episode, turns: &[Turn]) -> Result<Live, RewardError> {
        let kept = {
            let mut all = self.lock();
            // A finished step's are asked no more: those that nobody wanted a reward of.
            all.retain(|(_, step, _), _| *step >= episode.step);
            all.remove(&key(episode)).filter(|live| live.stepped <= turns.len())
        };
        let mut live = match kept {
            Some(live) => live,
            None => Live { environment: function.reset(episode).await?, stepped: 0 },
        };
        for turn in &turns[live.stepped..] {
            live.environment.step(turn).await?;
            live.stepped += 1;
        }
        Ok(live)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Live>> {
        // Nobody panics while it is held: the person's code runs outside.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use training_gym_core::tool_call::ToolFormat;

    use super::*;
    use crate::reward::RolloutEnvironment;

    /// Says back what it heard; each turn counts.
    struct EpisodesTestEcho {
        heard: Vec<String>,
        label: String,
    }

    #[crate::rollout_environment]
    impl RolloutEnvironment for EpisodesTestEcho {
        async fn reset(episode: &Episode) -> Result<Self, RewardError> {
            if episode.label == "broken" {
                return Err(RewardError::new("no such world"));
            }
            Ok(Self { heard: Vec::new(), label: episode.label.clone() })
        }

        async fn step(&mut self, turn: &Turn) -> Result<Observation, RewardError> {
            self.heard.push(turn.content.clone());
            Ok(if turn.content == "stop" { Observation::done() } else { Observation::user(self.heard.join(" ")) })
        }

        async fn reward(&mut self, sample: &mut Sample) -> Result<f64, RewardError> {
            sample.metadata.insert("heard".into(), self.heard.join(" ").into());
            Ok(if self.heard.concat().ends_with(&self.label) { 1.0 } else { 0.0 })
        }
    }

    fn request(episode: &Episode, said: &[&str]) -> StepRequest {
        let turns = said.iter().map(|text| Turn::parse(text, ToolFormat::Hermes)).collect();
        StepRequest { episode: episode.clone(), turns, limit: 100 }
    }

    fn words(observation: &Observation) -> &str {
        observation.messages[0].content.as_str().unwrap()
    }

    #[tokio::test]
    async fn an_episode_goes_on_where_it_is_and_is_made_again_where_it_is_lost() {
        let function = EPISODES_TEST_ECHO;
        assert_eq!(function.name(), "episodes_test_echo");
        let episode = Episode::for_test("p", "c");
        let here = Episodes::default();
        assert_eq!(words(&here.step(function, request(&episode, &["a"])).await.unwrap()), "a");
        assert_eq!(words(&here.step(function, request(&episode, &["a", "b"])).await.unwrap()), "a b");
        // The same question again (its answer was lost, say), and another worker.
        assert_eq!(words(&here.step(function, request(&episode, &["a", "b"])).await.unwrap()), "a b");
        let anew = Episodes::default();
        let answer = anew.step(function, request(&episode, &["a", "b", "c"])).await.unwrap();
        assert_eq!(words(&answer), "a b c");
        let StepRequest { turns, .. } = request(&episode, &["a", "b", "c"]);
        for episodes in [here, anew] {
            let asked = EpisodeReward {
                episode: episode.clone(),
                turns: turns.clone(),
                sample: Sample::for_test("p", "r", "c"),
            };
            let (reward, sample) = episodes.reward(function, asked).await.unwrap();
            assert_eq!((reward, &sample.metadata["heard"]), (1.0, &"a b c".into()));
            assert!(episodes.lock().is_empty(), "it is over");
        }
    }

    #[tokio::test]
    async fn what_fails_says_so_and_what_is_past_is_forgotten() {
        let episodes = Episodes::default();
        let broken = Episode::for_test("p", "broken");
        let error = episodes.step(EPISODES_TEST_ECHO, request(&broken, &["a"])).await.unwrap_err();
        assert_eq!(error.to_string(), "no such world");
        episodes.step(EPISODES_TEST_ECHO, request(&Episode::for_test("p", ""), &["a"])).await.unwrap();
        assert_eq!(episodes.lock().len(), 1);
        let later = Episode { step: 2, ..Episode::for_test("p", "") };
        let done = episodes.step(EPISODES_TEST_ECHO, request(&later, &["stop"])).await.unwrap();
        assert!(done.done);
        assert_eq!(episodes.lock().keys().collect::<Vec<_>>(), [&(false, 2, 0)]);
        let long = StepRequest { limit: 3, ..request(&later, &["stop", "x"]) };
        assert!(words(&episodes.step(EPISODES_TEST_ECHO, long).await.unwrap()).starts_with("sto...("));
    }
}
