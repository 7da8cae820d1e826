//! How many samples of a step may be left ungraded, by the reward function and the group-level one
//! together.

use std::sync::atomic::{AtomicUsize, Ordering};

use training_gym_core::record::Grade;
use training_gym_core::sample::{FinishReason, Sample};
use training_gym_core::spec::RewardSpec;

use super::Error;
use super::reward::Graded;

/// Counts one step's ungraded samples as they come in, so that a broken function stops the run
/// at once and not after every response was drawn and asked about.
#[derive(Debug)]
pub struct Share {
    kind: &'static str,
    function: String,
    step: u64,
    samples: usize,
    allowed: usize,
    grade_truncated: bool,
    ungraded: AtomicUsize,
}

impl Share {
    /// None counted yet, of `samples`.
    pub fn new(spec: &RewardSpec, step: u64, samples: usize) -> Self {
        Self {
            kind: "reward function",
            function: spec.function.clone(),
            step,
            samples,
            allowed: (spec.max_ungraded_fraction * samples as f64).floor() as usize,
            grade_truncated: spec.grade_truncated,
            ungraded: AtomicUsize::new(0),
        }
    }

    /// The same of a rollout environment.
    #[must_use]
    pub fn of_environment(self) -> Self {
        Self { kind: "rollout environment", ..self }
    }

    /// Counts one sample as the reward function left it. Truncated responses that are not graded
    /// are not the function's fault and are not counted.
    ///
    /// # Errors
    /// [`Error::TooManyUngraded`] for the sample that is one too many, and each after it.
    pub fn count(&self, sample: &Sample, graded: &Graded) -> Result<(), Error> {
        let Grade::Ungraded { reason } = &graded.grade else { return Ok(()) };
        if sample.finish_reason == FinishReason::Length && !self.grade_truncated {
            return Ok(());
        }
        self.count_one(self.kind, &self.function, reason)
    }

    /// Counts one sample that had a grade until the group-level function `function` left it without.
    ///
    /// # Errors
    /// As [`Share::count`].
    pub fn count_post_processed(&self, function: &str, reason: &str) -> Result<(), Error> {
        self.count_one("post-process function", function, reason)
    }

    fn count_one(&self, kind: &'static str, function: &str, reason: &str) -> Result<(), Error> {
        let ungraded = self.ungraded.fetch_add(1, Ordering::Relaxed) + 1;
        if ungraded <= self.allowed {
            return Ok(());
        }
        Err(Error::TooManyUngraded {
            kind,
            function: function.to_owned(),
            step: self.step,
            ungraded,
            samples: self.samples,
            allowed: self.allowed,
            reason: reason.to_owned(),
        })
    }

    /// Whether more are ungraded than may be.
    pub fn is_exceeded(&self) -> bool {
        self.ungraded.load(Ordering::Relaxed) > self.allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use training_gym_core::ids::ContentHash;
    use training_gym_core::sample::Prompt;
    use training_gym_core::spec::ProgramRef;

    #[test]
    fn one_too_many_is_an_error_at_once_and_truncation_is_no_fault() {
        let spec = RewardSpec {
            function: "exact".into(),
            post_process: None,
            program: ProgramRef { key: "k".into(), sha256: ContentHash::of(b"") },
            timeout_secs: 1.0,
            max_concurrency: 1,
            max_ungraded_fraction: 0.25,
            grade_truncated: false,
            egress: Default::default(),
            files: Vec::new(),
        };
        let share = Share::new(&spec, 3, 8);
        let sample = |finish_reason| Sample {
            index: 0,
            group_index: 0,
            row: 0,
            step: 3,
            prompt: Prompt::Text("p".into()),
            response: String::new(),
            tokens: vec![1, 2],
            response_length: 1,
            label: String::new(),
            finish_reason,
            score: None,
            metadata: Default::default(),
        };
        let graded = |grade| Graded { grade, score: None, metadata: Default::default() };
        let failed = graded(Grade::Ungraded { reason: "it panicked: no".into() });
        for _ in 0..4 {
            share.count(&sample(FinishReason::Length), &failed).unwrap();
            share.count(&sample(FinishReason::Stop), &graded(Grade::Graded { reward: 0.0 })).unwrap();
        }
        share.count(&sample(FinishReason::Stop), &failed).unwrap();
        share.count(&sample(FinishReason::Stop), &failed).unwrap();
        assert!(!share.is_exceeded());
        let error = share.count(&sample(FinishReason::Stop), &failed).unwrap_err().to_string();
        assert!(share.is_exceeded() && error.contains("3 of 8 samples of step 3") && error.contains("no"), "{error}");
    }
}
