//! The cluster's certificates, made anew by each `up` and valid for days: nothing of it is worth stealing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::json;

use super::layout::{API_PORT, API_SERVICE, Layout, NODE, NODE_ADDRESS};
use crate::shell::output;

const DAYS: &str = "30";

/// A client of the API server: the file's name, and who it is.
const CLIENTS: [(&str, &str); 7] = [
    ("admin", "/O=system:masters/CN=training-gym-admin"),
    ("kube-controller-manager", "/CN=system:kube-controller-manager"),
    ("kube-scheduler", "/CN=system:kube-scheduler"),
    ("kube-proxy", "/CN=system:kube-proxy"),
    ("kubelet", "/O=system:nodes/CN=system:node:gym-node"),
    ("coredns", "/O=training-gym:dns/CN=training-gym:dns"),
    // The API server as a client of the kubelet.
    ("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client"),
];

/// Makes the authority, the servers' and the clients' certificates, the key of service-account tokens,
/// and a kubeconfig a client.
pub(crate) fn make(layout: &Layout) -> Result<()> {
    let folder = layout.pki();
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
    fs::write(folder.join("openssl.cnf"), "[req]\ndistinguished_name = name\n[name]\n")?;
    let authority =
        ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"];
    request(&folder, "ca", "/CN=training-gym-cluster", &authority)?;
    let api = format!(
        "subjectAltName=DNS:localhost,DNS:{NODE},DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,\
         DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:{NODE_ADDRESS},IP:{API_SERVICE}"
    );
    leaf(&folder, "apiserver", "/CN=kube-apiserver", &["extendedKeyUsage=serverAuth", &api])?;
    let kubelet = format!("subjectAltName=DNS:{NODE},IP:{NODE_ADDRESS}");
    leaf(&folder, "kubelet-server", &format!("/CN={NODE}"), &["extendedKeyUsage=serverAuth", &kubelet])?;
    for (name, subject) in CLIENTS {
        leaf(&folder, name, subject, &["extendedKeyUsage=clientAuth"])?;
        write_kubeconfig(layout, name)?;
    }
    let mut key = Command::new("openssl");
    key.args(["genrsa", "-out"]).arg(folder.join("service-accounts.key")).arg("2048").stderr(Stdio::null());
    output(&mut key)?;
    Ok(())
}

fn leaf(folder: &Path, name: &str, subject: &str, extensions: &[&str]) -> Result<()> {
    let authority = [folder.join("ca.crt"), folder.join("ca.key")].map(|path| path.to_string_lossy().into_owned());
    let mut arguments =
        vec!["-CA", &authority[0], "-CAkey", &authority[1], "-addext", "basicConstraints=critical,CA:FALSE"];
    for extension in extensions {
        arguments.extend(["-addext", extension]);
    }
    request(folder, name, subject, &arguments)
}

fn request(folder: &Path, name: &str, subject: &str, more: &[&str]) -> Result<()> {
    let mut command = Command::new("openssl");
    command
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", DAYS])
        .arg("-config")
        .arg(folder.join("openssl.cnf"))
        .args(["-subj", subject, "-keyout"])
        .arg(folder.join(format!("{name}.key")))
        .arg("-out")
        .arg(folder.join(format!("{name}.crt")))
        .args(more);
    output(&mut command)?;
    Ok(())
}

fn write_kubeconfig(layout: &Layout, name: &str) -> Result<()> {
    let folder = layout.pki();
    let user = json!({
        "client-certificate": folder.join(format!("{name}.crt")),
        "client-key": folder.join(format!("{name}.key")),
    });
    kubeconfig(layout, name, &user)
}

/// A kubeconfig for `user`, as the `user` entry of one names it.
pub(crate) fn kubeconfig(layout: &Layout, name: &str, user: &serde_json::Value) -> Result<()> {
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "gym", "cluster": {
            "server": format!("https://{NODE_ADDRESS}:{API_PORT}"),
            "certificate-authority": layout.pki().join("ca.crt"),
        }}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "gym", "context": {"cluster": "gym", "user": name}}],
        "current-context": "gym",
    });
    let path = layout.kubeconfig(name);
    // YAML is what they are usually written in; JSON is YAML.
    fs::write(&path, serde_json::to_string_pretty(&document)?)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(())
}
