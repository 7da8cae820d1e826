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
    /// Its weight beside the reward's loss.
    pub coef: f64,
}
