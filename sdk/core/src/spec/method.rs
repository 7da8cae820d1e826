//! The choices of reinforcement learning: estimators, losses, means.

use serde::{Deserialize, Serialize};

/// What is subtracted from a reward, and divided by, to make an advantage.
///
/// Dr.GRPO (Liu et al., "Understanding R1-Zero-Like Training", 2025) is `GroupRelative` without
/// `normalize_std`, with [`LossAggregation::ConstantLength`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum AdvantageEstimator {
    /// GRPO (Shao et al., "DeepSeekMath", 2024, §4.1): minus the mean of the prompt's group; with
    /// `normalize_std`, over the group's standard deviation (n − 1, + 1e-6).
    GroupRelative {
        /// Divide by the group's standard deviation.
        normalize_std: bool,
    },
    /// RLOO (Ahmadian et al., "Back to Basics", 2024, eq. 9): minus the mean of the group's *other*
    /// rewards, which is `n/(n − 1)` times the group-relative advantage without its deviation.
    LeaveOneOut,
    /// REINFORCE++ (Hu, 2025): the reward at the last token, minus the KL penalty at each, summed
    /// from each token to the end. Whiten it with `normalize_advantages`.
    ReinforcePlusPlus {
        /// γ of the sum, in (0, 1].
        gamma: f64,
    },
    /// REINFORCE++-baseline: minus the mean of the prompt's group, on every token, minus the KL
    /// penalty of that token. Whiten it with `normalize_advantages`.
    ReinforcePlusPlusBaseline,
    /// The reward itself, on every token.
    Raw,
    /// None: rewards only weigh samples ([`SampleWeighting`]) and are reported; what is learnt is the
    /// teacher's.
    Ignored,
    /// 1 on every token: each response is a demonstration. With [`PolicyLoss::Likelihood`] this is
    /// supervised fine-tuning.
    Demonstrated,
}

impl AdvantageEstimator {
    /// Whether a reward counts only beside the others of its prompt.
    pub fn compares(self) -> bool {
        matches!(self, Self::GroupRelative { .. } | Self::LeaveOneOut | Self::ReinforcePlusPlusBaseline)
    }

    /// Whether a KL penalty is taken from each token's advantage; otherwise its sum is taken from the
    /// response's reward.
    pub fn penalises_tokens(self) -> bool {
        matches!(self, Self::ReinforcePlusPlus { .. } | Self::ReinforcePlusPlusBaseline)
    }
}

/// How rewards become advantages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdvantageSpec {
    /// The estimator.
    pub estimator: AdvantageEstimator,
    /// Whiten the final advantages over all loss tokens of the step.
    pub normalize_advantages: bool,
    /// A KL penalty towards the starting model, taken from the reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl_reward: Option<KlRewardSpec>,
    /// A penalty for responses near the length limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlong: Option<OverlongSpec>,
    /// DAPO's dynamic sampling (Yu et al., 2025, eq. 11), its filter: a group whose graded rewards
    /// are all equal is left out of the update, and so of the loss's mean.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dynamic_sampling: bool,
    /// How much each sample's loss counts; `None` is all alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weighting: Option<SampleWeighting>,
}

impl Default for AdvantageSpec {
    /// GRPO.
    fn default() -> Self {
        Self {
            estimator: AdvantageEstimator::GroupRelative { normalize_std: true },
            normalize_advantages: false,
            kl_reward: None,
            overlong: None,
            dynamic_sampling: false,
            weighting: None,
        }
    }
}

/// How much a sample's loss counts beside the others'; each global batch is scaled to mean 1 over the
/// weights that are not 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SampleWeighting {
    /// PACED (arXiv 2603.11178): `p^alpha · (1 − p)^beta` of its problem's pass rate.
    Paced {
        /// α, ≥ 0; the paper's is 1.
        alpha: f64,
        /// β, ≥ 0; the paper's is 1.
        beta: f64,
        /// How the rate is taken.
        pass_rate: PassRate,
    },
    /// PACED's baseline: 1 where `low < p < high`, else 0.
    HardFilter {
        /// In the paper, 0.2.
        low: f64,
        /// In the paper, 0.8.
        high: f64,
        /// How the rate is taken.
        pass_rate: PassRate,
    },
    /// Reward-weighted distillation: softmax of `reward / beta` over the step.
    Reward {
        /// β, > 0: the smaller, the more the best count.
        beta: f64,
    },
}

/// How a problem's pass rate is taken from the graded rollouts of its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassRate {
    /// A reward above this is a pass.
    pub pass_above: f64,
    /// `(passes + 1)/(graded + 2)` instead of `passes/graded`: neither end is then reached.
    pub laplace: bool,
}

/// A KL penalty in the reward: `kl_coef` times the estimate of KL(policy ‖ start) at each token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KlRewardSpec {
    /// Its weight.
    pub kl_coef: f64,
    /// Its estimator.
    pub kl_type: KlLossType,
}

/// DAPO's soft overlong punishment (Yu et al., 2025, eq. 13): a graded response of more than
/// `rollout_max_response_len − cache_len` tokens loses up to `penalty` reward, in a line that ends
/// at the limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlongSpec {
    /// Tokens over which the penalty rises, ≥ 1.
    pub cache_len: usize,
    /// The penalty at the limit, > 0; the paper's is 1.
    pub penalty: f64,
}

/// Estimators of KL(policy ‖ reference) from log-probabilities of sampled tokens
/// (Schulman, "Approximating KL Divergence", 2020).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlLossType {
    /// log p − log q.
    K1,
    /// ½(log p − log q)².
    K2,
    /// exp(r) − 1 − r with r = log q − log p.
    K3,
    /// k3 clamped to [−10, 10].
    LowVarKl,
}

/// What is made of the ratio `r = π/π_old` of a token, its advantage `A`, and the clip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyLoss {
    /// PPO (Schulman et al., 2017, eq. 7): `max(−r·A, −clip(r)·A)`.
    #[default]
    TokenRatio,
    /// GSPO (Zheng et al., 2025, eq. 5–7): the same with the sequence's ratio for each of its tokens,
    /// the exponential of the *mean* of its log-ratios. The paper's clips are near 3e-4 and 4e-4.
    SequenceRatio,
    /// CISPO (MiniMax-M1, 2025, eq. 4): `−sg(clip(r))·A·log π`: the clip bounds a token's weight and
    /// never removes it. There is no lower bound where `eps_clip` is 1.
    Cispo,
    /// `−A·log π`, without a ratio: with an advantage of 1, the negative log-likelihood.
    Likelihood,
}

impl PolicyLoss {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Which mean a loss is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossAggregation {
    /// Over all loss tokens of the global batch.
    TokenMean,
    /// Over samples, each the mean of its own loss tokens.
    SampleMean,
    /// Over samples, each the sum over its loss tokens divided by one constant (Dr.GRPO): a token
    /// weighs the same in a long response as in a short one.
    ConstantLength {
        /// The constant, ≥ 1: in the paper, the tokens a response may have.
        length: usize,
    },
}

/// A KL penalty in the loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KlLossSpec {
    /// Its weight.
    pub kl_loss_coef: f64,
    /// Its estimator.
    pub kl_loss_type: KlLossType,
    /// Multiply each token's estimate with its probability ratio `π/π_old`, which makes the
    /// gradient of its mean unbiased (slime's `use_unbiased_kl`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unbiased: bool,
}
