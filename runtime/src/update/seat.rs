//! The training device's one place for a model at work.
//!
//! Full-distribution distillation has two models and room for one. Who holds a [`Seated`] has its
//! weights on the device; a second one cannot be had. The types see to the order: a teacher scores
//! against a [`Parked`] student only, and a parked student is not to be updated.
//!
//! ```compile_fail
//! # use training_gym_runtime::{batch::TrainBatch, update::{CoTeacher, Updater}};
//! # fn both(updater: &mut Updater, teacher: &CoTeacher, batch: &TrainBatch) {
//! let parked = updater.park();
//! updater.apply(batch).unwrap(); // the student is not on the device
//! teacher.score(&parked, batch.rollouts()).unwrap();
//! # }
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use tch::Device;

use super::Updater;
use crate::model::Model;

/// A device's place for one model. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Seat(Arc<Mutex<Ledger>>);

#[derive(Clone, Copy, Debug, Default)]
struct Ledger {
    taken: usize,
    turns: u64,
    most: usize,
    bytes: usize,
    most_bytes: usize,
}

/// A model's hold of the place; dropping it gives the place back.
#[derive(Debug)]
pub(super) struct Seated {
    seat: Seat,
    bytes: usize,
}

impl Seat {
    /// Takes the place for a model of so many bytes.
    ///
    /// # Panics
    /// When it is taken: two models would be on the device.
    pub(super) fn take(&self, bytes: usize) -> Seated {
        let mut ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(ledger.taken, 0, "the training device holds one model at a time");
        ledger.taken += 1;
        ledger.turns += 1;
        ledger.bytes += bytes;
        ledger.most = ledger.most.max(ledger.taken);
        ledger.most_bytes = ledger.most_bytes.max(ledger.bytes);
        Seated { seat: self.clone(), bytes }
    }

    /// How often it was taken.
    pub fn turns(&self) -> u64 {
        self.ledger().turns
    }

    /// Models that had it at once, at the most: 1.
    pub fn most(&self) -> usize {
        self.ledger().most
    }

    /// Bytes of weights that had it at once, at the most.
    pub fn most_bytes(&self) -> usize {
        self.ledger().most_bytes
    }

    fn ledger(&self) -> Ledger {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        let mut ledger = self.seat.0.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.taken -= 1;
        ledger.bytes -= self.bytes;
    }
}

/// Bytes of a model's weights.
pub(super) fn bytes_of(model: &Model) -> usize {
    model.parameters().iter().map(|(_, weight)| weight.numel() * weight.kind().elt_size_in_bytes()).sum()
}

/// A student whose weights, optimizer and reference are in host memory: the device is free for the
/// teacher. On a CPU the host is the device, and only the place is given up.
#[derive(Debug)]
pub struct Parked<'a> {
    updater: &'a mut Updater,
    /// Where it came from, unless that is the host.
    from: Option<Device>,
}

impl<'a> Parked<'a> {
    pub(super) fn new(updater: &'a mut Updater) -> Self {
        let device = updater.model().options().device;
        let from = (device != Device::Cpu).then_some(device);
        if from.is_some() {
            updater.relocate(Device::Cpu);
        }
        updater.stand_up();
        Self { updater, from }
    }

    /// The student in host memory, where it was moved there: what shared its memory on the device
    /// ([`Model::share`]) has to share this now, or the device is not free.
    pub fn moved(&self) -> Option<&Model> {
        self.from.map(|_| self.updater.model())
    }

    /// Bytes of the student that are still on its device: none of them where it was moved away.
    pub fn resident_bytes(&self) -> usize {
        if self.from.is_some() { 0 } else { self.updater.resident_bytes() }
    }

    /// The place the student gave up.
    pub(super) fn place(&self) -> &Seat {
        self.updater.seat()
    }

    /// Brings the student back onto its device. What shared its memory has to share it anew, where it
    /// was [`moved`](Self::moved).
    pub fn seat(self) {
        self.updater.sit_down();
        if let Some(device) = self.from {
            self.updater.relocate(device);
        }
    }
}
