//! Divergences from a teacher that named its k likeliest tokens only.
//!
//! Both distributions are taken over `k + 1` outcomes: the teacher's likeliest tokens, and all others
//! together, the *tail*. A divergence of the two is a lower bound of that of the whole distributions
//! (outcomes that are merged tell less: the data-processing inequality), and 0 only where they agree on
//! every outcome. With `c` the gradient of [`divergence`] with respect to the `k + 1` merged logits, and
//! `S` the student,
//!
//! ```text
//! ∂/∂z_j = c_j                     where j is one of the k
//! ∂/∂z_j = c_tail · S_j / S_tail   elsewhere: the tail's own pull, shared as the student shares it
//! ```
//!
//! The tail's mass under the student is summed from its whole distribution, never taken as what is left
//! of 1. Without a tail (the forward KL alone) the value is `Σ_k T·(log T − log S)`, which may be
//! negative, and the gradient `S_j·Σ_k T − T_j`: verl's `forward_kl_topk`. The reverse KL without a tail
//! has no such form: it weighs by S, so that a student lowers it by moving its mass to tokens that the
//! teacher did not name.

use tch::{Kind, Tensor, no_grad};
use training_gym_core::spec::{Divergence, TopK};

use super::divergence::{RowDivergence, divergence};

/// The least a teacher's tail may weigh: what k float32 log-probabilities leave of 1 is not known better.
const LEAST_TAIL: f64 = 1e-7;

/// A teacher's likeliest tokens at some rows.
#[derive(Debug)]
pub struct Likeliest<'a> {
    /// `[n, k]` int64.
    pub ids: &'a Tensor,
    /// `[n, k]` float64: their log-probabilities, in nats.
    pub logprobs: &'a Tensor,
}

/// Values and gradients with respect to the student's logits. No gradients are traced.
///
/// # Shapes
/// `student`: `[n, V]` float32, log-softmaxed, with `V > k` → values `[n]`, gradient `[n, V]`.
///
/// # Panics
/// Without a tail, for another divergence than the forward KL.
pub fn top_k_divergence(teacher: &Likeliest<'_>, student: &Tensor, spec: &TopK) -> RowDivergence {
    no_grad(|| {
        let named = teacher.logprobs.to_kind(Kind::Float);
        let ours = student.gather(1, teacher.ids, false);
        if !spec.tail {
            assert_eq!(spec.divergence, Divergence::ForwardKl, "without a tail");
            let likely = named.exp();
            let values = sum(&(&likely * (&named - ours))).squeeze_dim(1);
            let mut grad = student.exp();
            let _ = grad.g_mul_(&sum(&likely));
            let grad = grad.scatter_add(1, teacher.ids, &likely.neg());
            return RowDivergence { values, grad };
        }
        let mut rest = student.scatter_value(1, teacher.ids, f64::NEG_INFINITY);
        let our_tail = rest.logsumexp([1i64].as_slice(), true);
        let mass = sum(&teacher.logprobs.to_kind(Kind::Double).exp());
        let their_tail = (mass.neg() + 1.0).clamp_min(LEAST_TAIL).log().to_kind(Kind::Float);
        let theirs = Tensor::cat(&[named, their_tail], 1);
        let RowDivergence { values, grad: merged } =
            divergence(&theirs, &Tensor::cat(&[&ours, &our_tail], 1), spec.divergence);
        let _ = rest.g_sub_(&our_tail);
        let k = teacher.ids.size()[1];
        let grad = rest.exp_().g_mul_(&merged.narrow(1, k, 1));
        RowDivergence { values, grad: grad.scatter(1, teacher.ids, &merged.narrow(1, 0, k)) }
    })
}

/// `[n, k]` → `[n, 1]`.
fn sum(rows: &Tensor) -> Tensor {
    rows.sum_dim_intlist([-1i64].as_slice(), true, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAILED: [Divergence; 3] = [Divergence::ForwardKl, Divergence::ReverseKl, Divergence::Jsd { beta: 0.3 }];

    fn logits(rows: i64, width: i64, scale: f64) -> Tensor {
        Tensor::randn([rows, width], tch::kind::FLOAT_CPU) * scale
    }

    /// The teacher's ids and float64 log-probabilities, as a server that computes in float32 says them.
    fn likeliest(teacher: &Tensor, k: i64) -> (Tensor, Tensor) {
        let (logprobs, ids) = teacher.log_softmax(-1, Kind::Float).topk(k, 1, true, true);
        (ids, logprobs.to_kind(Kind::Double))
    }

    /// From the definition, in float64 and by autograd: distributions are merged by a loop on the host.
    fn traced(ids: &Tensor, named: &Tensor, student: &Tensor, spec: &TopK) -> (Tensor, Tensor) {
        let student = student.to_kind(Kind::Double).detach().set_requires_grad(true);
        let whole = student.softmax(-1, None);
        let mask = whole.zeros_like().scatter_value(1, ids, 1.0);
        let ours = whole.gather(1, ids, false);
        let our_tail = (&whole * (mask.neg() + 1.0)).sum_dim_intlist([1i64].as_slice(), true, None);
        let likely = named.exp();
        let their_tail = (sum(&likely).neg() + 1.0).clamp_min(LEAST_TAIL);
        let kl = |p: &Tensor, q: &Tensor| (p * (p.log() - q.log())).sum_dim_intlist([1i64].as_slice(), false, None);
        let values = if spec.tail {
            let (t, s) = (Tensor::cat(&[likely, their_tail], 1), Tensor::cat(&[ours, our_tail], 1));
            match spec.divergence {
                Divergence::ForwardKl => kl(&t, &s),
                Divergence::ReverseKl => kl(&s, &t),
                Divergence::Jsd { beta } => {
                    let m = &t * beta + &s * (1.0 - beta);
                    kl(&t, &m) * beta + kl(&s, &m) * (1.0 - beta)
                }
                Divergence::AdaptiveKl { .. } => unreachable!("not offered for k tokens"),
            }
        } else {
            kl(&likely, &ours)
        };
        let grad = Tensor::run_backward(&[&values.sum(None)], &[&student], false, false).remove(0);
        (values.detach(), grad)
    }

    fn gap(ours: &Tensor, theirs: &Tensor) -> f64 {
        (ours.to_kind(Kind::Double) - theirs).abs().max().double_value(&[])
    }

    #[test]
    fn values_and_gradients_are_the_traced_ones() {
        tch::manual_seed(11);
        for (k, scale) in [(1, 1.0), (4, 3.0), (12, 1.0), (4, 30.0)] {
            let (teacher, student) = (logits(9, 13, scale), logits(9, 13, scale));
            let (ids, named) = likeliest(&teacher, k);
            let specs = TAILED.map(|divergence| TopK { k: k as usize, divergence, tail: true });
            let bare = TopK { k: k as usize, divergence: Divergence::ForwardKl, tail: false };
            for spec in specs.into_iter().chain([bare]) {
                let (values, grad) = traced(&ids, &named, &student, &spec);
                let at = Likeliest { ids: &ids, logprobs: &named };
                let found = top_k_divergence(&at, &student.log_softmax(-1, Kind::Float), &spec);
                // Of values as large as the logits' range.
                let (of_values, of_grad) = (gap(&found.values, &values), gap(&found.grad, &grad));
                assert!(of_values < 2e-6 * scale.max(1.0), "{spec:?} at {scale}: {of_values}");
                assert!(of_grad < 1e-5 * scale.max(1.0), "{spec:?} at {scale}: gradient {of_grad}");
                let total = found.grad.sum(None).double_value(&[]).abs();
                assert!(total < 1e-4 * scale, "a shift of all logits changes nothing: {total}");
            }
        }
    }

    #[test]
    fn merged_outcomes_are_a_lower_bound_and_all_of_them_the_whole() {
        tch::manual_seed(12);
        let (teacher, student) = (logits(20, 17, 2.0), logits(20, 17, 2.0));
        let ours = student.log_softmax(-1, Kind::Float);
        // A tail of one unlikely token is known as well as the named ones' float32 tell what they leave of 1.
        const NEAR: f64 = 1e-3;
        for kind in TAILED {
            let whole = divergence(&teacher.log_softmax(-1, Kind::Float), &ours, kind);
            let mut before = Tensor::zeros([20], tch::kind::FLOAT_CPU);
            for k in [1, 2, 5, 11, 16] {
                let (ids, named) = likeliest(&teacher, k);
                let spec = TopK { k: k as usize, divergence: kind, tail: true };
                let found = top_k_divergence(&Likeliest { ids: &ids, logprobs: &named }, &ours, &spec);
                let below = (&before - &found.values).max().double_value(&[]);
                assert!(below < NEAR, "{kind:?}: {k} outcomes tell less than fewer did: {below}");
                let over = (&found.values - &whole.values).max().double_value(&[]);
                assert!(over < NEAR, "{kind:?}: {k} outcomes tell more than all: {over}");
                before = found.values;
                // Sixteen of seventeen leave a tail of one token: nothing is merged.
                if k == 16 {
                    assert!(gap(&before, &whole.values.to_kind(Kind::Double)) < NEAR, "{kind:?}");
                    assert!(gap(&found.grad, &whole.grad.to_kind(Kind::Double)) < NEAR, "{kind:?}");
                }
            }
        }
    }

    #[test]
    fn a_teacher_that_is_sure_and_a_student_that_is_not_have_finite_losses() {
        // The teacher's named tokens weigh 1 in float32; the student's tail holds all but e⁻⁸⁰.
        let student = Tensor::from_slice2(&[[-80f32, -90.0, 0.0, 0.0]]).log_softmax(-1, Kind::Float);
        let (ids, named) = (Tensor::from_slice2(&[[0i64, 1]]), Tensor::from_slice2(&[[0f64, -60.0]]));
        for divergence in TAILED {
            let spec = TopK { k: 2, divergence, tail: true };
            let found = top_k_divergence(&Likeliest { ids: &ids, logprobs: &named }, &student, &spec);
            assert!(found.values.isfinite().all().int64_value(&[]) == 1, "{found:?}");
            assert!(found.grad.isfinite().all().int64_value(&[]) == 1, "{found:?}");
            let value = found.values.double_value(&[0]);
            assert!(value > 0.5, "they differ: {divergence:?} is {value}");
        }
    }

    #[test]
    #[should_panic(expected = "without a tail")]
    fn a_reverse_kl_without_a_tail_is_not_computed() {
        let (ids, named) = (Tensor::from_slice2(&[[0i64]]), Tensor::from_slice2(&[[-0.1f64]]));
        let spec = TopK { k: 1, divergence: Divergence::ReverseKl, tail: false };
        let student = logits(1, 3, 1.0).log_softmax(-1, Kind::Float);
        let _ = top_k_divergence(&Likeliest { ids: &ids, logprobs: &named }, &student, &spec);
    }
}
