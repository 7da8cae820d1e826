//! What must be on the machine before we start, each with its remedy.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// Checks for a C++ compiler and Python 3 with pip. Rust is here, since we run.
pub(crate) fn check() -> Result<()> {
    let mut missing = Vec::new();
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if !answers(&compiler, &["--version"]) {
        missing.push(format!(
            "a C++ compiler (`{compiler}` does not run): install one, for example `apt-get install g++`, or set CXX"
        ));
    }
    if !answers("python3", &["--version"]) {
        missing.push("Python 3 (`python3` does not run): install it, for example `apt-get install python3`".to_owned());
    } else if !answers("python3", &["-m", "pip", "--version"]) {
        missing.push(
            "pip for Python 3 (`python3 -m pip` does not run): install it, for example `apt-get install python3-pip`"
                .to_owned(),
        );
    }
    if missing.is_empty() {
        return Ok(());
    }
    bail!("this machine lacks:\n  - {}", missing.join("\n  - "))
}

fn answers(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
