//! Processes by identity: a pid alone may be somebody else's by now.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// A process, told apart from any other that has or had its pid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Identity {
    pub(super) pid: u32,
    /// When it started, in clock ticks since boot (`/proc/PID/stat`, field 22).
    start_ticks: u64,
    /// Which boot: ticks begin anew with each.
    boot_id: String,
}

/// The fields of `/proc/PID/stat` that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: u32,
    group: u32,
    session: u32,
    start_ticks: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The second field is the command in parentheses and may hold anything, `)` included.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse().ok();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            start_ticks: fields.get(19)?.parse().ok()?,
        })
    }

    /// A zombie runs no more; only its parent has not looked yet.
    fn lives(self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

impl Identity {
    /// The live process that has `pid` now.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let stat = Stat::of(pid).filter(|stat| stat.lives())?;
        Some(Self { pid, start_ticks: stat.start_ticks, boot_id: boot_id() })
    }

    /// Whether this very process lives.
    pub(super) fn lives(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.lives() && stat.start_ticks == self.start_ticks)
            && self.boot_id == boot_id()
    }
}

/// The live process whose arguments are `supervise FOLDER`, if there is one.
pub(super) fn supervisor_of(folder: &Path) -> Option<Identity> {
    pids().into_iter().find_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let arguments: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        let found = arguments
            .windows(2)
            .any(|pair| pair[0] == b"supervise" && pair[1] == folder.as_os_str().as_encoded_bytes());
        if found { Identity::of(pid) } else { None }
    })
}

fn pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// `root`'s live descendants, and whoever shares a session one of them has begun; not `root`.
fn descendants(root: u32) -> BTreeMap<u32, Stat> {
    let all: BTreeMap<u32, Stat> =
        pids().into_iter().filter_map(|pid| Some((pid, Stat::of(pid)?))).filter(|(_, stat)| stat.lives()).collect();
    // A supervisor that has begun its own session shares it with its family alone, orphans included;
    // one that has not is still in the session of whoever started it.
    let session = all.get(&root).map(|stat| stat.session);
    let (own, foreign) = (session.filter(|&session| session == root), session.filter(|&session| session != root));
    let mut found = BTreeMap::new();
    let mut sessions: BTreeSet<u32> = own.into_iter().collect();
    loop {
        let before = found.len();
        for (&pid, &stat) in &all {
            let related = stat.parent == root || found.contains_key(&stat.parent) || sessions.contains(&stat.session);
            if pid != root && related && !found.contains_key(&pid) {
                if Some(stat.session) != foreign {
                    sessions.insert(stat.session);
                }
                found.insert(pid, stat);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Ends a supervisor's whole family. SIGTERM goes to its child, so that a trainer can finish with
/// its reward worker still there, and to whoever is left when that child has gone; after `grace`
/// all get SIGKILL. The supervisor itself is left to record how its child ended, and is killed only
/// if it does not go then.
///
/// Blocks until all are gone. `Err` holds the pids of those that are not, a few seconds after SIGKILL.
pub(super) fn end_family(supervisor: &Identity, grace: Duration) -> Result<(), Vec<u32>> {
    let mut members: BTreeMap<u32, Member> = BTreeMap::new();
    let mut asked: BTreeSet<u32> = BTreeSet::new();
    let begun = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        if supervisor.lives() {
            for (pid, stat) in descendants(supervisor.pid) {
                if let Some(identity) = Identity::of(pid) {
                    members.entry(pid).or_insert(Member { identity, child: stat.parent == supervisor.pid });
                }
            }
        }
        members.retain(|_, member| member.identity.lives());
        let waited = begun.elapsed();
        let killing = waited >= grace;
        let child_lives = members.values().any(|member| member.child);
        for (&pid, member) in &members {
            if killing {
                send(pid, libc::SIGKILL);
            } else if (member.child || !child_lives) && asked.insert(pid) {
                send(pid, libc::SIGTERM);
            }
        }
        if members.is_empty() {
            if !supervisor.lives() {
                return Ok(());
            }
            // Nothing below it: it has not started its child yet, or it is writing down the end.
            if asked.is_empty() || killing {
                send(supervisor.pid, if killing { libc::SIGKILL } else { libc::SIGTERM });
                asked.insert(supervisor.pid);
            }
        }
        if waited >= grace + AFTER_SIGKILL {
            let mut left: Vec<u32> = members.into_keys().collect();
            left.extend(supervisor.lives().then_some(supervisor.pid));
            return Err(left);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// One of a supervisor's family.
struct Member {
    identity: Identity,
    /// The supervisor's own child, not a grandchild.
    child: bool,
}

/// A killed process is gone within milliseconds, unless it hangs in the kernel.
const AFTER_SIGKILL: Duration = Duration::from_secs(5);

#[expect(unsafe_code, reason = "std sends no signal but SIGKILL, and only to its own children")]
fn send(pid: u32, signal: i32) {
    let Ok(pid) = i32::try_from(pid) else { return };
    // SAFETY: `kill` takes two integers and touches no memory of ours. The pid is > 0, so it names
    // one process. That it has gone meanwhile is what we want and no error.
    unsafe { libc::kill(pid, signal) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_survives_any_command_name() {
        let text = "42 (a) b (c)) S 7 42 41 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 2 3";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(stat, Stat { state: 'S', parent: 7, group: 42, session: 41, start_ticks: 12345 });
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let own = Identity::of(std::process::id()).unwrap();
        assert!(own.lives());
        assert!(!Identity { start_ticks: own.start_ticks + 1, ..own.clone() }.lives());
        assert!(!Identity { boot_id: "another boot".to_owned(), ..own }.lives());
    }

    #[test]
    fn a_zombie_does_not_live() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        assert!(identity.lives());
        child.kill().unwrap();
        let begun = Instant::now();
        while identity.lives() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!identity.lives(), "killed and not yet waited for");
        child.wait().unwrap();
    }

    #[test]
    fn a_family_ends_with_its_grandchildren_and_those_deaf_to_sigterm() {
        let script = "setsid sh -c 'trap \"\" TERM; sleep 60 & sleep 60' & wait";
        let mut child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let root = Identity::of(child.id()).unwrap();
        let begun = Instant::now();
        while descendants(root.pid).len() < 3 && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let family = descendants(root.pid);
        assert!(family.len() >= 3, "{family:?}");
        end_family(&root, Duration::from_millis(200)).unwrap();
        child.wait().unwrap();
        assert!(family.into_keys().all(|pid| Identity::of(pid).is_none()));
    }
    #[test]
    fn the_orphans_of_a_supervisor_with_its_own_session_are_family() {
        // Its only child ends at once and leaves a grandchild that no parent links to it any more.
        let script = "exec setsid sh -c '(sleep 60 &); exec sleep 60'";
        let mut child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let begun = Instant::now();
        let shell_is_gone =
            || fs::read(format!("/proc/{}/cmdline", child.id())).is_ok_and(|line| line == b"sleep\x0060\0");
        while !shell_is_gone() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let family = descendants(child.id());
        assert_eq!(family.len(), 1, "{family:?}");
        end_family(&Identity::of(child.id()).unwrap(), Duration::from_millis(200)).unwrap();
        child.wait().unwrap();
        assert!(family.into_keys().all(|pid| Identity::of(pid).is_none()));
    }
}
