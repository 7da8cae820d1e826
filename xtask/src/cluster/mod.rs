//! `cargo xtask cluster`: a real Kubernetes on one machine, for the cluster suite.
//!
//! etcd, the API server, the controllers, the scheduler, a kubelet with containerd, the service proxy, DNS and an S3
//! server run under one process that is the first of its own PID, mount, network, IPC and host-name
//! namespaces. When it ends the kernel ends the others and takes their mounts and interfaces away;
//! what is left, a folder and control groups, `down` removes. One machine has one such cluster.

mod binaries;
mod cgroups;
mod components;
mod configuration;
mod layout;
mod node;
mod pki;
mod requirements;
mod settle;
mod suite;
mod up;

use anyhow::{Result, bail};

use layout::Layout;

const HELP: &str = "\
cargo xtask cluster COMMAND

  up              start the cluster, or find it running; prints how to use it
  down            end it, and remove what it made; the built programs stay cached
  status          whether it runs, and how its components are
  env             the environment of a driver, as lines for a shell
  test [FILTER]   start it if need be, run the cluster suite, and end it if it was started here
  run COMMAND…    run a command in the node's namespaces, such as `ctr -n k8s.io images list`
";

/// The commands of `cargo xtask cluster`.
pub(crate) fn cluster(arguments: &[String]) -> Result<()> {
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[][..]),
    };
    match command {
        "up" => skipping(|layout| up::up(layout).map(|_| ())),
        "down" => up::down(&Layout::of_this_machine()?),
        "status" => up::status(&Layout::of_this_machine()?),
        "env" => up::print_environment(&Layout::of_this_machine()?),
        "test" => skipping(|layout| suite::run(layout, rest)),
        "run" => up::run_inside(&Layout::of_this_machine()?, rest),
        // What `up` starts as the first process of the namespaces.
        "node" => node::first_process(rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => bail!("no command `cluster {other}`\n\n{HELP}"),
    }
}

/// Runs a command where a cluster can run, and elsewhere says why it cannot: that is no failure.
fn skipping(command: impl FnOnce(&Layout) -> Result<()>) -> Result<()> {
    if let Some(reason) = requirements::missing() {
        println!("cluster: skipped: {reason}");
        return Ok(());
    }
    command(&Layout::of_this_machine()?)
}

/// Installs the Debian packages of the cluster and of the image's builder.
pub(crate) fn install_packages() -> Result<()> {
    requirements::install()
}
