//! Where the cluster's files are, and its fixed names and addresses.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::shell::cache;

/// The node's name, its host name included.
pub(crate) const NODE: &str = "gym-node";
/// The host's end of the cable between the host and the node, and its address.
pub(crate) const HOST_INTERFACE: &str = "gymnode";
pub(crate) const HOST_ADDRESS: &str = "10.213.7.1";
/// The node's address: the API server's, the DNS server's and the S3 server's too.
pub(crate) const NODE_ADDRESS: &str = "10.213.7.2";
/// Pods, and services; the API server is the first service.
pub(crate) const POD_RANGE: &str = "10.214.0.0/24";
pub(crate) const SERVICE_RANGE: &str = "10.215.0.0/16";
pub(crate) const API_SERVICE: &str = "10.215.0.1";
/// Ports on the node's address.
pub(crate) const API_PORT: u16 = 6443;
pub(crate) const S3_PORT: u16 = 8333;
/// The bucket of the suite's store.
pub(crate) const BUCKET: &str = "training-gym";
/// The namespace of `images/manifests`.
pub(crate) const NAMESPACE: &str = "training-gym";
/// GPUs that the node claims and does not have.
pub(crate) const FAKE_GPUS: u32 = 8;

/// The cluster's folders.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// Everything of a running cluster; not there when none runs.
    pub(crate) state: PathBuf,
    /// Built and downloaded programs, kept.
    pub(crate) cache: PathBuf,
}

impl Layout {
    pub(crate) fn of_this_machine() -> Result<Self> {
        let cache = std::path::absolute(cache()?)?;
        Ok(Self { state: cache.join("cluster"), cache })
    }

    /// The folder that the node sees as `/run`.
    pub(crate) fn run(&self) -> PathBuf {
        self.state.join("run")
    }

    /// The folder that the node sees as `/var/log`: a file a component, and the pods'.
    pub(crate) fn logs(&self) -> PathBuf {
        self.state.join("log")
    }

    pub(crate) fn log_of(&self, component: &str) -> PathBuf {
        self.logs().join(format!("{component}.log"))
    }

    /// A line for each component that ended, with its status.
    pub(crate) fn endings(&self) -> PathBuf {
        self.state.join("endings")
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.state.join("pki")
    }

    /// Configuration files of the components.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.state.join("configuration")
    }

    pub(crate) fn kubeconfig(&self, user: &str) -> PathBuf {
        self.state.join(format!("kubeconfig-{user}"))
    }

    /// The process id of the node's first process, as the host counts.
    pub(crate) fn first_process(&self) -> PathBuf {
        self.state.join("first-process")
    }

    /// Written last by `up`: the environment of a driver.
    pub(crate) fn environment(&self) -> PathBuf {
        self.state.join("environment")
    }
}

/// The last lines of a file, for a person to read.
pub(crate) fn last_lines(path: &Path, count: usize) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
