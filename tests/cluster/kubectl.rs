//! The cluster as its administrator and as a driver see it.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The namespace of the shipped manifests.
pub(crate) const NAMESPACE: &str = "training-gym";

/// Whose rights a command has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum As {
    /// May do everything: looks on, and provokes.
    Admin,
    /// What the shipped role allows.
    Driver,
}

/// A variable that `cargo xtask cluster test` sets.
pub(crate) fn given(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set: run `cargo xtask cluster test`"))
}

/// kubectl in the suite's namespace.
pub(crate) fn kubectl(who: As) -> Result<Command> {
    let mut command = Command::new(given("GYM_CLUSTER_KUBECTL")?);
    let kubeconfig = match who {
        As::Admin => given("GYM_CLUSTER_ADMIN")?,
        As::Driver => given("KUBECONFIG")?,
    };
    command.env("KUBECONFIG", kubeconfig).args(["--namespace", NAMESPACE]);
    Ok(command)
}

/// What a command printed; its error text is the error.
pub(crate) fn said(command: &mut Command) -> Result<String> {
    let done = command.stdin(Stdio::null()).output().context("cannot start kubectl")?;
    if !done.status.success() {
        bail!("{}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// `kubectl …` as the administrator.
pub(crate) fn admin(arguments: &[&str]) -> Result<String> {
    said(kubectl(As::Admin)?.args(arguments))
}

/// `kubectl get … --output json` as the administrator.
pub(crate) fn get(arguments: &[&str]) -> Result<Value> {
    let text = said(kubectl(As::Admin)?.arg("get").args(arguments).args(["--output", "json"]))?;
    serde_json::from_str(&text).context("kubectl printed no JSON")
}

/// Gives a document to kubectl's standard input.
pub(crate) fn feed(command: &mut Command, document: &str) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start kubectl")?;
    child.stdin.take().context("a pipe")?.write_all(document.as_bytes())?;
    let done = child.wait_with_output()?;
    if !done.status.success() {
        bail!("{}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Creates an object, and deletes it when dropped.
#[derive(Debug)]
pub(crate) struct Created {
    kind: String,
    name: String,
}

impl Created {
    /// # Errors
    /// What the API server says against it.
    pub(crate) fn new(object: &Value) -> Result<Self> {
        let word = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let created = Self { kind: word("/kind"), name: word("/metadata/name") };
        feed(kubectl(As::Admin)?.args(["create", "--filename", "-"]), &object.to_string())?;
        Ok(created)
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        let _ = admin(&["delete", &self.kind, &self.name, "--ignore-not-found", "--wait=true", "--grace-period=1"]);
    }
}

/// What the namespace looks like, for whoever reads a failure.
pub(crate) fn situation() -> String {
    let pods = admin(&["get", "pods,jobs,deployments", "--output", "wide"]).unwrap_or_default();
    let events = admin(&["get", "events", "--sort-by", ".lastTimestamp"]).unwrap_or_default();
    let events: Vec<&str> = events.lines().collect();
    format!("{pods}\n{}", events[events.len().saturating_sub(12)..].join("\n"))
}
