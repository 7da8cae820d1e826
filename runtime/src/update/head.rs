//! The output projection, a chunk of rows at a time.
//!
//! Logits of all rows are never in memory together: for each chunk of hidden rows the projection,
//! the log-softmax, the loss and its gradient are computed, and only the gradient with respect to
//! the hidden rows is kept. Peak memory is `chunk_size · V`, whatever the number of tokens.
//!
//! The gradient is written out instead of traced. With `z = h·Wᵀ/τ`, `p = softmax(z)`, the entropy
//! `H`, and `g = ∂loss/∂log p_y`, `e = ∂loss/∂H` from the loss itself:
//!
//! ```text
//! ∂loss/∂z_j = g·(1[j = y] − p_j) − e·p_j·(log p_j + H)
//! ∂loss/∂h   = ∂loss/∂z · W / τ          ∂loss/∂W = (∂loss/∂z)ᵀ · h / τ
//! ```
//!
//! Where the rows are taught, the gradient of their divergence from the teacher's distributions (see
//! [`super::divergence`]) is added; the teacher's distributions, too, exist a chunk at a time.
//!
//! A caller carries it on into the layers below with `(h · h_grad).sum().backward()`.

use tch::{Kind, Tensor, no_grad};

use super::taught::{Taught, TaughtScores};
use super::token_stats::entropy;

/// A projection from hidden rows to log-probabilities.
#[derive(Debug)]
pub struct OutputHead<'a> {
    /// `[V, H]`.
    pub weight: &'a Tensor,
    /// τ: logits are divided by it. > 0.
    pub temperature: f64,
    /// Rows projected at once, ≥ 1.
    pub chunk_size: usize,
}

/// Scores of one chunk, handed to the loss. Both are leaves that autograd follows.
#[derive(Debug)]
pub struct ChunkScores {
    /// The chunk's first row.
    pub start: i64,
    /// log p of the targets, `[n]` float32, in nats.
    pub logprobs: Tensor,
    /// Entropy of the whole distribution, `[n]` float32, in nats; where it was asked for.
    pub entropy: Option<Tensor>,
    /// What the teacher says, where the rows are taught. No gradients: they are written out.
    pub taught: Option<TaughtScores>,
}

/// What each row's loss should be taken of.
#[derive(Debug)]
pub struct Rows<'a> {
    /// `[N, H]`, in the weight's type.
    pub hidden: &'a Tensor,
    /// `[N]` int64.
    pub targets: &'a Tensor,
    /// Compute the entropy too.
    pub entropy: bool,
}

impl OutputHead<'_> {
    /// log p of each target and, where asked for, the entropy. No gradients.
    ///
    /// # Shapes
    /// `[N]` float32 each.
    pub fn score(&self, rows: &Rows<'_>) -> (Tensor, Option<Tensor>) {
        no_grad(|| {
            let (mut logprobs, mut entropies) = (Vec::new(), Vec::new());
            for (start, length) in self.chunks(rows) {
                let all = self.log_softmax(&rows.hidden.narrow(0, start, length));
                logprobs.push(pick(&all, &rows.targets.narrow(0, start, length)));
                if rows.entropy {
                    entropies.push(entropy(&all));
                }
            }
            let join = |parts: &[Tensor]| Tensor::cat(parts, 0);
            if logprobs.is_empty() {
                let empty = Tensor::zeros([0], (Kind::Float, rows.hidden.device()));
                return (empty.shallow_clone(), rows.entropy.then_some(empty));
            }
            (join(&logprobs), rows.entropy.then(|| join(&entropies)))
        })
    }

    /// Evaluates `loss` (a scalar) chunk by chunk, adds its gradient with respect to the weight to
    /// `weight_grad`, and returns its gradient with respect to the hidden rows.
    ///
    /// # Shapes
    /// `weight_grad`: `[V, H]` float32. Returns `[N, H]` in the hidden rows' type.
    pub fn backward(
        &self,
        rows: &Rows<'_>,
        weight_grad: &mut Tensor,
        mut loss: impl FnMut(&ChunkScores) -> Tensor,
    ) -> Tensor {
        self.backward_taught(rows, None, weight_grad, |chunk| Some(loss(chunk)))
    }

    /// As [`backward`](Self::backward), of `loss` plus Σ weight · divergence of the rows that are
    /// taught. `loss` may be nothing.
    ///
    /// # Shapes
    /// As [`backward`](Self::backward).
    pub fn backward_taught(
        &self,
        rows: &Rows<'_>,
        taught: Option<&Taught<'_>>,
        weight_grad: &mut Tensor,
        mut loss: impl FnMut(&ChunkScores) -> Option<Tensor>,
    ) -> Tensor {
        let mut hidden_grads = Vec::new();
        for (start, length) in self.chunks(rows) {
            let hidden = rows.hidden.narrow(0, start, length).detach();
            let targets = rows.targets.narrow(0, start, length);
            let all = no_grad(|| self.log_softmax(&hidden));
            let (taught, pull) = taught.map(|taught| taught.chunk(&all, &targets, start)).unzip();
            let scores = no_grad(|| ChunkScores {
                start,
                logprobs: pick(&all, &targets).set_requires_grad(true),
                entropy: rows.entropy.then(|| entropy(&all).set_requires_grad(true)),
                taught,
            });
            let value = loss(&scores);
            let leaves: Vec<&Tensor> = std::iter::once(&scores.logprobs).chain(&scores.entropy).collect();
            let grads = value.map(|value| Tensor::run_backward(&[&value], &leaves, false, false));
            no_grad(|| {
                let scale = 1.0 / self.temperature;
                let logits_grad = match grads.as_ref() {
                    Some(grads) => {
                        let entropy = scores.entropy.as_ref().zip(grads.get(1)).filter(|(_, grad)| grad.defined());
                        let grad = LogitGradient { targets: &targets, logprob_grad: &grads[0], entropy };
                        let grad = grad.of_logits(all, scale);
                        if let Some(pull) = &pull {
                            let _ = grad.narrow(1, 0, pull.size()[1]).g_add_(&(pull * scale));
                        }
                        grad
                    }
                    None => match pull {
                        Some(mut pull) => {
                            let beyond = all.size()[1] - pull.size()[1];
                            let _ = pull.g_mul_scalar_(scale);
                            if beyond > 0 { pull.constant_pad_nd([0, beyond]) } else { pull }
                        }
                        None => all.zeros_like(),
                    },
                };
                let logits_grad = logits_grad.to_kind(hidden.kind());
                if hidden.kind() == Kind::Float {
                    let _ = weight_grad.addmm_(&logits_grad.tr(), &hidden);
                } else {
                    *weight_grad += logits_grad.tr().mm(&hidden);
                }
                hidden_grads.push(logits_grad.mm(self.weight));
            });
        }
        if hidden_grads.is_empty() { rows.hidden.zeros_like() } else { Tensor::cat(&hidden_grads, 0) }
    }

    pub(super) fn chunks(&self, rows: &Rows<'_>) -> impl Iterator<Item = (i64, i64)> + use<> {
        let (count, size) = (rows.hidden.size()[0], self.chunk_size.max(1) as i64);
        (0..count).step_by(size as usize).map(move |start| (start, size.min(count - start)))
    }

    /// `[n, H]` to `[n, V]` float32.
    pub(super) fn log_softmax(&self, hidden: &Tensor) -> Tensor {
        let mut logits = hidden.mm(&self.weight.tr()).to_kind(Kind::Float);
        if self.temperature != 1.0 {
            let _ = logits.g_div_scalar_(self.temperature);
        }
        logits.log_softmax(-1, None)
    }
}

fn pick(log_softmax: &Tensor, targets: &Tensor) -> Tensor {
    log_softmax.gather(1, &targets.unsqueeze(1), false).squeeze_dim(1)
}

/// The gradient with respect to one chunk's logits.
struct LogitGradient<'a> {
    targets: &'a Tensor,
    logprob_grad: &'a Tensor,
    /// The entropy and the gradient with respect to it.
    entropy: Option<(&'a Tensor, &'a Tensor)>,
}

impl LogitGradient<'_> {
    /// Turns the chunk's log-softmax into the gradient, in place where it can; `scale` is 1/τ.
    fn of_logits(&self, mut log_softmax: Tensor, scale: f64) -> Tensor {
        let from_logprob = self.logprob_grad.unsqueeze(1) * scale;
        let mut grad = match self.entropy {
            None => log_softmax.exp_().g_mul_(&from_logprob.neg()),
            Some((entropy, entropy_grad)) => {
                let from_entropy = entropy_grad.unsqueeze(1) * scale;
                let mut grad = log_softmax.exp();
                let factor = &from_logprob + &from_entropy * entropy.unsqueeze(1);
                let _ = log_softmax.g_mul_(&from_entropy.neg()).g_sub_(&factor);
                grad.g_mul_(&log_softmax)
            }
        };
        grad.scatter_add_(1, &self.targets.unsqueeze(1), &from_logprob)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    /// Loss and gradients by autograd over all rows at once, in float64.
    fn naive(hidden: &Tensor, weight: &Tensor, targets: &Tensor, temperature: f64) -> (Tensor, Vec<Tensor>) {
        let hidden = hidden.to_kind(Kind::Double).detach().set_requires_grad(true);
        let weight = weight.to_kind(Kind::Double).detach().set_requires_grad(true);
        let all = (hidden.mm(&weight.tr()) / temperature).log_softmax(-1, None);
        let entropy = -(all.exp() * &all).sum_dim_intlist([-1i64].as_slice(), false, None);
        let loss = example_loss(&pick(&all, targets), Some(&entropy), 0);
        let grads = Tensor::run_backward(&[&loss], &[&hidden, &weight], false, false);
        (loss.detach(), grads)
    }

    fn example_loss(logprobs: &Tensor, entropy: Option<&Tensor>, start: i64) -> Tensor {
        let factors = Tensor::arange(logprobs.size()[0], (Kind::Float, Device::Cpu)) + start as f64;
        let policy = (&factors * logprobs.square()).sum(None);
        entropy.map_or_else(|| policy.shallow_clone(), |entropy| &policy - (&factors * entropy * 0.3).sum(None))
    }

    #[test]
    fn chunks_equal_autograd_over_the_whole() {
        tch::manual_seed(3);
        let (n, h, v) = (23, 8, 19);
        let hidden = Tensor::randn([n, h], tch::kind::FLOAT_CPU);
        let weight = Tensor::randn([v, h], tch::kind::FLOAT_CPU);
        let targets = Tensor::randint(v, [n], tch::kind::INT64_CPU);
        for temperature in [1.0, 0.7] {
            let (loss, grads) = naive(&hidden, &weight, &targets, temperature);
            for chunk_size in [1, 7, 23, 100] {
                let head = OutputHead { weight: &weight, temperature, chunk_size };
                let rows = Rows { hidden: &hidden, targets: &targets, entropy: true };
                let mut weight_grad = Tensor::zeros([v, h], tch::kind::FLOAT_CPU);
                let mut total = 0.0;
                let hidden_grad = head.backward(&rows, &mut weight_grad, |chunk| {
                    let loss = example_loss(&chunk.logprobs, chunk.entropy.as_ref(), chunk.start);
                    total += loss.double_value(&[]);
                    loss
                });
                assert!((total - loss.double_value(&[])).abs() < 1e-3 * loss.double_value(&[]).abs().max(1.0));
                for (ours, theirs) in [(&hidden_grad, &grads[0]), (&weight_grad, &grads[1])] {
                    let scale = theirs.abs().max().double_value(&[]);
                    let gap = (ours.to_kind(Kind::Double) - theirs).abs().max().double_value(&[]);
                    assert!(gap < 1e-6 * scale, "chunks of {chunk_size} at {temperature}: {gap} of {scale}");
                }
                let (logprobs, entropy) = head.score(&rows);
                let again = example_loss(&logprobs, entropy.as_ref(), 0).double_value(&[]);
                assert!((again - total).abs() < 1e-4 * total.abs());
            }
        }
    }

    #[test]
    fn no_rows_are_no_work() {
        let weight = Tensor::randn([5, 4], tch::kind::FLOAT_CPU);
        let (hidden, targets) = (Tensor::zeros([0, 4], tch::kind::FLOAT_CPU), Tensor::zeros([0], tch::kind::INT64_CPU));
        let head = OutputHead { weight: &weight, temperature: 1.0, chunk_size: 2 };
        let rows = Rows { hidden: &hidden, targets: &targets, entropy: true };
        assert_eq!(head.score(&rows).0.size(), [0]);
        let mut weight_grad = Tensor::zeros([5, 4], tch::kind::FLOAT_CPU);
        assert_eq!(head.backward(&rows, &mut weight_grad, |_| unreachable!()).size(), [0, 4]);
    }
}
