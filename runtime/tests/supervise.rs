//! The supervisor of a local job, as a process.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn supervise(folder: &Path, script: &str, own_group: bool) -> Output {
    let job = json!({"argv": ["sh", "-c", script], "cwd": folder});
    std::fs::write(folder.join("job.json"), job.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gym-runtime"));
    command.arg("supervise").arg(folder).stdin(Stdio::null());
    if own_group {
        command.process_group(0);
    }
    command.output().unwrap()
}

fn exit(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("exit.json")).unwrap()).unwrap()
}

#[test]
fn what_a_killed_child_left_is_removed_before_its_end_is_told() {
    for (script, code, signal) in [
        (
            "mkdir -p scratch/gym-train-x/resume && echo weights > scratch/gym-train-x/resume/w && kill -9 $$",
            None,
            Some(9),
        ),
        ("mkdir -p scratch/gym-worker-x && exit 3", Some(3), None),
        ("exit 0", Some(0), None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("secrets")).unwrap();
        let output = supervise(folder.path(), script, false);
        let found = exit(folder.path());
        assert_eq!((&found["code"], &found["signal"]), (&json!(code), &json!(signal)), "{script}: {output:?}");
        assert!(!folder.path().join("scratch").exists(), "{script}");
        assert!(folder.path().join("secrets").exists() && folder.path().join("log").exists());
    }
}

#[test]
fn a_session_that_cannot_begin_is_an_error_and_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = supervise(folder.path(), "touch started", true);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot begin a session of its own") && said.contains("setsid gym-runtime"), "{said}");
    assert_eq!(exit(folder.path())["code"], 127);
    assert!(!folder.path().join("started").exists());
}

#[test]
fn what_a_job_left_running_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    // Two generations, in a session of their own, deaf to a polite signal.
    let script = "setsid sh -c 'trap \"\" TERM HUP; sleep 600 & echo $! > inner; echo $$ > outer; wait' & \
                  while [ ! -s outer ]; do sleep 0.05; done; exit 4";
    let output = supervise(folder.path(), script, false);
    assert_eq!(exit(folder.path())["code"], 4, "{output:?}");
    for name in ["inner", "outer"] {
        let pid = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        assert!(stat.is_err(), "{name} still runs: {stat:?}");
    }
}
