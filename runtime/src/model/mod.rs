//! Decoders: families read from `config.json`, weights by name, forward passes, key-value cache.
//!
//! [`Model::hidden`] is the differentiable road: packed sequences, no padding, each weight a leaf
//! under its checkpoint name. The engine in [`crate::rollout`] takes the inference road on the
//! same memory: fused projections, in-place rotation, a key-value cache.
//!
//! | room | what it does |
//! |---|---|
//! | `architecture` | the families, and what their checkpoints are called |
//! | `config` | `config.json` in both spellings; what is not computed is refused by name |
//! | `layout` | names and shapes of the tensors |
//! | `file`, `shard`, `load` | safetensors read, single or sharded; `fit`: whether they are a config's |
//! | `write`, `save` | safetensors written |
//! | `companions` | the files beside the weights |
//! | `footprint` | the memory a model takes |
//! | `weights`, `initial` | weights by name for a decoder; fresh ones |
//! | `decoder` | the stack of layers: a `mixer` and a `feed_forward` each |
//! | `recompute` | the same with a layer's activations computed again on the way back |
//! | `mixer` | `attention` (with `rotary`), or `delta_net` (with `delta_rule`) |
//! | `feed_forward` | a dense one, or `experts` |
//! | `projection`, `norm` | what all of them are made of |
//! | `packing`, `chunks` | sequences end to end, and mixers that keep them apart |
//! | `cache` | what running sequences leave: `key_values`, or `recurrent` states |
//! | `cpu` | float32 steps between the matrix products, on a CPU |
//!
//! A family is data: what `config` reads, a mixer and a feed-forward for each layer, and names. How
//! to add one is in `docs/models.md`.

mod architecture;
mod attention;
mod cache;
mod chunks;
mod companions;
mod config;
mod cpu;
mod decoder;
mod delta_net;
mod delta_rule;
mod error;
mod experts;
mod feed_forward;
mod file;
mod fit;
mod footprint;
mod initial;
mod key_values;
mod layout;
mod load;
mod mixer;
mod norm;
mod packing;
mod projection;
mod recompute;
mod recurrent;
mod rotary;
mod save;
mod shard;
#[cfg(test)]
mod tests;
mod weights;
mod write;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

pub use architecture::Architecture;
pub use config::{DeltaNetConfig, ExpertsConfig, FeedForwardKind, LayerKind, MixerKind, ModelConfig, RopeScaling};
pub use error::Error;

pub(crate) use cache::KvCache;
pub(crate) use companions::{copy_companions, set_dtype};
use decoder::Decoder;
pub(crate) use decoder::Placing;
pub(crate) use file::read_text;
pub(crate) use fit::fit;
pub(crate) use footprint::Footprint;
use layout::Wanted;
use load::Beside;
pub(crate) use load::{Checkpoint, FileTensor};
use packing::Packing;
pub use recompute::Recomputed;
use save::Stored;
pub(crate) use write::{Put, Writable, write};

/// Where and in which type a model computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadOptions {
    /// The device of all weights.
    pub device: Device,
    /// Their type: `Float`, `BFloat16` or `Half`, whatever the file holds. A few small ones that
    /// need it (a delta net's `A_log` and norm) are float32 in any case.
    pub dtype: Kind,
}

impl Default for LoadOptions {
    /// float32 on the CPU.
    fn default() -> Self {
        Self { device: Device::Cpu, dtype: Kind::Float }
    }
}

/// A decoder with its weights. `Send`, not `Sync`: one thread owns it.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    options: LoadOptions,
    decoder: Decoder,
    parameters: Vec<(String, Tensor)>,
    /// What the checkpoint has beside them, and is written back.
    beside: Arc<Beside>,
}

impl Model {
    /// Reads a Hugging Face folder: `config.json` and safetensors, single or sharded.
    ///
    /// # Errors
    /// As [`ModelConfig::from_folder`]; then [`Error::NoWeights`], [`Error::Damaged`],
    /// [`Error::Index`], and by name [`Error::Missing`], [`Error::Surplus`], [`Error::Shape`],
    /// [`Error::StoredType`], [`Error::TiedHeadDiffers`].
    pub fn load(folder: &Path, options: LoadOptions) -> Result<Self, Error> {
        let config = ModelConfig::from_folder(folder)?;
        let checkpoint = load::Checkpoint::open(folder)?;
        let beside = Arc::new(checkpoint.check(&config)?);
        let mut fill = |wanted: &Wanted, tensor: &Tensor| checkpoint.fill(&wanted.name, tensor);
        let decoder = Decoder::new(&config, options, &mut fill)?;
        if !beside.carried.is_empty() {
            let note = config.note().unwrap_or_default();
            tracing::info!(tensors = beside.carried.len(), "{note}");
        }
        Ok(Self::assemble(config, options, decoder, beside))
    }

    /// Fresh weights: matrices from N(0, `initializer_range`²), norms that scale by 1, biases 0, and
    /// a delta net's rates of forgetting from slow to fast. The same seed gives the same weights
    /// everywhere.
    pub fn init(config: ModelConfig, options: LoadOptions, seed: u64) -> Self {
        let mut normals = initial::Normals::new(seed);
        let mut fill = |wanted: &Wanted, tensor: &Tensor| -> Result<(), std::convert::Infallible> {
            tensor.shallow_clone().copy_(&initial::tensor(wanted, config.initializer_range, &mut normals));
            Ok(())
        };
        let Ok(decoder) = Decoder::new(&config, options, &mut fill);
        Self::assemble(config, options, decoder, Arc::new(Beside { tied_head: false, carried: Vec::new() }))
    }

    fn assemble(config: ModelConfig, options: LoadOptions, decoder: Decoder, beside: Arc<Beside>) -> Self {
        let parameters = decoder.parameters();
        Self { config, options, decoder, parameters, beside }
    }

    /// The shape of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Device and type of the weights.
    pub fn options(&self) -> LoadOptions {
        self.options
    }

    /// Every weight once, by its checkpoint name, in a fixed order. A tied output projection is
    /// the embedding. Update them in place (`copy_`, `add_`, …, under `no_grad`): they share
    /// memory with the fused projections of the inference road and with [`Model::share`]d models.
    pub fn parameters(&self) -> &[(String, Tensor)] {
        &self.parameters
    }

    /// Turns gradients of all weights on or off.
    pub fn set_requires_grad(&self, on: bool) {
        for (_, tensor) in &self.parameters {
            let _ = tensor.set_requires_grad(on);
        }
    }

    /// A second model on the same memory: an in-place update of one is seen by both. Its weights
    /// are leaves of their own, without gradients.
    #[must_use]
    pub fn share(&self) -> Self {
        Self::assemble(self.config.clone(), self.options, self.decoder.share(), Arc::clone(&self.beside))
    }

    /// A second model with the same weights in memory of its own, without gradients.
    #[must_use]
    pub fn copy(&self) -> Self {
        self.copy_to(self.options.device)
    }

    /// As [`Model::copy`], in the memory of another device.
    #[must_use]
    pub fn copy_to(&self, device: Device) -> Self {
        let options = LoadOptions { device, ..self.options };
        let values: HashMap<&str, &Tensor> = self.parameters.iter().map(|(name, from)| (name.as_str(), from)).collect();
        let mut fill = |wanted: &Wanted, tensor: &Tensor| -> Result<(), std::convert::Infallible> {
            tch::no_grad(|| tensor.shallow_clone().copy_(values[wanted.name.as_str()]));
            Ok(())
        };
        let Ok(decoder) = Decoder::new(&self.config, options, &mut fill);
        Self::assemble(self.config.clone(), options, decoder, Arc::clone(&self.beside))
    }

    /// Hidden states of packed sequences after the final norm; causal within each sequence,
    /// differentiable. What several sequences have in common at their beginning (the prompt of a
    /// group of responses) is computed once.
    ///
    /// # Shapes
    /// `input_ids [T]` int64, the sequences end to end; `lengths` sums to `T`, each ≥ 1 →
    /// `[T, H]` in the model's type.
    ///
    /// # Panics
    /// When `lengths` does not add up to `T` or holds a zero.
    pub fn hidden(&self, input_ids: &Tensor, lengths: &[usize]) -> Tensor {
        let packing = self.packing(input_ids, lengths);
        let hidden = self.decoder.forward(&packing, None);
        if packing.shared() { hidden.index_select(0, &self.on_device(packing.rows())) } else { hidden }
    }

    /// As [`Model::hidden`], of some rows only: the last layer computes no others, which is most
    /// of its work where few rows carry loss.
    ///
    /// # Shapes
    /// `input_ids [T]`, `rows [N]` (int64, places in the pack) → `[N, H]`.
    ///
    /// # Panics
    /// As [`Model::hidden`], and when a row is not below `T`.
    pub fn hidden_rows(&self, input_ids: &Tensor, lengths: &[usize], rows: &Tensor) -> Tensor {
        let (packing, rows) = self.packed_rows(input_ids, lengths, rows);
        self.decoder.forward(&packing, Some(&rows))
    }

    /// Scores of every vocabulary entry. # Shapes: `hidden [N, H]` → `[N, V]`, in the model's type.
    pub fn logits(&self, hidden: &Tensor) -> Tensor {
        hidden.linear::<Tensor>(self.output_weight(), None)
    }

    /// The output projection `[V, H]`: `lm_head`, or the embedding where tied.
    pub fn output_weight(&self) -> &Tensor {
        self.decoder.output_weight()
    }

    /// Names of tensors of the checkpoint that belong to the model and are not computed (a vision
    /// tower, multi-token prediction). They stay in the source's files, which are held open.
    pub fn carried(&self) -> impl Iterator<Item = &str> {
        self.beside.carried.iter().map(|carried| carried.name.as_str())
    }

    /// Writes the weights as `model.safetensors`, or as shards of at most 5 GB with an index,
    /// under the names they were read by, in the model's type; and, as the source has them, the
    /// tensors that are not computed. Each file appears whole or not at all, the index last.
    ///
    /// # Errors
    /// [`Error::Write`], and [`Error::Read`] where the source's tensors cannot be read any more.
    pub fn save_weights(&self, folder: &Path) -> Result<(), Error> {
        save::save(&self.stored_tensors(), folder, save::SHARD_BYTES)
    }

    fn stored_tensors(&self) -> Vec<Stored> {
        let weight = |(name, tensor): &(String, Tensor)| Stored::Weight(name.clone(), tensor.detach());
        let mut all: Vec<_> = self.parameters.iter().map(weight).collect();
        if self.beside.tied_head {
            all.push(Stored::Weight(layout::HEAD.to_owned(), self.output_weight().detach()));
        }
        all.extend(self.beside.carried.iter().cloned().map(Stored::Carried));
        all
    }

    /// The inference road over packed sequences: hidden states of `rows`, keys and values kept
    /// where `placing` says.
    ///
    /// # Shapes
    /// `input_ids` `T` of them, `rows` `N` places in the pack → `[N, H]`.
    pub(crate) fn prefill(
        &self,
        input_ids: &[i64],
        lengths: &[usize],
        rows: &[i64],
        placing: Option<Placing<'_>>,
    ) -> Tensor {
        let packing = Packing::new(input_ids, lengths, self.options.device);
        let rows: Vec<i64> = rows.iter().map(|&token| packing.rows()[token as usize]).collect();
        self.decoder.prefill(&packing, &self.on_device(&rows), placing)
    }

    /// The inference road, one token for each of the first `positions.len()` slots of the cache.
    ///
    /// # Shapes
    /// `input_ids [B]` int64 → `[B, H]`.
    pub(crate) fn decode(&self, input_ids: &Tensor, positions: &[i64], cache: &mut KvCache) -> Tensor {
        self.decoder.decode(&input_ids.to_device(self.options.device), positions, cache)
    }

    /// The pack, and where it computes `rows`.
    fn packed_rows(&self, input_ids: &Tensor, lengths: &[usize], rows: &Tensor) -> (Packing, Tensor) {
        let packing = self.packing(input_ids, lengths);
        let rows = self.on_device(packing.rows()).index_select(0, &rows.to_device(self.options.device));
        (packing, rows)
    }

    fn packing(&self, input_ids: &Tensor, lengths: &[usize]) -> Packing {
        let ids = Vec::<i64>::try_from(input_ids.to_device(Device::Cpu)).expect("packed ids are a list of int64");
        Packing::new(&ids, lengths, self.options.device)
    }

    fn on_device(&self, values: &[i64]) -> Tensor {
        Tensor::from_slice(values).to_device(self.options.device)
    }
}
