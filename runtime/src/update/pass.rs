//! One global batch, forward and back.

use std::time::Instant;

use tch::{Device, Kind, Tensor, no_grad};

use super::adamw::Gradients;
use super::co_teacher::TeacherSignal;
use super::head::{ChunkScores, OutputHead, Rows};
use super::loss::{Terms, Tokens};
use super::micro_batch::MicroBatch;
use super::scoring::Chosen;
use super::taught::{Taught, TeacherRows};
use super::{Updater, packing};
use crate::batch::{Rollout, TrainBatch};
use crate::model::{Model, Recomputed};

/// Sums over the tokens of one optimizer step, in float64.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sums {
    /// The loss.
    pub(super) loss: f64,
    /// Clipped tokens.
    pub(super) clipped: f64,
    /// Σ −log π.
    pub(super) surprisal: f64,
    /// Σ |log π_trainer − log π_engine|.
    pub(super) gap: f64,
    /// Σ divergence from the teacher.
    pub(super) divergence: f64,
    /// Σ log π_student − log π_teacher.
    pub(super) log_ratio: f64,
    /// Tokens that were taught.
    pub(super) taught: f64,
    /// log π_student − log π_teacher of each of them.
    pub(super) log_ratios: Vec<f64>,
    /// Seconds of the head and the loss.
    pub(super) head_seconds: f64,
    /// Seconds of choosing tokens.
    pub(super) scoring_seconds: f64,
}

/// A whole micro-batch's loss, where it cannot be taken a chunk at a time: its value, and its slopes
/// along each token's log-probability and entropy.
struct Whole {
    terms: Terms,
    slopes: Vec<Tensor>,
}

impl Whole {
    /// What has the same value over all chunks, and the same gradient.
    fn chunk(&self, chunk: &ChunkScores) -> Terms {
        let length = chunk.logprobs.size()[0];
        let along = |leaf: &Tensor, slope: &Tensor| (leaf * slope.narrow(0, chunk.start, length)).sum(None);
        let mut loss = along(&chunk.logprobs, &self.slopes[0]);
        if let (Some(entropy), Some(slope)) = (&chunk.entropy, self.slopes.get(1).filter(|slope| slope.defined())) {
            loss += along(entropy, slope);
        }
        let part = |tensor: &Tensor| tensor.narrow(0, chunk.start, length);
        Terms {
            policy: part(&self.terms.policy),
            clipped: part(&self.terms.clipped),
            kl: self.terms.kl.as_ref().map(part),
            loss,
        }
    }
}

/// A micro-batch on its way through the layers.
enum Forward<'a> {
    /// With all activations.
    Traced(Tensor),
    /// With each layer's input.
    Recomputed(Box<Recomputed<'a>>),
}

impl Forward<'_> {
    /// `[N, H]`, without gradients.
    fn hidden(&self) -> Tensor {
        match self {
            Self::Traced(hidden) => hidden.detach(),
            Self::Recomputed(again) => again.hidden().shallow_clone(),
        }
    }

    fn backward(self, hidden_grad: &Tensor, parameters: &[(String, Tensor)], gradients: &mut Gradients) {
        match self {
            Self::Traced(hidden) => {
                let carried_on = (hidden * hidden_grad).sum(None);
                let inputs: Vec<&Tensor> = parameters.iter().map(|(_, parameter)| parameter).collect();
                let grads = Tensor::run_backward(&[&carried_on], &inputs, false, false);
                grads.into_iter().enumerate().for_each(|(index, grad)| gradients.add(index, grad));
            }
            Self::Recomputed(again) => again.backward(hidden_grad, |index, grad| gradients.add(index, grad)),
        }
    }
}

/// What one micro-batch came to, beside its gradients.
struct Found {
    /// The six first of [`Sums`], float32.
    sums: Tensor,
    /// log π_student − log π_teacher, a tensor a chunk.
    log_ratios: Vec<Tensor>,
    head_seconds: f64,
}

impl Updater {
    /// Loss, metrics and gradients of the samples `kept` of one global batch. `None`: no token of them
    /// was chosen.
    pub(super) fn gradients(
        &self,
        batch: &TrainBatch,
        kept: &[usize],
        signal: Option<&TeacherSignal>,
    ) -> Option<(Gradients, Sums)> {
        let rollouts = batch.rollouts();
        let began = Instant::now();
        let selection = self.distillation.as_ref().and_then(|spec| Some((spec, spec.selection.as_ref()?)));
        let chosen = selection.zip(signal).map(|(selection, signal)| self.choose(batch, kept, signal, selection));
        let scoring_seconds = if chosen.is_some() { began.elapsed().as_secs_f64() } else { 0.0 };
        let (kept, places) = members(kept, chosen.as_ref());
        if kept.is_empty() {
            return None;
        }
        let loss_tokens: Vec<usize> = match &chosen {
            Some(chosen) => places.iter().map(|&place| chosen.rows[place].len()).collect(),
            None => kept.iter().map(|&sample| rollouts[sample].drawn()).collect(),
        };
        // Relative to each other: their mean is 1, whatever they are.
        let mean = kept.iter().map(|&sample| batch.weights()[sample]).sum::<f64>() / kept.len() as f64;
        let weights: Vec<f64> = packing::weights(&loss_tokens, self.spec.loss_aggregation)
            .into_iter()
            .zip(&kept)
            .map(|(weight, &sample)| weight * (batch.weights()[sample] / mean))
            .collect();
        let lengths: Vec<usize> = kept.iter().map(|&sample| MicroBatch::input_length(&rollouts[sample])).collect();
        let device = self.model.options().device;
        let teacher_weight = signal.and_then(|signal| signal.weight_on(device));
        let mut gradients = Gradients::new(self.model.parameters().len());
        let (mut sums, mut log_ratios, mut head_seconds) = (Vec::new(), Vec::new(), 0.0);
        for part in packing::micro_batches(&lengths, self.spec.max_tokens_per_gpu) {
            let samples = &kept[part.clone()];
            let members = samples.iter().zip(&weights[part.clone()]);
            let members = members.map(|(&sample, weight)| (&rollouts[sample], &batch.advantages()[sample], *weight));
            let mut micro = MicroBatch::new(members);
            let mut rows = signal.map(|signal| signal.rows_of(samples, Device::Cpu));
            if let Some(chosen) = &chosen {
                let picks = picks(&micro.responses, places[part].iter().map(|&place| &chosen.rows[place]));
                rows = rows.map(|rows| rows.index_select(0, &Tensor::from_slice(&picks)));
                micro = micro.select(&picks);
            }
            let micro = micro.to_device(device);
            let rows = rows.map(|rows| rows.to_device(device));
            let taught = signal.zip(rows.as_ref());
            let taught = taught.map(|(it, rows)| (it.teaching(rows, teacher_weight.as_ref()), it.vocab));
            let found = self.backward(&micro, taught, &mut gradients);
            sums.push(found.sums);
            log_ratios.extend(found.log_ratios.iter().flat_map(on_host));
            head_seconds += found.head_seconds;
        }
        let sums = no_grad(|| Tensor::stack(&sums, 0).sum_dim_intlist([0i64].as_slice(), false, Kind::Double));
        let sums = Vec::<f64>::try_from(sums).expect("six sums");
        let taught = if signal.is_some() { loss_tokens.iter().sum::<usize>() as f64 } else { 0.0 };
        let &[loss, clipped, surprisal, gap, divergence, log_ratio] = sums.as_slice() else { unreachable!("six sums") };
        // What was seen of all tokens tells more than what was seen of the chosen.
        let (surprisal, gap) = chosen.map_or((surprisal, gap), |chosen| (chosen.surprisal, chosen.gap));
        let sums = Sums {
            loss,
            clipped,
            surprisal,
            gap,
            divergence,
            log_ratio,
            taught,
            log_ratios,
            head_seconds,
            scoring_seconds,
        };
        Some((gradients, sums))
    }

    /// The hidden states of a micro-batch, and the way back from them.
    fn forward(&self, micro: &MicroBatch) -> Forward<'_> {
        let (ids, lengths, rows) = (&micro.input_ids, &micro.lengths, &micro.rows);
        match self.memory.gradient_checkpointing {
            true => Forward::Recomputed(Box::new(self.model.hidden_rows_recomputed(ids, lengths, rows))),
            false => Forward::Traced(self.model.hidden_rows(ids, lengths, rows)),
        }
    }

    /// Adds one micro-batch's gradients.
    fn backward(&self, micro: &MicroBatch, taught: Option<(TeacherRows<'_>, i64)>, gradients: &mut Gradients) -> Found {
        let forward = self.forward(micro);
        let tokens =
            Tokens {
                old_logprobs: micro.old_logprobs.shallow_clone(),
                advantages: micro.advantages.shallow_clone(),
                weights: micro.weights.shallow_clone(),
                reference_logprobs: self.objective.kl.as_ref().map(|_| {
                    self.of_reference(micro).expect("the starting weights are kept where the loss needs them")
                }),
                lengths: Some(micro.responses.clone()),
            };
        let parameters = self.model.parameters();
        let output = self.model.output_weight().detach();
        let head = self.head(&output);
        let detached = forward.hidden();
        let rows = Rows { hidden: &detached, targets: &micro.targets, entropy: self.objective.needs_entropy() };
        let began = Instant::now();
        let whole = (self.rewarded && self.objective.needs_sequences()).then(|| self.whole(&head, &rows, &tokens));
        let distillation_weights = self.distillation.as_ref().map(|spec| &micro.weights * spec.coef);
        let taught = taught.zip(self.distillation.as_ref()).zip(distillation_weights.as_ref()).map(
            |(((rows, vocab), spec), weights)| Taught {
                rows,
                vocab,
                temperature: self.temperature,
                divergence: spec.divergence,
                weights,
            },
        );
        let (mut sums, mut log_ratios) = (Vec::new(), Vec::new());
        let accumulator = gradients.accumulator(self.output_index, &parameters[self.output_index].1);
        let hidden_grad = head.backward_taught(&rows, taught.as_ref(), accumulator, |chunk| {
            let tokens = tokens.narrow(chunk.start, chunk.logprobs.size()[0]);
            let terms = self.rewarded.then(|| match &whole {
                Some(whole) => whole.chunk(chunk),
                None => self.objective.evaluate(&chunk.logprobs, chunk.entropy.as_ref(), &tokens),
            });
            let value = whole.as_ref().map(|whole| match chunk.start {
                0 => whole.terms.loss.detach(),
                _ => whole.terms.loss.zeros_like(),
            });
            sums.push(no_grad(|| sums_of(chunk, &tokens, terms.as_ref(), value)));
            let taught = chunk.taught.as_ref();
            log_ratios.extend(taught.map(|taught| no_grad(|| chunk.logprobs.detach() - &taught.teacher_logprobs)));
            terms.map(|terms| terms.loss)
        });
        let head_seconds = began.elapsed().as_secs_f64();
        forward.backward(&hidden_grad, parameters, gradients);
        let sums = no_grad(|| Tensor::stack(&sums, 0).sum_dim_intlist([0i64].as_slice(), false, None));
        Found { sums, log_ratios, head_seconds }
    }

    /// The loss of whole sequences: their log-probabilities are scored first, then the loss is
    /// evaluated once, and its slopes are what the chunks are pulled along.
    fn whole(&self, head: &OutputHead<'_>, rows: &Rows<'_>, tokens: &Tokens) -> Whole {
        let (logprobs, entropy) = head.score(rows);
        let logprobs = logprobs.set_requires_grad(true);
        let entropy = entropy.map(|entropy| entropy.set_requires_grad(true));
        let terms = self.objective.evaluate(&logprobs, entropy.as_ref(), tokens);
        let leaves: Vec<&Tensor> = std::iter::once(&logprobs).chain(&entropy).collect();
        let slopes = Tensor::run_backward(&[&terms.loss], &leaves, false, false);
        Whole { terms, slopes }
    }

    /// log π of each drawn id under the starting weights, `[M]` a sample.
    ///
    /// # Panics
    /// When they were not kept ([`with_reference`](Self::with_reference)).
    pub fn reference_logprobs(&mut self, rollouts: &[Rollout]) -> Vec<Vec<f32>> {
        self.wake_reference();
        let lengths: Vec<usize> = rollouts.iter().map(MicroBatch::input_length).collect();
        let mut all = Vec::with_capacity(rollouts.len());
        for part in packing::micro_batches(&lengths, self.spec.max_tokens_per_gpu) {
            let rollouts = &rollouts[part];
            let micro = MicroBatch::of_rollouts(rollouts).to_device(self.model.options().device);
            let scored = self.of_reference(&micro).expect("the starting weights are kept where they are asked");
            let scored = Vec::<f32>::try_from(scored.to_device(tch::Device::Cpu)).expect("a list of numbers");
            let mut rest = scored.as_slice();
            for rollout in rollouts {
                let (mine, others) = rest.split_at(rollout.drawn());
                all.push(mine.to_vec());
                rest = others;
            }
        }
        self.rest();
        all
    }

    fn of_reference(&self, micro: &MicroBatch) -> Option<Tensor> {
        let reference: &Model = self.reference.as_ref()?;
        Some(no_grad(|| {
            let hidden = reference.hidden_rows(&micro.input_ids, &micro.lengths, &micro.rows);
            let rows = Rows { hidden: &hidden, targets: &micro.targets, entropy: false };
            self.head(reference.output_weight()).score(&rows).0
        }))
    }

    fn head<'a>(&self, weight: &'a Tensor) -> OutputHead<'a> {
        OutputHead { weight, temperature: self.temperature, chunk_size: self.spec.logits_chunk_size }
    }
}

fn on_host(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_device(Device::Cpu).to_kind(Kind::Double)).expect("a list of numbers")
}

/// The samples with a token to learn from, and their places among `kept`.
fn members(kept: &[usize], chosen: Option<&Chosen>) -> (Vec<usize>, Vec<usize>) {
    let has_one = |place: usize| chosen.is_none_or(|chosen| !chosen.rows[place].is_empty());
    kept.iter().enumerate().filter(|(place, _)| has_one(*place)).map(|(place, &sample)| (sample, place)).unzip()
}

/// The chosen rows of a pack, from those of each sample.
fn picks<'a>(responses: &[usize], chosen: impl Iterator<Item = &'a Vec<i64>>) -> Vec<i64> {
    let mut start = 0;
    let mut picks = Vec::new();
    for (&length, rows) in responses.iter().zip(chosen) {
        picks.extend(rows.iter().map(|row| start + row));
        start += length as i64;
    }
    picks
}

/// One chunk's part of [`Sums`]; `whole` is the loss of the policy, where the terms only have its slope.
fn sums_of(chunk: &ChunkScores, tokens: &Tokens, terms: Option<&Terms>, whole: Option<Tensor>) -> Tensor {
    let logprobs = chunk.logprobs.detach();
    let zero = || Tensor::zeros([], (Kind::Float, logprobs.device()));
    let gap = (&logprobs - &tokens.old_logprobs).abs().sum(None);
    let clipped = terms.map_or_else(zero, |terms| terms.clipped.sum(Kind::Float));
    let loss = whole.or_else(|| terms.map(|terms| terms.loss.detach())).unwrap_or_else(zero);
    // Not in place: the loss shares its memory with the one that is pulled along.
    let (loss, divergence, log_ratio) = match &chunk.taught {
        None => (loss, zero(), zero()),
        Some(taught) => {
            let loss = loss + taught.divergence.dot(&taught.weights);
            (loss, taught.divergence.sum(None), (&logprobs - &taught.teacher_logprobs).sum(None))
        }
    };
    Tensor::stack(&[loss, clipped, logprobs.sum(None).neg(), gap, divergence, log_ratio], 0)
}
