//! Losses of single tokens, from log-probabilities to values that autograd can follow.
//!
//! All of these are `[n] → [n]`: which mean is taken is decided by the weights a caller multiplies
//! with (see `update::packing::weights`).

use tch::Tensor;
use training_gym_core::spec::{KlLossSpec, KlLossType, PolicyLoss, UpdateSpec};

/// PPO's clip (Schulman et al., 2017, eq. 7) with a higher upper bound (DAPO) and a dual clip for
/// negative advantages (Ye et al., 2020, eq. 5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyClip {
    /// The ratio is cut below at `1 − low`.
    pub low: f64,
    /// The ratio is cut above at `1 + high`.
    pub high: f64,
    /// Where the advantage is negative, the loss is at most `−dual · advantage`; `None` is off.
    pub dual: Option<f64>,
}

/// What [`policy_loss`], [`cispo_loss`] and [`likelihood_loss`] give.
#[derive(Debug)]
pub struct PolicyTerms {
    /// `[n]`, differentiable.
    pub loss: Tensor,
    /// `[n]` bool: where the clipped branch was taken.
    pub clipped: Tensor,
}

/// `max(−r·A, −clamp(r, 1 − low, 1 + high)·A)` with `r = exp(logprobs − old_logprobs)`.
///
/// # Shapes
/// All `[n]`, float32.
pub fn policy_loss(logprobs: &Tensor, old_logprobs: &Tensor, advantages: &Tensor, clip: &PolicyClip) -> PolicyTerms {
    let ratio = (logprobs - old_logprobs).exp();
    let negative = advantages.neg();
    let plain = &ratio * &negative;
    let cut = ratio.clamp(1.0 - clip.low, 1.0 + clip.high) * &negative;
    let clipped = cut.gt_tensor(&plain);
    let loss = plain.maximum(&cut);
    let loss = match clip.dual {
        Some(dual) => (&negative * dual).minimum(&loss).where_self(&advantages.lt(0.0), &loss),
        None => loss,
    };
    PolicyTerms { loss, clipped }
}

/// CISPO (MiniMax-M1, 2025, eq. 4): `−sg(clamp(r, 1 − low, 1 + high))·A·logprobs` with
/// `r = exp(logprobs − old_logprobs)`; no gradient flows through `r`.
///
/// # Shapes
/// All `[n]`, float32.
pub fn cispo_loss(logprobs: &Tensor, old_logprobs: &Tensor, advantages: &Tensor, clip: &PolicyClip) -> PolicyTerms {
    let ratio = (logprobs - old_logprobs).exp().detach();
    let cut = ratio.clamp(1.0 - clip.low, 1.0 + clip.high);
    PolicyTerms { loss: (&cut * advantages).neg() * logprobs, clipped: cut.not_equal_tensor(&ratio) }
}

/// `−A·logprobs`: where the advantages are 1, the negative log-likelihood of supervised fine-tuning.
///
/// # Shapes
/// All `[n]`, float32.
pub fn likelihood_loss(logprobs: &Tensor, advantages: &Tensor) -> PolicyTerms {
    PolicyTerms { loss: advantages.neg() * logprobs, clipped: logprobs.zeros_like().to_kind(tch::Kind::Bool) }
}

/// The mean of each sequence's log-ratios, at each of its tokens (GSPO: Zheng et al., 2025, eq. 7).
/// Its gradient reaches all tokens of the sequence.
///
/// # Shapes
/// `log_ratios [n]`, sequences end to end; `lengths` sums to `n` → `[n]`.
pub fn sequence_means(log_ratios: &Tensor, lengths: &[usize]) -> Tensor {
    let mut start = 0;
    let means: Vec<Tensor> = lengths
        .iter()
        .map(|&length| {
            let part = log_ratios.narrow(0, start, length as i64);
            start += length as i64;
            part.mean(None).expand([length as i64], false)
        })
        .collect();
    if means.is_empty() { log_ratios.shallow_clone() } else { Tensor::cat(&means, 0) }
}

/// An estimate of KL(policy ‖ reference) at each sampled token (Schulman, "Approximating KL
/// Divergence", 2020), with `r = reference − policy` in log-probabilities; multiplied with an
/// importance ratio, where given, before any clamp.
///
/// # Shapes
/// All `[n]`, float32.
pub fn kl_penalty(
    logprobs: &Tensor,
    reference_logprobs: &Tensor,
    kind: KlLossType,
    importance: Option<&Tensor>,
) -> Tensor {
    let log_ratio = reference_logprobs - logprobs;
    let estimate = match kind {
        KlLossType::K1 => log_ratio.neg(),
        KlLossType::K2 => log_ratio.square() * 0.5,
        KlLossType::K3 | KlLossType::LowVarKl => log_ratio.exp() - 1.0 - log_ratio,
    };
    let estimate = match importance {
        Some(importance) => estimate * importance,
        None => estimate,
    };
    if kind == KlLossType::LowVarKl { estimate.clamp(-10.0, 10.0) } else { estimate }
}

/// The tokens of one chunk, `[n]` each, float32.
#[derive(Debug)]
pub struct Tokens {
    /// log π of the behaviour policy.
    pub old_logprobs: Tensor,
    /// Advantages.
    pub advantages: Tensor,
    /// What each token's loss is multiplied with before all are summed.
    pub weights: Tensor,
    /// log π of the reference, where there is a KL penalty.
    pub reference_logprobs: Option<Tensor>,
    /// Tokens of each sequence, where whole sequences are here: their ratios need that.
    pub lengths: Option<Vec<usize>>,
}

impl Tokens {
    /// Tokens `start .. start + length`, which are whole sequences no more.
    #[must_use]
    pub fn narrow(&self, start: i64, length: i64) -> Self {
        let part = |tensor: &Tensor| tensor.narrow(0, start, length);
        Self {
            old_logprobs: part(&self.old_logprobs),
            advantages: part(&self.advantages),
            weights: part(&self.weights),
            reference_logprobs: self.reference_logprobs.as_ref().map(part),
            lengths: None,
        }
    }
}

/// The whole loss: `policy − entropy_coef · entropy + kl_coef · KL`.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// The policy term.
    pub policy: PolicyLoss,
    /// Its clip.
    pub clip: PolicyClip,
    /// Weight of the entropy bonus.
    pub entropy_coef: f64,
    /// The penalty towards the reference.
    pub kl: Option<KlLossSpec>,
}

/// Per-token terms of [`Objective::evaluate`], `[n]` each.
#[derive(Debug)]
pub struct Terms {
    /// The policy term.
    pub policy: Tensor,
    /// Where the clip cut, bool.
    pub clipped: Tensor,
    /// The KL estimate, where there is a penalty.
    pub kl: Option<Tensor>,
    /// Σ weight · (all terms), a scalar that autograd can follow.
    pub loss: Tensor,
}

impl Objective {
    /// As a spec asks.
    pub fn new(spec: &UpdateSpec) -> Self {
        Self {
            policy: spec.policy_loss,
            clip: PolicyClip { low: spec.eps_clip, high: spec.eps_clip_high, dual: spec.eps_clip_c },
            entropy_coef: spec.entropy_coef,
            kl: spec.kl_loss.clone(),
        }
    }

    /// Whether [`evaluate`](Self::evaluate) reads the entropy.
    pub fn needs_entropy(&self) -> bool {
        self.entropy_coef != 0.0
    }

    /// Whether a token's loss depends on the others of its sequence, so that it cannot be evaluated a
    /// chunk at a time.
    pub fn needs_sequences(&self) -> bool {
        self.policy == PolicyLoss::SequenceRatio
    }

    /// Evaluates the loss of some tokens.
    ///
    /// # Shapes
    /// `logprobs`, `entropy`: `[n]`, float32, in nats; `entropy` is of the whole distribution.
    ///
    /// # Panics
    /// When an entropy, reference or sequence that the objective needs is missing.
    pub fn evaluate(&self, logprobs: &Tensor, entropy: Option<&Tensor>, tokens: &Tokens) -> Terms {
        let (old, advantages) = (&tokens.old_logprobs, &tokens.advantages);
        let PolicyTerms { loss: policy, clipped } = match self.policy {
            PolicyLoss::TokenRatio => policy_loss(logprobs, old, advantages, &self.clip),
            PolicyLoss::Cispo => cispo_loss(logprobs, old, advantages, &self.clip),
            PolicyLoss::Likelihood => likelihood_loss(logprobs, advantages),
            PolicyLoss::SequenceRatio => {
                let lengths = tokens.lengths.as_ref().expect("a sequence's ratio needs whole sequences");
                let means = sequence_means(&(logprobs - old), lengths);
                policy_loss(&means, &means.zeros_like(), advantages, &self.clip)
            }
        };
        let weights = &tokens.weights;
        let mut loss = policy.dot(weights);
        if self.needs_entropy() {
            let entropy = entropy.expect("the entropy bonus needs the entropy");
            loss += entropy.dot(weights) * -self.entropy_coef;
        }
        let kl = self.kl.as_ref().map(|spec| {
            let reference = tokens.reference_logprobs.as_ref().expect("the KL penalty needs the reference");
            let ratio = spec.unbiased.then(|| (logprobs - old).exp());
            let kl = kl_penalty(logprobs, reference, spec.kl_loss_type, ratio.as_ref());
            loss += kl.dot(weights) * spec.kl_loss_coef;
            kl
        });
        Terms { policy, clipped, kl, loss }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dual_clip_bounds_negative_advantages_only() {
        let logprobs = Tensor::from_slice(&[5f32.ln(), 5f32.ln(), 0.0]);
        let old = Tensor::zeros([3], tch::kind::FLOAT_CPU);
        let advantages = Tensor::from_slice(&[-1f32, 1.0, -1.0]);
        let clip = PolicyClip { low: 0.2, high: 0.28, dual: Some(3.0) };
        let out = policy_loss(&logprobs, &old, &advantages, &clip);
        let loss = Vec::<f32>::try_from(out.loss).unwrap();
        assert!((loss[0] - 3.0).abs() < 1e-6 && (loss[1] + 1.28).abs() < 1e-6 && (loss[2] - 1.0).abs() < 1e-6);
        assert_eq!(Vec::<bool>::try_from(out.clipped).unwrap(), [false, true, false]);
    }

    #[test]
    fn a_sequence_has_one_ratio_and_its_gradient_reaches_all_its_tokens() {
        let log_ratios = Tensor::from_slice(&[0.1f32, 0.3, -0.6]).set_requires_grad(true);
        let means = sequence_means(&log_ratios, &[2, 1]);
        let grads = Tensor::run_backward(&[means.narrow(0, 0, 1).sum(None)], &[&log_ratios], false, false);
        for (value, expected) in Vec::<f32>::try_from(means.detach()).unwrap().into_iter().zip([0.2, 0.2, -0.6]) {
            assert!((value - expected).abs() < 1e-6);
        }
        assert_eq!(Vec::<f32>::try_from(&grads[0]).unwrap(), [0.5, 0.5, 0.0]);
        assert_eq!(sequence_means(&log_ratios.narrow(0, 0, 0), &[]).size(), [0]);
    }
}
