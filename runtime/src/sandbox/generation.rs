//! One start of the person's program, from its process to the end of everything it started.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};
use tokio::io::AsyncRead;
use tokio::process::{Child, Command};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::lines::Lines;
use super::{Error, Plan};

/// Lines of output kept for error messages.
const KEPT_LINES: usize = 20;
/// How long what was killed may take to be gone.
const GONE: Duration = Duration::from_secs(2);

/// The program that confines itself and becomes the person's: `gym-runtime`.
#[derive(Clone, Debug)]
pub struct Launcher(PathBuf);

impl Launcher {
    /// By the path of `gym-runtime`.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self(program.into())
    }
}

/// Called with each line of output.
type OnLine = Arc<dyn Fn(&str) + Send + Sync>;

/// A running worker, here or at a supervisor's; it is ended when this is dropped.
pub struct Generation {
    ended: watch::Receiver<Option<String>>,
    tail: Tail,
    /// Dropped, it asks for the end.
    end: Option<oneshot::Sender<()>>,
}

impl fmt::Debug for Generation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Generation").field("ended", &*self.ended.borrow()).finish_non_exhaustive()
    }
}

/// The last lines of output.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    pub(super) fn push(&self, line: String) {
        if let Ok(mut lines) = self.0.lock() {
            if lines.len() == KEPT_LINES {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    }

    fn text(&self) -> String {
        self.0.lock().map_or_else(|_| String::new(), |lines| Vec::from(lines.clone()).join("\n"))
    }
}

impl Generation {
    /// Starts `plan`'s program, confined. It ends when this is dropped, and when this process does.
    ///
    /// # Errors
    /// When there is no process to be had. That a program cannot be run, or confined, is how it
    /// *ended*; its last words say why.
    pub fn start(
        launcher: &Launcher,
        plan: &Plan,
        on_line: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        // Whatever it leaves behind becomes a child of ours, to be reaped when it is ended.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(std::io::Error::from)
            .map_err(Error::confine("become the parent of what it leaves behind"))?;
        let text = serde_json::to_string(plan).map_err(|error| Error::Rules(error.to_string()))?;
        let mut child = Command::new(&launcher.0)
            .args(["confine", &text])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| Error::Exec { program: launcher.0.clone(), source })?;
        let (tail, on_line): (Tail, OnLine) = (Tail::default(), Arc::new(on_line));
        let output = [
            child.stdout.take().map(|out| forward(out, tail.clone(), Arc::clone(&on_line))),
            child.stderr.take().map(|out| forward(out, tail.clone(), on_line)),
        ];
        let (end, asked) = oneshot::channel();
        let (ended, ending) = watch::channel(None);
        let group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
        tokio::spawn(async move {
            let how = watch(child, group, asked).await;
            // Nobody is left to write, so this ends; what was printed last belongs to the tail.
            for reading in output.into_iter().flatten() {
                let _ = tokio::time::timeout(GONE, reading).await;
            }
            ended.send_replace(Some(how));
        });
        Ok(Self { ended: ending, tail, end: Some(end) })
    }

    /// One that runs elsewhere: `ended` says how it ended, and dropping the other end of `end` ends it.
    pub(super) fn elsewhere(ended: watch::Receiver<Option<String>>, tail: Tail, end: oneshot::Sender<()>) -> Self {
        Self { ended, tail, end: Some(end) }
    }

    /// Becomes `Some` when it has ended.
    pub(super) fn ending(&self) -> watch::Receiver<Option<String>> {
        self.ended.clone()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.borrow().is_some() || self.ended.has_changed().is_err()
    }

    /// Waits for its end; says how it ended.
    pub async fn end(&mut self) -> String {
        let ended = self.ended.wait_for(Option::is_some).await;
        ended.ok().and_then(|how| how.clone()).unwrap_or_else(|| "nobody looks after it any more".to_owned())
    }

    /// Ends it, with everything it started, and waits until it is gone.
    pub async fn kill(mut self) {
        drop(self.end.take());
        let _ = tokio::time::timeout(2 * GONE, self.end()).await;
    }

    /// Its last lines of output.
    pub fn last_words(&self) -> String {
        self.tail.text()
    }
}

/// Waits for the program's end, or for the wish that it ends; then nothing of its group is left.
async fn watch(mut child: Child, group: Group, asked: oneshot::Receiver<()>) -> String {
    // Held: the worker ends when this closes, as it does when we die.
    let _stdin = child.stdin.take();
    let how = tokio::select! {
        status = child.wait() => status.map_or_else(|error| error.to_string(), |status| status.to_string()),
        _ = asked => "it was ended".to_owned(),
    };
    // Before it has a group of its own, the process alone.
    let _ = child.start_kill();
    group.kill();
    let _ = child.wait().await;
    group.reap().await;
    how
}

/// The process group of a worker. When a generation's task is dropped, so is the group.
#[derive(Debug)]
struct Group(Option<Pid>);

impl Group {
    fn kill(&self) {
        if let Some(group) = self.0 {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }

    /// Waits until none of the group is left: who lost its parent is our child now.
    async fn reap(&self) {
        let Some(group) = self.0 else { return };
        let deadline = tokio::time::Instant::now() + GONE;
        loop {
            while matches!(rustix::process::waitpgid(group, WaitOptions::NOHANG), Ok(Some(_))) {}
            if rustix::process::test_kill_process_group(group).is_err() || tokio::time::Instant::now() > deadline {
                return;
            }
            self.kill();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads output to its end.
fn forward(out: impl AsyncRead + Unpin + Send + 'static, tail: Tail, on_line: OnLine) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut lines = Lines::of(out);
        while let Some(line) = lines.next().await {
            on_line(&line);
            tail.push(line);
        }
    })
}
