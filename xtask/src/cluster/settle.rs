//! What the cluster is given once its components answer: images, GPUs that are not there, a bucket, a driver.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::binaries;
use super::layout::{BUCKET, FAKE_GPUS, Layout, NAMESPACE, NODE, NODE_ADDRESS, last_lines};
use super::up::inside;
use super::{components, pki};
use crate::shell::{output, root};

/// What a component may take from its start.
const PATIENCE: Duration = Duration::from_secs(120);
/// A component that ended so often will not come up.
const ENDINGS: usize = 12;

/// kubectl as the cluster's administrator.
pub(crate) fn kubectl(layout: &Layout) -> Command {
    let mut command = Command::new(binaries::kubectl(layout));
    command.env("KUBECONFIG", layout.kubeconfig("admin")).env_remove("http_proxy").env_remove("https_proxy");
    command
}

/// Asks until the answer is yes; a component that keeps ending is named with its last lines.
fn until(layout: &Layout, what: &str, suspects: &[&str], mut ask: impl FnMut() -> Result<String>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let error = match ask() {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let endings = std::fs::read_to_string(layout.endings()).unwrap_or_default();
        let ended =
            suspects.iter().find(|name| endings.lines().filter(|line| line.starts_with(*name)).count() > ENDINGS);
        if let Some(name) = ended {
            bail!("{what}: {name} ends again and again\n{}", last_words(layout, &[name]));
        }
        if Instant::now() > deadline || super::cgroups::processes().is_empty() {
            return Err(error)
                .with_context(|| format!("{what}: not within {PATIENCE:?}\n{}", last_words(layout, suspects)));
        }
        std::thread::sleep(Duration::from_millis(150));
    }
}

fn last_words(layout: &Layout, names: &[&str]) -> String {
    names
        .iter()
        .map(|name| {
            format!(
                "-- the last lines of {}:\n{}\n",
                layout.log_of(name).display(),
                last_lines(&layout.log_of(name), 15)
            )
        })
        .collect()
}

/// Awaits the API server, the container runtime, the node and DNS.
pub(crate) fn await_ready(layout: &Layout) -> Result<()> {
    until(layout, "containerd does not answer", &["containerd"], || {
        output(inside(layout, "ctr")?.args(["--address", "/run/containerd/containerd.sock", "version"]))
    })?;
    import(layout, &binaries::pause_image(layout))?;
    until(layout, "the API server is not ready", &["etcd", "kube-apiserver"], || {
        output(kubectl(layout).args(["get", "--raw", "/readyz"]))
    })?;
    apply(layout, &dns_role().to_string())?;
    let node = format!("node/{NODE}");
    until(layout, "the node is not there", &["kubelet"], || {
        output(kubectl(layout).args(["get", "-o", "name", &node]))
    })?;
    output(kubectl(layout).args(["wait", "--for=condition=Ready", &node, "--timeout=90s"]))
        .with_context(|| format!("the node is not ready\n{}", last_words(layout, &["kubelet", "containerd"])))?;
    until(layout, "DNS is not ready", &["coredns"], || {
        let mut ready = inside(layout, "bash")?;
        // The probe is a line of HTTP: no client needs to be installed for it.
        ready.args([
            "-c",
            "exec 3<>/dev/tcp/127.0.0.1/8181 && printf 'GET /ready HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q '200 OK' <&3",
        ]);
        output(&mut ready)
    })?;
    until(layout, "no service account in the namespace default", &["kube-controller-manager"], || {
        output(kubectl(layout).args(["get", "serviceaccount", "default"]))
    })
}

/// Puts an image of an OCI archive where the kubelet finds it.
pub(crate) fn import(layout: &Layout, archive: &Path) -> Result<()> {
    let mut import = inside(layout, "ctr")?;
    import.args(["--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io", "images", "import"]);
    output(import.arg(archive)).map(|_| ())
}

/// `kubectl apply` of a document.
pub(crate) fn apply(layout: &Layout, document: &str) -> Result<()> {
    use std::io::Write;
    let mut child = kubectl(layout)
        .args(["apply", "--filename", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start kubectl")?;
    child.stdin.take().context("a pipe")?.write_all(document.as_bytes())?;
    let done = child.wait_with_output()?;
    if !done.status.success() {
        bail!("kubectl apply: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

/// What the DNS server reads.
fn dns_role() -> serde_json::Value {
    let rules = json!([
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]);
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
         "metadata": {"name": "training-gym:dns"}, "rules": rules},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
         "metadata": {"name": "training-gym:dns"},
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "training-gym:dns"},
         "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "training-gym:dns"}]},
    ]})
}

/// Claims GPUs: no plugin brings them, and no pod will find one.
pub(crate) fn advertise_gpus(layout: &Layout) -> Result<()> {
    let patch = format!(r#"[{{"op":"add","path":"/status/capacity/nvidia.com~1gpu","value":"{FAKE_GPUS}"}}]"#);
    output(kubectl(layout).args(["patch", "node", NODE, "--subresource=status", "--type=json", "--patch", &patch]))?;
    let product = "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3";
    output(kubectl(layout).args(["label", "--overwrite", "node", NODE, product]))?;
    Ok(())
}

/// The shipped objects, and a driver who may do what their role says and nothing else.
pub(crate) fn make_driver(layout: &Layout) -> Result<()> {
    let folder = root().join("images/manifests/base");
    if !folder.is_dir() {
        return Ok(());
    }
    output(kubectl(layout).args(["apply", "--kustomize"]).arg(&folder))?;
    let token = ["create", "token", "training-gym-driver", "--namespace", NAMESPACE, "--duration", "24h"];
    let token = output(kubectl(layout).args(token))?;
    pki::kubeconfig(layout, "driver", &json!({"token": token.trim()}))
}

/// Makes the suite's bucket, once the S3 server answers.
pub(crate) fn make_bucket(layout: &Layout) -> Result<()> {
    until(layout, "the S3 server does not make a bucket", &["seaweedfs"], || {
        let mut shell = Command::new("timeout");
        shell.arg("20").arg(binaries::weed(layout)).args(["shell", "-master"]).arg(format!("{NODE_ADDRESS}:9333"));
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        {
            use std::io::Write;
            let mut input = child.stdin.take().context("a pipe")?;
            write!(input, "s3.bucket.create -name {BUCKET}\ns3.bucket.list\n")?;
        }
        let said = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        if !said.lines().any(|line| line.trim_start().starts_with(BUCKET)) {
            bail!("{}", said.trim());
        }
        Ok(said)
    })
}

/// How often each component was started again.
pub(crate) fn restarts(layout: &Layout) -> Vec<(&'static str, usize)> {
    let endings = std::fs::read_to_string(layout.endings()).unwrap_or_default();
    components::components(layout)
        .iter()
        .map(|component| {
            let prefix = format!("{} ", component.name);
            (component.name, endings.lines().filter(|line| line.starts_with(&prefix)).count())
        })
        .collect()
}
