//! `gym-runtime confine PLAN`: this process gives up what the person's program shall not have, and
//! becomes it.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use training_gym_core::worker::{REWARD_WORKER, ROLE_VARIABLE, SOCKET_VARIABLE};

use super::files::{self, Kept};
use super::{Error, Plan, calls};

/// Files it may have open at once. (A limit on processes would count those of all the user's programs,
/// on a cluster those of all pods on the node.)
const OPEN_FILES: u64 = 4096;

/// Variables it gets from ours, where they are set.
const INHERITED: [&str; 3] = ["PATH", "LANG", "RUST_BACKTRACE"];

/// Confines this process and becomes `plan`'s program. Returns only when that fails.
pub fn confine(plan: &Plan) -> Error {
    match restrict(plan) {
        Ok(()) => {
            let source = command(plan).exec();
            Error::Exec { program: plan.program.clone(), source }
        }
        Err(error) => error,
    }
}

/// Takes this process's memory, and what `/proc` shows of it, from other programs of the same user:
/// a kernel without Landlock keeps a reward function out by that alone.
pub fn become_unreadable() {
    if let Err(error) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!("the memory of this process stays readable to programs of the same user: {error}");
    }
}

fn command(plan: &Plan) -> Command {
    let mut command = Command::new(&plan.program);
    command.env_clear();
    for name in INHERITED {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
        .envs(&plan.environment)
        .env("HOME", &plan.volume)
        .env("TMPDIR", &plan.volume)
        .env(ROLE_VARIABLE, REWARD_WORKER)
        .env(SOCKET_VARIABLE, &plan.socket);
    command
}

/// Everything but the exec, in an order in which each step still can be taken.
fn restrict(plan: &Plan) -> Result<(), Error> {
    // Its own group is how the whole of it is ended; the filter keeps it in there.
    rustix::process::setsid().map_err(io::Error::from).map_err(Error::confine("begin a session of its own"))?;
    rustix::process::umask(Mode::from_raw_mode(0o077));
    close_inherited_files().map_err(Error::confine("close inherited files (is /proc there?)"))?;
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, OPEN_FILES)?;
    std::env::set_current_dir(&plan.volume)
        .map_err(Error::confine(&format!("enter its volume {}", plan.volume.display())))?;
    drop_capabilities().map_err(Error::confine("drop capabilities"))?;
    rustix::thread::set_no_new_privs(true).map_err(io::Error::from).map_err(Error::confine("refuse new privileges"))?;
    let kept = files::restrict(plan)?;
    let signals = matches!(kept, Kept::Version { signals: true, .. });
    // The last words before the filter: the worker's log begins with what guards it.
    eprintln!("confined: {}; {}", egress(plan), files::describe(kept, &plan.files));
    for filter in calls::filters(&plan.egress, std::process::id(), signals)? {
        seccompiler::apply_filter(&filter)
            .map_err(|error| Error::Rules(format!("the kernel takes no filter of system calls: {error}")))?;
    }
    Ok(())
}

fn egress(plan: &Plan) -> String {
    match &plan.egress {
        training_gym_core::spec::Egress::None => "no network".to_owned(),
        training_gym_core::spec::Egress::Declared(hosts) => format!(
            "network for {} (that it reaches no other host, only a cluster's NetworkPolicy enforces)",
            hosts.join(", ")
        ),
    }
}

fn limit(resource: Resource, most: u64) -> Result<(), Error> {
    let hard = rustix::process::getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
    rustix::process::setrlimit(resource, Rlimit { current: Some(hard), maximum: Some(hard) })
        .map_err(io::Error::from)
        .map_err(Error::confine("lower a limit"))
}

/// No file of the trainer's goes with it: all above the three are closed by the exec.
#[expect(unsafe_code, reason = "std has no way to close files it did not open")]
fn close_inherited_files() -> io::Result<()> {
    for entry in std::fs::read_dir(Path::new("/proc/self/fd"))? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<i32>().ok()).filter(|number| *number > 2) else {
            continue;
        };
        // SAFETY: sets a flag on a descriptor number; one that is closed by now gives EBADF.
        if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBADF) {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// A program of root's has none of root's rights either. Who has no right to drop them has none.
fn drop_capabilities() -> io::Result<()> {
    for bit in 0..64 {
        let dropped = rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit));
        if dropped.is_err() {
            // Past the last one, or no right to: the sets below are emptied all the same, and without new
            // privileges an exec gives none back.
            break;
        }
    }
    let _ = rustix::thread::clear_ambient_capability_set();
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none).map_err(io::Error::from)
}
