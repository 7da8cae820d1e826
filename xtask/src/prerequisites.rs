//! What must be on the machine before we start, each with its remedy.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// Checks for a C++ compiler. Rust is here, since we run.
pub(crate) fn compiler() -> Result<()> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if answers(&compiler, &["--version"]) {
        return Ok(());
    }
    bail!("no C++ compiler (`{compiler} --version` fails): install one, for example `apt-get install g++`, or set CXX")
}

/// Checks for Python 3 with pip, which fetch libtorch.
pub(crate) fn pip() -> Result<()> {
    if !answers("python3", &["--version"]) {
        bail!("no Python 3 (`python3 --version` fails): install it, for example `apt-get install python3`");
    }
    if !answers("python3", &["-m", "pip", "--version"]) {
        bail!("no pip (`python3 -m pip --version` fails): install it, for example `apt-get install python3-pip`");
    }
    Ok(())
}

/// Whether a program is there and succeeds, silently.
pub(crate) fn answers(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
