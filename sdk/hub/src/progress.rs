//! Downloads shown on standard error: bars on a terminal, plain lines elsewhere.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{DecimalBytes, MultiProgress, ProgressBar, ProgressStyle};

use super::{Progress, Watcher};

/// A smaller file is here before a person has read its name.
const WORTH_SHOWING: u64 = 4 << 20;
/// How often a file has a line where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// A watcher that shows every large file on its way.
pub(super) fn on_standard_error() -> Watcher {
    if std::io::stderr().is_terminal() {
        let (all, bars) = (MultiProgress::new(), Mutex::new(HashMap::new()));
        return Arc::new(move |progress| {
            show(&all, &mut bars.lock().unwrap_or_else(PoisonError::into_inner), progress)
        });
    }
    let lines = Mutex::new(Lines::default());
    Arc::new(move |progress| {
        let line = lines.lock().unwrap_or_else(PoisonError::into_inner).next(progress, Instant::now());
        if let Some(line) = line {
            eprintln!("{line}");
        }
    })
}

fn show(all: &MultiProgress, bars: &mut HashMap<String, ProgressBar>, progress: &Progress) {
    if !is_large(progress) {
        return;
    }
    let name = name(progress);
    let bar = bars.entry(name.clone()).or_insert_with(|| {
        let bar = all.add(ProgressBar::new(progress.total.unwrap_or(0)));
        let style = "{prefix} {bar:24} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} ETA {eta}";
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(name.clone());
        // What an earlier download left is no speed of this one.
        bar.set_position(progress.received);
        bar.reset_eta();
        bar
    });
    bar.set_position(progress.received);
    if is_complete(progress) {
        bar.finish_and_clear();
        bars.remove(&name);
    }
}

/// When each file had its last line.
#[derive(Default)]
struct Lines {
    last: HashMap<String, Instant>,
}

impl Lines {
    /// A line at the beginning, now and then, and at the end.
    fn next(&mut self, progress: &Progress, now: Instant) -> Option<String> {
        if !is_large(progress) {
            return None;
        }
        let name = name(progress);
        let received = DecimalBytes(progress.received);
        if is_complete(progress) {
            self.last.remove(&name);
            return Some(format!("{name}: {received}, complete"));
        }
        if self.last.get(&name).is_some_and(|last| now.duration_since(*last) < LINE_EVERY) {
            return None;
        }
        self.last.insert(name.clone(), now);
        Some(match progress.total {
            Some(total) => format!("{name}: {received} of {}", DecimalBytes(total)),
            None => format!("{name}: {received}"),
        })
    }
}

fn name(progress: &Progress) -> String {
    format!("{}/{}", progress.repo, progress.file)
}

fn is_large(progress: &Progress) -> bool {
    progress.total.unwrap_or(progress.received) >= WORTH_SHOWING
}

fn is_complete(progress: &Progress) -> bool {
    progress.total == Some(progress.received)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_has_a_line_at_its_beginning_now_and_then_and_at_its_end() {
        let mut lines = Lines::default();
        let begun = Instant::now();
        let mut at = |file: &str, received, total, seconds| {
            let progress = Progress { repo: "org/name".to_owned(), file: file.to_owned(), received, total };
            lines.next(&progress, begun + Duration::from_secs(seconds))
        };
        let total = Some(10_000_000);
        assert_eq!(at("w", 0, total, 0).unwrap(), "org/name/w: 0 B of 10.00 MB");
        assert_eq!(at("w", 1_000_000, total, 1), None);
        assert_eq!(at("v", 5_000_000, None, 2).unwrap(), "org/name/v: 5.00 MB", "each file for itself");
        assert_eq!(at("w", 5_000_000, total, 16).unwrap(), "org/name/w: 5.00 MB of 10.00 MB");
        assert_eq!(at("w", 10_000_000, total, 17).unwrap(), "org/name/w: 10.00 MB, complete");
        assert_eq!(at("config.json", 100, Some(100), 18), None);
    }
}
