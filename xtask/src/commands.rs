//! The commands, each in the order a person would do it by hand.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::environments::{HEAVY, VLLM};
use crate::shell::{cache, cargo, root, run};
use crate::{arithmetic, libtorch, prerequisites, servers, smollm2, summary};

/// The golden suites: each reads `golden/` of the shared folder and prints how much it checked.
const GOLDEN_RUNTIME: [&str; 5] =
    ["golden_models", "golden_families", "golden_losses", "golden_slime", "golden_templates"];
const GOLDEN_SDK: &str = "golden_rewards";

/// A pinned cargo-deny, built once into the cache.
const CARGO_DENY: &str = "0.20.2";

/// Checks the machine and gets libtorch.
pub(crate) fn setup() -> Result<()> {
    prerequisites::compiler()?;
    libtorch::ensure()
}

/// The program that a crate elsewhere needs beside the SDK.
pub(crate) fn runtime() -> Result<()> {
    setup()?;
    eprintln!("building gym-runtime (a few minutes the first time)");
    run(cargo().args(["build", "--package", "training-gym-runtime", "--bin", "gym-runtime"]))?;
    let program = std::path::absolute(target().join("debug/gym-runtime"))?;
    println!("built {0}\nto name it: export TRAINING_GYM_RUNTIME={0}", program.display());
    Ok(())
}

/// The main job.
pub(crate) fn demo(arguments: &[String]) -> Result<()> {
    setup()?;
    let arguments = match arguments.split_first() {
        Some((first, rest)) if first == "--" => rest,
        _ => arguments,
    };
    let example = build_demo()?;
    run(Command::new(example).args(arguments).current_dir(root()))
}

/// The main job's mechanics: few steps, few problems, no claim about accuracy.
pub(crate) fn smoke() -> Result<()> {
    setup()?;
    let example = build_demo()?;
    // A state folder of its own: nobody's deployments are replaced.
    let home = tempfile::tempdir()?;
    run(Command::new(example)
        .args(["--steps", "6", "--eval-problems", "20", "--json", "--home"])
        .arg(home.path())
        .current_dir(root()))
}

fn build_demo() -> Result<PathBuf> {
    eprintln!("building the runtime and the example (a few minutes the first time)");
    run(cargo().args(["build", "--package", "training-gym-runtime", "--package", "training-gym-examples"]))?;
    Ok(target().join("debug/dapo_math_opd"))
}

/// Makes `examples/assets/tiny` anew.
pub(crate) fn demo_assets() -> Result<()> {
    setup()?;
    arithmetic::write_assets(root(), &build_runtime()?, &target().join("demo-assets"))
}

/// The program `gym-runtime`, built.
pub(crate) fn build_runtime() -> Result<PathBuf> {
    run(cargo().args(["build", "--quiet", "--package", "training-gym-runtime", "--bin", "gym-runtime"]))?;
    Ok(target().join("debug/gym-runtime"))
}

pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The tests: all of them, the golden suites, or those whose name holds a filter.
pub(crate) fn test(arguments: &[String]) -> Result<()> {
    setup()?;
    if arguments.first().is_some_and(|first| first == "golden") {
        return golden();
    }
    let started = Instant::now();
    // Whole-system tests drive these programs.
    run(cargo().args(["build", "--workspace", "--bins"]))?;
    eprintln!("test: programs built in {:.0} s", started.elapsed().as_secs_f64());
    summary::run(&mut [shared(cargo().args(["test", "--workspace", "--no-fail-fast"]).args(arguments))])
}

/// Tests run in their package's folder: a relative path from a person's shell is made whole.
fn shared(command: &mut Command) -> &mut Command {
    match std::env::var_os("TRAINING_GYM_SHARED").map(PathBuf::from) {
        Some(path) => command.env("TRAINING_GYM_SHARED", std::path::absolute(&path).unwrap_or(path)),
        None => command,
    }
}

fn golden() -> Result<()> {
    let folder = std::env::var_os("TRAINING_GYM_SHARED").map_or_else(|| root().join("../shared"), PathBuf::from);
    let folder = std::path::absolute(folder)?;
    if !folder.join("golden").is_dir() {
        bail!("{} has no folder `golden`: set TRAINING_GYM_SHARED to a folder that has one", folder.display());
    }
    // A suite whose files are missing is not skipped: nothing else was asked for.
    let suite = || {
        let mut command = cargo();
        command.env("TRAINING_GYM_SHARED", &folder).env("TRAINING_GYM_GOLDEN_REQUIRED", "1");
        command
    };
    let mut runtime = suite();
    runtime.args(["test", "--no-fail-fast", "--package", "training-gym-runtime"]);
    for suite in GOLDEN_RUNTIME {
        runtime.args(["--test", suite]);
    }
    runtime.args(["--", "--nocapture"]);
    let mut sdk = suite();
    sdk.args(["test", "--no-fail-fast", "--package", "training-gym", "--test", GOLDEN_SDK]);
    sdk.args(["--", "--nocapture"]);
    summary::run(&mut [&mut runtime, &mut sdk])
}

/// Suites against the field's own Python libraries.
pub(crate) fn heavy() -> Result<()> {
    setup()?;
    let (python, vllm, gguf) = (HEAVY.python()?, VLLM.python()?, smollm2::gguf()?);
    run(cargo().args(["build", "--workspace", "--bins"]))?;
    summary::run(&mut [cargo()
        .args(["test", "--no-fail-fast", "--package", "training-gym-tests", "--features", "heavy", "--test", "heavy"])
        .env("GYM_HEAVY_PYTHON", python)
        .env("GYM_HEAVY_VLLM", vllm)
        .env("GYM_HEAVY_SMOLLM2", gguf)])
}

/// The store suites on real S3 servers.
pub(crate) fn stores(arguments: &[String]) -> Result<()> {
    setup()?;
    let (seaweedfs, versitygw) = (servers::seaweedfs()?, servers::versitygw()?);
    run(cargo().args(["build", "--workspace", "--bins"]))?;
    let mut suite = cargo();
    suite
        // With the features that `cargo xtask test` builds with, so that nothing is built twice.
        .args(["test", "--no-fail-fast", "--workspace", "--features", "training-gym-tests/stores"])
        .args(["--test", "stores", "--"])
        .args(arguments)
        .env("GYM_STORES_SEAWEEDFS", seaweedfs)
        // As `fixture::s3_server::environment`: the owner of the servers' bucket, and no other credentials.
        .env("AWS_ACCESS_KEY_ID", "gym-owner")
        .env("AWS_SECRET_ACCESS_KEY", "gym-owner-secret-0123456789")
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        .env("AWS_EC2_METADATA_DISABLED", "true");
    for other in ["AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"] {
        suite.env_remove(other);
    }
    match versitygw {
        Some(program) => suite.env("GYM_STORES_VERSITYGW", program),
        None => {
            println!("stores: Versity's gateway is skipped, since there is no Go to build it with");
            suite.env("GYM_STORES_WITHOUT_VERSITYGW", "1").args(["--skip", "versitygw"])
        }
    };
    summary::run(&mut [&mut suite])
}

/// Licences, sources, bans.
pub(crate) fn deny() -> Result<()> {
    let folder = cache()?.join(format!("cargo-deny-{CARGO_DENY}"));
    let program = folder.join("bin/cargo-deny");
    if !program.is_file() {
        println!("deny: building cargo-deny {CARGO_DENY} (once)");
        run(cargo()
            // Unoptimised: it runs for a second and compiles in a third of the time.
            .args(["install", "cargo-deny", "--debug", "--quiet", "--locked", "--version", CARGO_DENY, "--root"])
            .arg(&folder))?;
    }
    run(Command::new(program).args(["check", "bans", "licenses", "sources"]).current_dir(root()))
}
