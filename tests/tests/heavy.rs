//! Against the field's own Python: transformers loads what we publish, the openai client talks to
//! what we serve. Built and run by `cargo xtask heavy` alone, which makes their Python environment.

#[path = "heavy/convert.rs"]
mod convert;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use training_gym::prelude::*;
use training_gym_tests::fixture::Family;
use training_gym_tests::house::{House, succeed};
use training_gym_tests::programs::program;

/// The Python of the heavy environment.
fn python() -> Result<PathBuf> {
    let python =
        std::env::var_os("GYM_HEAVY_PYTHON").context("GYM_HEAVY_PYTHON is not set: run `cargo xtask heavy`")?;
    Ok(python.into())
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name)
}

fn gym(house: &House) -> Result<Gym> {
    Ok(Gym::local(house.path("home"))?.with_runtime(program("gym-runtime")))
}

#[tokio::test(flavor = "multi_thread")]
async fn transformers_loads_a_published_checkpoint_and_agrees_on_every_logprob() -> Result<()> {
    for family in [Family::Qwen3, Family::Qwen3Moe, Family::Qwen3_5] {
        published(family).await.with_context(|| format!("{family:?}"))?;
    }
    Ok(())
}

async fn published(family: Family) -> Result<()> {
    let python = python()?;
    let house = House::of(&["fine"; 6], family)?;
    succeed(house.person("home").args(["--steps", "2"]))?;
    let folder = house.run_folder("home")?.join("checkpoints/step-2");

    let ids: Vec<i64> = (0..40).map(|place| 3 + (place * 7) % 90).collect();
    let output =
        Command::new(python).arg(script("logprobs.py")).arg(&folder).arg(serde_json::to_string(&ids)?).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let last = String::from_utf8(output.stdout)?.lines().last().context("a line")?.to_owned();
    let theirs: Value = serde_json::from_str(&last)?;

    let endpoint = Endpoint::launch(Model::folder(&folder)).app_name("published").on(&gym(&house)?).await?;
    endpoint.wait_until_ready(Duration::from_secs(120)).await?;
    let ours = endpoint.logprobs(&ids, 1..ids.len()).await?;
    endpoint.stop().await?;
    let expected: Vec<f64> =
        theirs["logprobs"].as_array().context("a list")?.iter().filter_map(Value::as_f64).collect();
    ensure!(ours.len() == expected.len(), "{} and {} log-probabilities", ours.len(), expected.len());
    for (position, (ours, theirs)) in ours.iter().zip(&expected).enumerate() {
        // Two float32 forward passes with other kernels; the reference sums its softmax in float64.
        ensure!((f64::from(*ours) - theirs).abs() < 1e-4, "position {position}: {ours} here, {theirs} there");
    }
    ensure!(theirs["prompt_ids"].as_array().is_some_and(|ids| ids.len() > 10), "the tokenizer loads too");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_client_is_served() -> Result<()> {
    let python = python()?;
    let house = House::new(&["fine"])?;
    let endpoint = Endpoint::launch(Model::folder(house.path("student"))).app_name("openai").on(&gym(&house)?).await?;
    endpoint.wait_until_ready(Duration::from_secs(120)).await?;
    let token = endpoint.token().context("a bearer token by default")?.expose().to_owned();
    let base = format!("{}/v1", endpoint.url()?);
    let output = tokio::process::Command::new(python)
        .arg(script("openai_client.py"))
        .env("GYM_BASE_URL", base)
        .env("GYM_API_KEY", token)
        .output()
        .await?;
    endpoint.stop().await?;
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{printed}");
    ensure!(output.status.success(), "{printed}");
    Ok(())
}
