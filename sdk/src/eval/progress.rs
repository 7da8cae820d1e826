//! An evaluation's progress on standard error.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::Outcome;

/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// A bar on a terminal, plain lines elsewhere.
pub(super) struct Progress {
    name: String,
    bar: Option<ProgressBar>,
    lines: bool,
    last_line: Instant,
    total: usize,
    done: usize,
    right: usize,
    ungradable: usize,
    failed: usize,
}

impl Progress {
    pub(super) fn new(name: &str, total: usize, show: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = (show && terminal).then(|| {
            let bar = ProgressBar::new(total as u64);
            let style = ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len} {elapsed} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(format!("evaluating {name}"));
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        let lines = show && !terminal;
        let name = name.to_owned();
        Self { name, bar, lines, last_line: Instant::now(), total, done: 0, right: 0, ungradable: 0, failed: 0 }
    }

    pub(super) fn step(&mut self, outcome: &Outcome) {
        self.done += 1;
        match outcome {
            Outcome::Scored { score, .. } => self.right += usize::from(*score > 0.0),
            Outcome::Ungradable { .. } => self.ungradable += 1,
            Outcome::Failed { .. } => self.failed += 1,
        }
        if let Some(bar) = &self.bar {
            bar.set_message(self.words());
            bar.inc(1);
        }
        if self.lines && (self.last_line.elapsed() >= LINE_EVERY || self.done == self.total) {
            self.last_line = Instant::now();
            eprintln!("evaluating {}: {}/{}  {}", self.name, self.done, self.total, self.words());
        }
    }

    fn words(&self) -> String {
        let scored = self.done - self.failed - self.ungradable;
        let failed = if self.failed > 0 { format!(", {} failed", self.failed) } else { String::new() };
        if scored == 0 {
            format!("none scored yet{failed}")
        } else {
            format!("{:.1}% right{failed}", 100.0 * self.right as f64 / scored as f64)
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }
}

impl Drop for Progress {
    /// An evaluation that ended early leaves no half-drawn bar.
    fn drop(&mut self) {
        if let Some(bar) = &self.bar
            && !bar.is_finished()
        {
            bar.abandon();
        }
    }
}
