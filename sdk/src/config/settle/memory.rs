//! What memory the run does without.

use training_gym_core::spec::MemorySpec;

use super::number;
use crate::config::ledger::{Ledger, field};

pub(super) fn memory(ledger: &mut Ledger<'_>) -> MemorySpec {
    let gpu_memory_utilization = ledger.optional(field!(gpu_memory_utilization), "unbounded");
    if let Some(share) = gpu_memory_utilization {
        number(
            ledger,
            "gpu_memory_utilization",
            share,
            |share| share > 0.0 && share <= 1.0,
            ("must be a share in (0, 1] of the device's memory", "set 0.8, or leave it unset for no bound"),
        );
    }
    MemorySpec {
        param_offload: ledger.value(field!(param_offload), false),
        optimizer_offload: ledger.value(field!(optimizer_offload), false),
        free_cache_engine: ledger.value(field!(free_cache_engine), false),
        gpu_memory_utilization,
        gradient_checkpointing: ledger.value(field!(gradient_checkpointing), false),
    }
}
