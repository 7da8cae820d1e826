//! The parent of a local job: starts it, waits, and writes down how it ended, so that the reason
//! outlives whoever launched it.
//!
//! `JOB_DIR/job.json` says what to start; `JOB_DIR/child.json` then has the child's pid,
//! `JOB_DIR/log` its output, and `JOB_DIR/exit.json` how it ended. The child's temporary files lie in
//! `JOB_DIR/scratch`, which is removed before that, however it ended. So are processes that it left
//! behind: those of a reward function, say, when it was killed.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use crate::settings::SCRATCH;

/// How long what the job left behind may take to end.
const ORPHANS: Duration = Duration::from_secs(5);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    argv: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    cwd: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Child {
    pid: u32,
}

#[derive(Debug, Serialize)]
struct Exit {
    code: Option<i32>,
    signal: Option<i32>,
    at: f64,
}

/// Runs the job of `folder` to its end and returns its exit code.
///
/// # Errors
/// When the job cannot be read or started, or this process cannot leave its session; `exit.json`
/// then says code 127.
pub fn run(folder: &Path) -> Result<u8> {
    // Detached from the launcher's terminal and session; a group stop must not take us before we
    // have written how the child ended.
    let outcome = detach().and_then(|()| start_and_wait(folder));
    end_orphans();
    // A child that was killed left it, and with it perhaps a whole checkpoint.
    sweep(folder);
    let (exit, result) = match outcome {
        Ok(status) => {
            let exit = Exit { code: status.code(), signal: status.signal(), at: now() };
            let code = status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1));
            (exit, Ok(code))
        }
        Err(error) => (Exit { code: Some(127), signal: None, at: now() }, Err(error)),
    };
    write_json(&folder.join("exit.json"), &exit)?;
    result
}

fn start_and_wait(folder: &Path) -> Result<std::process::ExitStatus> {
    let job_file = folder.join("job.json");
    let text = std::fs::read(&job_file).with_context(|| format!("cannot read {}", job_file.display()))?;
    let job: Job = serde_json::from_slice(&text).with_context(|| {
        format!("{} is damaged: it is no job; launch it again, which writes the file anew", job_file.display())
    })?;
    let (program, arguments) = job.argv.split_first().context("job.json: argv is empty")?;
    let log = OpenOptions::new().create(true).append(true).open(folder.join("log")).context("cannot open the log")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(&job.env)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot share the log")?)
        .stderr(log.try_clone().context("cannot share the log")?);
    if let Some(cwd) = &job.cwd {
        command.current_dir(cwd);
    }
    die_with_parent(&mut command);
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot adopt what the job leaves")?;
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let _ = writeln!(&log, "cannot start {program}: {error}");
            return Err(error).with_context(|| format!("cannot start {program}"));
        }
    };
    write_json(&folder.join("child.json"), &Child { pid: child.id() })?;
    child.wait().context("cannot wait for the job")
}

/// Removes the child's temporary files. Whoever still writes there (a reward worker on its way out)
/// may add one meanwhile, hence several tries; what stays is removed with the job.
fn sweep(folder: &Path) {
    let scratch = folder.join(SCRATCH);
    let mut last = None;
    for _ in 0..8 {
        match std::fs::remove_dir_all(&scratch) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => last = Some(error),
            _ => return,
        }
    }
    if let Some(error) = last {
        eprintln!("cannot remove {}: {error}", scratch.display());
    }
}

/// Ends what the job left behind. Whoever loses its parent there becomes a child of ours.
fn end_orphans() {
    let deadline = Instant::now() + ORPHANS;
    while Instant::now() < deadline {
        for pid in children() {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        // One that has ended may have had children, which are ours then.
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            // None is left.
            Err(_) => return,
        }
    }
    eprintln!("processes that the job left behind do not end: {:?}", children());
}

/// Processes whose parent is this one.
fn children() -> Vec<Pid> {
    let me = rustix::process::getpid().as_raw_nonzero().to_string();
    let parent_of = |pid: &str| -> Option<String> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the program's name, which may hold anything: state, then parent.
        stat.rsplit_once(") ")?.1.split(' ').nth(1).map(str::to_owned)
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str().map(str::to_owned))
        .filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()) && parent_of(pid).as_deref() == Some(me.as_str()))
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}

#[expect(unsafe_code, reason = "setsid and signal dispositions have no safe wrapper in std")]
fn detach() -> Result<()> {
    // SAFETY: plain system calls on our own process; the dispositions are set before any thread starts.
    unsafe {
        if libc::setsid() == -1 && libc::getsid(0) != libc::getpid() {
            return Err(std::io::Error::last_os_error()).context(
                "cannot begin a session of its own, as the leader of a process group cannot; \
                 start it as `setsid gym-runtime supervise FOLDER`",
            );
        }
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            if libc::signal(signal, libc::SIG_IGN) == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error()).context("cannot ignore a signal");
            }
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "the child's signal settings must be made between fork and exec")]
fn die_with_parent(command: &mut Command) {
    let supervisor = std::process::id();
    // SAFETY: only async-signal-safe calls; nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == -1 {
                return Err(std::io::Error::last_os_error());
            }
            // One that died before this line sends no signal any more.
            if u32::try_from(libc::getppid()) != Ok(supervisor) {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                if libc::signal(signal, libc::SIG_DFL) == libc::SIG_ERR {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let partial = path.with_extension("partial");
    let mut file = File::create(&partial).with_context(|| format!("cannot write {}", partial.display()))?;
    serde_json::to_writer(&mut file, value)?;
    file.sync_all()?;
    std::fs::rename(&partial, path).with_context(|| format!("cannot write {}", path.display()))
}

fn now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
