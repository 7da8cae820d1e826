//! A folder with a student, a teacher and a dataset, and the person's program run in it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::fixture::{Family, Size, write_model};
use crate::programs::program;

/// Everything one test needs, removed (and its processes stopped) when dropped.
#[derive(Debug)]
pub struct House {
    folder: tempfile::TempDir,
}

impl House {
    /// A house whose dataset has one row a mood (see `src/bin/person.rs`).
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(moods: &[&str]) -> Result<Self> {
        Self::of(moods, Family::default())
    }

    /// As [`House::new`], with student and teacher of a family.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn of(moods: &[&str], family: Family) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let size = Size { family, ..Size::default() };
        write_model(&folder.path().join("student"), 1, size)?;
        write_model(&folder.path().join("teacher"), 2, size)?;
        let rows: String = moods
            .iter()
            .enumerate()
            .map(|(index, mood)| {
                let row =
                    serde_json::json!({"prompt": format!("What is {index} + 1?"), "label": index + 1, "mood": mood});
                format!("{row}\n")
            })
            .collect();
        std::fs::write(folder.path().join("rows.jsonl"), rows)?;
        Ok(Self { folder })
    }

    /// A path in the house.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The person's program with `home` as its state folder, student and dataset given.
    pub fn person(&self, home: &str) -> Command {
        self.person_of(home, &self.path("student"))
    }

    /// As [`House::person`], with another student.
    pub fn person_of(&self, home: &str, student: &Path) -> Command {
        let mut command = Command::new(program("person"));
        command
            .env("TRAINING_GYM_RUNTIME", program("gym-runtime"))
            .arg("--home")
            .arg(self.path(home))
            .arg("--student")
            .arg(student)
            .arg("--dataset")
            .arg(self.path("rows.jsonl"))
            .stdin(Stdio::null());
        command
    }

    /// The one run of a state folder.
    ///
    /// # Errors
    /// When there is none, or several.
    pub fn run_folder(&self, home: &str) -> Result<PathBuf> {
        let runs = self.path(home).join("store/runs");
        let mut entries = std::fs::read_dir(&runs).with_context(|| format!("{} is not there", runs.display()))?;
        let first = entries.next().context("no run")??.path();
        ensure!(entries.next().is_none(), "several runs");
        Ok(first)
    }

    /// A JSON document of the run.
    ///
    /// # Errors
    /// When it is not there or not JSON.
    pub fn json(&self, home: &str, name: &str) -> Result<Value> {
        let path = self.run_folder(home)?.join(name);
        let text = std::fs::read(&path).with_context(|| format!("{} is not there", path.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// The lines of a JSON-lines document of the run.
    ///
    /// # Errors
    /// When it is not there or not JSON.
    pub fn lines(&self, home: &str, name: &str) -> Result<Vec<Value>> {
        let path = self.run_folder(home)?.join(name);
        let text = std::fs::read_to_string(&path).with_context(|| format!("{} is not there", path.display()))?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// A document of the job of a run, once it is there.
    ///
    /// # Errors
    /// When it is not there or not JSON.
    pub fn job_json(&self, home: &str, run_id: &str, name: &str) -> Result<Value> {
        let path = self.path(home).join(format!("jobs/train-{run_id}")).join(name);
        let text = std::fs::read(&path).with_context(|| format!("{} is not there", path.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// The trainer's own program on a run of `home`, without a supervisor: another attempt.
    pub fn trainer(&self, home: &str, run_id: &str) -> Command {
        let mut command = Command::new(program("gym-runtime"));
        let store = format!("file://{}", self.path(home).join("store").display());
        command.args(["train", "--store", &store, "--run", run_id]).env("OMP_NUM_THREADS", "1");
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// The process of the job whose id begins with `prefix`, if it has been started.
    pub fn job_pid(&self, home: &str, prefix: &str) -> Option<i32> {
        let jobs = std::fs::read_dir(self.path(home).join("jobs")).ok()?;
        let folder = jobs
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))?;
        let text = std::fs::read(folder.join("child.json")).ok()?;
        let child: Value = serde_json::from_slice(&text).ok()?;
        i32::try_from(child["pid"].as_i64()?).ok()
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // Whatever still runs was started with a path of this house.
        let folder = self.folder.path().to_string_lossy().into_owned();
        for pid in processes_naming(&folder) {
            signal(pid, libc::SIGKILL);
        }
    }
}

/// Processes whose command line holds `text`.
pub fn processes_naming(text: &str) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).ok()?;
            (pid != std::process::id() as i32 && String::from_utf8_lossy(&line).contains(text)).then_some(pid)
        })
        .collect()
}

/// Sends a signal; a process that is gone is no fault.
#[expect(unsafe_code, reason = "kill has no safe wrapper in std")]
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: a plain system call on a process of ours.
    unsafe {
        libc::kill(pid, signal);
    }
}

/// Waits for `ready`.
///
/// # Panics
/// After two minutes, which are more than anything here takes on a busy machine.
pub fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !ready() {
        assert!(Instant::now() < deadline, "waited two minutes for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs to the end and fails, with everything it printed, unless it succeeded.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub fn succeed(command: &mut Command) -> Result<String> {
    let output = command.output().context("cannot start the program")?;
    if !output.status.success() {
        bail!("ended with {}\n{}", output.status, printed(&output));
    }
    Ok(printed(&output))
}

/// Runs to the end and returns what it printed, unless it succeeded.
///
/// # Errors
/// When it cannot be started or succeeds.
pub fn fail(command: &mut Command) -> Result<String> {
    let output = command.output().context("cannot start the program")?;
    if output.status.success() {
        bail!("succeeded\n{}", printed(&output));
    }
    Ok(printed(&output))
}

/// Starts in the background.
///
/// # Errors
/// When it cannot be started.
pub fn start(command: &mut Command) -> Result<Child> {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot start the program")
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// sha256 of the weights of a run's checkpoint at `step`.
///
/// # Errors
/// When the manifest is not there.
pub fn weights_hash(house: &House, home: &str, step: u64) -> Result<String> {
    let manifest = house.json(home, &format!("checkpoints/step-{step}/manifest.json"))?;
    let files = manifest["files"].as_array().context("a manifest lists files")?;
    let weights =
        files.iter().find(|file| file["name"] == "model.safetensors").context("no weights in the manifest")?;
    Ok(weights["sha256"].as_str().context("a hash")?.to_owned())
}
