//! Every token of a global batch scored, without gradients, to choose those that get some.

use tch::{Device, Tensor, no_grad};
use training_gym_core::spec::{Divergence, SelectionRule, TokenSelection};
use training_gym_core::splitmix::{GAMMA, mixed};

use super::co_teacher::TeacherSignal;
use super::head::{OutputHead, Rows};
use super::micro_batch::MicroBatch;
use super::selection::{TokenStats, select};
use super::taught::{RowStats, Taught};
use super::{Distillation, Updater, packing};
use crate::batch::TrainBatch;

/// Rows scored at once, at the most: what is selected must not cost the memory it saves.
const CHUNK: usize = 256;

/// The chosen tokens, and what was seen of all of them on the way.
pub(super) struct Chosen {
    /// Of each sample, ascending positions among its drawn tokens.
    pub(super) rows: Vec<Vec<i64>>,
    /// Σ −log π over all tokens.
    pub(super) surprisal: f64,
    /// Σ |log π_trainer − log π_engine| over all tokens.
    pub(super) gap: f64,
}

impl Updater {
    /// Chooses among the response tokens of the samples `kept`.
    pub(super) fn choose(
        &self,
        batch: &TrainBatch,
        kept: &[usize],
        signal: &TeacherSignal,
        (distillation, selection): (&Distillation, &TokenSelection),
    ) -> Chosen {
        let rollouts = batch.rollouts();
        let device = self.model.options().device;
        let teacher_weight = signal.weight_on(device);
        let lengths: Vec<usize> = kept.iter().map(|&sample| MicroBatch::input_length(&rollouts[sample])).collect();
        let (mut stats, mut surprisal, mut gap) = (TokenStats::default(), 0.0, 0.0);
        for part in packing::micro_batches(&lengths, self.spec.max_tokens_per_gpu) {
            let samples = &kept[part];
            let members = samples.iter().map(|&sample| (&rollouts[sample], &batch.advantages()[sample], 0.0));
            let micro = MicroBatch::new(members).to_device(device);
            let taught_rows = signal.rows_of(samples, device);
            let found = no_grad(|| {
                let hidden = self.model.hidden_rows(&micro.input_ids, &micro.lengths, &micro.rows);
                let output = self.model.output_weight().detach();
                let chunk_size = self.spec.logits_chunk_size.min(CHUNK);
                let head = OutputHead { weight: &output, temperature: self.temperature, chunk_size };
                let taught = Taught {
                    rows: signal.teaching(&taught_rows, teacher_weight.as_ref()),
                    vocab: signal.vocab,
                    temperature: self.temperature,
                    divergence: Divergence::ReverseKl,
                    weights: &micro.weights,
                };
                let rows = Rows { hidden: &hidden, targets: &micro.targets, entropy: false };
                let forward_kl = matches!(selection.rule, SelectionRule::Overconfident { .. });
                let jsd = matches!(selection.rule, SelectionRule::Sampled { .. });
                taught.stats(&head, &rows, (forward_kl, jsd))
            });
            let logprobs = wide(&found.logprobs);
            let old = samples.iter().flat_map(|&sample| &rollouts[sample].rollout_logprobs);
            surprisal -= logprobs.iter().sum::<f64>();
            gap += logprobs.iter().zip(old).map(|(ours, &theirs)| (ours - f64::from(theirs)).abs()).sum::<f64>();
            extend(&mut stats, &found, signal.vocab);
        }
        let responses: Vec<usize> = kept.iter().map(|&sample| rollouts[sample].drawn()).collect();
        let seed = mixed(distillation.seed.wrapping_add(GAMMA.wrapping_mul(self.optimizer.steps() + 1)));
        Chosen { rows: select(selection, &stats, &responses, seed), surprisal, gap }
    }
}

fn extend(stats: &mut TokenStats, found: &RowStats, vocab: i64) {
    let scaled = |tensor: &Tensor, scale: f64| wide(tensor).into_iter().map(move |value| (value / scale) as f32);
    stats.entropy.extend(scaled(&found.entropy, (vocab.max(2) as f64).ln()));
    stats.reverse_kl.extend(scaled(&found.reverse_kl, 1.0));
    stats.forward_kl.extend(scaled(&found.forward_kl, 1.0));
    stats.jsd.extend(scaled(&found.jsd, std::f64::consts::LN_2));
}

fn wide(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_device(Device::Cpu).to_kind(tch::Kind::Double)).expect("a list of numbers")
}
