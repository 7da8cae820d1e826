//! The first process of the node's namespaces: it mounts, starts the components, starts again those
//! that end, and collects every orphan. When it is killed, the kernel ends all the rest.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::cgroups;
use super::components::{Component, components};
use super::layout::{Layout, NODE, NODE_ADDRESS};
use crate::shell::{output, run};

/// A component that ends is started again after this.
const REST: Duration = Duration::from_millis(700);

/// Host-wide settings that a kubelet wants; it finds and sets them in files of ours instead.
const TUNABLES: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// `cluster node STATE CACHE`: never returns while the node is to live.
pub(crate) fn first_process(arguments: &[String]) -> Result<()> {
    let [state, cache] = arguments else { bail!("`cluster node` is started by `cluster up`") };
    if std::process::id() != 1 {
        bail!("`cluster node` is the first process of a PID namespace: `cluster up` starts it");
    }
    let layout = Layout { state: state.into(), cache: cache.into() };
    cgroups::join()?;
    // This /proc is still the host's, where we have another number.
    let number = fs::read_link("/proc/self").context("no /proc")?;
    println!("{}", number.display());
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    if line.trim() != "go" {
        bail!("`cluster up` ended before the node started");
    }
    mounts(&layout)?;
    network()?;
    run(Command::new("hostname").arg(NODE))?;
    supervise(&layout)
}

fn mount(arguments: &[&str], paths: &[&Path]) -> Result<()> {
    output(Command::new("mount").args(arguments).args(paths)).map(|_| ())
}

fn mounts(layout: &Layout) -> Result<()> {
    // Nothing of ours reaches the host; what the kubelet mounts reaches its containers.
    mount(&["--make-rprivate", "/"], &[])?;
    mount(&["--make-rshared", "/"], &[])?;
    mount(&["-t", "proc", "proc", "/proc"], &[])?;
    let tunables = layout.state.join("tunables");
    for (name, value) in TUNABLES {
        let (file, target) = (tunables.join(name), Path::new("/proc/sys").join(name));
        if target.exists() {
            fs::create_dir_all(file.parent().context("a file has a folder")?)?;
            fs::write(&file, format!("{value}\n"))?;
            mount(&["--bind"], &[&file, &target])?;
        }
    }
    for (ours, target) in [(layout.run(), "/run"), (layout.logs(), "/var/log")] {
        fs::create_dir_all(&ours)?;
        mount(&["--bind"], &[&ours, Path::new(target)])?;
    }
    // A few paths below /var/lib are not to be configured: what is written there goes to our folder.
    let [upper, work] = ["upper", "work"].map(|name| layout.state.join("var-lib").join(name));
    fs::create_dir_all(&upper)?;
    fs::create_dir_all(&work)?;
    let options = format!("lowerdir=/var/lib,upperdir={},workdir={}", upper.display(), work.display());
    mount(&["-t", "overlay", "overlay", "-o", &options, "/var/lib"], &[])?;
    fs::create_dir_all("/run/seaweedfs")?;
    // etcd waits for its disk at each write; nobody needs this data after a crash.
    fs::create_dir_all("/run/etcd")?;
    mount(&["-t", "tmpfs", "-o", "mode=700", "etcd", "/run/etcd"], &[])
}

fn network() -> Result<()> {
    let address = format!("{NODE_ADDRESS}/30");
    for arguments in
        [&["link", "set", "lo", "up"][..], &["address", "add", &address, "dev", "eth0"], &["link", "set", "eth0", "up"]]
    {
        output(Command::new("ip").args(arguments))?;
    }
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot forward packets")?;
    Ok(())
}

fn supervise(layout: &Layout) -> Result<()> {
    let components = components(layout);
    let mut running: HashMap<i32, usize> = HashMap::new();
    for (index, component) in components.iter().enumerate() {
        running.insert(start(layout, component)?, index);
    }
    let mut endings = OpenOptions::new().create(true).append(true).open(layout.endings())?;
    let mut waiting: Vec<(usize, Instant)> = Vec::new();
    loop {
        // Children that we did not start are orphans of a component: they are collected all the same.
        while let Ok(Some((pid, status))) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
            if let Some(index) = running.remove(&pid.as_raw_nonzero().get()) {
                writeln!(endings, "{} {status:?}", components[index].name)?;
                waiting.push((index, Instant::now() + REST));
            }
        }
        let (due, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(_, at)| *at <= Instant::now());
        waiting = later;
        for (index, _) in due {
            running.insert(start(layout, &components[index])?, index);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn start(layout: &Layout, component: &Component) -> Result<i32> {
    let path = layout.log_of(component.name);
    let log = OpenOptions::new().create(true).append(true).open(&path);
    let log: File = log.with_context(|| format!("cannot open {}", path.display()))?;
    let mut command = Command::new(&component.program);
    command
        .args(&component.arguments)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/run")
        // Two processors serve everything: collectors that wait longer cost less.
        .env("GOGC", "200")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let child = command.spawn().with_context(|| format!("cannot start {}", component.program.display()))?;
    i32::try_from(child.id()).context("a process id that is none")
}

/// The node's program is this very one, also when a build has put another at its path meanwhile.
pub(crate) fn this_program() -> PathBuf {
    PathBuf::from(format!("/proc/{}/exe", std::process::id()))
}
