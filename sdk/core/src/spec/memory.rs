//! What memory a run does without, and at what price.

use serde::{Deserialize, Serialize};

/// Memory given up for time. None of these changes what is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemorySpec {
    /// Model weights that nobody computes with are in host memory: the student's while a step waits for
    /// scores, those of a KL penalty's reference but for its pass.
    pub param_offload: bool,
    /// The optimizer's moments, and float32 masters of narrower weights, are in host memory but for the
    /// update.
    pub optimizer_offload: bool,
    /// The engine's key-value cache is given back after every rollout.
    pub free_cache_engine: bool,
    /// Share of the device's memory, in (0, 1], that weights, optimizer and key-value cache may take
    /// together while responses are drawn; the cache gets what is left. `None` is no bound but
    /// `max_running_requests`.
    pub gpu_memory_utilization: Option<f64>,
    /// Activations are computed again, layer by layer, on the way back, instead of being kept.
    pub gradient_checkpointing: bool,
}

impl MemorySpec {
    /// Whether nothing is given up.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
