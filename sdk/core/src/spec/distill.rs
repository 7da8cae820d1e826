//! A teacher in the trainer itself, and what is learnt of its distributions.

use serde::{Deserialize, Serialize};

use super::ModelSpec;

/// A divergence between a teacher's distribution T and the student's S at one position, over the
/// whole vocabulary, in nats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Divergence {
    /// KL(S ‖ T): the student keeps to what the teacher finds likely.
    #[default]
    ReverseKl,
    /// KL(T ‖ S): the student covers what the teacher finds likely.
    ForwardKl,
    /// β·KL(T ‖ m) + (1 − β)·KL(S ‖ m) with m = β·T + (1 − β)·S: zero at both ends.
    Jsd {
        /// β, in [0, 1].
        beta: f64,
    },
    /// AKL (Wu et al., "Rethinking Kullback–Leibler Divergence in Knowledge Distillation", 2024):
    /// at each position a blend of forward and reverse KL, in the shares of |T − S| over the teacher's
    /// head, its likeliest tokens up to a mass of `head`, and over the tail. The shares are constants to
    /// the gradient.
    AdaptiveKl {
        /// Mass of the head, in (0, 1); in the paper ½.
        head: f64,
    },
}

/// Another divergence from some point of the run on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DivergenceSwitch {
    /// Share of the run's steps that go before, in (0, 1).
    pub at: f64,
    /// What is minimised then.
    pub to: Divergence,
}

/// Full-distribution distillation from a teacher that shares the trainer's device, in two phases: it
/// scores the step's responses and leaves, then the student is updated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DistillSpec {
    /// The teacher: the student's tokenizer, and a vocabulary that may be padded to another size.
    pub teacher: ModelSpec,
    /// What is minimised.
    pub divergence: Divergence,
    /// What is minimised later, where that is something else: PACED's forward-then-reverse schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<DivergenceSwitch>,
    /// Its weight beside the reward's loss.
    pub coef: f64,
    /// Which response tokens are taught; `None` is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<TokenSelection>,
}

impl DistillSpec {
    /// What is minimised at `step` (from 1) of `num_rollout`.
    pub fn divergence_at(&self, step: u64, num_rollout: u64) -> Divergence {
        match self.switch {
            Some(switch) if step as f64 > (switch.at * num_rollout as f64).floor() => switch.to,
            _ => self.divergence,
        }
    }
}

/// What is learnt from the likeliest tokens of a teacher behind a URL. Both distributions are over k + 1
/// outcomes: the teacher's k likeliest tokens, and all others together, the tail.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopK {
    /// How many tokens the teacher names a position, in [1, 1024] and less than the vocabulary.
    pub k: usize,
    /// What is minimised between the two.
    pub divergence: Divergence,
    /// Whether the tail is one of the outcomes; `false` for the forward KL alone.
    pub tail: bool,
}

/// Which response tokens carry the loss (TIP, arXiv 2604.14084).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenSelection {
    /// How tokens are ranked.
    pub rule: SelectionRule,
    /// Of each response, `floor(ratio · length)` tokens are kept, in (0, 1].
    pub ratio: f64,
}

/// How tokens are ranked. The entropy is the student's over ln V; both axes are scaled to [0, 1] over
/// the global batch, the entropy after a cut at `entropy_clip_quantile` (0.98, or `None` for none).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SelectionRule {
    /// TIP's Soft-OR (eq. 5): high entropy, or far from the teacher by the reverse KL.
    SoftOr {
        /// Where the entropy is cut.
        entropy_clip_quantile: Option<f64>,
    },
    /// The entropy alone.
    Entropy,
    /// TIP's third quadrant: far from the teacher by the forward KL, and sure.
    Overconfident {
        /// Where the entropy is cut.
        entropy_clip_quantile: Option<f64>,
    },
    /// The authors' public code: drawn without replacement from the whole batch, with weight
    /// `entropy^entropy_power · jsd^jsd_power`; the ratio is of the batch, and at least one is kept.
    Sampled {
        /// Power of the entropy.
        entropy_power: f64,
        /// Power of the Jensen–Shannon divergence over ln 2.
        jsd_power: f64,
    },
    /// Evenly: the control.
    Random,
}

impl SelectionRule {
    /// Soft-OR with the entropy cut at its 98th percentile.
    pub const SOFT_OR: Self = Self::SoftOr { entropy_clip_quantile: Some(0.98) };
    /// Overconfident tokens, with the same cut.
    pub const OVERCONFIDENT: Self = Self::Overconfident { entropy_clip_quantile: Some(0.98) };
}
