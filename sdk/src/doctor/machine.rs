//! This machine: cores, memory, disks, /dev/shm, the C library.

use std::path::Path;
use std::process::Command;

use super::Finding;

/// Below this much free disk a run of the smallest model cannot keep its checkpoints.
const LITTLE_DISK: u64 = 10 << 30;
/// What libtorch and NCCL want of /dev/shm; containers often get 64 MiB.
const LITTLE_SHM: u64 = 256 << 20;

/// Everything that jobs on this machine need of it. Blocks for a moment.
pub(crate) fn findings(home: &Path) -> Vec<Finding> {
    vec![processor(), memory(), disk(home), shm(), glibc()]
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match cores {
        1 => Finding::warning(
            "cores",
            "1",
            "a trainer and its teacher share one core: use a larger machine for more than a try",
        ),
        _ => Finding::ok("cores", cores.to_string()),
    }
}

fn memory() -> Finding {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    };
    match (of("MemAvailable"), of("MemTotal")) {
        (Some(free), Some(all)) => Finding::ok("memory", format!("{} of {} free", size(free), size(all))),
        _ => Finding::skipped("memory", "/proc/meminfo does not say"),
    }
}

/// Free space where the state folder is, or will be.
pub(crate) fn disk(home: &Path) -> Finding {
    let there = home.ancestors().find(|folder| folder.exists()).unwrap_or(home);
    match space(there) {
        Some((free, _)) if free < LITTLE_DISK => Finding::warning(
            "disk",
            format!("{} free at {}", size(free), home.display()),
            "checkpoints and optimizer states need about 16 bytes a parameter each time they are saved: free some, or set \
             `TRAINING_GYM_HOME` to a larger disk (`gym gc` shows what nobody needs)",
        ),
        Some((free, _)) => Finding::ok("disk", format!("{} free at {}", size(free), home.display())),
        None => Finding::skipped("disk", format!("`df` does not say how much is free at {}", home.display())),
    }
}

fn shm() -> Finding {
    match space(Path::new("/dev/shm")) {
        Some((free, all)) if free < LITTLE_SHM => Finding::warning(
            "/dev/shm",
            format!("{} of {} free", size(free), size(all)),
            "enlarge it: `--shm-size` of a container, a memory emptyDir of a pod, or `mount -o remount,size=4G /dev/shm`",
        ),
        Some((free, all)) => Finding::ok("/dev/shm", format!("{} of {} free", size(free), size(all))),
        None => Finding::warning(
            "/dev/shm",
            "there is none",
            "mount a tmpfs there: several GPUs exchange their gradients through it",
        ),
    }
}

fn glibc() -> Finding {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok().filter(|output| output.status.success());
    match said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()) {
        Some(version) if !version.is_empty() => Finding::ok("C library", version),
        _ => Finding::warning(
            "C library",
            "`getconf GNU_LIBC_VERSION` does not answer: this may be musl",
            "libtorch needs glibc: use a Debian, Ubuntu, Fedora or similar machine, or a cluster with our image",
        ),
    }
}

/// Bytes free for us and in all, on the file system of `folder`.
fn space(folder: &Path) -> Option<(u64, u64)> {
    // POSIX: one line a file system, in blocks of 1024 bytes.
    let output = Command::new("df").arg("-Pk").arg(folder).env("LC_ALL", "C").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let fields: Vec<&str> = text.lines().nth(1)?.split_whitespace().collect();
    let number = |index: usize| Some(fields.get(index)?.parse::<u64>().ok()? << 10);
    Some((number(3)?, number(1)?))
}

/// Bytes as a person says them.
pub(crate) fn size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, bits)| bytes >> bits > 0) {
        Some((unit, bits)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << bits) as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;

    #[test]
    fn this_machine_is_seen_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        let (free, all) = space(home.path()).unwrap();
        assert!(free <= all && all > 0);
        let found = findings(&home.path().join("not/there/yet"));
        assert_eq!(found.len(), 5);
        assert!(found.iter().all(|finding| finding.outcome != Outcome::Failed), "{found:?}");
        assert_eq!(size(3 << 29), "1.5 GiB");
        assert_eq!(size(12), "12 bytes");
    }
}
