//! A trained checkpoint of each family, opened by the tools of the field as it lies in its folder.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use training_gym::prelude::*;
use training_gym_tests::fixture::Family;
use training_gym_tests::house::{House, succeed};

use super::{given, gym, python, script, sglang};

/// A house whose run has trained a model of `family` for two steps, and the last checkpoint in it.
fn trained(family: Family) -> Result<(House, PathBuf)> {
    let house = House::of(&["fine"; 6], family)?;
    succeed(house.person("home").args(["--steps", "2"]))?;
    let folder = house.run_folder("home")?.join("checkpoints/step-2");
    Ok((house, folder))
}

/// Runs a script and reads the JSON it printed last.
fn answer(command: &mut Command) -> Result<Value> {
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout)?;
    Ok(serde_json::from_str(printed.lines().last().context("a line")?)?)
}

/// Some token ids of every fixture's vocabulary.
fn ids(count: i64) -> Vec<i64> {
    (0..count).map(|place| 3 + (place * 7) % 90).collect()
}

fn numbers(list: &Value) -> Result<Vec<f64>> {
    Ok(list.as_array().context("a list")?.iter().filter_map(Value::as_f64).collect())
}

/// The largest and the mean distance of two lists of log-probabilities.
fn distance(ours: &[f32], theirs: &[f64]) -> Result<(f64, f64)> {
    ensure!(ours.len() == theirs.len() && !ours.is_empty(), "{} and {} log-probabilities", ours.len(), theirs.len());
    let gaps: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| (f64::from(*ours) - theirs).abs()).collect();
    ensure!(gaps.iter().all(|gap| gap.is_finite()), "not numbers: {ours:?} here, {theirs:?} there");
    Ok((gaps.iter().copied().fold(0.0, f64::max), gaps.iter().sum::<f64>() / gaps.len() as f64))
}

#[tokio::test(flavor = "multi_thread")]
async fn transformers_loads_a_published_checkpoint_and_agrees_on_every_logprob() -> Result<()> {
    for family in Family::ALL {
        under_transformers(family).await.with_context(|| format!("{family:?}"))?;
    }
    Ok(())
}

async fn under_transformers(family: Family) -> Result<()> {
    let (house, folder) = trained(family)?;
    let known = sglang::inspect(&folder).context("under SGLang")?;
    // A text-only Qwen3.5 is for none of its classes, trained or not.
    ensure!(known == (family != Family::Qwen3_5Text), "SGLang has {} class for it", if known { "a" } else { "no" });
    let ids = ids(40);
    let theirs =
        answer(Command::new(python()?).arg(script("logprobs.py")).arg(&folder).arg(serde_json::to_string(&ids)?))?;
    let endpoint = Endpoint::launch(Model::folder(&folder)).app_name("published").on(&gym(&house)?).await?;
    endpoint.wait_until_ready(Duration::from_secs(120)).await?;
    let ours = endpoint.logprobs(&ids, 1..ids.len()).await?;
    endpoint.stop().await?;
    // Two float32 forward passes with other kernels; the reference sums its softmax in float64.
    let (largest, mean) = distance(&ours, &numbers(&theirs["logprobs"])?)?;
    println!("{family:?}: {largest:.1e} nats at most, {mean:.1e} in the mean");
    ensure!(largest < 1e-4, "{largest} nats apart");
    ensure!(theirs["prompt_ids"].as_array().is_some_and(|ids| ids.len() > 10), "the tokenizer loads too");
    Ok(())
}

/// The type vLLM's CPU build computes a family in, and how far from our float32 its log-probabilities
/// may be, the largest and the mean. Its delta nets exist in bfloat16 alone.
fn precision(family: Family) -> (&'static str, (f64, f64)) {
    match family {
        // Found: 0.17 and 0.033.
        Family::Qwen3_5Text | Family::Qwen3_5 => ("bfloat16", (0.4, 0.06)),
        // Found: 1.3e-5 and 2.5e-6.
        _ => ("float32", (1e-4, 2e-5)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vllm_loads_a_published_checkpoint_and_agrees_on_every_logprob() -> Result<()> {
    let mut houses = Vec::new();
    let mut checkpoints = Vec::new();
    for family in Family::ALL {
        let (house, folder) = trained(family).with_context(|| format!("{family:?}"))?;
        let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
        checkpoints.push(json!({
            "folder": folder, "class": config["architectures"][0], "dtype": precision(family).0,
        }));
        houses.push((family, house, folder));
    }
    // One process for all: it takes longer to start than to compute. Answers go over its cache.
    let asked = json!({"checkpoints": checkpoints, "prompts": [ids(40), ids(17), ids(3)], "new_tokens": 8});
    let theirs = answer(Command::new(given("GYM_HEAVY_VLLM")?).arg(script("vllm_logprobs.py")).arg(asked.to_string()))?;

    for ((family, house, folder), theirs) in houses.iter().zip(theirs.as_array().context("a list")?) {
        let endpoint = Endpoint::launch(Model::folder(folder)).app_name("published").on(&gym(house)?).await?;
        endpoint.wait_until_ready(Duration::from_secs(120)).await?;
        let (_, (most, middle)) = precision(*family);
        for scored in theirs.as_array().context("a list")? {
            let ids: Vec<i64> = serde_json::from_value(scored["ids"].clone())?;
            let ours = endpoint.logprobs(&ids, 1..ids.len()).await?;
            let (largest, mean) = distance(&ours, &numbers(&scored["logprobs"])?)?;
            println!("{family:?}, {} ids: {largest:.1e} nats at most, {mean:.1e} in the mean", ids.len());
            ensure!(largest < most && mean < middle, "{family:?}: {largest} nats apart, {mean} in the mean");
        }
        endpoint.stop().await?;
    }
    Ok(())
}
