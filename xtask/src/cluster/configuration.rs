//! The components' configuration files.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::cgroups::GROUP;
use super::layout::{Layout, NODE, NODE_ADDRESS, POD_RANGE};

/// The registry of the node, for what a pull can meet.
pub(crate) const REGISTRY_PORT: u16 = 5000;
/// The sandbox image that the node is given; no registry has it.
pub(crate) const PAUSE: &str = "localhost/pause:1";

/// The one identity that the S3 server knows.
#[derive(Debug)]
pub(crate) struct S3Identity {
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
}

/// Writes them all.
pub(crate) fn write(layout: &Layout, identity: &S3Identity) -> Result<()> {
    let folder = layout.configuration();
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let documents = [
        ("kubelet.json", kubelet(layout)),
        ("kube-proxy.json", kube_proxy(layout)),
        ("audit.json", audit()),
        ("s3.json", s3(identity)),
        ("registry.json", registry()),
    ];
    for (name, document) in documents {
        fs::write(folder.join(name), serde_json::to_vec_pretty(&document)?)?;
    }
    fs::write(folder.join("containerd.toml"), containerd(layout))?;
    fs::write(folder.join("Corefile"), corefile(layout))?;
    // Names that the cluster's DNS does not know are nobody's: nothing leaves the machine.
    fs::write(folder.join("resolv.conf"), "")?;
    fs::create_dir_all(folder.join("cni"))?;
    fs::write(folder.join("cni/10-gym.conflist"), serde_json::to_vec_pretty(&cni())?)?;
    Ok(())
}

fn kubelet(layout: &Layout) -> Value {
    let pki = layout.pki();
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki.join("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": pki.join("kubelet-server.crt"),
        "tlsPrivateKeyFile": pki.join("kubelet-server.key"),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{GROUP}"),
        "failCgroupV1": false,
        // This machine may not let even root lower a score.
        "oomScoreAdj": 0,
        "clusterDNS": [NODE_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": layout.configuration().join("resolv.conf"),
        "podLogsDir": "/var/log/pods",
        "maxPods": 60,
        "serializeImagePulls": false,
        // Small, so that following a log meets a rotation.
        "containerLogMaxSize": "256Ki",
        "containerLogMonitorInterval": "3s",
        "nodeLeaseDurationSeconds": 12,
        "nodeStatusUpdateFrequency": "4s",
        "syncFrequency": "10s",
        // The host's disk is everybody's: only its very end is an emergency here.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    })
}

fn kube_proxy(layout: &Layout) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": NODE,
        "clusterCIDR": POD_RANGE,
        "clientConnection": {"kubeconfig": layout.kubeconfig("kube-proxy")},
        // The tables of connections are the whole machine's: left as they are.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "oomScoreAdj": 0,
    })
}

/// Who asked for what, bodies left out: what a person's permissions are compared with.
fn audit() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "userGroups": ["system:serviceaccounts:training-gym"]},
            {"level": "None"},
        ],
    })
}

fn s3(identity: &S3Identity) -> Value {
    json!({"identities": [{
        "name": "training-gym",
        "credentials": [{"accessKey": identity.access_key, "secretKey": identity.secret_key}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }]})
}

fn registry() -> Value {
    json!({
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": "/run/registry"}},
        "http": {"addr": format!("127.0.0.1:{REGISTRY_PORT}")},
    })
}

fn containerd(layout: &Layout) -> String {
    let cni = layout.configuration().join("cni");
    let cni = cni.display();
    format!(
        r#"version = 2
root = "/run/containerd/root"
state = "/run/containerd/state"
oom_score = 0

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # The score of a sandbox would be lowered, which takes a right that even root may lack here.
  restrict_oom_score_adj = true

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
"#
    )
}

fn cni() -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "gym",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "ipMasq": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-addresses",
                    "ranges": [[{"subnet": POD_RANGE}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

fn corefile(layout: &Layout) -> String {
    format!(
        ". {{\n    bind {NODE_ADDRESS}\n    ready 127.0.0.1:8181\n    errors\n    \
         kubernetes cluster.local in-addr.arpa {{\n        kubeconfig {} gym\n        ttl 2\n    }}\n}}\n",
        layout.kubeconfig("coredns").display()
    )
}
