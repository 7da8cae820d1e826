//! Rollout environments: what a model of several turns speaks with.

use std::fmt;
use std::future::Future;

use serde_json::Value;
use training_gym_core::episode::{Episode, Observation, Turn};

use super::{Answer, RewardError, Sample};

/// What a model acts in: made for an episode, stepped turn by turn, asked for the reward at its end.
/// `#[training_gym::rollout_environment]` on the `impl` registers it.
///
/// It runs in the reward worker, confined as a reward function is. One episode's calls come one after the
/// other; many episodes are stepped at once. An error, a panic, or a call that takes longer than
/// `reward_timeout` ends the episode, and its sample is *ungraded*: a mistake of the *model* is for
/// [`step`](Self::step) to answer with words, or to remember for the reward.
///
/// A worker that died is replaced, and its environments are made again and stepped through the same turns:
/// keep one a function of its [`Episode`] (whose `seed` is for what is drawn) and of the turns.
pub trait RolloutEnvironment: Sized + Send + 'static {
    /// What the chat template is told of the tools: a JSON schema each. It is asked when the run is
    /// launched. Default none.
    fn tools() -> Vec<Value> {
        Vec::new()
    }

    /// The environment at the beginning of an episode.
    fn reset(episode: &Episode) -> impl Future<Output = Result<Self, RewardError>> + Send;

    /// What it says to a turn of the model.
    fn step(&mut self, turn: &Turn) -> impl Future<Output = Result<Observation, RewardError>> + Send;

    /// The reward of the episode. `sample.response` is all of it as text; what is left in `sample.score`
    /// and `sample.metadata` is recorded, as with a reward function.
    fn reward(&mut self, sample: &mut Sample) -> impl Future<Output = Result<f64, RewardError>> + Send;
}

/// An environment on its way, whatever its type.
pub(crate) trait Running: Send {
    fn step<'a>(&'a mut self, turn: &'a Turn) -> Answer<'a, Observation>;
    fn reward<'a>(&'a mut self, sample: &'a mut Sample) -> Answer<'a, f64>;
}

impl<E: RolloutEnvironment> Running for E {
    fn step<'a>(&'a mut self, turn: &'a Turn) -> Answer<'a, Observation> {
        Box::pin(RolloutEnvironment::step(self, turn))
    }

    fn reward<'a>(&'a mut self, sample: &'a mut Sample) -> Answer<'a, f64> {
        Box::pin(RolloutEnvironment::reward(self, sample))
    }
}

/// The constant that `#[training_gym::rollout_environment]` makes, for `Recipe::rollout_environment`.
#[derive(Clone, Copy)]
pub struct EnvironmentFn {
    name: &'static str,
    module: &'static str,
    tools: fn() -> Vec<Value>,
    reset: for<'a> fn(&'a Episode) -> Answer<'a, Box<dyn Running>>,
}

impl EnvironmentFn {
    /// For the macro's output: registers nothing by itself.
    #[doc(hidden)]
    pub const fn __new<E: RolloutEnvironment>(name: &'static str, module: &'static str) -> Self {
        Self { name, module, tools: E::tools, reset: reset::<E> }
    }

    /// Its name, by which a spec and the reward worker know it.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The module that defines it.
    pub const fn module(&self) -> &'static str {
        self.module
    }

    /// What the chat template is told of its tools.
    pub fn tools(&self) -> Vec<Value> {
        (self.tools)()
    }

    pub(crate) async fn reset(&self, episode: &Episode) -> Result<Box<dyn Running>, RewardError> {
        (self.reset)(episode).await
    }
}

fn reset<E: RolloutEnvironment>(episode: &Episode) -> Answer<'_, Box<dyn Running>> {
    Box::pin(async move { Ok(Box::new(E::reset(episode).await?) as Box<dyn Running>) })
}

impl fmt::Debug for EnvironmentFn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "EnvironmentFn({}::{})", self.module, self.name)
    }
}

impl PartialEq for EnvironmentFn {
    fn eq(&self, other: &Self) -> bool {
        (self.module, self.name) == (other.module, other.name)
    }
}

impl Eq for EnvironmentFn {}

inventory::collect!(EnvironmentFn);
