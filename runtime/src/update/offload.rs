//! Weights and optimizer state that rest in host memory while nobody computes with them.
//!
//! | what | rests | by |
//! |---|---|---|
//! | moments, float32 masters of narrower weights | but for the update | `optimizer_offload` |
//! | the starting weights of a KL penalty | but for their pass | `param_offload` |
//! | the student, between its last token and the update | while scores are waited for | `param_offload` |
//!
//! What moves is counted where it moves: on a CPU, whose memory is the host's, nothing does, and the
//! count is 0. A move is a copy, bit for bit.

use std::time::Instant;

use tch::Device;
use training_gym_core::spec::MemorySpec;

use super::{Updater, adamw, seat};

/// Moves since they were last asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moves {
    /// Bytes, in both directions.
    pub bytes: u64,
    /// Seconds.
    pub seconds: f64,
}

impl Updater {
    /// Does without memory as `spec` says, from now on.
    #[must_use]
    pub fn sparing(mut self, spec: MemorySpec) -> Self {
        self.memory = spec;
        self.rest();
        self
    }

    /// What was moved since the last call.
    pub fn take_moves(&mut self) -> Moves {
        std::mem::take(&mut self.moves)
    }

    /// Bytes of weights, optimizer state and reference on the model's device.
    pub fn resident_bytes(&self) -> usize {
        let device = self.model.options().device;
        let optimizer =
            if self.memory.optimizer_offload && device != Device::Cpu { 0 } else { self.optimizer.state_bytes() };
        let reference = self.reference.iter().filter(|reference| reference.options().device == device);
        seat::bytes_of(&self.model) + optimizer + reference.map(seat::bytes_of).sum::<usize>()
    }

    /// Puts what may rest into host memory.
    pub(super) fn rest(&mut self) {
        let began = Instant::now();
        let mut bytes = 0;
        if self.memory.optimizer_offload {
            bytes += self.optimizer.rest();
        }
        if self.memory.param_offload {
            bytes += self.move_reference(Device::Cpu);
        }
        self.count(bytes, began);
    }

    /// Brings the optimizer's state to the weights.
    pub(super) fn wake_optimizer(&mut self) {
        if self.memory.optimizer_offload {
            let began = Instant::now();
            let bytes = self.optimizer.wake();
            self.count(bytes, began);
        }
    }

    /// Brings the starting weights to the model's device.
    pub(super) fn wake_reference(&mut self) {
        if self.memory.param_offload {
            let began = Instant::now();
            let bytes = self.move_reference(self.model.options().device);
            self.count(bytes, began);
        }
    }

    /// Moves the student into host memory, where `param_offload` says so; returns whether it moved. What
    /// shares its memory has to share it anew ([`crate::model::Model::share`]), or the device is not free.
    pub fn offload_student(&mut self) -> bool {
        let device = self.model.options().device;
        if !self.memory.param_offload || device == Device::Cpu {
            return false;
        }
        self.home = Some(device);
        self.move_student(Device::Cpu);
        true
    }

    /// Brings the student back to where it came from; returns whether it moved.
    pub fn onload_student(&mut self) -> bool {
        let Some(device) = self.home.take() else { return false };
        self.move_student(device);
        true
    }

    fn move_student(&mut self, device: Device) {
        let began = Instant::now();
        self.relocate_weights(device, false);
        let bytes = seat::bytes_of(&self.model);
        self.count(bytes, began);
    }

    fn move_reference(&mut self, device: Device) -> usize {
        let Some(reference) = self.reference.as_mut().filter(|reference| reference.options().device != device) else {
            return 0;
        };
        *reference = reference.copy_to(device);
        reference.parameters().iter().map(|(_, weight)| adamw::bytes_of(weight)).sum()
    }

    fn count(&mut self, bytes: usize, began: Instant) {
        if bytes > 0 {
            self.moves.bytes += bytes as u64;
            self.moves.seconds += began.elapsed().as_secs_f64();
        }
    }
}
