//! Some samples as the tensors of one packed pass.

use tch::{Device, Tensor};

use crate::batch::Rollout;

/// Samples end to end. Each is its prompt and response without the last token, which predicts
/// nothing; the rows that carry loss are those that predict tokens the student drew: those it was told
/// are computed with, and nothing else.
#[derive(Debug)]
pub(super) struct MicroBatch {
    /// `[T]` int64.
    pub(super) input_ids: Tensor,
    /// Tokens of each sample; they sum to `T`.
    pub(super) lengths: Vec<usize>,
    /// `[N]` int64: positions in the pack that predict drawn tokens.
    pub(super) rows: Tensor,
    /// `[N]` int64: the drawn tokens.
    pub(super) targets: Tensor,
    /// `[N]` float32: the engine's log-probabilities.
    pub(super) old_logprobs: Tensor,
    /// `[N]` float32.
    pub(super) advantages: Tensor,
    /// `[N]` float32: what each token weighs in the loss.
    pub(super) weights: Tensor,
    /// Drawn tokens of each sample; they sum to `N`.
    pub(super) responses: Vec<usize>,
}

impl MicroBatch {
    /// Tokens a sample takes in the pack.
    pub(super) fn input_length(rollout: &Rollout) -> usize {
        rollout.prompt.prompt_ids.len() + rollout.response_ids.len() - 1
    }

    /// Packs samples: rollout, advantages `[M]`, and what each of its tokens weighs.
    pub(super) fn new<'a>(samples: impl Iterator<Item = (&'a Rollout, &'a Vec<f32>, f64)>) -> Self {
        let (mut ids, mut lengths, mut rows, mut targets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut old, mut advantages, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        let mut responses = Vec::new();
        for (rollout, advantage, weight) in samples {
            let first = (ids.len() + rollout.prompt.prompt_ids.len()) as i64 - 1;
            let response = &rollout.response_ids;
            ids.extend_from_slice(&rollout.prompt.prompt_ids);
            ids.extend_from_slice(&response[..response.len() - 1]);
            lengths.push(Self::input_length(rollout));
            let drawn = rollout.drawn();
            responses.push(drawn);
            let places = (first..).zip(response).zip(&rollout.response_mask).filter(|(_, drawn)| **drawn);
            for ((row, &target), _) in places {
                rows.push(row);
                targets.push(target);
            }
            old.extend_from_slice(&rollout.rollout_logprobs);
            advantages.extend_from_slice(advantage);
            weights.extend(std::iter::repeat_n(weight as f32, drawn));
        }
        Self {
            input_ids: Tensor::from_slice(&ids),
            lengths,
            rows: Tensor::from_slice(&rows),
            targets: Tensor::from_slice(&targets),
            old_logprobs: Tensor::from_slice(&old),
            advantages: Tensor::from_slice(&advantages),
            weights: Tensor::from_slice(&weights),
            responses,
        }
    }

    /// Packs samples that are only scored.
    pub(super) fn of_rollouts(rollouts: &[Rollout]) -> Self {
        let none: Vec<Vec<f32>> = rollouts.iter().map(|rollout| vec![0.0; rollout.drawn()]).collect();
        Self::new(rollouts.iter().zip(&none).map(|(rollout, none)| (rollout, none, 0.0)))
    }

    /// The rows `kept` of all `N` alone: the others are computed with, and carry no loss. Sequences are
    /// whole no more.
    pub(super) fn select(&self, kept: &[i64]) -> Self {
        let kept = Tensor::from_slice(kept).to_device(self.rows.device());
        let part = |tensor: &Tensor| tensor.index_select(0, &kept);
        Self {
            input_ids: self.input_ids.shallow_clone(),
            lengths: self.lengths.clone(),
            rows: part(&self.rows),
            targets: part(&self.targets),
            old_logprobs: part(&self.old_logprobs),
            advantages: part(&self.advantages),
            weights: part(&self.weights),
            responses: Vec::new(),
        }
    }

    /// The same on a device.
    pub(super) fn to_device(&self, device: Device) -> Self {
        Self {
            input_ids: self.input_ids.to_device(device),
            lengths: self.lengths.clone(),
            rows: self.rows.to_device(device),
            targets: self.targets.to_device(device),
            old_logprobs: self.old_logprobs.to_device(device),
            advantages: self.advantages.to_device(device),
            weights: self.weights.to_device(device),
            responses: self.responses.clone(),
        }
    }
}
