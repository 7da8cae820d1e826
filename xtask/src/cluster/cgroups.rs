//! The cluster's control groups: how its processes are found and ended, whatever became of `up`.
//!
//! Everything of the cluster lives below one group of every hierarchy, pods in `kubepods` beside the
//! components in `node`. Process ids are never trusted from a file: who is in the group is ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Our group's name in each hierarchy, also the kubelet's `cgroupRoot`.
pub(crate) const GROUP: &str = "training-gym-cluster";
const ROOT: &str = "/sys/fs/cgroup";

/// The mounted hierarchies: one with version 2, one a controller with version 1.
fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    if is_unified() {
        return vec![root.to_path_buf()];
    }
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .filter(|path| path.join("cgroup.procs").is_file())
        .collect();
    found.sort();
    found
}

/// Whether this machine has version 2 alone.
pub(crate) fn is_unified() -> bool {
    Path::new(ROOT).join("cgroup.controllers").is_file()
}

/// Makes our groups, with the controllers that a kubelet wants.
pub(crate) fn make() -> Result<()> {
    let hierarchies = hierarchies();
    if hierarchies.is_empty() {
        bail!("{ROOT} has no control groups");
    }
    for hierarchy in &hierarchies {
        if is_unified() {
            // Only the controllers that are there can be passed on; the kubelet names a missing one.
            let controllers = fs::read_to_string(hierarchy.join("cgroup.controllers"))?;
            let wanted: Vec<String> = controllers.split_whitespace().map(|name| format!("+{name}")).collect();
            fs::create_dir_all(hierarchy.join(GROUP))?;
            for folder in [hierarchy.clone(), hierarchy.join(GROUP)] {
                for controller in &wanted {
                    // Some controllers of the root cannot be delegated.
                    let _ = fs::write(folder.join("cgroup.subtree_control"), controller);
                }
            }
        }
        let group = hierarchy.join(GROUP).join("node");
        fs::create_dir_all(&group).with_context(|| format!("cannot make the control group {}", group.display()))?;
        if hierarchy.ends_with("cpuset") {
            // A group of version 1 without processors takes no process.
            for folder in [hierarchy.join(GROUP), group] {
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    let all = fs::read_to_string(hierarchy.join(file))?;
                    fs::write(folder.join(file), all.trim())?;
                }
            }
        }
    }
    Ok(())
}

/// Moves this process into the components' group of every hierarchy.
pub(crate) fn join() -> Result<()> {
    for hierarchy in hierarchies() {
        let file = hierarchy.join(GROUP).join("node/cgroup.procs");
        fs::write(&file, "0").with_context(|| format!("cannot join {}", file.display()))?;
    }
    Ok(())
}

/// The processes of the cluster, pods' included, as this PID namespace counts.
pub(crate) fn processes() -> Vec<u32> {
    let mut found = Vec::new();
    for hierarchy in hierarchies() {
        collect(&hierarchy.join(GROUP), &mut found);
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn collect(group: &Path, found: &mut Vec<u32>) {
    if let Ok(text) = fs::read_to_string(group.join("cgroup.procs")) {
        found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    }
    for child in children(group) {
        collect(&child, found);
    }
}

fn children(group: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(group) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Ends every process in our groups, then removes the groups.
pub(crate) fn clear() -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let processes = processes();
        if processes.is_empty() {
            break;
        }
        if Instant::now() > deadline {
            bail!("processes of the cluster do not end: {processes:?}");
        }
        for process in processes {
            if let Some(pid) = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw) {
                // One that ended meanwhile is what we want.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    for hierarchy in hierarchies() {
        remove(&hierarchy.join(GROUP), deadline)?;
    }
    Ok(())
}

/// Removes a group and those below it; the kernel needs a moment after the last process.
fn remove(group: &Path, deadline: Instant) -> Result<()> {
    if !group.exists() {
        return Ok(());
    }
    for child in children(group) {
        remove(&child, deadline)?;
    }
    while let Err(error) = fs::remove_dir(group) {
        if error.kind() == std::io::ErrorKind::NotFound {
            break;
        }
        if Instant::now() > deadline {
            return Err(error).with_context(|| format!("cannot remove the control group {}", group.display()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
