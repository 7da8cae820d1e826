//! A run's progress on standard error.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use training_gym_core::ids::RunId;
use training_gym_core::record::{RunState, RunStatus, StepMetrics};

/// Steps whose mean time gives the time left.
const RECENT: usize = 10;

/// Bars on a terminal, plain lines elsewhere.
pub(super) struct Progress {
    sink: Sink,
    num_rollout: u64,
    /// The last step shown.
    seen: u64,
    state: Option<RunState>,
    notes: usize,
}

enum Sink {
    Bar(ProgressBar),
    Lines { run_id: RunId },
}

impl Progress {
    pub(super) fn new(run_id: &RunId, num_rollout: u64) -> Self {
        let sink = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(num_rollout);
            let style = ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len} {elapsed} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(run_id.to_string());
            bar.enable_steady_tick(Duration::from_millis(500));
            Sink::Bar(bar)
        } else {
            Sink::Lines { run_id: run_id.clone() }
        };
        Self { sink, num_rollout, seen: 0, state: None, notes: 0 }
    }

    pub(super) fn show(&mut self, status: &RunStatus, metrics: &[StepMetrics]) {
        for note in status.notes.iter().skip(self.notes) {
            self.say(&format!("note: {note}"));
        }
        self.notes = self.notes.max(status.notes.len());
        for (index, step) in metrics.iter().enumerate().filter(|(_, step)| step.step > self.seen) {
            let line = step_text(step, time_left(&metrics[..=index], self.num_rollout));
            match &self.sink {
                Sink::Bar(bar) => {
                    bar.set_position(step.step);
                    bar.set_message(line);
                }
                Sink::Lines { run_id } => eprintln!("{run_id}: step {}/{}  {line}", step.step, self.num_rollout),
            }
        }
        self.seen = metrics.last().map_or(self.seen, |step| step.step.max(self.seen));
        if self.state != Some(status.state) {
            self.state = Some(status.state);
            self.say(state_text(status.state));
        }
    }

    fn say(&self, text: &str) {
        match &self.sink {
            Sink::Bar(bar) => bar.suspend(|| eprintln!("{}: {text}", bar.prefix())),
            Sink::Lines { run_id } => eprintln!("{run_id}: {text}"),
        }
    }

    pub(super) fn finish(&self) {
        if let Sink::Bar(bar) = &self.sink {
            bar.abandon();
        }
    }
}

fn state_text(state: RunState) -> &'static str {
    match state {
        RunState::Pending => "waiting for its process",
        RunState::Starting => "starting",
        RunState::Running => "running",
        RunState::Succeeded => "succeeded",
        RunState::Failed => "failed",
        RunState::Cancelled => "cancelled",
    }
}

fn step_text(step: &StepMetrics, left: Duration) -> String {
    let mut line = String::new();
    // Writing to a string cannot fail.
    if let Some(reward) = step.reward {
        let _ = write!(line, "reward {reward:.3}  ");
    }
    if let Some(kl) = step.reverse_kl {
        let _ = write!(line, "reverse KL {kl:.4}  ");
    }
    let _ = write!(line, "length {:.0}  truncated {:.0}%", step.response_len, 100.0 * step.truncated);
    if step.step_seconds > 0.0 {
        let _ = write!(line, "  {:.0} tokens/s", step.tokens as f64 / step.step_seconds);
    }
    if step.ungraded > 0 {
        let _ = write!(line, "  {} ungraded", step.ungraded);
    }
    if let Some(reward) = step.eval_reward {
        let _ = write!(line, "  eval {reward:.3}");
    }
    let _ = write!(line, "  ETA {}", short(left));
    line
}

fn time_left(done: &[StepMetrics], num_rollout: u64) -> Duration {
    let Some(last) = done.last() else { return Duration::ZERO };
    let recent = &done[done.len().saturating_sub(RECENT)..];
    let mean = recent.iter().map(|step| step.step_seconds).sum::<f64>() / recent.len() as f64;
    let seconds = mean * num_rollout.saturating_sub(last.step) as f64;
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// `1h02m`, `3m04s` or `5s`.
fn short(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use training_gym_core::ids::WeightVersion;

    fn step(step: u64, step_seconds: f64) -> StepMetrics {
        StepMetrics {
            step,
            reward: Some(-0.25),
            ungraded: 0,
            reverse_kl: Some(0.125),
            response_len: 230.4,
            truncated: 0.05,
            entropy: 0.0,
            loss: 0.0,
            clip_fraction: 0.0,
            logprob_gap: 0.0,
            grad_norm: 0.0,
            lr: 0.0,
            skipped_updates: 0,
            tokens: 420,
            rollout_seconds: 0.0,
            score_wait_seconds: 0.0,
            update_seconds: 0.0,
            step_seconds,
            weight_version: WeightVersion(step),
            eval_reward: None,
            clamped_tokens: 0,
            zero_std_groups: 0,
            divergence: None,
            dropped_samples: 0,
            health: None,
            memory: None,
            multi_turn: None,
        }
    }

    #[test]
    fn a_step_is_one_line() {
        let text = step_text(&step(3, 2.0), Duration::from_secs(184));
        assert_eq!(text, "reward -0.250  reverse KL 0.1250  length 230  truncated 5%  210 tokens/s  ETA 3m04s");
        let pure = StepMetrics { reward: None, eval_reward: Some(0.5), ungraded: 2, ..step(1, 0.0) };
        let text = step_text(&pure, Duration::ZERO);
        assert_eq!(text, "reverse KL 0.1250  length 230  truncated 5%  2 ungraded  eval 0.500  ETA 0s");
    }

    #[test]
    fn the_time_left_is_that_of_recent_steps() {
        let mut done = vec![step(1, 100.0)];
        done.extend((2..=11).map(|number| step(number, 2.0)));
        assert_eq!(time_left(&done, 20), Duration::from_secs(18));
        assert_eq!(time_left(&done, 11), Duration::ZERO);
        assert_eq!(time_left(&[], 11), Duration::ZERO);
        assert_eq!(short(Duration::from_secs(3720)), "1h02m");
    }
}
