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
//! | [`divergence`], [`taught`] | whole distributions: the student's beside the teacher's |
//! | [`top_k`] | the same where a server named its likeliest tokens only |
//! | [`token_stats`] | what a position looks like: entropies, Jensen–Shannon |
//! | [`selection`] | which tokens are worth learning from; `scoring`: what that is judged by |
//! | `co_teacher`, `seat` | a teacher that shares the device, in turn with the student |
//! | `offload` | what rests in host memory while nobody computes with it |
//! | `pass` | one global batch, forward and back |
//! | [`packing`] | which samples are computed together; what a token weighs |
//! | [`adamw`] | the optimizer and gradients |
//! | [`schedule`] | the learning rate |
//! | `micro_batch` | samples as tensors |
//! | `state` | the optimizer on disk |
//!
//! Everything is a function of the batch and the state alone: on a CPU with a fixed number of
//! threads, the same calls give the same bits.

pub mod adamw;
mod co_teacher;
pub mod divergence;
mod error;
pub mod head;
pub mod loss;
mod micro_batch;
mod offload;
pub mod packing;
mod pass;
pub mod schedule;
mod scoring;
mod seat;
pub mod selection;
mod state;
pub mod taught;
#[cfg(test)]
mod tests;
pub mod token_stats;
pub mod top_k;

use std::path::Path;

use tch::Device;
use training_gym_core::health::quantile;
use training_gym_core::spec::{Divergence, MemorySpec, TokenSelection, UpdateSpec};

use crate::batch::{Rollout, TrainBatch, UpdateReport};
use crate::model::Model;
use adamw::AdamW;
pub use co_teacher::{CoTeacher, SeatedTeacher, TeacherSignal};
pub use error::Error;
use loss::Objective;
pub use offload::Moves;
use pass::Sums;
use seat::Seated;
pub use seat::{Parked, Seat};

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
    distillation: Option<Distillation>,
    /// Whether there is a reward's loss beside the teacher's divergence.
    rewarded: bool,
    seat: Seat,
    /// `None` while parked.
    seated: Option<Seated>,
    memory: MemorySpec,
    moves: Moves,
    /// Where the student belongs, while it rests in host memory.
    home: Option<Device>,
}

/// What is learnt from a teacher's distributions.
///
/// With likeliest tokens from a server, what is minimised goes with them ([`TeacherSignal::of_server`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Distillation {
    /// What is minimised.
    pub divergence: Divergence,
    /// Its weight beside the reward's loss.
    pub coef: f64,
    /// Which tokens are taught; `None` is all. Only where nothing is rewarded.
    pub selection: Option<TokenSelection>,
    /// What drawn selections draw from, with the count of optimizer steps.
    pub seed: u64,
}

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
        let seat = Seat::default();
        Ok(Self {
            reference,
            objective: Objective::new(&spec),
            temperature,
            optimizer,
            output_index,
            distillation: None,
            rewarded: true,
            seated: Some(seat.take(seat::bytes_of(&model))),
            memory: MemorySpec::default(),
            moves: Moves::default(),
            home: None,
            seat,
            model,
            spec,
        })
    }

    /// Learns from a co-resident teacher's distributions too, or, where nothing is `rewarded`, from
    /// them alone: then no policy loss is computed.
    #[must_use]
    pub fn distilling(mut self, distillation: Distillation, rewarded: bool) -> Self {
        (self.distillation, self.rewarded) = (Some(distillation), rewarded);
        self
    }

    /// Minimises something else from now on.
    ///
    /// # Panics
    /// When the updater is not [`distilling`](Self::distilling).
    pub fn minimise(&mut self, divergence: Divergence) {
        self.distillation.as_mut().expect("an updater that distils").divergence = divergence;
    }

    /// Keeps the starting weights even where the loss does not need them:
    /// [`reference_logprobs`](Self::reference_logprobs) does.
    #[must_use]
    pub fn with_reference(mut self) -> Self {
        self.reference.get_or_insert_with(|| self.model.copy());
        self
    }

    /// Leaves the device to a teacher.
    pub fn park(&mut self) -> Parked<'_> {
        Parked::new(self)
    }

    /// The device's place for one model.
    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    fn stand_up(&mut self) {
        self.seated = None;
    }

    fn sit_down(&mut self) {
        self.seated = Some(self.seat.take(seat::bytes_of(&self.model)));
    }

    /// Moves weights, optimizer and reference. What shared their memory shares it no more.
    fn relocate(&mut self, device: Device) {
        self.relocate_weights(device, true);
        if !self.memory.param_offload {
            self.reference = self.reference.as_ref().map(|reference| reference.copy_to(device));
        }
    }

    fn relocate_weights(&mut self, device: Device, with_state: bool) {
        self.model = self.model.copy_to(device);
        self.model.set_requires_grad(true);
        self.optimizer.relocate(self.model.parameters(), with_state);
    }

    /// Updates the weights with one rollout: an optimizer step for every `global_batch_size`
    /// samples, in sample order (the last may have fewer).
    ///
    /// A step whose loss or gradient is not finite changes nothing and is counted; one whose samples
    /// all have weight 0 is none. The means of the report are over the steps that were applied; where
    /// none was, they are 0 and `updates` is 0. `logprob_gap` is over the samples of the first
    /// optimizer step, computed before it.
    ///
    /// # Errors
    /// [`Error::Token`] when a token id is outside the model's vocabulary. Nothing has changed then.
    pub fn apply(&mut self, batch: &TrainBatch) -> Result<UpdateReport, Error> {
        self.update(batch, None)
    }

    /// As [`apply`](Self::apply), with what a teacher left of the batch's responses.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    ///
    /// # Panics
    /// When the updater is not [`distilling`](Self::distilling).
    pub fn apply_taught(&mut self, batch: &TrainBatch, signal: &TeacherSignal) -> Result<UpdateReport, Error> {
        assert!(self.distillation.is_some(), "an updater that distils says what it minimises");
        self.update(batch, Some(signal))
    }

    fn update(&mut self, batch: &TrainBatch, signal: Option<&TeacherSignal>) -> Result<UpdateReport, Error> {
        self.check_tokens(batch.rollouts())?;
        if self.objective.kl.is_some() {
            self.wake_reference();
        }
        let samples = batch.rollouts().len();
        let mut report = UpdateReport::default();
        let (mut gap, mut taught, mut seen) = (None, Sums::default(), 0.0);
        for start in (0..samples).step_by(self.spec.global_batch_size) {
            let end = samples.min(start + self.spec.global_batch_size);
            let kept: Vec<usize> = (start..end).filter(|&sample| batch.weights()[sample] > 0.0).collect();
            let tokens: usize = kept.iter().map(|&sample| batch.rollouts()[sample].drawn()).sum();
            if tokens == 0 {
                continue;
            }
            let tokens = tokens as f64;
            let Some((gradients, sums)) = self.gradients(batch, &kept, signal) else { continue };
            let (norm, gradients) = gradients.finish(self.model.parameters(), self.spec.optimizer.clip_grad);
            gap.get_or_insert(sums.gap / tokens);
            if !norm.is_finite() || !sums.loss.is_finite() {
                report.skipped_updates += 1;
                continue;
            }
            report.lr = schedule::learning_rate(&self.spec.optimizer, self.optimizer.steps() + 1);
            self.wake_optimizer();
            self.optimizer.step(gradients, report.lr);
            report.updates += 1;
            report.loss += sums.loss;
            report.clip_fraction += sums.clipped / tokens;
            report.entropy += sums.surprisal / tokens;
            report.grad_norm += norm;
            taught.divergence += sums.divergence;
            taught.log_ratio += sums.log_ratio;
            taught.taught += sums.taught;
            taught.log_ratios.extend(sums.log_ratios);
            report.head_seconds += sums.head_seconds;
            report.scoring_seconds += sums.scoring_seconds;
            seen += tokens;
        }
        self.rest();
        report.logprob_gap = gap.unwrap_or_default();
        let applied = report.updates.max(1) as f64;
        for mean in [&mut report.loss, &mut report.clip_fraction, &mut report.entropy, &mut report.grad_norm] {
            *mean /= applied;
        }
        if taught.taught > 0.0 {
            report.divergence = Some(taught.divergence / taught.taught);
            report.log_ratio = Some(taught.log_ratio / taught.taught);
            report.log_ratio_p95 = quantile(&taught.log_ratios, 0.95);
        }
        if self.distillation.is_some() && signal.is_some() {
            report.selected = Some(if seen > 0.0 { taught.taught / seen } else { 0.0 });
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
}
