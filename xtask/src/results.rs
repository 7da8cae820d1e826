//! Whether the methods learn: starts the program that measures them.

use std::process::Command;

use anyhow::Result;

use crate::commands::{setup, target};
use crate::shell::{cargo, root, run};

/// Measures what is missing of `docs/results.md`, and writes it.
pub(crate) fn results(arguments: &[String]) -> Result<()> {
    setup()?;
    eprintln!("building the runtime and the program that measures (a few minutes the first time)");
    run(cargo().args(["build", "--package", "training-gym-runtime", "--package", "training-gym-tests", "--bins"]))?;
    let built = std::path::absolute(target().join("debug"))?;
    // Beside what was built, so that it outlives the command and is ignored by git.
    let home = std::path::absolute(target().join("results"))?;
    run(Command::new(built.join("results"))
        .env("TRAINING_GYM_RUNTIME", built.join("gym-runtime"))
        .arg("--home")
        .arg(home)
        .arg("--root")
        .arg(root())
        .args(arguments)
        .current_dir(root()))
}
