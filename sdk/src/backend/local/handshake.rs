//! Whether a program is `gym-runtime`: it is asked for its version before anything is left to it.
//!
//! Without this another program (a wrong path in a variable), or one whose libtorch is gone, would
//! end as a job that "vanished without a word".

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::start::inherited;
use crate::backend::Error;

/// What `gym-runtime --version` begins with.
const GREETING: &str = "gym-runtime ";
/// A program that is not ours may never end; ours may have to read libtorch from a slow disk.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of what a program prints, this much is read.
const MOST: u64 = 4 << 10;

/// Programs that answered, as they were then: inode, size, time of change.
static GREETED: LazyLock<Mutex<HashMap<PathBuf, [i64; 4]>>> = LazyLock::new(Mutex::default);

/// Asks `program` for its version, once in this process for as long as the file stays the same.
///
/// Blocks for as long as the program takes to answer.
pub(super) fn greet(program: &Path) -> Result<(), Error> {
    let seen = identity(program);
    let known = |greeted: &HashMap<PathBuf, [i64; 4]>| seen.is_some() && greeted.get(program).copied() == seen;
    if known(&GREETED.lock().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(());
    }
    let not = |what: String| Error::NotRuntime { program: program.to_owned(), what };
    let (status, stdout, stderr) = version(program)?;
    let Some(status) = status else {
        return Err(not(format!("asked for its version it did not end within {} s", PATIENCE.as_secs())));
    };
    // A program says who it is in its first line; a loader or a shell what is wrong in its last.
    let said = stdout.lines().next().or(stderr.lines().last()).unwrap_or_default().trim();
    if !status.success() || !stdout.starts_with(GREETING) {
        let said = if said.is_empty() { "said nothing".to_owned() } else { format!("said `{}`", quote(said)) };
        return Err(not(format!("asked for its version it {said} and ended with {status}")));
    }
    if let Some(seen) = seen {
        GREETED.lock().unwrap_or_else(PoisonError::into_inner).insert(program.to_owned(), seen);
    }
    Ok(())
}

fn identity(program: &Path) -> Option<[i64; 4]> {
    let meta = fs::metadata(program).ok()?;
    Some([meta.ino() as i64, meta.size() as i64, meta.mtime(), meta.mtime_nsec()])
}

/// How `program --version` ended (`None`: not in time) and what it printed, in its beginning.
fn version(program: &Path) -> Result<(Option<ExitStatus>, String, String), Error> {
    let mut child = spawn(program).map_err(|source| Error::Start { program: program.to_owned(), source })?;
    let (stdout, stderr) = (child.stdout.take().map(beginning), child.stderr.take().map(beginning));
    let status = ended(&mut child);
    // A child of its own may hold the pipe for longer.
    let text = |pipe: Option<Receiver<String>>| {
        pipe.and_then(|pipe| pipe.recv_timeout(Duration::from_secs(1)).ok()).unwrap_or_default()
    };
    Ok((status, text(stdout), text(stderr)))
}

fn spawn(program: &Path) -> std::io::Result<Child> {
    let mut tries = 0;
    loop {
        let spawned = Command::new(program)
            .arg("--version")
            .env_clear()
            .envs(inherited())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        match spawned {
            // It has just been written, and a process that was forked meanwhile still has it open.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && tries < 50 => tries += 1,
            other => return other,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn beginning(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What cannot be read was not said, and who waits no longer need not be told.
        let _ = pipe.take(MOST).read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// Waits for the end, and makes one when patience ends.
fn ended(child: &mut Child) -> Option<ExitStatus> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begun.elapsed() < PATIENCE => {}
            _ => {
                // It may have ended just now, which is what is wanted.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn quote(line: &str) -> String {
    let mut quoted: String = line.chars().take(200).collect();
    if quoted.len() < line.len() {
        quoted.push('…');
    }
    quoted
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn another_program_is_told_from_the_runtime_with_its_path_and_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let loader = "#!/bin/sh\necho 'libtorch.so: cannot open shared object file' >&2\nexit 127\n";
        for (program, words) in [
            (PathBuf::from("/bin/true"), "said"),
            (PathBuf::from("/bin/false"), "ended with exit status: 1"),
            (script(folder.path(), "silent", "#!/bin/sh\n"), "said nothing"),
            (script(folder.path(), "loader", loader), "libtorch.so: cannot open shared object file"),
            (script(folder.path(), "endless", "#!/bin/sh\nexec yes\n"), "said `y`"),
        ] {
            let error = greet(&program).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::NotRuntime { .. }), "{text}");
            assert!(text.contains(program.to_str().unwrap()) && text.contains(words), "{text}");
            assert!(text.contains("TRAINING_GYM_RUNTIME") && text.contains("cargo xtask runtime"), "{text}");
        }
        let plain = folder.path().join("plain");
        fs::write(&plain, "not a program").unwrap();
        let error = greet(&plain).unwrap_err();
        assert!(matches!(error, Error::Start { .. }) && error.to_string().contains("plain"), "{error}");
        assert!(error.hint().unwrap().contains("cargo xtask runtime"));
    }

    #[test]
    fn a_program_is_asked_once_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("asked");
        let text = format!("#!/bin/sh\necho . >> {}\necho gym-runtime 0.0.0\n", count.display());
        let program = script(folder.path(), "runtime", &text);
        let asked = || fs::read_to_string(&count).unwrap().lines().count();
        greet(&program).unwrap();
        greet(&program).unwrap();
        assert_eq!(asked(), 1);
        script(folder.path(), "runtime", &format!("{text}# built anew\n"));
        greet(&program).unwrap();
        assert_eq!(asked(), 2);
    }
}
