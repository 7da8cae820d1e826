//! A real API server with etcd and the controllers, where `cargo xtask cluster` has built them: no
//! node, so a pod is what a test makes of it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// May do everything.
pub(crate) const ADMIN: &str = "admin-token";
/// Is in the group that `images/manifests/base/rbac.yaml` binds.
pub(crate) const DRIVER: &str = "driver-token";
/// May do nothing.
pub(crate) const STRANGER: &str = "stranger-token";

pub(crate) struct ApiServer {
    folder: tempfile::TempDir,
    binaries: PathBuf,
    port: u16,
    etcd: Child,
    server: Child,
    controllers: Child,
}

impl ApiServer {
    /// Starts one; `None`, having said why, where the programs are not there.
    pub(crate) fn start() -> Option<Self> {
        let binaries = binaries().or_else(|| skip("no kube-apiserver: `cargo xtask cluster up` builds one"))?;
        let etcd = program("etcd").or_else(|| skip("no etcd: `apt-get install etcd-server`"))?;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let key = at("sa.key");
        let made =
            Command::new("openssl").args(["genrsa", "-out"]).arg(&key).arg("2048").stderr(Stdio::null()).status();
        if !made.is_ok_and(|status| status.success()) {
            return skip("no openssl: `apt-get install openssl`");
        }
        let tokens = format!(
            "{ADMIN},admin,admin,system:masters\n{DRIVER},driver,driver,training-gym:drivers\n{STRANGER},stranger,stranger\n"
        );
        fs::write(at("tokens.csv"), tokens).unwrap();
        let (client, peer, port) = (free_port(), free_port(), free_port());
        let etcd = Command::new(etcd)
            .args(["--data-dir".into(), at("etcd").into_os_string()])
            .args([format!("--listen-client-urls=http://127.0.0.1:{client}")])
            .args([format!("--advertise-client-urls=http://127.0.0.1:{client}")])
            .args([format!("--listen-peer-urls=http://127.0.0.1:{peer}"), "--unsafe-no-fsync".to_owned()])
            .args([format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}")])
            .args([format!("--initial-cluster=default=http://127.0.0.1:{peer}")])
            .stdout(Stdio::null())
            .stderr(fs::File::create(at("etcd.log")).unwrap())
            .spawn()
            .unwrap();
        fs::write(at("etcd.port"), client.to_string()).unwrap();
        let server = spawn_server(&binaries, folder.path(), port, client);
        let config = kubeconfig(port, ADMIN);
        fs::write(at("kubeconfig"), config).unwrap();
        let controllers = Command::new(binaries.join("kube-controller-manager"))
            .arg(format!("--kubeconfig={}", at("kubeconfig").display()))
            .arg(format!("--service-account-private-key-file={}", key.display()))
            .args(["--leader-elect=false", "--secure-port=0"])
            .arg("--controllers=job-controller,deployment-controller,replicaset-controller,garbage-collector-controller,ttl-after-finished-controller,serviceaccount-controller")
            .stdout(Stdio::null())
            .stderr(fs::File::create(at("controllers.log")).unwrap())
            .spawn()
            .unwrap();
        let this = Self { folder, binaries, port, etcd, server, controllers };
        this.wait();
        Some(this)
    }

    fn wait(&self) {
        let begun = Instant::now();
        while !self.kubectl(&["get", "--raw", "/readyz"]).0 {
            assert!(begun.elapsed() < Duration::from_secs(120), "{}", self.log("server.log"));
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    pub(crate) fn log(&self, name: &str) -> String {
        let text = fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        text.lines().rev().take(20).collect::<Vec<_>>().join("\n")
    }

    /// Ends the API server alone, and starts it again after a while.
    pub(crate) fn restart_after(&mut self, pause: Duration) {
        self.stop_server();
        std::thread::sleep(pause);
        let client: u16 = fs::read_to_string(self.folder.path().join("etcd.port")).unwrap().parse().unwrap();
        self.server = spawn_server(&self.binaries, self.folder.path(), self.port, client);
    }

    pub(crate) fn stop_server(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }

    /// `kubectl` as the admin: whether it succeeded, and what it printed.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> (bool, String) {
        let output = Command::new(self.binaries.join("kubectl"))
            .arg(format!("--kubeconfig={}", self.folder.path().join("kubeconfig").display()))
            .args(arguments)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// As [`ApiServer::kubectl`], which must succeed.
    pub(crate) fn must(&self, arguments: &[&str]) -> String {
        let (success, said) = self.kubectl(arguments);
        assert!(success, "kubectl {arguments:?}: {said}");
        said
    }

    /// The configuration of a client with this token.
    pub(crate) async fn config(&self, token: &str) -> kube::Config {
        let config = kube::config::Kubeconfig::from_yaml(&kubeconfig(self.port, token)).unwrap();
        kube::Config::from_custom_kubeconfig(config, &kube::config::KubeConfigOptions::default()).await.unwrap()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        for child in [&mut self.controllers, &mut self.server, &mut self.etcd] {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn spawn_server(binaries: &Path, folder: &Path, port: u16, etcd: u16) -> Child {
    let key = folder.join("sa.key");
    let log = fs::OpenOptions::new().create(true).append(true).open(folder.join("server.log")).unwrap();
    Command::new(binaries.join("kube-apiserver"))
        .arg(format!("--etcd-servers=http://127.0.0.1:{etcd}"))
        .args([format!("--secure-port={port}"), "--bind-address=127.0.0.1".to_owned()])
        .arg(format!("--cert-dir={}", folder.join("certificates").display()))
        .arg(format!("--token-auth-file={}", folder.join("tokens.csv").display()))
        .args([format!("--service-account-key-file={}", key.display())])
        .args([format!("--service-account-signing-key-file={}", key.display())])
        .args(["--service-account-issuer=https://127.0.0.1", "--authorization-mode=RBAC"])
        .args(["--service-cluster-ip-range=10.99.0.0/16", "--anonymous-auth=false", "--endpoint-reconciler-type=none"])
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn kubeconfig(port: u16, token: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {
            "server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "gym"}}],
    })
    .to_string()
}

fn skip<T>(why: &str) -> Option<T> {
    eprintln!("skipped: {why}");
    None
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The newest built control plane of the cache.
fn binaries() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let entries = fs::read_dir(cache.join("training-gym")).ok()?.flatten().map(|entry| entry.path());
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("kubernetes-"));
    let all = ["kube-apiserver", "kube-controller-manager", "kubectl"];
    let mut built: Vec<PathBuf> =
        entries.filter(named).filter(|path| all.iter().all(|name| path.join(name).is_file())).collect();
    built.sort();
    built.pop()
}
