//! The sampled reverse KL to a teacher, as an advantage term.
//!
//! For a token drawn from the student, `−(log π_student − log π_teacher)` as an advantage with
//! discount 0 gives an unbiased estimate of the gradient of KL(student ‖ teacher) at that
//! position: the form of Thinking Machines' and slime's on-policy distillation.

/// The distillation term of the advantage.
#[derive(Clone, Debug, PartialEq)]
pub struct OpdTerm {
    /// λ in `A_t − λ·(log π_student − log π_teacher)`.
    pub coef: f64,
    /// |log π_student − log π_teacher| of a token is clamped to this; `None` is unclamped.
    pub log_ratio_clamp: Option<f64>,
}

/// What [`subtract_reverse_kl`] has seen so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DistillationSums {
    /// Σ (log π_student − log π_teacher), before any clamp.
    pub log_ratio: f64,
    /// Tokens seen.
    pub tokens: u64,
    /// Tokens clamped.
    pub clamped: u64,
    /// Σ |log π_student − log π_teacher|, after the clamp.
    pub strength: f64,
    /// log π_student − log π_teacher of each token, before any clamp.
    pub log_ratios: Vec<f64>,
}

impl DistillationSums {
    /// The mean log-ratio; `None` before the first token.
    pub fn mean(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.log_ratio / self.tokens as f64)
    }
}

/// Subtracts `coef · clamp(log π_student − log π_teacher)` from each token's advantage.
///
/// # Shapes
/// `advantages`, `student`, `teacher`: `[R]` of one sample.
///
/// # Panics
/// When the three differ in length.
pub fn subtract_reverse_kl(
    advantages: &mut [f64],
    student: &[f32],
    teacher: &[f32],
    term: &OpdTerm,
    sums: &mut DistillationSums,
) {
    assert_eq!(advantages.len(), student.len(), "one student log-probability a token");
    assert_eq!(advantages.len(), teacher.len(), "one teacher log-probability a token");
    for ((advantage, &student), &teacher) in advantages.iter_mut().zip(student).zip(teacher) {
        let log_ratio = f64::from(student) - f64::from(teacher);
        sums.log_ratio += log_ratio;
        sums.tokens += 1;
        let clamped = match term.log_ratio_clamp {
            Some(bound) => log_ratio.clamp(-bound.abs(), bound.abs()),
            None => log_ratio,
        };
        sums.clamped += u64::from(clamped != log_ratio);
        sums.strength += clamped.abs();
        sums.log_ratios.push(log_ratio);
        *advantage -= term.coef * clamped;
    }
}
