//! A teacher's distributions at the rows that carry loss, a chunk at a time.

use tch::{Kind, Tensor, no_grad};
use training_gym_core::spec::{Divergence, TopK};

use super::divergence::{RowDivergence, divergence, divergence_values};
use super::head::{OutputHead, Rows};
use super::top_k::{Likeliest, top_k_divergence};

/// What a teacher left behind for some rows.
#[derive(Debug)]
pub enum TeacherRows<'a> {
    /// Its last hidden states, and the output projection `[V, H]` they are for.
    Hidden {
        /// `[N, H]`.
        rows: &'a Tensor,
        /// `[V, H]`.
        weight: &'a Tensor,
    },
    /// Its logits.
    Logits {
        /// `[N, V]`.
        rows: &'a Tensor,
    },
    /// Its likeliest tokens, from a server.
    Likeliest {
        /// `[N, 2k + 1]` float64: k ids, their log-probabilities, and the target's own.
        rows: &'a Tensor,
        /// What is learnt from them.
        spec: TopK,
    },
}

/// How rows are taught.
#[derive(Debug)]
pub struct Taught<'a> {
    /// What the teacher left.
    pub rows: TeacherRows<'a>,
    /// Vocabulary entries both sides have: padding beyond them is cut off, on both.
    pub vocab: i64,
    /// Logits are divided by it, the teacher's like the student's. > 0. A server's likeliest tokens are
    /// those of temperature 1.
    pub temperature: f64,
    /// What is minimised.
    pub divergence: Divergence,
    /// What each row's divergence is multiplied with before all are summed, `[N]` float32.
    pub weights: &'a Tensor,
}

/// What the teacher says of one chunk, `[n]` float32 each.
#[derive(Debug)]
pub struct TaughtScores {
    /// The divergence, in nats.
    pub divergence: Tensor,
    /// What it is multiplied with.
    pub weights: Tensor,
    /// log p of the targets under the teacher.
    pub teacher_logprobs: Tensor,
}

/// What a position looks like to the selection of tokens, `[N]` float32 each, in nats.
#[derive(Debug)]
pub struct RowStats {
    /// The student's entropy.
    pub entropy: Tensor,
    /// KL(student ‖ teacher), ≥ 0.
    pub reverse_kl: Tensor,
    /// KL(teacher ‖ student), ≥ 0.
    pub forward_kl: Tensor,
    /// The symmetric Jensen–Shannon divergence, ≥ 0.
    pub jsd: Tensor,
    /// log p of the targets under the student, over its whole vocabulary.
    pub logprobs: Tensor,
}

impl Taught<'_> {
    /// Scores and weighted gradient (`[n, vocab]`) of one chunk.
    ///
    /// # Shapes
    /// `student [n, V]` log-probabilities, `targets [n]`.
    pub(super) fn chunk(&self, student: &Tensor, targets: &Tensor, start: i64) -> (TaughtScores, Tensor) {
        no_grad(|| {
            let length = student.size()[0];
            let weights = self.weights.narrow(0, start, length);
            if let TeacherRows::Likeliest { rows, spec } = &self.rows {
                let (rows, k) = (rows.narrow(0, start, length), spec.k as i64);
                let ids = rows.narrow(1, 0, k).to_kind(Kind::Int64);
                let named = Likeliest { ids: &ids, logprobs: &rows.narrow(1, k, k) };
                let RowDivergence { values, mut grad } = top_k_divergence(&named, student, spec);
                let _ = grad.g_mul_(&weights.unsqueeze(1));
                let teacher_logprobs = rows.select(1, 2 * k).to_kind(Kind::Float);
                return (TaughtScores { divergence: values, weights, teacher_logprobs }, grad);
            }
            let teacher = self.log_probs(start, length);
            let RowDivergence { values, mut grad } = divergence(&teacher, &self.common(student), self.divergence);
            let _ = grad.g_mul_(&weights.unsqueeze(1));
            let teacher_logprobs = teacher.gather(1, &targets.unsqueeze(1), false).squeeze_dim(1);
            (TaughtScores { divergence: values, weights, teacher_logprobs }, grad)
        })
    }

    /// What each row looks like, without gradients and a chunk at a time; `forward_kl` and `jsd` where
    /// asked for, or 0.
    ///
    /// # Panics
    /// For a server's likeliest tokens: they are not the whole distributions that tokens are ranked by.
    pub fn stats(&self, head: &OutputHead<'_>, rows: &Rows<'_>, (forward_kl, jsd): (bool, bool)) -> RowStats {
        no_grad(|| {
            let mut columns: [Vec<Tensor>; 5] = Default::default();
            for (start, length) in head.chunks(rows) {
                let whole = head.log_softmax(&rows.hidden.narrow(0, start, length));
                let targets = rows.targets.narrow(0, start, length);
                let logprobs = whole.gather(1, &targets.unsqueeze(1), false).squeeze_dim(1);
                let student = self.common(&whole);
                let teacher = self.log_probs(start, length);
                let distance = |asked, kind| match asked {
                    true => divergence_values(&teacher, &student, kind).clamp_min(0.0),
                    false => logprobs.zeros_like(),
                };
                let forward_kl = distance(forward_kl, Divergence::ForwardKl);
                let jsd = distance(jsd, Divergence::Jsd { beta: 0.5 });
                // The entropy and the reverse KL share their probabilities; nothing else as large is made.
                let probabilities = student.exp();
                let entropy = dots(&probabilities, &student).neg();
                let reverse_kl = dots(&probabilities, &(&student - teacher)).clamp_min(0.0);
                let found = [entropy, reverse_kl, forward_kl, jsd, logprobs];
                columns.iter_mut().zip(found).for_each(|(column, found)| column.push(found));
            }
            let [entropy, reverse_kl, forward_kl, jsd, logprobs] = columns.map(|parts| match parts.is_empty() {
                true => Tensor::zeros([0], (Kind::Float, rows.hidden.device())),
                false => Tensor::cat(&parts, 0),
            });
            RowStats { entropy, reverse_kl, forward_kl, jsd, logprobs }
        })
    }

    /// `[n, vocab]` float32.
    fn log_probs(&self, start: i64, length: i64) -> Tensor {
        let logits = match &self.rows {
            TeacherRows::Hidden { rows, weight } => {
                let hidden = rows.narrow(0, start, length).to_device(weight.device());
                hidden.mm(&weight.narrow(0, 0, self.vocab).tr()).to_kind(Kind::Float)
            }
            TeacherRows::Logits { rows } => {
                let rows = rows.narrow(0, start, length).narrow(1, 0, self.vocab);
                rows.to_device(self.weights.device()).to_kind(Kind::Float)
            }
            TeacherRows::Likeliest { .. } => panic!("a server's likeliest tokens are no whole distribution"),
        };
        // Not in place: they may be those that are kept.
        let logits = if self.temperature == 1.0 { logits } else { logits / self.temperature };
        logits.log_softmax(-1, None)
    }

    /// The student's log-probabilities over what both sides have.
    fn common(&self, log_probs: &Tensor) -> Tensor {
        if log_probs.size()[1] == self.vocab {
            return log_probs.shallow_clone();
        }
        log_probs.narrow(1, 0, self.vocab).log_softmax(-1, None)
    }
}

/// The product of each row of one with that of the other.
///
/// # Shapes
/// `[n, V]` → `[n]`.
fn dots(a: &Tensor, b: &Tensor) -> Tensor {
    a.unsqueeze(1).bmm(&b.unsqueeze(2)).flatten(0, -1)
}
