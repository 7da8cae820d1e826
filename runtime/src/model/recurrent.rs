//! States of one delta net layer.

use tch::{Device, Kind, Tensor};

use super::config::ModelConfig;

/// What a delta net keeps of each running sequence.
#[derive(Debug)]
pub(super) struct Recurrent {
    /// The convolution's last inputs, `[slots, kernel − 1, channels]`, in the model's type.
    inputs: Tensor,
    /// `[slots, value heads, key dim, value dim]`, float32.
    states: Tensor,
}

/// Which sequence of a pack goes to which slot.
#[derive(Debug)]
pub(super) struct Copies {
    from: Tensor,
    to: Tensor,
}

impl Copies {
    /// Sequence `i` goes to each of `slots[i]`.
    pub(super) fn new(slots: &[Vec<usize>], device: Device) -> Self {
        let pairs = slots.iter().enumerate().flat_map(|(i, slots)| slots.iter().map(move |&to| (i as i64, to as i64)));
        let (from, to): (Vec<i64>, Vec<i64>) = pairs.unzip();
        let tensor = |values: &[i64]| Tensor::from_slice(values).to_device(device);
        Self { from: tensor(&from), to: tensor(&to) }
    }
}

impl Recurrent {
    pub(super) fn new(config: &ModelConfig, (kind, device): (Kind, Device)) -> Self {
        let sizes = config.delta_net.expect("a layer that has one has its sizes");
        let state = [0, sizes.value_heads as i64, sizes.key_head_dim as i64, sizes.value_head_dim as i64];
        Self {
            inputs: Tensor::zeros([0, sizes.kernel as i64 - 1, sizes.channels() as i64], (kind, device)),
            states: Tensor::zeros(state, (Kind::Float, device)),
        }
    }

    /// All of it.
    pub(super) fn tensors(&self) -> [&Tensor; 2] {
        [&self.inputs, &self.states]
    }

    /// Another number of slots; the first `keep` keep what they hold.
    pub(super) fn resize(&mut self, slots: usize, keep: usize) {
        if slots as i64 == self.inputs.size()[0] {
            return;
        }
        for tensor in [&mut self.inputs, &mut self.states] {
            let mut size = tensor.size();
            size[0] = slots as i64;
            let resized = Tensor::zeros(size.as_slice(), (tensor.kind(), tensor.device()));
            resized.narrow(0, 0, keep as i64).copy_(&tensor.narrow(0, 0, keep as i64));
            *tensor = resized;
        }
    }

    /// Copies one slot to another.
    pub(super) fn copy_slot(&mut self, from: usize, to: usize) {
        for tensor in [&self.inputs, &self.states] {
            tensor.select(0, to as i64).copy_(&tensor.select(0, from as i64));
        }
    }

    /// Keeps what a prefill left: `inputs` and `states` by sequence of the pack.
    pub(super) fn write(&mut self, inputs: &Tensor, states: &Tensor, copies: &Copies) {
        let _ = self.inputs.index_copy_(0, &copies.to, &inputs.index_select(0, &copies.from));
        let _ = self.states.index_copy_(0, &copies.to, &states.index_select(0, &copies.from));
    }

    /// Inputs and states of the first `count` slots, to be changed in place.
    pub(super) fn first(&self, count: i64) -> (Tensor, Tensor) {
        (self.inputs.narrow(0, 0, count), self.states.narrow(0, 0, count))
    }
}
