//! What a machine must have for a cluster, and the Debian packages that are installed for it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::prerequisites::answers;
use crate::shell::run;

/// A program, and the Debian package that brings it.
const PROGRAMS: [(&str, &str); 12] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("etcd", "etcd-server"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("buildah", "buildah"),
    ("docker-registry", "docker-registry"),
    ("openssl", "openssl"),
    ("ip", "iproute2"),
    ("mount", "mount"),
];

/// Why no cluster can run here; `None` where it can.
pub(crate) fn missing() -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("a cluster needs Linux on x86-64".into());
    }
    if !rustix::process::geteuid().is_root() {
        return Some("a cluster needs root: its kubelet mounts, and makes network interfaces".into());
    }
    if !answers("go", &["version"]) {
        return Some("no Go: its control plane is built from source (`go version` fails)".into());
    }
    let unshare = ["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "true"];
    match Command::new("unshare").args(unshare).stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            return Some(format!("no right to make namespaces: `unshare {}`: {}", unshare.join(" "), said.trim()));
        }
        Err(error) => return Some(format!("no `unshare` (util-linux): {error}")),
    }
    let lacking = lacking();
    if !lacking.is_empty() && !answers("apt-get", &["--version"]) {
        return Some(format!("not installed, and there is no apt-get to install them: {}", lacking.join(", ")));
    }
    None
}

/// Installs the Debian packages that are not there.
pub(crate) fn install() -> Result<()> {
    let lacking = lacking();
    if lacking.is_empty() {
        return Ok(());
    }
    println!("cluster: installing {}", lacking.join(", "));
    let install = || {
        let mut command = Command::new("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "--yes", "--quiet", "--no-install-recommends"])
            .args(&lacking)
            // No service of these packages is wanted: each runs in the node's namespaces alone.
            .env("RUNLEVEL", "1")
            .stdout(Stdio::null());
        command
    };
    // A fresh machine has no lists of packages yet.
    if run(&mut install()).is_err() {
        run(Command::new("apt-get").args(["update", "--quiet"]).stdout(Stdio::null()))?;
        run(&mut install())?;
    }
    let still = self::lacking();
    if !still.is_empty() {
        bail!("apt-get installed {}, and yet their programs are not found", still.join(", "));
    }
    Ok(())
}

fn lacking() -> Vec<&'static str> {
    let mut packages: Vec<&str> =
        PROGRAMS.iter().filter(|(program, _)| !is_there(program)).map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn is_there(program: &str) -> bool {
    if program.starts_with('/') {
        return Path::new(program).is_file();
    }
    // Root's PATH in a plain shell may lack the folders of administration.
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(Into::into))
        .any(|folder| folder.join(program).is_file())
}

/// Fails when the cluster's addresses are somebody else's already.
pub(crate) fn addresses_are_free() -> Result<()> {
    let routes = Command::new("ip").args(["-o", "route", "show"]).output().context("cannot start ip")?;
    let routes = String::from_utf8_lossy(&routes.stdout).into_owned();
    match routes.lines().find(|line| ["10.213.7.", "10.214.0.", "10.215."].iter().any(|ours| line.starts_with(ours))) {
        Some(route) => bail!("this machine has a route to the cluster's addresses: `{}`", route.trim()),
        None => Ok(()),
    }
}
