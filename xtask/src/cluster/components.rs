//! What runs on the node, each with its command line.

use std::path::{Path, PathBuf};

use super::binaries;
use super::layout::{API_PORT, Layout, NODE, NODE_ADDRESS, S3_PORT, SERVICE_RANGE};

/// A program of the node that is always to run.
#[derive(Debug)]
pub(crate) struct Component {
    /// Also its log's name.
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
}

/// The components in the order of their start; each waits by itself for those it needs.
pub(crate) fn components(layout: &Layout) -> Vec<Component> {
    let folder = binaries::folder(layout);
    let kubernetes =
        |name: &'static str, arguments: Vec<String>| Component { name, program: folder.join(name), arguments };
    let installed = |name: &'static str, arguments: Vec<String>| Component { name, program: name.into(), arguments };
    vec![
        installed("etcd", etcd()),
        kubernetes("kube-apiserver", api_server(layout)),
        installed("containerd", vec!["--config".into(), text(&layout.configuration().join("containerd.toml"))]),
        Component { name: "seaweedfs", program: binaries::weed(layout), arguments: seaweedfs(layout) },
        kubernetes("kube-controller-manager", controller_manager(layout)),
        kubernetes("kube-scheduler", scheduler(layout)),
        kubernetes("kubelet", kubelet(layout)),
        kubernetes("kube-proxy", vec![option("config", &layout.configuration().join("kube-proxy.json"))]),
        kubernetes("coredns", vec!["-conf".into(), text(&layout.configuration().join("Corefile"))]),
        installed("docker-registry", vec!["serve".into(), text(&layout.configuration().join("registry.json"))]),
    ]
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn option(name: &str, value: &Path) -> String {
    format!("--{name}={}", value.display())
}

fn lines(options: &str) -> Vec<String> {
    options.split_whitespace().map(str::to_owned).collect()
}

fn etcd() -> Vec<String> {
    lines(
        "--name gym --data-dir /run/etcd/data --listen-client-urls http://127.0.0.1:2379 \
         --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 \
         --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster gym=http://127.0.0.1:2380",
    )
}

fn api_server(layout: &Layout) -> Vec<String> {
    let pki = layout.pki();
    let mut arguments = lines(&format!(
        "--etcd-servers=http://127.0.0.1:2379 --secure-port={API_PORT} --advertise-address={NODE_ADDRESS} \
         --service-cluster-ip-range={SERVICE_RANGE} --authorization-mode=Node,RBAC \
         --enable-admission-plugins=NodeRestriction --allow-privileged=true --anonymous-auth=false \
         --kubelet-preferred-address-types=InternalIP \
         --service-account-issuer=https://kubernetes.default.svc.cluster.local \
         --audit-log-path=/var/log/audit.jsonl --audit-log-maxsize=200"
    ));
    for (name, file) in [
        ("client-ca-file", "ca.crt"),
        ("tls-cert-file", "apiserver.crt"),
        ("tls-private-key-file", "apiserver.key"),
        ("kubelet-certificate-authority", "ca.crt"),
        ("kubelet-client-certificate", "kubelet-client.crt"),
        ("kubelet-client-key", "kubelet-client.key"),
        ("service-account-key-file", "service-accounts.key"),
        ("service-account-signing-key-file", "service-accounts.key"),
    ] {
        arguments.push(option(name, &pki.join(file)));
    }
    arguments.push(option("audit-policy-file", &layout.configuration().join("audit.json")));
    arguments
}

fn of_the_control_plane(layout: &Layout, user: &str) -> Vec<String> {
    let kubeconfig = layout.kubeconfig(user);
    let mut arguments = lines("--leader-elect=false --bind-address=127.0.0.1");
    for name in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        arguments.push(option(name, &kubeconfig));
    }
    arguments
}

fn controller_manager(layout: &Layout) -> Vec<String> {
    let mut arguments = of_the_control_plane(layout, "kube-controller-manager");
    // A lost node is found in seconds, not in the usual 50.
    arguments.extend(lines(
        "--use-service-account-credentials=true --node-monitor-grace-period=16s --node-monitor-period=2s",
    ));
    arguments.push(option("root-ca-file", &layout.pki().join("ca.crt")));
    arguments.push(option("service-account-private-key-file", &layout.pki().join("service-accounts.key")));
    arguments
}

fn scheduler(layout: &Layout) -> Vec<String> {
    of_the_control_plane(layout, "kube-scheduler")
}

fn kubelet(layout: &Layout) -> Vec<String> {
    let mut arguments = lines(&format!("--hostname-override={NODE} --node-ip={NODE_ADDRESS} --root-dir=/run/kubelet"));
    arguments.push(option("kubeconfig", &layout.kubeconfig("kubelet")));
    arguments.push(option("config", &layout.configuration().join("kubelet.json")));
    arguments
}

fn seaweedfs(layout: &Layout) -> Vec<String> {
    let mut arguments = lines(&format!(
        "-logtostderr=true server -dir=/run/seaweedfs -ip={NODE_ADDRESS} -ip.bind=0.0.0.0 -master.port=9333 \
         -master.volumeSizeLimitMB=1024 -volume.port=8380 -volume.max=40 -master.telemetry=false -s3.port.iceberg=0 -filer -filer.port=8888 -s3 -s3.port={S3_PORT}"
    ));
    arguments.push(format!("-s3.config={}", layout.configuration().join("s3.json").display()));
    arguments
}
