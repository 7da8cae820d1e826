//! Supervised training from random weights: how the demo's teacher and base student are made.
//!
//! A door of its own, like [`crate::serve`]: rows of prompts and responses in, a Hugging Face
//! folder with weights out. Each row is read once, in the file's order; the loss is the mean
//! cross-entropy of a batch's scored tokens.

mod rows;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Instant;

use tch::{Device, Kind, Tensor};
use training_gym_core::spec::{LrDecayStyle, OptimizerSpec};

use crate::model::{self, LoadOptions, Model, ModelConfig};
use crate::settings::PretrainOptions;
use crate::text::{self, TextPipeline};
use crate::update::adamw::{AdamW, Gradients};
use crate::update::schedule::learning_rate;
use rows::Example;

/// Why no model was made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The rows file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line of it is not a row.
    #[error("{path}, line {line}: {problem}; a row is {{\"prompt\", \"response\", \"unscored\"}}")]
    Row {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// There is nothing to learn from.
    #[error("{path} holds no rows")]
    NoRows {
        /// The file.
        path: PathBuf,
    },
    /// A batch needs a row.
    #[error("--batch-size 0: must be ≥ 1")]
    EmptyBatch,
    /// A training needs a step.
    #[error("--stop-after 0: must be ≥ 1")]
    NoSteps,
    /// Nothing would end a response.
    #[error("the model folder names no end token: set eos_token_id in generation_config.json")]
    NoEndToken,
    /// Training ran away.
    #[error("the loss of step {step} is not finite: lower --lr")]
    NotFinite {
        /// The step, from 1.
        step: u64,
    },
    /// Tokenizer or template.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// Configuration or weights.
    #[error(transparent)]
    Model(#[from] model::Error),
}

/// What a pretraining came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Optimizer steps.
    pub steps: u64,
    /// Mean cross-entropy of the last tenth of the steps, nats a token.
    pub loss: f64,
}

/// Trains fresh weights on the rows and writes them into the model's folder.
///
/// # Errors
/// See [`Error`]; nothing is written then.
pub fn run(options: &PretrainOptions) -> Result<Report, Error> {
    if options.batch_size == 0 {
        return Err(Error::EmptyBatch);
    }
    if options.stop_after == Some(0) {
        return Err(Error::NoSteps);
    }
    tch::set_num_threads(options.threads.max(1) as i32);
    let text = TextPipeline::from_folder(&options.model)?;
    let examples = rows::read(&options.rows, &text)?;
    let config = ModelConfig::from_folder(&options.model)?;
    let model = Model::init(config, LoadOptions { device: Device::Cpu, dtype: Kind::Float }, options.seed);
    let report = train(&model, &examples, options)?;
    model.save_weights(&options.model)?;
    Ok(report)
}

fn train(model: &Model, examples: &[Example], options: &PretrainOptions) -> Result<Report, Error> {
    let batches: Vec<&[Example]> = examples.chunks(options.batch_size).collect();
    let spec = optimizer(options, batches.len() as u64);
    model.set_requires_grad(true);
    let mut optimizer = AdamW::new(model.parameters(), &spec);
    let started = Instant::now();
    let mut losses = Vec::with_capacity(batches.len());
    let steps = options.stop_after.unwrap_or(batches.len()).min(batches.len());
    for (index, batch) in batches[..steps].iter().enumerate() {
        let step = index as u64 + 1;
        let (loss, gradients) = gradients(model, batch);
        let (norm, gradients) = gradients.finish(model.parameters(), spec.clip_grad);
        if !(loss.is_finite() && norm.is_finite()) {
            return Err(Error::NotFinite { step });
        }
        optimizer.step(gradients, learning_rate(&spec, step));
        losses.push(loss);
        if step.is_multiple_of(100) || index + 1 == steps {
            let recent = mean(&losses[losses.len().saturating_sub(100)..]);
            let seconds = started.elapsed().as_secs_f64();
            tracing::info!("step {step}/{steps}: loss {recent:.4}, {seconds:.0} s");
        }
    }
    let last = &losses[losses.len() - losses.len().div_ceil(10)..];
    Ok(Report { steps: losses.len() as u64, loss: mean(last) })
}

fn optimizer(options: &PretrainOptions, steps: u64) -> OptimizerSpec {
    OptimizerSpec {
        lr: options.lr,
        min_lr: options.lr / 50.0,
        lr_warmup_iters: options.warmup.min(steps),
        lr_decay_iters: steps,
        lr_decay_style: LrDecayStyle::Cosine,
        weight_decay: options.weight_decay,
        adam_beta1: 0.9,
        adam_beta2: 0.95,
        adam_eps: 1e-8,
        clip_grad: Some(1.0),
    }
}

/// The mean cross-entropy of a batch's scored tokens, and its gradient.
fn gradients(model: &Model, batch: &[Example]) -> (f64, Gradients) {
    // Packed end to end, each sequence without its last token: nothing follows that one.
    let (mut ids, mut lengths, mut rows, mut targets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for example in batch {
        for &position in &example.scored {
            rows.push((ids.len() + position - 1) as i64);
            targets.push(example.ids[position]);
        }
        ids.extend_from_slice(&example.ids[..example.ids.len() - 1]);
        lengths.push(example.ids.len() - 1);
    }
    let hidden = model.hidden(&Tensor::from_slice(&ids), &lengths).index_select(0, &Tensor::from_slice(&rows));
    let loss = model.logits(&hidden).to_kind(Kind::Float).cross_entropy_for_logits(&Tensor::from_slice(&targets));
    let weights: Vec<&Tensor> = model.parameters().iter().map(|(_, weight)| weight).collect();
    let mut gradients = Gradients::new(weights.len());
    for (index, gradient) in Tensor::run_backward(&[&loss], &weights, false, false).into_iter().enumerate() {
        gradients.add(index, gradient);
    }
    (loss.double_value(&[]), gradients)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
