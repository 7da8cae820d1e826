//! A step's responses meet the person's environment: turns are asked about as they end, and what a lost
//! attempt recorded is not asked again.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use training_gym_core::chain;
use training_gym_core::episode::{Episode, EpisodeEnd, EpisodeRecord};
use training_gym_core::record::MultiTurn;
use training_gym_core::spec::{EnvironmentSpec, RunSpec};
use training_gym_core::splitmix::mixed;
use training_gym_core::worker::StepRequest;

use super::failure::Stop;
use super::replay::Recorded;
use super::scoring::Pending;
use super::signal::StopSignal;
use crate::batch::{PreparedPrompt, Rollout};
use crate::rollout::collect;
use crate::rollout::world::{Answer, Question, Turns, World};
use crate::score::Error;
use crate::score::reward::{Grader, Played};
use crate::text::{Conversation, TextPipeline};

/// Which episodes: of a training step, or of an evaluation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Season {
    /// The step.
    pub(super) step: u64,
    /// Whether it is an evaluation's.
    pub(super) evaluation: bool,
    /// The run's seed.
    pub(super) seed: u64,
}

impl Season {
    fn episode(self, prompt: &PreparedPrompt, index: u64, group_index: u64) -> Episode {
        let Self { step, evaluation, seed } = self;
        Episode {
            step,
            index,
            group_index,
            row: prompt.row,
            evaluation,
            seed: mixed(mixed(mixed(mixed(seed) ^ step) ^ index) ^ u64::from(evaluation)),
            prompt: prompt.prompt.clone(),
            label: prompt.label.clone(),
            metadata: prompt.metadata.clone(),
        }
    }

    /// A response as its environment is asked for the reward; `None` for one of no environment.
    pub(super) fn played(self, rollout: &Rollout) -> Option<Played> {
        let record = rollout.episode.clone()?;
        Some(Played { episode: self.episode(&rollout.prompt, rollout.index, rollout.group_index), record })
    }
}

/// How turns follow each other in this run.
pub(super) fn turns(spec: &RunSpec) -> Option<Turns<'_>> {
    let environment = spec.rollout_environment.as_ref()?;
    Some(Turns { spec: environment, kwargs: &spec.data.chat_template_kwargs })
}

/// Whether the template can be continued behind a turn, asked of one prompt before any step: told as a
/// tool's answer where there are tools, else as a user's words.
///
/// # Errors
/// When it cannot, or refuses the messages.
pub(super) fn check_template(
    text: &TextPipeline,
    prompt: &PreparedPrompt,
    turns: &Turns<'_>,
) -> Result<(), crate::text::Error> {
    let role = if turns.spec.tools.is_empty() { "user" } else { "tool" };
    let told = [training_gym_core::sample::Message::new(role, "1")];
    let mut conversation = Conversation::begin(text, &prompt.prompt, (turns.kwargs, &turns.spec.tools))?;
    let ended = text.eos_token_ids().first().copied();
    (0..2).try_for_each(|_| conversation.follow(ended, &told).map(drop))
}

/// What one step's responses are told to.
pub(super) struct Playing<'a> {
    season: Season,
    pending: &'a mut Pending,
    recorded: Option<&'a Recorded>,
    stop: &'a StopSignal,
    environment: Option<(&'a EnvironmentSpec, Arc<Grader>)>,
    runtime: Handle,
    asked: JoinSet<Result<(u64, Answer), Error>>,
    known: Vec<(u64, Answer)>,
    failure: Option<Stop>,
}

impl<'a> Playing<'a> {
    /// Nothing asked yet.
    pub(super) fn new(
        season: Season,
        pending: &'a mut Pending,
        recorded: Option<&'a Recorded>,
        (stop, runtime): (&'a StopSignal, &Handle),
    ) -> Self {
        Self {
            season,
            pending,
            recorded,
            stop,
            environment: None,
            runtime: runtime.clone(),
            asked: JoinSet::new(),
            known: Vec::new(),
            failure: None,
        }
    }

    /// In an environment.
    #[must_use]
    pub(super) fn within(mut self, spec: &'a RunSpec, grader: Option<&Arc<Grader>>) -> Self {
        self.environment = spec.rollout_environment.as_ref().zip(grader.cloned());
        self
    }

    /// Why it stopped, where an environment could not be asked at all.
    pub(super) fn into_failure(self) -> Option<Stop> {
        self.failure
    }
}

impl World for Playing<'_> {
    fn finished(&mut self, rollout: &Rollout) {
        if !self.recorded.is_some_and(|recorded| recorded.has(rollout)) {
            self.pending.ask(rollout);
        }
    }

    fn keep_going(&self) -> bool {
        !self.stop.is_set() && !self.pending.has_failed()
    }

    fn ask(&mut self, question: Question) {
        if let Some(answer) = self.recorded.and_then(|recorded| recorded.answer(&question)) {
            self.known.push((question.index, answer));
            return;
        }
        let Some((spec, grader)) = &self.environment else {
            panic!("sample {} asks an environment, and there is none", question.index)
        };
        let grader = Arc::clone(grader);
        let episode = self.season.episode(&question.prompt, question.index, question.group_index);
        let request = StepRequest { episode, turns: question.turns, limit: spec.max_tool_response_length };
        let index = question.index;
        self.asked.spawn_on(async move { Ok((index, grader.step(&request).await?)) }, &self.runtime);
    }

    fn answers(&mut self) -> Result<Vec<(u64, Answer)>, collect::Error> {
        let mut answers = std::mem::take(&mut self.known);
        let asked = &mut self.asked;
        let wait = async {
            let mut came = Vec::new();
            while let Some(done) = asked.join_next().await {
                came.push(
                    done.map_err(|error| Stop::new(training_gym_core::record::Cause::Internal, &error))
                        .and_then(|answer| answer.map_err(|error| Stop::new(error.cause(), &error)))?,
                );
            }
            Ok(came)
        };
        match self.stop.or(&self.runtime, wait) {
            None => Err(collect::Error::Stopped),
            Some(Ok(came)) => {
                answers.extend(came);
                Ok(answers)
            }
            Some(Err(stop)) => {
                self.failure = Some(stop);
                Err(collect::Error::Stopped)
            }
        }
    }
}

/// What a step's responses of several turns are made of; `None` where there are none.
pub(super) fn diagnostics(rollouts: &[Rollout]) -> Option<MultiTurn> {
    let turns: Vec<u64> =
        rollouts.iter().filter_map(|rollout| Some(rollout.episode.as_ref()?.turns.len() as u64)).collect();
    let (least, most) = (turns.iter().min()?, turns.iter().max()?);
    let all: usize = rollouts.iter().map(|rollout| rollout.response_ids.len()).sum();
    let drawn: usize = rollouts.iter().map(Rollout::drawn).sum();
    Some(MultiTurn {
        llm_tokens: drawn as u64,
        tool_tokens: (all - drawn) as u64,
        tool_ratio: (all - drawn) as f64 / all.max(1) as f64,
        turns_mean: turns.iter().sum::<u64>() as f64 / turns.len() as f64,
        turns_min: *least,
        turns_max: *most,
    })
}

/// What a lost attempt recorded as the answer to a turn, if it is about the very same one.
pub(super) fn recorded_answer(record: &EpisodeRecord, response_ids: &[i64], question: &Question) -> Option<Answer> {
    let at = question.turns.len().checked_sub(1)?;
    let turn = record.turns.get(at)?;
    let before: usize = record.turns[..at].iter().map(|turn| turn.drawn + turn.told).sum();
    let same = before + turn.drawn == question.response_ids.len() && response_ids.starts_with(&question.response_ids);
    if !same {
        return None;
    }
    match (&turn.observation, &record.end) {
        (Some(observation), _) => Some(Ok(observation.clone())),
        (None, EpisodeEnd::Failed { reason }) if at + 1 == record.turns.len() => Some(Err(reason.clone())),
        _ => None,
    }
}

/// The sentence of a template that cannot be continued.
pub(super) fn unplayable(error: &crate::text::Error) -> Stop {
    let sentence = format!("rollout_environment: {}", chain(error));
    Stop::say(training_gym_core::record::Cause::InvalidInput, sentence)
        .then("use a model whose template takes these roles and extends what it wrote, then launch a new run")
}

#[cfg(test)]
mod tests {
    use training_gym_core::episode::{Observation, Turn, TurnRecord};
    use training_gym_core::ids::WeightVersion;
    use training_gym_core::sample::Prompt;

    use super::*;

    #[test]
    fn a_recorded_answer_is_for_the_very_same_turn() {
        let turn = |observation| TurnRecord { drawn: 2, told: 3, turn: Turn::default(), observation };
        let said = Observation::user("higher");
        let failed = EpisodeEnd::Failed { reason: "it panicked".into() };
        let record = EpisodeRecord { turns: vec![turn(Some(said.clone())), turn(None)], end: failed };
        let ids: Vec<i64> = (0..7).collect();
        let asked = |turns: usize, response_ids: &[i64]| {
            let prompt = PreparedPrompt {
                row: 0,
                prompt: Prompt::Text("p".into()),
                prompt_ids: vec![1],
                label: String::new(),
                metadata: Default::default(),
            };
            let question = Question {
                index: 0,
                group_index: 0,
                prompt: Arc::new(prompt),
                turns: vec![Turn::default(); turns],
                response_ids: response_ids.to_vec(),
                weight_version: WeightVersion(0),
            };
            recorded_answer(&record, &ids, &question)
        };
        assert_eq!(asked(1, &ids[..2]), Some(Ok(said)));
        assert_eq!(asked(2, &ids), Some(Err("it panicked".into())));
        assert_eq!(asked(1, &ids[..3]), None, "another length");
        assert_eq!(asked(1, &[0, 9]), None, "other ids");
        assert_eq!(asked(3, &ids), None, "a turn that was not");
    }
}
