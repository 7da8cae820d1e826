//! The person's program against the cluster, and what its runs left in the store.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use training_gym_core::store;
use training_gym_tests::house::{House, succeed};

use crate::kubectl::given;

/// Steps of the suite's runs: enough that a disturbance meets the run in the middle.
pub(crate) const STEPS: u64 = 24;

/// A house whose person uses the cluster; its student and its rows are the same in each.
pub(crate) fn house() -> Result<House> {
    House::new(&["fine"; 6])
}

/// The person's program with the cluster's environment.
pub(crate) fn person(house: &House) -> Command {
    let mut command = house.person("home");
    command.env("TRAINING_GYM_HOME", house.path("home"));
    command
}

/// Launches a run and leaves it running; its id.
pub(crate) fn launch(house: &House, steps: u64) -> Result<String> {
    let printed = succeed(person(house).args(["--steps", &steps.to_string(), "--detach"]))?;
    let id = printed.lines().find_map(|line| line.strip_prefix("run ")).context("no run id")?;
    Ok(id.to_owned())
}

/// Comes back to a run and follows it to its end.
pub(crate) fn follow(house: &House, id: &str, steps: u64) -> Result<String> {
    succeed(person(house).args(["--steps", &steps.to_string(), "--run-id", id]))
}

/// An object of a run in the store; `None` while it is not there.
pub(crate) fn stored(id: &str, name: &str) -> Result<Option<Vec<u8>>> {
    let store = store::open(&given("TRAINING_GYM_STORE")?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(store.get(&format!("runs/{id}/{name}"))) {
        Ok(object) => Ok(Some(object.bytes.to_vec())),
        Err(store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A JSON document of a run.
pub(crate) fn document(id: &str, name: &str) -> Result<Value> {
    let bytes = stored(id, name)?.with_context(|| format!("runs/{id}/{name} is not there"))?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// Waits until the run has done a step, and says whether it is still at work.
pub(crate) fn await_step(id: &str, step: u64) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(180);
    loop {
        if let Some(bytes) = stored(id, "status.json")? {
            let status: Value = serde_json::from_slice(&bytes)?;
            if status["step"].as_u64().is_some_and(|done| done >= step) {
                ensure!(status["state"] != "succeeded", "the run was over before it could be disturbed");
                return Ok(());
            }
            ensure!(status["state"] != "failed", "{status}");
        }
        if Instant::now() > deadline {
            bail!("the run {id} did no {step} steps in three minutes\n{}", crate::kubectl::situation());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// sha256 of a checkpoint's weights.
pub(crate) fn weights(id: &str, step: u64) -> Result<String> {
    let manifest = document(id, &format!("checkpoints/step-{step}/manifest.json"))?;
    let files = manifest["files"].as_array().context("a manifest lists files")?;
    let weights = files.iter().find(|file| file["name"] == "model.safetensors").context("no weights")?;
    Ok(weights["sha256"].as_str().context("a hash")?.to_owned())
}
