//! Against the field's own Python: transformers and vLLM load what we publish, the openai client talks
//! to what we serve. Built and run by `cargo xtask heavy` alone, which makes their Python environments.

#[path = "heavy/convert.rs"]
mod convert;
#[path = "heavy/published.rs"]
mod published;
#[path = "heavy/sglang.rs"]
mod sglang;
#[path = "heavy/vllm.rs"]
mod vllm;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use training_gym::prelude::*;
use training_gym_tests::house::House;
use training_gym_tests::programs::program;

/// A path that `cargo xtask heavy` hands over.
fn given(variable: &str) -> Result<PathBuf> {
    let path = std::env::var_os(variable).with_context(|| format!("{variable} is not set: run `cargo xtask heavy`"))?;
    Ok(path.into())
}

/// The Python of the heavy environment.
fn python() -> Result<PathBuf> {
    given("GYM_HEAVY_PYTHON")
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name)
}

fn gym(house: &House) -> Result<Gym> {
    Ok(Gym::local(house.path("home"))?.with_runtime(program("gym-runtime")))
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
