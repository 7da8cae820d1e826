//! A response on its way, over one turn or several.

use std::sync::Arc;

use training_gym_core::chain;
use training_gym_core::episode::{EpisodeEnd, EpisodeRecord, Observation, Turn, TurnRecord};
use training_gym_core::ids::WeightVersion;
use training_gym_core::sample::FinishReason;

use super::collect::Draw;
use super::world::{Answer, Turns};
use crate::batch::{PreparedPrompt, Rollout};
use crate::text::Conversation;

/// What has been drawn and told so far.
pub(super) struct Open<'a> {
    pub(super) group_index: u64,
    pub(super) prompt: Arc<PreparedPrompt>,
    pub(super) ids: Vec<i64>,
    mask: Vec<bool>,
    pub(super) logprobs: Vec<f32>,
    /// Where the turn that is drawn begins.
    turn_start: usize,
    turns: Vec<TurnRecord>,
    /// As far as the template has written it; made with the first answer.
    conversation: Option<Conversation<'a>>,
}

/// What comes after an answer.
pub(super) enum Next {
    /// Another turn.
    Turn,
    /// Nothing.
    End(EpisodeEnd),
}

impl<'a> Open<'a> {
    pub(super) fn new(group_index: u64, prompt: Arc<PreparedPrompt>) -> Self {
        Self {
            group_index,
            prompt,
            ids: Vec::new(),
            mask: Vec::new(),
            logprobs: Vec::new(),
            turn_start: 0,
            turns: Vec::new(),
            conversation: None,
        }
    }

    /// Takes a drawn token.
    pub(super) fn push(&mut self, token: i64, logprob: f32) {
        self.ids.push(token);
        self.mask.push(true);
        self.logprobs.push(logprob);
    }

    /// What the engine is asked to go on from.
    pub(super) fn prompt_ids(&self) -> Vec<i64> {
        [&self.prompt.prompt_ids[..], &self.ids].concat()
    }

    /// Which turn is drawn, from 0.
    pub(super) fn turn(&self) -> usize {
        self.turns.len()
    }

    /// The turn that was drawn is complete.
    pub(super) fn close_turn(&mut self, draw: &Draw<'_>, turns: &Turns<'_>, stop_ids: &[i64]) {
        let drawn = &self.ids[self.turn_start..];
        let said = match drawn.split_last() {
            Some((last, rest)) if stop_ids.contains(last) => rest,
            _ => drawn,
        };
        // Special tokens stay: in some vocabularies the marks of a tool call are such.
        let mut watcher = draw.text.stop_watcher(&draw.spec.stop, false);
        let mut text: String = said.iter().map(|&id| watcher.push_text(id)).collect();
        text.push_str(&watcher.finish());
        let turn = Turn::parse(&text, turns.spec.tool_format);
        self.turns.push(TurnRecord { drawn: drawn.len(), told: 0, turn, observation: None });
    }

    /// What the model said, turn by turn.
    pub(super) fn said(&self) -> Vec<Turn> {
        self.turns.iter().map(|record| record.turn.clone()).collect()
    }

    /// Takes the answer to the last turn; `limit` is how many tokens the response may have, and `context`
    /// a whole sequence.
    pub(super) fn take(
        &mut self,
        answer: Answer,
        (draw, turns): (&Draw<'a>, &Turns<'a>),
        stop_ids: &[i64],
        (limit, context): (usize, usize),
    ) -> Next {
        let observation = match answer {
            Ok(observation) => observation,
            Err(reason) => return Next::End(EpisodeEnd::Failed { reason }),
        };
        let Observation { messages, done } = observation.clone();
        let last = self.turns.last_mut().expect("a turn was asked about");
        last.observation = Some(observation);
        if done {
            return Next::End(EpisodeEnd::Environment);
        }
        if messages.is_empty() {
            let reason = "it neither ended the episode nor said anything".to_owned();
            return Next::End(EpisodeEnd::Failed { reason });
        }
        if self.turns.len() >= turns.spec.max_assistant_turns {
            return Next::End(EpisodeEnd::Turns);
        }
        let ended = self.ids.last().copied().filter(|last| stop_ids.contains(last));
        let glue = self.conversation(draw, turns).and_then(|conversation| conversation.follow(ended, &messages));
        let glue = match glue {
            Ok(glue) => glue,
            Err(error) => return Next::End(EpisodeEnd::Failed { reason: chain(&error) }),
        };
        let length = self.ids.len() + glue.len();
        // At least one token more has to fit.
        if length >= limit || self.prompt.prompt_ids.len() + length >= context {
            return Next::End(EpisodeEnd::Length);
        }
        self.turns.last_mut().expect("a turn was asked about").told = glue.len();
        self.mask.extend(std::iter::repeat_n(false, glue.len()));
        self.ids.extend(glue);
        self.turn_start = self.ids.len();
        Next::Turn
    }

    fn conversation(
        &mut self,
        draw: &Draw<'a>,
        turns: &Turns<'a>,
    ) -> Result<&mut Conversation<'a>, crate::text::Error> {
        if self.conversation.is_none() {
            let with = (turns.kwargs, turns.spec.tools.as_slice());
            self.conversation = Some(Conversation::begin(draw.text, &self.prompt.prompt, with)?);
        }
        Ok(self.conversation.as_mut().expect("made just now"))
    }

    /// The complete response; `end` is given where it was drawn in an environment.
    pub(super) fn finish(
        self,
        index: u64,
        draw: &Draw<'_>,
        (finish_reason, end): (FinishReason, Option<EpisodeEnd>),
        weight_version: WeightVersion,
    ) -> Rollout {
        let response = match &end {
            None => draw.text.response_text(&self.ids, &draw.spec.stop),
            Some(_) => draw.text.decode(&self.ids, true),
        };
        Rollout {
            index,
            group_index: self.group_index,
            prompt: self.prompt,
            response,
            response_ids: self.ids,
            response_mask: self.mask,
            rollout_logprobs: self.logprobs,
            finish_reason,
            weight_version,
            episode: end.map(|end| EpisodeRecord { turns: self.turns, end }),
        }
    }
}
