//! Starting and ending the cluster.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::configuration::{self, S3Identity};
use super::layout::{BUCKET, HOST_ADDRESS, HOST_INTERFACE, Layout, NAMESPACE, NODE_ADDRESS, S3_PORT};
use super::{binaries, cgroups, node, pki, requirements, settle};
use crate::image;
use crate::shell::{output, run};

/// Starts the cluster; `false` if it ran already.
pub(crate) fn up(layout: &Layout) -> Result<bool> {
    fs::create_dir_all(&layout.cache).with_context(|| format!("cannot make {}", layout.cache.display()))?;
    let lock = File::create(layout.cache.join("cluster.lock")).context("cannot make the cluster's lock file")?;
    lock.lock().context("cannot lock the cluster")?;
    if answers(layout) {
        println!("cluster: running");
        // It may have been built anew since.
        if let Some(archive) = image::built() {
            settle::import(layout, &archive)?;
        }
        print_environment(layout)?;
        return Ok(false);
    }
    let started = Instant::now();
    let step = |what: &str| println!("cluster: {what} ({:.1} s)", started.elapsed().as_secs_f64());
    remove(layout)?;
    requirements::install()?;
    requirements::addresses_are_free()?;
    binaries::ensure(layout)?;
    step("programs are there");
    fs::create_dir_all(layout.logs())?;
    let identity = S3Identity { access_key: random("AKGYM", 8)?, secret_key: random("", 20)? };
    pki::make(layout)?;
    configuration::write(layout, &identity)?;
    step("certificates and configuration are written");
    if let Err(error) = begin(layout, &identity, &step) {
        // The logs stay for whoever looks into it; `down`, or the next `up`, removes them.
        let _ = cgroups::clear();
        return Err(error.context(format!("the logs are in {}", layout.logs().display())));
    }
    step("up");
    print_environment(layout)?;
    Ok(true)
}

fn begin(layout: &Layout, identity: &S3Identity, step: &dyn Fn(&str)) -> Result<()> {
    start_node(layout)?;
    settle::await_ready(layout)?;
    step("the API server and the node are ready");
    settle::advertise_gpus(layout)?;
    settle::make_driver(layout)?;
    settle::make_bucket(layout)?;
    step("GPUs are claimed, the driver and the bucket are there");
    let mut environment = environment(layout, identity);
    if let Some(archive) = image::built() {
        settle::import(layout, &archive)?;
        step("the runtime's image is imported");
        environment.push_str(&format!("export TRAINING_GYM_IMAGE={}\n", image::NAME));
    }
    let partial = layout.environment().with_extension("partial");
    fs::write(&partial, environment)?;
    fs::rename(partial, layout.environment()).context("cannot write the environment")
}

/// A random word of hexadecimal digits after `prefix`.
fn random(prefix: &str, bytes: usize) -> Result<String> {
    let mut block = vec![0_u8; bytes];
    File::open("/dev/urandom")?.read_exact(&mut block)?;
    let digits: String = block.iter().map(|byte| format!("{byte:02X}")).collect();
    Ok(format!("{prefix}{digits}"))
}

/// Makes the groups, the namespaces and the cable, and lets the first process go.
fn start_node(layout: &Layout) -> Result<()> {
    cgroups::make()?;
    let log = OpenOptions::new().create(true).append(true).open(layout.log_of("node"))?;
    let mut child = Command::new("setsid")
        .args(["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"])
        .arg(node::this_program())
        .args(["cluster", "node"])
        .args([&layout.state, &layout.cache])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("cannot start unshare")?;
    let connected = connect(layout, &mut child);
    connected.with_context(|| super::layout::last_lines(&layout.log_of("node"), 10))
}

fn connect(layout: &Layout, child: &mut Child) -> Result<()> {
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("a pipe")?).read_line(&mut line)?;
    let number: u32 = line.trim().parse().context("the node's first process did not start")?;
    fs::write(layout.first_process(), number.to_string())?;
    let number = number.to_string();
    ip(&["link", "add", HOST_INTERFACE, "type", "veth", "peer", "name", "eth0", "netns", &number])?;
    ip(&["address", "add", &format!("{HOST_ADDRESS}/30"), "dev", HOST_INTERFACE])?;
    ip(&["link", "set", HOST_INTERFACE, "up"])?;
    child.stdin.take().context("a pipe")?.write_all(b"go\n").context("the node's first process ended")
}

fn ip(arguments: &[&str]) -> Result<()> {
    output(Command::new("ip").args(arguments)).map(|_| ())
}

/// Whether a whole cluster runs.
fn answers(layout: &Layout) -> bool {
    layout.environment().is_file()
        && !cgroups::processes().is_empty()
        && output(settle::kubectl(layout).args(["get", "--raw", "/readyz", "--request-timeout=10s"])).is_ok()
}

/// Ends the cluster.
pub(crate) fn down(layout: &Layout) -> Result<()> {
    let started = Instant::now();
    remove(layout)?;
    println!("cluster: down ({:.1} s)", started.elapsed().as_secs_f64());
    Ok(())
}

/// Ends what runs and removes what is left, in whatever state an `up` was when it ended.
fn remove(layout: &Layout) -> Result<()> {
    cgroups::clear()?;
    // The kernel takes the cable away with the node's namespace, a moment after its last process.
    let deadline = Instant::now() + Duration::from_secs(10);
    while Path::new("/sys/class/net").join(HOST_INTERFACE).exists() {
        if Instant::now() > deadline {
            ip(&["link", "delete", HOST_INTERFACE])?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if layout.state.exists() {
        run(Command::new("rm").arg("-rf").arg("--one-file-system").arg(&layout.state))?;
    }
    Ok(())
}

/// How a driver on this machine uses the cluster.
fn environment(layout: &Layout, identity: &S3Identity) -> String {
    let driver = layout.kubeconfig("driver");
    let user = if driver.is_file() { driver } else { layout.kubeconfig("admin") };
    let store = format!("s3://{BUCKET}/gym?endpoint=http://{NODE_ADDRESS}:{S3_PORT}&region=us-east-1&path_style=true");
    [
        ("KUBECONFIG", user.display().to_string()),
        ("TRAINING_GYM_BACKEND", "kubernetes".to_owned()),
        ("TRAINING_GYM_NAMESPACE", NAMESPACE.to_owned()),
        ("TRAINING_GYM_STORE", store),
        ("TRAINING_GYM_IMAGE_PULL_POLICY", "IfNotPresent".to_owned()),
        ("AWS_ACCESS_KEY_ID", identity.access_key.clone()),
        ("AWS_SECRET_ACCESS_KEY", identity.secret_key.clone()),
    ]
    .iter()
    .map(|(name, value)| format!("export {name}='{value}'\n"))
    .collect()
}

/// Prints the environment of a driver, as lines for a shell.
pub(crate) fn print_environment(layout: &Layout) -> Result<()> {
    let environment = fs::read_to_string(layout.environment()).context("no cluster runs: `cargo xtask cluster up`")?;
    print!("{environment}");
    println!("# as administrator: KUBECONFIG={}", layout.kubeconfig("admin").display());
    println!("# kubectl of this version: {}", binaries::kubectl(layout).display());
    Ok(())
}

/// A command in the node's namespaces.
pub(crate) fn inside(layout: &Layout, program: &str) -> Result<Command> {
    let number = fs::read_to_string(layout.first_process()).context("no cluster runs: `cargo xtask cluster up`")?;
    let ours = number.parse().is_ok_and(|number: u32| cgroups::processes().contains(&number));
    ensure!(ours, "the cluster's first process is gone: `cargo xtask cluster up` starts it again");
    let mut command = Command::new("nsenter");
    command.args(["--target", number.trim(), "--mount", "--net", "--pid", "--ipc", "--uts"]).arg(program);
    Ok(command)
}

/// `cluster run`.
pub(crate) fn run_inside(layout: &Layout, arguments: &[String]) -> Result<()> {
    let Some((program, rest)) = arguments.split_first() else { bail!("cluster run COMMAND…") };
    let mut command = inside(layout, program)?;
    command.env("KUBECONFIG", layout.kubeconfig("admin")).env("CONTAINERD_ADDRESS", "/run/containerd/containerd.sock");
    run(command.args(rest))
}

/// `cluster status`.
pub(crate) fn status(layout: &Layout) -> Result<()> {
    let processes = cgroups::processes();
    if processes.is_empty() {
        println!("cluster: down");
        return Ok(());
    }
    println!("cluster: {} processes, {}", processes.len(), if answers(layout) { "answering" } else { "NOT answering" });
    for (name, count) in settle::restarts(layout) {
        println!("  {name:<24} started again {count} times; log {}", layout.log_of(name).display());
    }
    let pods = ["get", "nodes,pods", "--all-namespaces", "--output", "wide"];
    run(settle::kubectl(layout).args(pods))
}
