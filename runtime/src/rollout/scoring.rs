//! Log-probabilities of given sequences.

use tch::{Kind, Tensor};

use super::engine::Engine;
use super::request::{Refusal, ScoreRequest, TokenScore};
use super::sampling::scores;

/// Numbers of the logits computed at once.
const LOGITS_AT_ONCE: usize = 1 << 24;

impl Engine {
    /// Scores sequences as they are, at temperature 1: for each the positions from its `start_len`
    /// on. Passes of up to `max_prefill_tokens` take the sequences in order, apart from whatever
    /// else runs, so the result depends on the list alone.
    ///
    /// # Errors
    /// A [`Refusal`] about the first sequence that cannot be scored; none is.
    pub fn score(&mut self, sequences: &[ScoreRequest]) -> Result<Vec<Vec<TokenScore>>, Refusal> {
        for sequence in sequences {
            self.check_ids(&sequence.input_ids)?;
            let length = sequence.input_ids.len();
            if length > self.context_length {
                let context_length = self.context_length;
                return Err(Refusal::TooLong { prompt: length, max_new_tokens: 0, context_length });
            }
            if sequence.start_len > length {
                return Err(Refusal::StartPastEnd { start_len: sequence.start_len, length });
            }
        }
        let _guard = tch::no_grad_guard();
        let mut scored = Vec::with_capacity(sequences.len());
        let mut rest = sequences;
        while !rest.is_empty() {
            let mut tokens = 0;
            let fits = |sequence: &&ScoreRequest| {
                tokens += sequence.input_ids.len();
                tokens <= self.limits.max_prefill_tokens
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (pass, others) = rest.split_at(count);
            rest = others;
            scored.extend(self.score_pass(pass));
        }
        Ok(scored)
    }

    fn score_pass(&mut self, sequences: &[ScoreRequest]) -> Vec<Vec<TokenScore>> {
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
