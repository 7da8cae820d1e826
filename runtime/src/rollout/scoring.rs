//! Log-probabilities of given sequences.

use tch::{Kind, Tensor};

use super::engine::Engine;
use super::request::{Refusal, ScoreRequest, TokenScore};
use super::sampling::scores;

/// Numbers of the logits computed at once.
const LOGITS_AT_ONCE: usize = 1 << 24;

/// A list of sequences on its way through the passes.
#[derive(Debug)]
pub(super) struct Scoring {
    sequences: Vec<ScoreRequest>,
    /// Of the first so many.
    scored: Vec<Vec<TokenScore>>,
}

impl Scoring {
    /// Forgets what has been scored.
    pub(super) fn begin_again(&mut self) {
        self.scored.clear();
    }

    pub(super) fn into_scores(self) -> Vec<Vec<TokenScore>> {
        self.scored
    }

    /// The sequences of the next pass: as many as fit `limit` tokens, one at least.
    fn next_pass(&self, limit: usize) -> &[ScoreRequest] {
        let rest = &self.sequences[self.scored.len()..];
        let mut tokens = 0;
        let fits = |sequence: &&ScoreRequest| {
            tokens += sequence.input_ids.len();
            tokens <= limit
        };
        let count = rest.iter().take_while(fits).count().max(1);
        &rest[..count.min(rest.len())]
    }
}

impl Engine {
    /// Scores sequences as they are, at temperature 1: for each the positions from its `start_len`
    /// on. Passes of up to `max_prefill_tokens` take the sequences in order, apart from whatever
    /// else runs, so the result depends on the list alone.
    ///
    /// # Errors
    /// A [`Refusal`] about the first sequence that cannot be scored; none is.
    pub fn score(&mut self, sequences: &[ScoreRequest]) -> Result<Vec<Vec<TokenScore>>, Refusal> {
        let mut scoring = self.begin_scoring(sequences.to_vec())?;
        while !self.score_pass(&mut scoring) {}
        Ok(scoring.into_scores())
    }

    /// Takes sequences to score with [`Engine::score_pass`].
    ///
    /// # Errors
    /// As [`Engine::score`].
    pub(super) fn begin_scoring(&self, sequences: Vec<ScoreRequest>) -> Result<Scoring, Refusal> {
        let bounds = self.bounds();
        for sequence in &sequences {
            bounds.check_ids(&sequence.input_ids)?;
            let length = sequence.input_ids.len();
            if length > self.context_length {
                let context_length = self.context_length;
                return Err(Refusal::TooLong { prompt: length, max_new_tokens: 0, context_length });
            }
            if sequence.start_len > length {
                return Err(Refusal::StartPastEnd { start_len: sequence.start_len, length });
            }
        }
        Ok(Scoring { sequences, scored: Vec::new() })
    }

    /// Computes the next pass, if one is left; says whether the list is complete.
    pub(super) fn score_pass(&mut self, scoring: &mut Scoring) -> bool {
        let _guard = tch::no_grad_guard();
        let pass = scoring.next_pass(self.limits.max_prefill_tokens);
        if !pass.is_empty() {
            let scores = self.score_together(pass);
            scoring.scored.extend(scores);
        }
        scoring.scored.len() == scoring.sequences.len()
    }

    fn score_together(&mut self, sequences: &[ScoreRequest]) -> Vec<Vec<TokenScore>> {
        let lengths: Vec<usize> = sequences.iter().map(|sequence| sequence.input_ids.len()).collect();
        let packed: Vec<i64> = sequences.iter().flat_map(|sequence| sequence.input_ids.iter().copied()).collect();
        let (mut rows, mut targets, mut top) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 0;
        for sequence in sequences {
            for position in sequence.start_len.max(1)..sequence.input_ids.len() {
                rows.push((start + position - 1) as i64);
                targets.push(sequence.input_ids[position]);
                top.push(sequence.top_logprobs);
            }
            start += sequence.input_ids.len();
        }
        let mut drawn = Vec::with_capacity(rows.len());
        if !rows.is_empty() {
            let hidden = self.model.prefill(&packed, &lengths, &rows, None);
            self.stats.prompt_tokens += packed.len() as u64;
            let at_once = (LOGITS_AT_ONCE / self.model.config().vocab_size).max(1);
            for from in (0..rows.len()).step_by(at_once) {
                let to = rows.len().min(from + at_once);
                let some = hidden.narrow(0, from as i64, (to - from) as i64);
                let logprobs = self.model.logits(&some).to_kind(Kind::Float).log_softmax(-1, Kind::Float);
                let tokens = Tensor::from_slice(&targets[from..to]).to_device(logprobs.device());
                drawn.extend(scores(&logprobs, &tokens, &top[from..to]));
            }
        }
        let mut drawn = drawn.into_iter();
        let of = |sequence: &ScoreRequest| {
            let unconditioned = (sequence.start_len == 0).then(|| TokenScore {
                token: sequence.input_ids[0],
                logprob: None,
                top: Vec::new(),
            });
            let count = sequence.input_ids.len() - sequence.start_len.max(1).min(sequence.input_ids.len());
            unconditioned.into_iter().chain(drawn.by_ref().take(count)).collect()
        };
        sequences.iter().map(of).collect()
    }
}
