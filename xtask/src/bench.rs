//! Benchmarks: each compares two things in one run. `peers` puts ours beside transformers.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::commands::setup;
use crate::environments::HEAVY;
use crate::shell::{cargo, root, run};

/// What compares two ways of ours.
const OURS: [&str; 5] = ["head_memory", "update_step", "engine", "tip", "memory"];
/// What is measured beside a peer.
const PEERS: [&str; 3] = ["rollouts", "scoring", "update"];

/// `bench [NAME] [--json] …`.
pub(crate) fn bench(arguments: &[String]) -> Result<()> {
    match arguments.split_first() {
        Some((name, rest)) if name == "peers" => peers(&Options::parse(rest)?),
        Some((name, rest)) if OURS.contains(&name.as_str()) => {
            setup()?;
            run(ours(name).args(rest))
        }
        Some((name, _)) => bail!("no benchmark `{name}`: {}, or peers", OURS.join(", ")),
        None => {
            setup()?;
            OURS.iter().try_for_each(|name| run(&mut ours(name)))
        }
    }
}

/// In the profile of the demo and the tests: the build a person has, and one compilation for all.
fn ours(name: &str) -> Command {
    let mut command = cargo();
    command.args(["bench", "--quiet", "--profile", "dev", "--package", "training-gym-runtime", "--bench", name, "--"]);
    command
}

struct Options {
    json: bool,
    model: Option<PathBuf>,
    /// The checkpoint's type: bf16, fp32, or both in turn.
    dtypes: Vec<Dtype>,
    threads: String,
    rounds: String,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut options = Self {
            json: false,
            model: None,
            dtypes: if multiplies_bf16() { vec![Dtype::Bf16] } else { vec![Dtype::Bf16, Dtype::Fp32] },
            threads: cores.to_string(),
            rounds: "3".to_owned(),
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().cloned().with_context(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--json" => options.json = true,
                "--model" => options.model = Some(value()?.into()),
                "--dtype" => options.dtypes = vec![Dtype::parse(&value()?)?],
                "--threads" => options.threads = value()?,
                "--rounds" => options.rounds = value()?,
                other => bail!("no option `{other}`: --json, --model DIR, --dtype bf16|fp32, --threads N, --rounds N"),
            }
        }
        Ok(options)
    }
}

/// A type of weights.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Dtype {
    Bf16,
    Fp32,
}

impl Dtype {
    fn parse(name: &str) -> Result<Self> {
        match name {
            "bf16" => Ok(Self::Bf16),
            "fp32" => Ok(Self::Fp32),
            other => bail!("--dtype {other}: bf16 or fp32"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp32 => "fp32",
        }
    }

    /// What a job of ours computes a checkpoint of this type in, unless it is told (`Resources::dtype`).
    fn ours(self) -> Self {
        if multiplies_bf16() { self } else { Self::Fp32 }
    }
}

/// Whether this CPU has products of bf16. Without them a job of ours computes in fp32, and the peer,
/// which computes in the checkpoint's type, is measured in both: as a person gets it, and at its best.
fn multiplies_bf16() -> bool {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    flags.contains("amx_bf16")
}

/// Ours and transformers in turn, on the same token ids and the same threads.
fn peers(options: &Options) -> Result<()> {
    setup()?;
    let python = HEAVY.python()?;
    let model = match &options.model {
        Some(folder) => std::path::absolute(folder)?,
        None => crate::smollm2::folder()?,
    };
    let scratch = tempfile::tempdir()?;
    let workload = scratch.path().join("workload.json");
    let script = root().join("tests/python/peers.py");
    run(Command::new(&python).arg(&script).arg("workload").arg(&model).arg(&workload))?;
    if !options.json {
        println!("{} threads, tokens a second; each side's type in brackets", options.threads);
        println!("{:<10}{:>16}{:>20}{:>8}{:>12}{:>14}", "", "ours", "transformers", "ratio", "ours MiB", "theirs MiB");
    }
    for what in PEERS {
        let mut mine: Option<(Dtype, Measured)> = None;
        for &dtype in &options.dtypes {
            let computed = dtype.ours();
            if mine.as_ref().is_none_or(|(before, _)| *before != computed) {
                let took = measured(ours("peers").args(["--what", what, "--dtype", computed.name()]).args([
                    "--threads",
                    &options.threads,
                    "--rounds",
                    &options.rounds,
                    "--model",
                    path(&model)?,
                    "--workload",
                    path(&workload)?,
                ]))?;
                mine = Some((computed, took));
            }
            let (_, mine) = mine.as_ref().context("ours was measured")?;
            let theirs = measured(
                Command::new(&python)
                    .arg(&script)
                    .args([what, path(&model)?, path(&workload)?, dtype.name(), &options.threads, &options.rounds])
                    .env("OMP_NUM_THREADS", &options.threads),
            )?;
            print(options, what, (computed, mine), (dtype, &theirs))?;
        }
    }
    Ok(())
}

fn print(options: &Options, what: &str, ours: (Dtype, &Measured), theirs: (Dtype, &Measured)) -> Result<()> {
    let ((ours_dtype, ours), (theirs_dtype, theirs)) = (ours, theirs);
    let ratio = ours.rate / theirs.rate;
    if options.json {
        let line = json!({
            "what": what, "unit": "tokens/s", "ours": ours.rate, "theirs": theirs.rate, "ratio": ratio,
            "ours_cpu_s": ours.cpu_seconds, "theirs_cpu_s": theirs.cpu_seconds,
            "ours_peak_mib": ours.peak_mib, "theirs_peak_mib": theirs.peak_mib,
            "ours_dtype": ours_dtype.name(), "theirs_dtype": theirs_dtype.name(),
            "threads": options.threads.parse::<usize>()?,
        });
        println!("{line}");
    } else {
        let [ours_rate, theirs_rate] = [(ours, ours_dtype), (theirs, theirs_dtype)]
            .map(|(measured, dtype)| format!("{:.0} ({})", measured.rate, dtype.name()));
        let peaks = [ours.peak_mib, theirs.peak_mib];
        println!("{what:<10}{ours_rate:>16}{theirs_rate:>20}{ratio:>8.2}{:>12.0}{:>14.0}", peaks[0], peaks[1]);
    }
    Ok(())
}

struct Measured {
    /// Tokens a second.
    rate: f64,
    /// Seconds all threads computed, of one round.
    cpu_seconds: f64,
    peak_mib: f64,
}

/// Runs a measurement; its last line is JSON.
fn measured(command: &mut Command) -> Result<Measured> {
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("a measurement failed ({}): {command:?}", output.status);
    }
    let line = text.lines().last().unwrap_or_default();
    let value: Value = serde_json::from_str(line).with_context(|| format!("`{line}` is no measurement"))?;
    let number = |name: &str| value[name].as_f64().with_context(|| format!("no `{name}` in `{line}`"));
    let rate = number("tokens")? / number("seconds")?;
    Ok(Measured { rate, cpu_seconds: number("cpu_seconds")?, peak_mib: number("peak_mib")? })
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}
