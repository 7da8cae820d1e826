//! Whether a run is well: what its metrics say, and in plain words when they say something bad.
//!
//! Pure functions over [`StepMetrics`]: the trainer tells an alarm as soon as it holds, a run's
//! summary tells them all.

use std::fmt;

use crate::record::StepMetrics;

/// Mean |log π_trainer − log π_engine| beyond which the two passes are no longer one policy.
const LOGPROB_GAP: f64 = 0.02;
/// Shares of responses or samples beyond which most of a step is wasted.
const MOST: f64 = 0.5;
/// Beyond this many times the other, a term of the advantage drowns it.
const DROWNS: f64 = 10.0;
/// Of its first value, what the entropy may fall to.
const COLLAPSE: f64 = 0.2;
/// Of its first value, what the mean length may grow to.
const INFLATION: f64 = 1.5;
/// Nats at which the 95th percentile says that the teacher means something else.
const STRANGER: f64 = 5.0;
/// Nats a token below which a teacher hardly differs from the student.
const TWIN: f64 = 1e-3;
/// Share of the samples that uneven weights are to be worth, at the least.
const CONCENTRATED: f64 = 0.1;

/// One thing that is not well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// What it is about, as a short name that stays the same from step to step.
    pub topic: &'static str,
    /// What was seen, what it means, and what to do.
    pub sentence: String,
}

/// What is not well after the last of `steps`, which are a run's metrics from its first step.
pub fn alarms(steps: &[StepMetrics]) -> Vec<Alarm> {
    let (Some(first), Some(now)) = (steps.first(), steps.last()) else { return Vec::new() };
    let mut out = Vec::new();
    let mut say = |topic, sentence: String| out.push(Alarm { topic, sentence });
    let step = now.step;
    if now.logprob_gap > LOGPROB_GAP {
        say(
            "log-prob gap",
            format!(
                "at step {step} trainer and engine differ by {:.3} nats a token on the very same weights (above {LOGPROB_GAP}): \
             the ratio corrects for it, but the number type or a kernel is off; compute in float32 to see whether it goes",
                now.logprob_gap
            ),
        );
    }
    if now.truncated > MOST {
        say(
            "truncation",
            format!(
                "{:.0} % of step {step}'s responses were cut off at the length limit: what they would have answered is not \
             known; raise rollout_max_response_len, or turn thinking off",
                100.0 * now.truncated
            ),
        );
    }
    if now.response_len > INFLATION * first.response_len && now.truncated > first.truncated {
        say(
            "length",
            format!(
                "responses grew from {:.0} to {:.0} tokens by step {step}, and more of them are cut off ({:.0} % to {:.0} %): \
             distillation can teach never to stop; see that student and teacher end with the same token",
                first.response_len,
                now.response_len,
                100.0 * first.truncated,
                100.0 * now.truncated
            ),
        );
    }
    if now.entropy < COLLAPSE * first.entropy {
        say(
            "entropy",
            format!(
                "the sampled entropy fell from {:.3} to {:.3} nats by step {step}: the student hardly explores any more; lower lr, \
             or add entropy_coef",
                first.entropy, now.entropy
            ),
        );
    }
    if let (Some(kl), 1) = (now.reverse_kl, step)
        && kl.abs() < TWIN
    {
        say(
            "teacher's lead",
            format!(
                "the reverse KL of the first step is {kl:.5} nats a token: the teacher hardly differs from the student, so there \
             is little to learn; see that it serves the weights it should"
            ),
        );
    }
    let Some(health) = &now.health else { return out };
    if health.ungraded_share > MOST {
        say(
            "ungraded",
            format!(
                "{:.0} % of step {step}'s samples have no grade, so the reward speaks for the others alone; the rollouts say why",
                100.0 * health.ungraded_share
            ),
        );
    }
    if let Some(p95) = health.reverse_kl_p95.filter(|p95| *p95 > STRANGER) {
        say(
            "reverse KL",
            format!(
                "one token in twenty of step {step} is {p95:.1} nats or more less likely to the teacher: that is no difference of \
             skill; compare the two sides' chat templates and end tokens"
            ),
        );
    }
    if let (Some(task), Some(teacher)) = (health.task_advantage, health.teacher_advantage) {
        if task > DROWNS * teacher && teacher > 0.0 {
            say(
                "advantage",
                format!(
                    "at step {step} the reward's advantage is {:.0} times the teacher's ({task:.3} and {teacher:.3} a token): the \
                 teacher is hardly heard; raise opd_kl_coef, or take a group-relative advantage",
                    task / teacher
                ),
            );
        } else if teacher > DROWNS * task && task > 0.0 {
            say(
                "advantage",
                format!(
                    "at step {step} the teacher's advantage is {:.0} times the reward's ({teacher:.3} and {task:.3} a token): the \
                 reward is hardly heard; lower opd_kl_coef if it should be",
                    teacher / task
                ),
            );
        }
    }
    if let Some(share) = health.effective_share.filter(|share| *share < CONCENTRATED) {
        say(
            "weights",
            if share == 0.0 {
                format!("no sample of step {step} has a weight: nothing was learnt; every problem is solved, or none")
            } else {
                format!(
                    "the weights of step {step} are worth {:.0} % of its samples: a few decide; raise the weighting's beta, smooth \
                 the pass rate, or draw more problems",
                    100.0 * share
                )
            },
        );
    }
    if health.selected_share == Some(0.0) {
        say("selection", format!("no token of step {step} was selected: raise the ratio, or let responses be longer"));
    }
    out
}

/// The quantile in [0, 1] of some numbers, between its neighbours in a line (as torch's and NumPy's
/// default); `None` of none.
pub fn quantile(values: &[f64], at: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = at.clamp(0.0, 1.0) * (sorted.len().checked_sub(1)?) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + (above - below) * place.fract())
}

/// A run's health, to print: each number at its first and last step, then what is not well.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Name, first value, last value.
    pub numbers: Vec<(&'static str, f64, f64)>,
    /// After the last step.
    pub alarms: Vec<Alarm>,
}

impl Summary {
    /// Of a run's metrics, from its first step.
    pub fn new(steps: &[StepMetrics]) -> Self {
        type Number = (&'static str, fn(&StepMetrics) -> Option<f64>);
        const NUMBERS: [Number; 14] = [
            ("reverse KL, mean", |m| m.reverse_kl),
            ("reverse KL, p95", |m| m.health.as_ref()?.reverse_kl_p95),
            ("divergence", |m| m.divergence),
            ("entropy", |m| Some(m.entropy)),
            ("|task advantage|", |m| m.health.as_ref()?.task_advantage),
            ("|teacher advantage|", |m| m.health.as_ref()?.teacher_advantage),
            ("response length", |m| Some(m.response_len)),
            ("truncated share", |m| Some(m.truncated)),
            ("stopped share", |m| Some(m.health.as_ref()?.stopped_share)),
            ("log-prob gap", |m| Some(m.logprob_gap)),
            ("ungraded share", |m| Some(m.health.as_ref()?.ungraded_share)),
            ("selected share", |m| m.health.as_ref()?.selected_share),
            ("effective share of weights", |m| m.health.as_ref()?.effective_share),
            ("reward", |m| m.reward),
        ];
        let ends = steps.first().zip(steps.last());
        let numbers = ends.map_or_else(Vec::new, |(first, last)| {
            NUMBERS.iter().filter_map(|(name, of)| Some((*name, of(first)?, of(last)?))).collect()
        });
        Self { numbers, alarms: alarms(steps) }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{:<28}{:>12}{:>12}", "", "first step", "last step")?;
        for (name, first, last) in &self.numbers {
            writeln!(out, "{name:<28}{first:>12.4}{last:>12.4}")?;
        }
        if self.alarms.is_empty() {
            return writeln!(out, "nothing is out of order");
        }
        self.alarms.iter().try_for_each(|alarm| writeln!(out, "alarm, {}: {}", alarm.topic, alarm.sentence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Health;

    fn step(step: u64, change: impl FnOnce(&mut StepMetrics)) -> StepMetrics {
        let well = serde_json::json!({
            "step": step, "reward": 0.5, "ungraded": 0, "reverse_kl": 0.04, "response_len": 100.0, "truncated": 0.01,
            "entropy": 0.5, "loss": 0.1, "clip_fraction": 0.0, "logprob_gap": 0.001, "grad_norm": 1.0, "lr": 1e-6,
            "skipped_updates": 0, "tokens": 1000, "rollout_seconds": 1.0, "score_wait_seconds": 0.0,
            "update_seconds": 1.0, "step_seconds": 2.0, "weight_version": step,
            "health": {"reverse_kl_p95": 0.3, "task_advantage": 0.5, "teacher_advantage": 0.1, "stopped_share": 0.99,
                       "ungraded_share": 0.0},
        });
        let mut metrics: StepMetrics = serde_json::from_value(well).unwrap();
        change(&mut metrics);
        metrics
    }

    fn topics(change: impl FnOnce(&mut StepMetrics)) -> Vec<&'static str> {
        alarms(&[step(1, |_| {}), step(2, change)]).iter().map(|alarm| alarm.topic).collect()
    }

    #[test]
    fn each_alarm_holds_where_it_should_and_nowhere_else() {
        assert_eq!(topics(|_| {}), [""; 0]);
        assert_eq!(topics(|m| m.logprob_gap = 0.03), ["log-prob gap"]);
        assert_eq!(topics(|m| m.truncated = 0.6), ["truncation"]);
        assert_eq!(topics(|m| (m.response_len, m.truncated) = (180.0, 0.2)), ["length"]);
        assert_eq!(topics(|m| m.response_len = 180.0), [""; 0], "longer answers that end are no fault");
        assert_eq!(topics(|m| m.entropy = 0.05), ["entropy"]);
        let health = |change: fn(&mut Health)| topics(|m| change(m.health.as_mut().unwrap()));
        assert_eq!(health(|h| h.ungraded_share = 0.7), ["ungraded"]);
        assert_eq!(health(|h| h.reverse_kl_p95 = Some(7.0)), ["reverse KL"]);
        assert_eq!(health(|h| h.task_advantage = Some(2.0)), ["advantage"]);
        assert_eq!(health(|h| h.teacher_advantage = Some(9.0)), ["advantage"]);
        assert_eq!(health(|h| h.effective_share = Some(0.05)), ["weights"]);
        assert_eq!(health(|h| h.effective_share = Some(0.0)), ["weights"]);
        assert_eq!(health(|h| h.selected_share = Some(0.0)), ["selection"]);
        let twin = alarms(&[step(1, |m| m.reverse_kl = Some(1e-5))]);
        assert_eq!(twin[0].topic, "teacher's lead");
        assert!(alarms(&[]).is_empty());
    }

    #[test]
    fn quantiles_lie_between_their_neighbours() {
        assert_eq!(quantile(&[4.0, 1.0, 2.0, 3.0], 0.5), Some(2.5));
        assert_eq!(quantile(&[1.0, 2.0], 1.0), Some(2.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn a_summary_has_what_was_measured_and_says_what_is_wrong() {
        let text = Summary::new(&[step(1, |_| {}), step(9, |m| m.logprob_gap = 0.5)]).to_string();
        for line in ["reverse KL, mean                  0.0400      0.0400", "alarm, log-prob gap: at step 9 trainer"] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("selected share"), "what was not measured is left out: {text}");
        let well = Summary::new(&[step(1, |_| {})]).to_string();
        assert!(well.ends_with("nothing is out of order\n"), "{well}");
    }
}
