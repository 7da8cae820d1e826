//! The Python environments of the heavy suites and of the peers' benchmark, each made once.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::{cache, root, run};

/// A virtual environment in the cache, from lists of requirements under `tests/python`.
pub(crate) struct Environment {
    /// Its folder; another number where it has to be made from nothing.
    folder: &'static str,
    /// What a person is told it holds.
    holds: &'static str,
    /// Installed with what it depends on.
    requirements: &'static str,
    /// Installed afterwards, without.
    alone: &'static str,
}

/// transformers, the openai client, gguf.
pub(crate) const HEAVY: Environment = Environment {
    folder: "heavy-2",
    holds: "transformers and openai",
    requirements: "requirements.txt",
    alone: "requirements-alone.txt",
};

/// vLLM's CPU build, beside a torch and a transformers of its own: it takes no newer ones.
pub(crate) const VLLM: Environment = Environment {
    folder: "vllm-1",
    holds: "vLLM for CPUs",
    requirements: "requirements-vllm.txt",
    alone: "requirements-vllm-alone.txt",
};

impl Environment {
    /// Its Python, made first where it is not there.
    pub(crate) fn python(&self) -> Result<PathBuf> {
        let folder = cache()?.join(self.folder);
        let (python, complete) = (folder.join("bin/python"), folder.join("COMPLETE"));
        let list = |name: &str| root().join("tests/python").join(name);
        // What it was made from: where that changes, what is missing is added.
        let wanted = std::fs::read_to_string(list(self.requirements))? + &std::fs::read_to_string(list(self.alone))?;
        let found = std::fs::read_to_string(&complete).ok();
        if found.as_deref() == Some(wanted.as_str()) {
            return Ok(python);
        }
        if found.is_none() {
            eprintln!("making a Python environment with {} (several GB) in {}", self.holds, folder.display());
            run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))
                .context("no virtual environment: install Python's venv, for example `apt-get install python3-venv`")?;
        }
        let install = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet"];
        run(Command::new(&python).args(install).arg("--requirement").arg(list(self.requirements)))?;
        run(Command::new(&python).args(install).args(["--no-deps", "--requirement"]).arg(list(self.alone)))?;
        std::fs::write(complete, wanted)?;
        Ok(python)
    }
}
