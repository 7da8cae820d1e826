//! What a position looks like: how sure the student is, how far it is from the teacher, how sure
//! the teacher is. Chunked, in float32, without gradients.

use tch::{Kind, Tensor, no_grad};

use super::divergence::log_softmax;

/// Floor of the mixture's probabilities, as in the reference.
const MIXTURE_FLOOR: f64 = 1e-8;

/// Options of [`entropy_and_jsd`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JsdOptions {
    /// Compare over the teacher's likeliest `k` tokens, each side renormalised there; `None`, or as
    /// many as there are, is the whole vocabulary.
    pub top_k: Option<usize>,
    /// Both results are multiplied by it.
    pub scale: f64,
    /// Rows at once, ≥ 1.
    pub chunk_size: usize,
}

/// The student's entropy over ln V, and the symmetric Jensen–Shannon divergence over ln 2
/// (`_compute_per_token_entropy_and_jsd` of HJSang/OPSD_OnPolicyDistillation): the two axes of the
/// authors' sampling. The entropy is over the whole vocabulary in any case.
///
/// # Shapes
/// Logits `[N, V]` of any float type → `[N]` float32 each.
pub fn entropy_and_jsd(teacher: &Tensor, student: &Tensor, options: JsdOptions) -> (Tensor, Tensor) {
    let vocab = student.size()[1];
    let pairs = chunked(student.size()[0], options.chunk_size, |start, length| {
        let part = |logits: &Tensor| logits.narrow(0, start, length).to_kind(Kind::Float);
        let (teacher, student) = (part(teacher), part(student));
        let whole = log_softmax(&student);
        let entropy = entropy(&whole) * (options.scale / (vocab as f64).ln());
        let (teacher, student) = match options.top_k.filter(|&k| (k as i64) < vocab && k > 0) {
            // Of logits, not of log-probabilities: rounding those of ±1e4 once is enough.
            Some(k) => {
                let (kept, places) = teacher.topk(k as i64, -1, true, true);
                (log_softmax(&kept), log_softmax(&student.gather(1, &places, false)))
            }
            None => (log_softmax(&teacher), whole),
        };
        let (p, q) = (teacher.exp(), student.exp());
        let middle = ((&p + &q) * 0.5).clamp_min(MIXTURE_FLOOR).log();
        let jsd = sum(&(p * (teacher - &middle) + q * (student - &middle))) * 0.5;
        (entropy, (jsd.clamp_min(0.0)) * (options.scale / std::f64::consts::LN_2))
    });
    joined(pairs, student)
}

/// The teacher's entropy over ln V, and its probability of each token that was drawn
/// (`compute_teacher_token_stats` of the same file): high entropy with a low probability is a student
/// off the teacher's road, with a usual probability a real branch.
///
/// # Shapes
/// Logits `[N, V]`, `targets [N]` int64 → `[N]` float32 each.
pub fn teacher_stats(teacher: &Tensor, targets: &Tensor, chunk_size: usize) -> (Tensor, Tensor) {
    let vocab = teacher.size()[1] as f64;
    let pairs = chunked(teacher.size()[0], chunk_size, |start, length| {
        let all = log_softmax(&teacher.narrow(0, start, length));
        let drawn = all.gather(1, &targets.narrow(0, start, length).unsqueeze(1), false).squeeze_dim(1);
        (entropy(&all) / vocab.ln(), drawn.exp())
    });
    joined(pairs, teacher)
}

/// # Shapes
/// `[n, V]` log-probabilities → `[n]`, in nats.
pub(super) fn entropy(log_probs: &Tensor) -> Tensor {
    let mut terms = log_probs.exp();
    let _ = terms.g_mul_(log_probs);
    sum(&terms).neg()
}

fn sum(rows: &Tensor) -> Tensor {
    rows.sum_dim_intlist([-1i64].as_slice(), false, None)
}

fn chunked<T>(rows: i64, chunk_size: usize, mut of: impl FnMut(i64, i64) -> T) -> Vec<T> {
    let size = chunk_size.max(1) as i64;
    no_grad(|| (0..rows).step_by(size as usize).map(|start| of(start, size.min(rows - start))).collect())
}

fn joined(pairs: Vec<(Tensor, Tensor)>, like: &Tensor) -> (Tensor, Tensor) {
    if pairs.is_empty() {
        let none = Tensor::zeros([0], (Kind::Float, like.device()));
        return (none.shallow_clone(), none);
    }
    let (first, second): (Vec<Tensor>, Vec<Tensor>) = pairs.into_iter().unzip();
    (Tensor::cat(&first, 0), Tensor::cat(&second, 0))
}
