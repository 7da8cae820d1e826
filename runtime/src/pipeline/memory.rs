//! What memory a run does without, from its spec.

use tch::Device;
use training_gym_core::record::Cause;
use training_gym_core::spec::RunSpec;

use super::failure::Stop;
use crate::rollout::Engine;
use crate::settings;
use crate::update::Updater;

/// Bounds the engine's cache, and says what a person should know of it.
///
/// # Errors
/// When the bound leaves no room, or the device's memory is not known.
pub(super) fn spare(spec: &RunSpec, engine: &mut Engine, updater: &Updater) -> Result<Vec<String>, Stop> {
    let mut notes = Vec::new();
    let device = updater.model().options().device;
    let (params, optimizer) = (spec.memory.param_offload, spec.memory.optimizer_offload);
    if device == Device::Cpu && (params || optimizer) {
        let names: Vec<&str> = [("param_offload", params), ("optimizer_offload", optimizer)]
            .iter()
            .filter(|it| it.1)
            .map(|it| it.0)
            .collect();
        notes
            .push(format!("{}: the device is the CPU, whose memory is the host's: nothing is moved", names.join(", ")));
    }
    if let Some(share) = spec.memory.gpu_memory_utilization {
        notes.extend(bound(share, engine, (device, updater.resident_bytes()))?);
    }
    Ok(notes)
}

/// Keeps an engine's cache within what `share` of the device's memory leaves beside `resident` bytes of
/// weights and optimizer; says so where that is fewer sequences than were asked for.
///
/// # Errors
/// When it leaves no room, or the device's memory is not known.
pub(super) fn bound(
    share: f64,
    engine: &mut Engine,
    (device, resident): (Device, usize),
) -> Result<Option<String>, Stop> {
    let refuse = |what: String| Stop::say(Cause::InvalidInput, format!("gpu_memory_utilization = {share}: {what}"));
    if !(share > 0.0 && share <= 1.0) {
        return Err(refuse("must be a share in (0, 1] of the device's memory".to_owned()));
    }
    let total = settings::memory_of(device)
        .map_err(|why| refuse(format!("the device's memory is not known: {why}; leave it unset")))?;
    let (allowed, resident) = ((share * total as f64) as u64, resident as u64);
    let left = allowed.checked_sub(resident).ok_or_else(|| {
        refuse(format!("of {total} bytes it allows {allowed}, and weights and optimizer take {resident}; raise it"))
    })?;
    let before = engine.stats().max_running;
    let now = engine.bound_cache(left).map_err(|error| Stop::new(Cause::InvalidInput, &error))?;
    Ok((now < before).then(|| {
        format!(
            "gpu_memory_utilization = {share}: {left} of {total} bytes are left for the key-value cache, room for {now} \
             sequences of {} tokens together, where max_running_requests is {before}",
            engine.context_length()
        )
    }))
}
