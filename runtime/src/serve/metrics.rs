//! Numbers for Prometheus, in its text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::rollout::EngineStats;

/// Upper bounds of the histogram's buckets, in seconds.
const BUCKETS: [f64; 12] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

#[derive(Debug, Default)]
struct Histogram {
    counts: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    fn observe(&mut self, seconds: f64) {
        for (count, bound) in self.counts.iter_mut().zip(BUCKETS) {
            *count += u64::from(seconds <= bound);
        }
        self.count += 1;
        self.sum += seconds;
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (count, bound) in self.counts.iter().zip(BUCKETS) {
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {}", self.count);
        let _ = writeln!(out, "{name}_sum {}\n{name}_count {}", self.sum, self.count);
    }
}

#[derive(Debug, Default)]
struct Counts {
    requests: BTreeMap<(&'static str, u16), u64>,
    finished: BTreeMap<&'static str, u64>,
    first_token: Histogram,
    response: Histogram,
}

/// What has been counted since the server began.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    counts: Mutex<Counts>,
}

impl Metrics {
    fn change(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// An HTTP request was answered (a stream: began).
    pub(super) fn request(&self, route: &'static str, status: u16) {
        self.change(|counts| *counts.requests.entry((route, status)).or_default() += 1);
    }

    /// A response's first token came.
    pub(super) fn first_token(&self, after: Duration) {
        self.change(|counts| counts.first_token.observe(after.as_secs_f64()));
    }

    /// A response ended: `stop`, `length`, or `abort` where its client left.
    pub(super) fn finished(&self, reason: &'static str, after: Duration) {
        self.change(|counts| {
            *counts.finished.entry(reason).or_default() += 1;
            counts.response.observe(after.as_secs_f64());
        });
    }

    /// The text Prometheus scrapes.
    pub(super) fn render(&self, stats: &EngineStats) -> String {
        let mut out = String::new();
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(out, "# HELP gym_requests_total HTTP requests answered.\n# TYPE gym_requests_total counter");
        for ((route, status), count) in &counts.requests {
            let _ = writeln!(out, "gym_requests_total{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
        let _ = writeln!(out, "# HELP gym_responses_total Responses that ended.\n# TYPE gym_responses_total counter");
        for (reason, count) in &counts.finished {
            let _ = writeln!(out, "gym_responses_total{{reason=\"{reason}\"}} {count}");
        }
        for (name, kind, value, help) in [
            ("gym_prompt_tokens_total", "counter", stats.prompt_tokens, "Prompt tokens computed."),
            ("gym_generated_tokens_total", "counter", stats.generated_tokens, "Response tokens drawn."),
            ("gym_running_requests", "gauge", stats.running as u64, "Responses decoding now."),
            ("gym_queued_requests", "gauge", stats.queued as u64, "Requests waiting for a slot."),
            ("gym_scoring_requests", "gauge", stats.scoring as u64, "Scoring requests under way or waiting."),
            ("gym_max_running_requests", "gauge", stats.max_running as u64, "Responses that can decode at once."),
            ("gym_kv_positions_used", "gauge", stats.kv_used as u64, "Cache positions in use."),
            ("gym_kv_positions_allocated", "gauge", stats.kv_allocated as u64, "Cache positions allocated."),
            ("gym_weight_version", "gauge", stats.weight_version.0, "Version of the weights served."),
        ] {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        counts.first_token.write(&mut out, "gym_first_token_seconds", "From submission to the first token.");
        counts.response.write(&mut out, "gym_response_seconds", "From submission to the end of a response.");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_prometheus() {
        let metrics = Metrics::default();
        metrics.request("/generate", 200);
        metrics.request("/generate", 200);
        metrics.finished("stop", Duration::from_millis(50));
        let text = metrics.render(&EngineStats { queued: 3, ..EngineStats::default() });
        for line in [
            "gym_requests_total{route=\"/generate\",status=\"200\"} 2",
            "gym_responses_total{reason=\"stop\"} 1",
            "gym_queued_requests 3",
            "gym_response_seconds_bucket{le=\"0.03\"} 0",
            "gym_response_seconds_bucket{le=\"0.1\"} 1",
            "gym_response_seconds_bucket{le=\"+Inf\"} 1",
            "gym_response_seconds_count 1",
        ] {
            assert!(text.lines().any(|l| l == line), "no `{line}` in\n{text}");
        }
    }
}
