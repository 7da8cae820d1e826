//! Landlock: which files the program sees. Signals, abstract sockets and other processes' memory too,
//! as far as the kernel's version of it goes.
//!
//! | since | what it adds |
//! |---|---|
//! | 5.13 | files; no access to processes outside (`/proc/PID/mem`, `environ`, `ptrace`) |
//! | 6.7 | TCP |
//! | 6.12 | signals and abstract Unix sockets |

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};

use super::{Error, Plan};

/// The newest version whose rules these were read for; an older kernel takes what it knows of them.
const VERSION: ABI = ABI::V7;

/// Programs and their libraries: read and run.
const SYSTEM: &[&str] =
    &["/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/nix/store", "/gnu/store", "/etc/alternatives"];

/// What ordinary programs look up: read.
const LOOKED_UP: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/locale.alias",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates",
    "/etc/pki/tls",
    "/etc/pki/ca-trust",
    "/proc",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
    "/dev/random",
    "/dev/urandom",
];

/// Devices without memory: read and written.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full"];

/// How much of it the kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// Nothing: files are guarded by their modes alone.
    Nothing,
    /// Rules of this version.
    Version {
        /// Landlock's number for it.
        version: i32,
        /// Whether signals stay inside too.
        signals: bool,
    },
}

/// Restricts this process to what `plan` needs.
///
/// # Errors
/// [`Error::Rules`] when the volume or a declared file cannot be opened, or the kernel refuses. A
/// kernel without Landlock is no error: the answer says so.
pub(super) fn restrict(plan: &Plan) -> Result<Kept, Error> {
    let rules = rules(plan).map_err(|error| Error::Rules(format!("its Landlock rules cannot be made: {error}")))?;
    let status =
        rules.restrict_self().map_err(|error| Error::Rules(format!("Landlock cannot be switched on: {error}")))?;
    Ok(match status.landlock {
        LandlockStatus::Available { effective_abi, .. } if status.ruleset != RulesetStatus::NotEnforced => {
            Kept::Version { version: effective_abi as i32, signals: effective_abi >= ABI::V6 }
        }
        _ => Kept::Nothing,
    })
}

fn rules(plan: &Plan) -> Result<RulesetCreated, Box<dyn std::error::Error>> {
    let look = AccessFs::ReadFile | AccessFs::ReadDir;
    let run = look | AccessFs::Execute;
    let mut ruleset = Ruleset::default().handle_access(AccessFs::from_all(VERSION))?;
    if plan.egress.is_none() {
        ruleset = ruleset.handle_access(AccessNet::from_all(VERSION))?;
    }
    let ruleset = ruleset.scope(Scope::from_all(VERSION))?.create()?;
    let mut ruleset = ruleset
        .add_rules(path_beneath_rules(SYSTEM, run))?
        .add_rules(path_beneath_rules(LOOKED_UP, look))?
        .add_rules(path_beneath_rules(DEVICES, AccessFs::ReadFile | AccessFs::WriteFile))?
        // A device of the machine is none of the program's business, also in its own folder.
        .add_rule(beneath(&plan.volume, AccessFs::from_all(VERSION) & !devices())?)?
        .add_rule(PathBeneath::new(open(&plan.program)?, AccessFs::ReadFile | AccessFs::Execute))?;
    if let Some(folder) = socket_folder(plan) {
        ruleset = ruleset.add_rule(beneath(folder, AccessFs::MakeSock | AccessFs::RemoveFile | look)?)?;
    }
    for path in &plan.files {
        // Whether it is there is checked first: one that is left out would be missed much later.
        open(path)?;
        ruleset = ruleset.add_rules(path_beneath_rules([path], run))?;
    }
    Ok(ruleset)
}

fn devices() -> BitFlags<AccessFs> {
    AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev
}

/// The folder of a socket that lies outside of the volume.
fn socket_folder(plan: &Plan) -> Option<&Path> {
    plan.socket.parent().filter(|folder| folder.is_absolute() && !folder.starts_with(&plan.volume))
}

fn beneath(folder: &Path, access: BitFlags<AccessFs>) -> Result<PathBeneath<PathFd>, String> {
    Ok(PathBeneath::new(open(folder)?, access))
}

fn open(path: &Path) -> Result<PathFd, String> {
    PathFd::new(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// What to tell about a kernel's version.
pub(super) fn describe(kept: Kept, files: &[PathBuf]) -> String {
    match kept {
        Kept::Version { version, .. } => {
            let more = if files.is_empty() { String::new() } else { format!(", {} declared files", files.len()) };
            format!("Landlock {version}: it sees the system's files and its own volume{more}")
        }
        Kept::Nothing => "this kernel has no Landlock, so files are guarded by their owner and mode alone: a reward \
            function on this machine can read what your user can read"
            .to_owned(),
    }
}
