//! A teacher that shares the trainer's device: it scores a step's responses, and leaves.
//!
//! What it leaves, in host memory, is the smaller of two things for each response token: its last
//! hidden state (`H` numbers) or its logits (`V` numbers). `H` is smaller for every published
//! language model (by 37 times for Qwen3-8B); then its output projection comes along, which phase
//! two applies to a chunk of rows at a time. Only where the vocabulary is smaller than the hidden
//! state are logits kept.
//!
//! Between steps the teacher is a folder: its weights are read for each step (from the page cache,
//! as a rule) straight onto the device, and dropped before the student comes back.

use std::path::{Path, PathBuf};

use tch::{Device, Kind, Tensor, no_grad};
use training_gym_core::spec::TopK;

use super::error::Error;
use super::micro_batch::MicroBatch;
use super::packing;
use super::seat::{Parked, Seated, bytes_of};
use super::taught::TeacherRows;
use crate::batch::{Rollout, TrainBatch};
use crate::model::{Checkpoint, LoadOptions, Model, ModelConfig};

/// A teacher at rest.
#[derive(Debug)]
pub struct CoTeacher {
    folder: PathBuf,
    options: LoadOptions,
    /// Vocabulary entries it has in common with the student.
    vocab: i64,
    max_tokens: usize,
}

/// A teacher on the device, in the student's place.
#[derive(Debug)]
pub struct SeatedTeacher<'a> {
    teacher: &'a CoTeacher,
    model: Model,
    _seated: Seated,
}

impl SeatedTeacher<'_> {
    /// Bytes of its weights.
    pub fn bytes(&self) -> usize {
        bytes_of(&self.model)
    }

    /// Its model, to draw responses with; whoever shares it lets go before the teacher leaves.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Scores responses in packed passes.
    ///
    /// # Errors
    /// [`Error::Token`] for an id it does not have.
    pub fn score(&self, rollouts: &[Rollout]) -> Result<TeacherSignal, Error> {
        self.teacher.check_tokens(rollouts)?;
        Ok(no_grad(|| self.teacher.scored(&self.model, rollouts)))
    }
}

/// What a teacher left of a step's responses, in host memory, or said of them over HTTP.
#[derive(Debug)]
pub struct TeacherSignal {
    /// `[M, H]`, `[M, V]` or, from a server, `[M, 2k + 1]` of each sample.
    samples: Vec<Tensor>,
    /// The output projection `[V, H]`, where hidden states were kept.
    weight: Option<Tensor>,
    pub(super) vocab: i64,
    /// Where a server named likeliest tokens: what is learnt from them.
    top: Option<TopK>,
}

impl CoTeacher {
    /// A teacher of `folder`, which is read in each step. `tokens` is how many entries the tokenizer
    /// has that both sides share; either vocabulary may be padded beyond that. `max_tokens` is what a
    /// packed pass of it holds.
    ///
    /// # Errors
    /// [`Error::Teacher`] when its config or its weights' headers cannot be used; [`Error::TeacherVocabulary`] when one of the
    /// two has fewer entries than the tokenizer.
    pub fn new(
        folder: &Path,
        options: LoadOptions,
        student: &ModelConfig,
        tokens: usize,
        max_tokens: usize,
    ) -> Result<Self, Error> {
        let unusable = |source| Error::Teacher { folder: folder.to_owned(), source };
        let config = ModelConfig::from_folder(folder).map_err(unusable)?;
        // The headers alone: what the first step would fail on is told before any.
        Checkpoint::open(folder).and_then(|weights| weights.check(&config)).map_err(unusable)?;
        let vocab = config.vocab_size.min(student.vocab_size);
        if vocab < tokens {
            return Err(Error::TeacherVocabulary {
                folder: folder.to_owned(),
                teacher: config.vocab_size,
                student: student.vocab_size,
                tokens,
            });
        }
        Ok(Self { folder: folder.to_owned(), options, vocab: vocab as i64, max_tokens })
    }

    /// Phase one: reads the weights onto the device, scores the responses in packed passes, and drops
    /// the weights.
    ///
    /// # Errors
    /// [`Error::Teacher`] when the weights cannot be read; [`Error::Token`] for an id it does not have.
    pub fn score(&self, student: &Parked<'_>, rollouts: &[Rollout]) -> Result<TeacherSignal, Error> {
        self.check_tokens(rollouts)?;
        self.sit(student)?.score(rollouts)
    }

    /// Reads the weights onto the device, where they stay until what is returned is dropped.
    ///
    /// # Errors
    /// [`Error::Teacher`] when the weights cannot be read.
    pub fn sit(&self, student: &Parked<'_>) -> Result<SeatedTeacher<'_>, Error> {
        let unusable = |source| Error::Teacher { folder: self.folder.clone(), source };
        let model = Model::load(&self.folder, self.options).map_err(unusable)?;
        let _seated = student.place().take(bytes_of(&model));
        Ok(SeatedTeacher { teacher: self, model, _seated })
    }

    fn check_tokens(&self, rollouts: &[Rollout]) -> Result<(), Error> {
        for rollout in rollouts {
            let ids = rollout.prompt.prompt_ids.iter().chain(&rollout.response_ids);
            if let Some(&id) = ids.into_iter().find(|id| !(0..self.vocab).contains(*id)) {
                return Err(Error::Token { id, vocab_size: self.vocab, sample: rollout.index });
            }
        }
        Ok(())
    }

    fn scored(&self, model: &Model, rollouts: &[Rollout]) -> TeacherSignal {
        let config = model.config();
        let hidden_is_smaller = config.hidden_size <= config.vocab_size;
        let lengths: Vec<usize> = rollouts.iter().map(MicroBatch::input_length).collect();
        let mut samples = Vec::with_capacity(rollouts.len());
        for part in packing::micro_batches(&lengths, self.max_tokens) {
            let rollouts = &rollouts[part];
            let micro = MicroBatch::of_rollouts(rollouts).to_device(self.options.device);
            let mut rows = model.hidden_rows(&micro.input_ids, &micro.lengths, &micro.rows);
            if !hidden_is_smaller {
                rows = model.logits(&rows);
            }
            let rows = rows.to_device(Device::Cpu);
            let mut start = 0;
            for rollout in rollouts {
                let length = rollout.drawn() as i64;
                samples.push(rows.narrow(0, start, length));
                start += length;
            }
        }
        let weight = hidden_is_smaller.then(|| kept(model.output_weight(), self.options.device));
        TeacherSignal { samples, weight, vocab: self.vocab, top: None }
    }
}

/// The projection in host memory, of its own: a tied one must not keep the model alive.
fn kept(weight: &Tensor, device: Device) -> Tensor {
    if device == Device::Cpu { weight.detach().copy() } else { weight.detach().to_device(Device::Cpu) }
}

impl TeacherSignal {
    /// From what a server said of a batch's responses; `vocab` is the student's.
    ///
    /// # Errors
    /// [`Error::NoLikeliest`] where it named no tokens, or another number of them; [`Error::TeacherToken`]
    /// for an id that the student does not have.
    pub fn of_server(batch: &TrainBatch, spec: TopK, vocab: i64) -> Result<Self, Error> {
        let answers = batch.rollouts().iter().zip(batch.scores()).map(|(rollout, score)| {
            let sample = rollout.index;
            let named = score.teacher_top.as_ref().zip(score.teacher_logprobs.as_ref());
            let (top, own) = named.filter(|(top, _)| top.k() == spec.k).ok_or(Error::NoLikeliest { sample })?;
            if let Some(&id) = top.ids().iter().find(|id| !(0..vocab).contains(*id)) {
                return Err(Error::TeacherToken { id, vocab_size: vocab, sample });
            }
            let shape = [own.len() as i64, spec.k as i64];
            let ids = Tensor::from_slice(top.ids()).view(shape).to_kind(Kind::Double);
            let logprobs = Tensor::from_slice(top.logprobs()).view(shape).to_kind(Kind::Double);
            let own = Tensor::from_slice(own).unsqueeze(1).to_kind(Kind::Double);
            Ok(Tensor::cat(&[ids, logprobs, own], 1))
        });
        Ok(Self { samples: answers.collect::<Result<_, _>>()?, weight: None, vocab, top: Some(spec) })
    }

    /// Whether logits were kept instead of hidden states.
    pub fn keeps_logits(&self) -> bool {
        self.weight.is_none() && self.top.is_none()
    }

    /// What rows of it mean, with its projection on their device.
    pub(super) fn teaching<'a>(&self, rows: &'a Tensor, weight: Option<&'a Tensor>) -> TeacherRows<'a> {
        match (self.top, weight) {
            (Some(spec), _) => TeacherRows::Likeliest { rows, spec },
            (None, Some(weight)) => TeacherRows::Hidden { rows, weight },
            (None, None) => TeacherRows::Logits { rows },
        }
    }

    /// Bytes in host memory, the projection included.
    pub fn bytes(&self) -> usize {
        let bytes = |tensor: &Tensor| tensor.numel() * tensor.kind().elt_size_in_bytes();
        self.samples.iter().chain(&self.weight).map(bytes).sum()
    }

    /// The projection on the device of phase two.
    pub(super) fn weight_on(&self, device: Device) -> Option<Tensor> {
        self.weight.as_ref().map(|weight| weight.to_device(device))
    }

    /// The rows of some samples end to end, on a device.
    pub(super) fn rows_of(&self, samples: &[usize], device: Device) -> Tensor {
        let rows: Vec<&Tensor> = samples.iter().map(|&sample| &self.samples[sample]).collect();
        if rows.is_empty() {
            return Tensor::zeros([0, 0], (Kind::Float, device));
        }
        Tensor::cat(&rows, 0).to_device(device)
    }
}
