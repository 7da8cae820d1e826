//! Where two readings of one log meet: no line is lost, none comes twice.
//!
//! A log can be read again from a second on, no finer. So a reading that goes on begins two seconds
//! before the newest line of the one before, and the lines that were seen then are left out: as many of
//! each as were seen, since a container may print the same line twice within one nanosecond's time.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

/// Lines of a container come nearly in the order of their times; what is out of order is so by less.
const OVERLAP: i64 = 2;

/// What was read of a container's log.
#[derive(Debug, Default)]
pub(super) struct Seam {
    newest: Option<Timestamp>,
    /// Lines, with their time, from the last seconds; how many of each.
    recent: BTreeMap<(Timestamp, String), usize>,
    /// Those that the present reading has still to leave out.
    seen: BTreeMap<(Timestamp, String), usize>,
}

impl Seam {
    /// Where the next reading begins; `None` is the log's beginning.
    pub(super) fn since(&self) -> Option<Timestamp> {
        Timestamp::from_second(self.newest?.as_second() - OVERLAP).ok()
    }

    /// A new reading begins, from [`Seam::since`] on.
    pub(super) fn begin(&mut self) {
        self.seen = self.recent.clone();
    }

    /// A whole line as the API server sends it, with its time before it: the text, unless it was
    /// seen before.
    pub(super) fn accept(&mut self, line: &str) -> Option<String> {
        let (time, text) = line.split_once(' ').unwrap_or((line, ""));
        // What has no time is the server's own word, such as an error in the stream.
        let Ok(time) = time.parse::<Timestamp>() else { return Some(line.to_owned()) };
        let key = (time, text.to_owned());
        if let Some(count) = self.seen.get_mut(&key).filter(|count| **count > 0) {
            *count -= 1;
            return None;
        }
        *self.recent.entry(key).or_default() += 1;
        if self.newest.is_none_or(|newest| time > newest) {
            self.newest = Some(time);
            if let Some(since) = self.since() {
                self.recent = self.recent.split_off(&(since, String::new()));
            }
        }
        Some(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of 200 lines over 20 seconds: some equal in text, some in time, two in both.
    fn log() -> Vec<String> {
        let line = |index: i64| {
            let nanos = (index / 3) * 300_000_000 + (index % 3) * (index % 2);
            let time = Timestamp::from_nanosecond(1_764_500_000_000_000_000 + i128::from(nanos)).unwrap();
            format!("{time} step {}", index / 4)
        };
        let mut log: Vec<String> = (0..200).map(line).collect();
        log.push(log[199].clone());
        log
    }

    /// What the API server sends from `since` on, cut after `bytes`.
    fn reading(log: &[String], since: Option<Timestamp>, bytes: usize) -> Vec<String> {
        let time = |line: &str| line.split_once(' ').unwrap().0.parse::<Timestamp>().unwrap();
        let text: String = log
            .iter()
            .filter(|line| since.is_none_or(|since| time(line) >= since))
            .map(|line| format!("{line}\n"))
            .collect();
        let cut = &text[..bytes.min(text.len())];
        // A line that was cut is none.
        cut.rsplit_once('\n').map(|(whole, _)| whole.split('\n').map(str::to_owned).collect()).unwrap_or_default()
    }

    fn read(log: &[String], cuts: &[usize]) -> Vec<String> {
        let mut seam = Seam::default();
        let mut lines = Vec::new();
        for cut in cuts.iter().copied().chain([usize::MAX]) {
            seam.begin();
            lines.extend(reading(log, seam.since(), cut).iter().filter_map(|line| seam.accept(line)));
        }
        lines
    }

    #[test]
    fn every_line_comes_once_wherever_the_stream_is_cut() {
        let log = log();
        let expected: Vec<String> = log.iter().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect();
        assert_eq!(read(&log, &[]), expected);
        let whole: usize = log.iter().map(|line| line.len() + 1).sum();
        for cut in 0..whole {
            assert_eq!(read(&log, &[cut]), expected, "cut after {cut} bytes");
        }
        for step in [1, 7, 50, 333, 1000] {
            let cuts: Vec<usize> = (0..40).map(|index| (index * step) % whole).collect();
            assert_eq!(read(&log, &cuts), expected, "cuts {step} apart");
        }
    }

    #[test]
    fn a_line_without_a_time_is_passed_on() {
        let mut seam = Seam::default();
        assert_eq!(seam.accept("failed to watch file"), Some("failed to watch file".to_owned()));
        assert_eq!(seam.accept("2026-01-01T00:00:00.5Z "), Some(String::new()));
        assert_eq!(seam.accept("2026-01-01T00:00:00.5Z"), Some(String::new()));
        assert_eq!(seam.since().unwrap().to_string(), "2025-12-31T23:59:58Z");
    }

    #[test]
    fn only_the_last_seconds_are_kept() {
        let mut seam = Seam::default();
        for second in 0..10_000 {
            seam.accept(&format!("{} x", Timestamp::from_second(1_764_500_000 + second).unwrap()));
        }
        assert!(seam.recent.len() < 8, "{}", seam.recent.len());
    }
}
