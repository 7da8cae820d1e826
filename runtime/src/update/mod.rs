//! From advantages to weights: losses, gradients, the optimizer's step.
//!
//! ```text
//! TrainBatch ─global batches─► micro-batches ─Model::hidden_rows─► head (chunks of rows) ─► loss
//!                                    └─ gradients in float32 ─► clip ─► AdamW ─► weights, in place
//! ```
//!
//! | room | what it does |
//! |---|---|
//! | [`loss`] | policy clip, KL estimators, entropy bonus: per token |
//! | [`head`] | the output projection and its gradient, a chunk of rows at a time |
//! | [`packing`] | which samples are computed together; what a token weighs |
//! | [`adamw`] | the optimizer and gradients |
//! | [`schedule`] | the learning rate |
//! | `micro_batch` | samples as tensors |
//! | `state` | the optimizer on disk |
//!
//! Everything is a function of the batch and the state alone: on a CPU with a fixed number of
//! threads, the same calls give the same bits.

pub mod adamw;
mod error;
pub mod head;
pub mod loss;
mod micro_batch;
pub mod packing;
pub mod schedule;
mod state;
#[cfg(test)]
mod tests;

use std::path::Path;

use tch::{Kind, Tensor, no_grad};
use training_gym_core::spec::UpdateSpec;

use crate::batch::{Rollout, TrainBatch, UpdateReport};
use crate::model::Model;
use adamw::{AdamW, Gradients};
pub use error::Error;
use head::{OutputHead, Rows};
use loss::{Objective, Tokens};
use micro_batch::MicroBatch;

/// Trains a model: owns its optimizer and changes its weights in place.
#[derive(Debug)]
pub struct Updater {
    model: Model,
    /// The model as it started, where the loss has a KL penalty.
    reference: Option<Model>,
    spec: UpdateSpec,
    objective: Objective,
    temperature: f64,
    optimizer: AdamW,
    /// Which parameter is the output projection.
    output_index: usize,
}

/// Sums over the tokens of one optimizer step, in float64: loss, clipped tokens, Σ −log π,
/// Σ |log π_trainer − log π_engine|.
type Sums = [f64; 4];

impl Updater {
    /// An updater with a fresh optimizer. `model` shares its memory with the engine's
    /// ([`Model::share`]) and holds the run's *starting* weights: the KL penalty's reference is
    /// copied from it here; a resumed run then calls [`load_state`](Self::load_state).
    ///
    /// `temperature` is that of sampling: log-probabilities are those of logits divided by it.
    /// 0 (greedy) counts as 1.
    ///
    /// # Errors
    /// [`Error::Spec`] when a size is 0 or the temperature is negative or not finite.
    pub fn new(model: Model, spec: UpdateSpec, temperature: f64) -> Result<Self, Error> {
        error::check(&spec, temperature)?;
        let reference = spec.kl_loss.as_ref().map(|_| model.copy());
        let output = model.output_weight().data_ptr();
        let output_index = model.parameters().iter().position(|(_, parameter)| parameter.data_ptr() == output);
        let output_index = output_index.expect("the output projection is one of the parameters");
        model.set_requires_grad(true);
        let optimizer = AdamW::new(model.parameters(), &spec.optimizer);
        let temperature = if temperature == 0.0 { 1.0 } else { temperature };
        Ok(Self { reference, objective: Objective::new(&spec), temperature, optimizer, output_index, model, spec })
    }

    /// Updates the weights with one rollout: an optimizer step for every `global_batch_size`
    /// samples, in sample order (the last may have fewer).
    ///
    /// A step whose loss or gradient is not finite changes nothing and is counted. The means of
    /// the report are over the steps that were applied; where none was, they are 0 and `updates`
    /// is 0. `logprob_gap` is over the samples of the first optimizer step, computed before it.
    ///
    /// # Errors
    /// [`Error::Token`] when a token id is outside the model's vocabulary. Nothing has changed then.
    pub fn apply(&mut self, batch: &TrainBatch) -> Result<UpdateReport, Error> {
        self.check_tokens(batch.rollouts())?;
        let samples = batch.rollouts().len();
        let mut report = UpdateReport::default();
        for start in (0..samples).step_by(self.spec.global_batch_size) {
            let end = samples.min(start + self.spec.global_batch_size);
            let tokens: usize = batch.rollouts()[start..end].iter().map(|rollout| rollout.response_ids.len()).sum();
            let (gradients, [loss, clipped, surprisal, gap]) = self.gradients(batch, start..end);
            let (norm, gradients) = gradients.finish(self.model.parameters(), self.spec.optimizer.clip_grad);
            if start == 0 {
                report.logprob_gap = gap / tokens as f64;
            }
            if !norm.is_finite() || !loss.is_finite() {
                report.skipped_updates += 1;
                continue;
            }
            report.lr = schedule::learning_rate(&self.spec.optimizer, self.optimizer.steps() + 1);
            self.optimizer.step(gradients, report.lr);
            report.updates += 1;
            report.loss += loss;
            report.clip_fraction += clipped / tokens as f64;
            report.entropy += surprisal / tokens as f64;
            report.grad_norm += norm;
        }
        let applied = report.updates.max(1) as f64;
        for mean in [&mut report.loss, &mut report.clip_fraction, &mut report.entropy, &mut report.grad_norm] {
            *mean /= applied;
        }
        Ok(report)
    }

    /// Optimizer steps applied since the run began.
    pub fn optimizer_steps(&self) -> u64 {
        self.optimizer.steps()
    }

    /// The model that is trained.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Shows each float32 master weight by name, as little-endian bytes: what a hash that tells
    /// whether any weight moved is made of.
    pub fn for_each_master_weight(&self, visit: impl FnMut(&str, &[u8])) {
        state::for_each_master_weight(&self.optimizer, visit);
    }

    /// Writes the optimizer (float32 master weights, moments, step count) into `folder`, bit for
    /// bit; the file appears whole or not at all.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn save_state(&self, folder: &Path) -> Result<(), Error> {
        state::save(&self.optimizer, folder)
    }

    /// Reads what [`save_state`](Self::save_state) wrote, into the optimizer and the model's
    /// weights. On error nothing has changed, unless the file itself could not be read to its end.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Damaged`], or [`Error::OtherModel`] when the state is of a model
    /// with other tensors.
    pub fn load_state(&mut self, folder: &Path) -> Result<(), Error> {
        state::load(&mut self.optimizer, folder)
    }

    fn check_tokens(&self, rollouts: &[Rollout]) -> Result<(), Error> {
        let vocab_size = self.model.config().vocab_size as i64;
        for rollout in rollouts {
            let ids = rollout.prompt.prompt_ids.iter().chain(&rollout.response_ids);
            if let Some(&id) = ids.into_iter().find(|id| !(0..vocab_size).contains(*id)) {
                return Err(Error::Token { id, vocab_size, sample: rollout.index });
            }
            if rollout.prompt.prompt_ids.is_empty() {
                return Err(Error::EmptyPrompt { sample: rollout.index });
            }
        }
        Ok(())
    }

    /// Loss, metrics and gradients of one global batch.
    fn gradients(&self, batch: &TrainBatch, samples: std::ops::Range<usize>) -> (Gradients, Sums) {
        let rollouts = &batch.rollouts()[samples.clone()];
        let loss_tokens: Vec<usize> = rollouts.iter().map(|rollout| rollout.response_ids.len()).collect();
        let weights = packing::weights(&loss_tokens, self.spec.loss_aggregation);
        let lengths: Vec<usize> = rollouts.iter().map(MicroBatch::input_length).collect();
        let mut gradients = Gradients::new(self.model.parameters().len());
        let mut sums = Vec::new();
        for part in packing::micro_batches(&lengths, self.spec.max_tokens_per_gpu) {
            let samples = rollouts[part.clone()]
                .iter()
                .zip(&batch.advantages()[samples.start + part.start..])
                .zip(&weights[part]);
            let micro = MicroBatch::new(samples.map(|((rollout, advantages), weight)| (rollout, advantages, *weight)));
            sums.push(self.backward(&micro.to_device(self.model.options().device), &mut gradients));
        }
        let sums = no_grad(|| Tensor::stack(&sums, 0).sum_dim_intlist([0i64].as_slice(), false, Kind::Double));
        let sums = Vec::<f64>::try_from(sums).expect("four sums");
        (gradients, [sums[0], sums[1], sums[2], sums[3]])
    }

    /// Adds one micro-batch's gradients. Returns its [`Sums`], `[4]` float32.
    fn backward(&self, micro: &MicroBatch, gradients: &mut Gradients) -> Tensor {
        let hidden = self.model.hidden_rows(&micro.input_ids, &micro.lengths, &micro.rows);
        let tokens = Tokens {
            old_logprobs: micro.old_logprobs.shallow_clone(),
            advantages: micro.advantages.shallow_clone(),
            weights: micro.weights.shallow_clone(),
            reference_logprobs: self.reference.as_ref().map(|model| self.reference_logprobs(model, micro)),
        };
        let parameters = self.model.parameters();
        let output = self.model.output_weight().detach();
        let head = self.head(&output);
        let detached = hidden.detach();
        let rows = Rows { hidden: &detached, targets: &micro.targets, entropy: self.objective.needs_entropy() };
        let mut sums = Vec::new();
        let accumulator = gradients.accumulator(self.output_index, &parameters[self.output_index].1);
        let hidden_grad = head.backward(&rows, accumulator, |chunk| {
            let tokens = tokens.narrow(chunk.start, chunk.logprobs.size()[0]);
            let terms = self.objective.evaluate(&chunk.logprobs, chunk.entropy.as_ref(), &tokens);
            sums.push(no_grad(|| {
                let logprobs = chunk.logprobs.detach();
                let gap = (&logprobs - &tokens.old_logprobs).abs().sum(None);
                let clipped = terms.clipped.sum(Kind::Float);
                Tensor::stack(&[&terms.loss.detach(), &clipped, &logprobs.sum(None).neg(), &gap], 0)
            }));
            terms.loss
        });
        let carried_on = (hidden * hidden_grad).sum(None);
        let inputs: Vec<&Tensor> = parameters.iter().map(|(_, parameter)| parameter).collect();
        for (index, grad) in Tensor::run_backward(&[&carried_on], &inputs, false, false).into_iter().enumerate() {
            gradients.add(index, grad);
        }
        no_grad(|| Tensor::stack(&sums, 0).sum_dim_intlist([0i64].as_slice(), false, None))
    }

    fn reference_logprobs(&self, reference: &Model, micro: &MicroBatch) -> Tensor {
        no_grad(|| {
            let hidden = reference.hidden_rows(&micro.input_ids, &micro.lengths, &micro.rows);
            let rows = Rows { hidden: &hidden, targets: &micro.targets, entropy: false };
            self.head(reference.output_weight()).score(&rows).0
        })
    }

    fn head<'a>(&self, weight: &'a Tensor) -> OutputHead<'a> {
        OutputHead { weight, temperature: self.temperature, chunk_size: self.spec.logits_chunk_size }
    }
}
