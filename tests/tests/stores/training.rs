//! A run that lives on an S3 store: trained, killed, gone on with, and fetched.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use training_gym_core::checkpoint::{self, Kind as Folder};
use training_gym_core::ids::RunId;
use training_gym_core::store::{FileStore, Store};
use training_gym_tests::fixture::s3_server::{BUCKET, Kind, S3Server, environment};
use training_gym_tests::house::{House, signal, succeed, wait_for, weights_hash};
use training_gym_tests::programs::program;

use super::open;

const STEPS: u64 = 8;

/// What a launch put into a store, put into another: the spec and the inputs, nothing that the run wrote.
async fn carry_over(from: &dyn Store, to: &dyn Store, run: &RunId) -> Result<()> {
    let spec = format!("runs/{run}/spec.json");
    for object in from.list("").await? {
        if object.key == spec || object.key.starts_with("inputs/") {
            let path = from.local_path(&object.key).context("a folder's object")?;
            to.put_file(&object.key, &path).await?;
        }
    }
    Ok(())
}

fn trainer(house: &House, url: &str, run: &RunId) -> Command {
    let mut command = Command::new(program("gym-runtime"));
    command.args(["train", "--store", url, "--run", run.as_str()]).envs(environment());
    command.env("OMP_NUM_THREADS", "1").current_dir(house.path("")).stdin(Stdio::null());
    command
}

async fn json(store: &dyn Store, key: &str) -> Option<Value> {
    serde_json::from_slice(&store.get(key).await.ok()?.bytes).ok()
}

fn lines(bytes: &[u8]) -> Vec<Value> {
    bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_run_goes_on_and_ends_as_one_that_was_not() -> Result<()> {
    let house = House::new(&["fine"; 6])?;
    let steps = STEPS.to_string();
    succeed(house.person("home").args(["--steps", &steps, "--save-interval", "2", "--run-id", "on-s3"]))?;
    let run: RunId = "on-s3".parse()?;

    let server = S3Server::shared(Kind::SeaweedFs).await?;
    let url = server.store_url("runs of people");
    let store = open(&url);
    carry_over(&FileStore::open(house.path("home/store"))?, &store, &run).await?;

    let metrics_key = format!("runs/{run}/metrics.jsonl");
    for steps in [1, 4] {
        let mut trainer = Killed(trainer(&house, &url, &run).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        let runtime = tokio::runtime::Handle::current();
        let written = || tokio::task::block_in_place(|| runtime.block_on(store.get(&metrics_key)));
        wait_for("its metrics", || {
            let ended = trainer.0.try_wait().ok().flatten();
            assert!(ended.is_none(), "the trainer ended by itself: {ended:?}");
            written().is_ok_and(|object| lines(&object.bytes).len() >= steps)
        });
        signal(i32::try_from(trainer.0.id())?, libc::SIGKILL);
    }
    succeed(&mut trainer(&house, &url, &run))?;

    let status = json(&store, &format!("runs/{run}/status.json")).await.context("a status")?;
    assert_eq!((status["state"].as_str(), &status["attempt"]), (Some("succeeded"), &3.into()), "{status}");
    let metrics = lines(&store.get(&metrics_key).await?.bytes);
    let numbers: Vec<u64> = metrics.iter().filter_map(|line| line["step"].as_u64()).collect();
    assert_eq!(numbers, (1..=STEPS).collect::<Vec<_>>(), "every step once, in order");

    let manifest = checkpoint::latest(&store, Folder::Checkpoint, &run).await?.context("a checkpoint")?;
    ensure!(manifest.step == STEPS, "the last checkpoint is of step {}", manifest.step);
    let fetched = house.path("fetched");
    checkpoint::fetch(&store, &manifest, &fetched).await?;
    checkpoint::check_folder(&manifest, &fetched).await?;
    let weights = manifest.files.iter().find(|file| file.name == "model.safetensors").context("weights")?;
    assert_eq!(weights.sha256.as_str(), weights_hash(&house, "home", STEPS)?, "bit-identical to the run on a folder");
    assert!(Path::new(&fetched).join("config.json").is_file());
    Ok(())
}

/// What the runtime says of a store that refuses, and that another attempt alone does not help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_refuses_ends_a_run_with_what_helps() -> Result<()> {
    let server = S3Server::shared(Kind::SeaweedFs).await?;
    let url = server.store_url("x").replace(BUCKET, "no-such-bucket");
    let mut command = Command::new(program("gym-runtime"));
    command.args(["train", "--store", &url, "--run", "lost"]).envs(environment()).stdin(Stdio::null());
    let output = command.output()?;
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(6), "{printed}");
    assert!(
        printed.contains("no bucket `no-such-bucket`") && printed.contains("next step: make the bucket"),
        "{printed}"
    );
    Ok(())
}
