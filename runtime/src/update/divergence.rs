//! Divergences between whole distributions, with the gradient written out.
//!
//! With teacher `T`, student `S = softmax(z)` and everything in float32, a row's value and its
//! gradient with respect to the student's logits `z` are
//!
//! ```text
//! reverse KL   R = Σ S·(log S − log T)                      S ∘ (log S − log T − R)
//! forward KL   F = Σ T·(log T − log S)                      S − T
//! JSD          β·KL(T‖m) + (1 − β)·K, K = KL(S‖m)           (1 − β)·S ∘ (log S − log m − K)
//!              m = β·T + (1 − β)·S
//! adaptive KL  a·F + (1 − a)·R                              those of F and R, with a a constant
//!              a = Σ_head |T − S| / Σ |T − S|
//! ```
//!
//! Values: `src/opd/losses.py` of HJSang/OPSD_OnPolicyDistillation (`compute_reverse_kl_loss`,
//! `compute_forward_kl_loss`, `compute_jsd_loss`); the gradients are derived from them. What is
//! never formed is the distribution of more than a chunk of rows.

use tch::{Kind, Tensor, no_grad};
use training_gym_core::spec::Divergence;

/// A divergence of some rows.
#[derive(Debug)]
pub struct RowDivergence {
    /// `[n]` float32, in nats.
    pub values: Tensor,
    /// `[n, V]` float32: the gradient of each row's value with respect to the student's logits.
    pub grad: Tensor,
}

/// From log-probabilities. No gradients are traced.
///
/// # Shapes
/// `teacher`, `student`: `[n, V]` float32, log-softmaxed.
pub fn divergence(teacher: &Tensor, student: &Tensor, kind: Divergence) -> RowDivergence {
    no_grad(|| match kind {
        Divergence::ReverseKl => {
            let mut gap = student - teacher;
            let mut grad = student.exp();
            let values = sum(&(&grad * &gap));
            let _ = gap.g_sub_(&values.unsqueeze(1));
            let _ = grad.g_mul_(&gap);
            RowDivergence { values, grad }
        }
        Divergence::ForwardKl => {
            let likely = teacher.exp();
            let values = sum(&(&likely * (teacher - student)));
            let grad = student.exp().g_sub_(&likely);
            RowDivergence { values, grad }
        }
        Divergence::Jsd { beta } => {
            let mixture = mixture(teacher, student, beta);
            let from_teacher = sum(&(teacher.exp() * (teacher - &mixture)));
            let mut gap = student - mixture;
            let mut grad = student.exp();
            let from_student = sum(&(&grad * &gap));
            let _ = gap.g_sub_(&from_student.unsqueeze(1));
            let _ = grad.g_mul_(&gap).g_mul_scalar_(1.0 - beta);
            RowDivergence { values: from_teacher * beta + from_student * (1.0 - beta), grad }
        }
        Divergence::AdaptiveKl { head } => {
            let share = head_share(teacher, student, head);
            let forward = divergence(teacher, student, Divergence::ForwardKl);
            let reverse = divergence(teacher, student, Divergence::ReverseKl);
            let blend = |forward: &Tensor, reverse: &Tensor, share: &Tensor| forward * share + reverse * (1.0 - share);
            RowDivergence {
                values: blend(&forward.values, &reverse.values, &share),
                grad: blend(&forward.grad, &reverse.grad, &share.unsqueeze(1)),
            }
        }
    })
}

/// The values alone.
///
/// # Shapes
/// As [`divergence`] → `[n]`.
pub fn divergence_values(teacher: &Tensor, student: &Tensor, kind: Divergence) -> Tensor {
    no_grad(|| match kind {
        Divergence::ReverseKl => sum(&student.exp().g_mul_(&(student - teacher))),
        Divergence::ForwardKl => sum(&teacher.exp().g_mul_(&(teacher - student))),
        Divergence::Jsd { beta } => {
            let mixture = mixture(teacher, student, beta);
            let from_teacher = sum(&(teacher.exp() * (teacher - &mixture)));
            from_teacher * beta + sum(&(student.exp() * (student - mixture))) * (1.0 - beta)
        }
        Divergence::AdaptiveKl { .. } => divergence(teacher, student, kind).values,
    })
}

/// The mean over all rows and its gradient with respect to the student's logits, `chunk_size` rows
/// at a time. The mean of no row is 0.
///
/// # Shapes
/// `teacher`, `student`: logits `[N, V]` of any float type → a float32 scalar and `[N, V]` float32.
pub fn mean_divergence(teacher: &Tensor, student: &Tensor, kind: Divergence, chunk_size: usize) -> (Tensor, Tensor) {
    no_grad(|| {
        let rows = student.size()[0];
        let mut total = Tensor::zeros([], (Kind::Float, student.device()));
        let grad = student.zeros_like().to_kind(Kind::Float);
        for start in (0..rows).step_by(chunk_size.max(1)) {
            let length = (chunk_size.max(1) as i64).min(rows - start);
            let part = |logits: &Tensor| log_softmax(&logits.narrow(0, start, length));
            let RowDivergence { values, grad: of_chunk } = divergence(&part(teacher), &part(student), kind);
            total += values.sum(None);
            grad.narrow(0, start, length).copy_(&(of_chunk / rows as f64));
        }
        (total / rows.max(1) as f64, grad)
    })
}

/// log m. An end point of β leaves the other distribution as it is.
fn mixture(teacher: &Tensor, student: &Tensor, beta: f64) -> Tensor {
    (teacher + beta.ln()).logaddexp(&(student + (1.0 - beta).ln()))
}

/// The share of |T − S| that is over the teacher's head: its likeliest tokens while their mass is at
/// most `mass`, and the likeliest of all in any case. Half where the two are the same.
fn head_share(teacher: &Tensor, student: &Tensor, mass: f64) -> Tensor {
    let (likely, order) = teacher.exp().sort(-1, true);
    let gaps = (&likely - student.exp().gather(1, &order, false)).abs();
    let tail = likely.cumsum(-1, Kind::Float).gt(mass);
    let _ = tail.narrow(1, 0, 1).fill_(0);
    let (all, of_tail) = (sum(&gaps), sum(&(&gaps * tail.to_kind(Kind::Float))));
    let share = (&all - of_tail) / all.clamp_min(f64::from(f32::MIN_POSITIVE));
    share.where_self(&all.gt(0.0), &(share.ones_like() * 0.5))
}

/// In float32, whatever the logits are.
pub(super) fn log_softmax(logits: &Tensor) -> Tensor {
    logits.to_kind(Kind::Float).log_softmax(-1, None)
}

fn sum(rows: &Tensor) -> Tensor {
    rows.sum_dim_intlist([-1i64].as_slice(), false, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By autograd, in float64, from the definition.
    fn traced(teacher: &Tensor, student: &Tensor, kind: Divergence) -> (Tensor, Tensor) {
        let student = student.to_kind(Kind::Double).detach().set_requires_grad(true);
        let (lt, ls) = (teacher.to_kind(Kind::Double).log_softmax(-1, None), student.log_softmax(-1, None));
        let kl = |p: &Tensor, q: &Tensor| (p.exp() * (p - q)).sum(None);
        let loss = match kind {
            Divergence::ReverseKl => kl(&ls, &lt),
            Divergence::ForwardKl => kl(&lt, &ls),
            Divergence::AdaptiveKl { head } => {
                // The head by hand: sorted on the host.
                let rows = |t: &Tensor| Vec::<Vec<f64>>::try_from(t.exp().detach()).unwrap();
                let shares: Vec<f64> = rows(&lt)
                    .iter()
                    .zip(rows(&ls))
                    .map(|(t, s)| {
                        let mut order: Vec<usize> = (0..t.len()).collect();
                        order.sort_by(|&a, &b| t[b].total_cmp(&t[a]));
                        let (mut mass, mut inside, mut all) = (0.0, 0.0, 0.0);
                        for (rank, &token) in order.iter().enumerate() {
                            mass += t[token];
                            let gap = (t[token] - s[token]).abs();
                            all += gap;
                            inside += if rank == 0 || mass <= head { gap } else { 0.0 };
                        }
                        inside / all
                    })
                    .collect();
                let share = Tensor::from_slice(&shares).unsqueeze(1);
                let forward: Tensor = (lt.exp() * (&lt - &ls) * &share).sum(None);
                let rest: Tensor = share.neg() + 1.0;
                forward + (ls.exp() * (&ls - &lt) * rest).sum(None)
            }
            Divergence::Jsd { beta } => {
                let m = (lt.exp() * beta + ls.exp() * (1.0 - beta)).log();
                kl(&lt, &m) * beta + kl(&ls, &m) * (1.0 - beta)
            }
        };
        let loss = loss / student.size()[0] as f64;
        let grad = Tensor::run_backward(&[&loss], &[&student], false, false).remove(0);
        (loss.detach(), grad)
    }

    #[test]
    fn values_and_gradients_are_the_traced_ones() {
        tch::manual_seed(5);
        let (teacher, student) =
            (Tensor::randn([9, 13], tch::kind::FLOAT_CPU) * 2.0, Tensor::randn([9, 13], tch::kind::FLOAT_CPU) * 2.0);
        for kind in [
            Divergence::ReverseKl,
            Divergence::ForwardKl,
            Divergence::Jsd { beta: 0.3 },
            Divergence::AdaptiveKl { head: 0.5 },
        ] {
            let (value, expected) = traced(&teacher, &student, kind);
            for chunk_size in [1, 4, 9, 100] {
                let (loss, grad) = mean_divergence(&teacher, &student, kind, chunk_size);
                let gap = (loss.double_value(&[]) - value.double_value(&[])).abs();
                assert!(gap < 2e-6, "{kind:?} in chunks of {chunk_size}: {gap}");
                let gap = (grad.to_kind(Kind::Double) - &expected).abs().max().double_value(&[]);
                assert!(gap < 1e-7, "{kind:?} in chunks of {chunk_size}: gradient {gap}");
            }
            let rows = divergence_values(&log_softmax(&teacher), &log_softmax(&student), kind);
            assert!((rows.mean(None).double_value(&[]) - value.double_value(&[])).abs() < 2e-6);
        }
    }

    #[test]
    fn the_ends_of_the_mixture_are_zero() {
        let (teacher, student) = (Tensor::from_slice2(&[[1f32, -2.0, 0.5]]), Tensor::from_slice2(&[[0f32, 3.0, 1.0]]));
        for beta in [0.0, 1.0] {
            let (loss, grad) = mean_divergence(&teacher, &student, Divergence::Jsd { beta }, 8);
            assert_eq!((loss.double_value(&[]), grad.abs().max().double_value(&[])), (0.0, 0.0));
        }
    }
}
