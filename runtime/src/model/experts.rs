//! A mixture of experts (Shazeer et al., 2017; as in Qwen3-MoE: no shared expert, no capacity).

use tch::{Kind, Tensor};

use super::config::ExpertsConfig;
use super::feed_forward::Dense;
use super::projection::{Named, Projection};
use super::weights::Weights;

/// A router and the experts it chooses from.
#[derive(Debug)]
pub(super) struct Experts {
    router: Projection,
    experts: Vec<Dense>,
    sizes: ExpertsConfig,
}

/// Where each token goes.
struct Routing {
    /// What each chosen expert counts, `[n, k]` in the model's type.
    weights: Tensor,
    /// The token of each row, rows in order of expert, `[n·k]`.
    tokens: Tensor,
    /// The row of each token's choices, `[n·k]`.
    rows: Tensor,
    /// Rows of each expert.
    counts: Vec<i64>,
}

impl Experts {
    pub(super) fn new<E>(weights: &mut Weights<'_, E>) -> Result<Self, E> {
        let sizes = weights.config.experts.expect("a layer that has experts has their sizes");
        let router = weights.projection(&["mlp.gate"], false)?;
        let expert = |index| Dense::new(&format!("mlp.experts.{index}"), false, weights);
        let experts = (0..sizes.count).map(expert).collect::<Result<_, E>>()?;
        Ok(Self { router, experts, sizes })
    }

    pub(super) fn share(&self) -> Self {
        let experts = self.experts.iter().map(Dense::share).collect();
        Self { router: self.router.share(), experts, sizes: self.sizes }
    }

    pub(super) fn collect(&self, into: &mut Vec<Named>) {
        self.router.collect(into);
        self.experts.iter().for_each(|expert| expert.collect(into));
    }

    /// The weighted sum of the chosen experts: tokens are sorted by expert, each expert that is
    /// used computes its tokens at once. Differentiable where `compute` is.
    ///
    /// # Shapes
    /// `x [n, H]` → `[n, H]`.
    pub(super) fn mix(&self, x: &Tensor, compute: impl Fn(&Dense, &Tensor) -> Tensor) -> Tensor {
        if x.size()[0] == 0 {
            return x.shallow_clone();
        }
        let routing = self.route(x);
        let sorted = x.index_select(0, &routing.tokens);
        let mut outputs = Vec::new();
        let mut start = 0;
        for (expert, &count) in self.experts.iter().zip(&routing.counts) {
            if count > 0 {
                outputs.push(compute(expert, &sorted.narrow(0, start, count)));
                start += count;
            }
        }
        let chosen = [x.size()[0], self.sizes.per_token as i64];
        let outputs = Tensor::cat(&outputs, 0).index_select(0, &routing.rows).unflatten(0, chosen);
        (outputs * routing.weights.unsqueeze(-1)).sum_dim_intlist([1_i64].as_slice(), false, None)
    }

    /// Softmax over all experts in float32, the best few, divided by their sum where so set.
    fn route(&self, x: &Tensor) -> Routing {
        let chosen = self.sizes.per_token as i64;
        let (mut weights, experts) = self.router.part(0, x).softmax(-1, Kind::Float).topk(chosen, -1, true, true);
        if self.sizes.normalised {
            weights = &weights / weights.sum_dim_intlist([-1_i64].as_slice(), true, None);
        }
        let experts = experts.flatten(0, -1);
        let order = experts.argsort_stable(true, 0, false);
        let counts = experts.bincount(None::<&Tensor>, self.sizes.count as i64);
        Routing {
            weights: weights.to_kind(x.kind()),
            tokens: order.divide_scalar_mode(chosen, "floor"),
            rows: order.argsort(0, false),
            counts: Vec::<i64>::try_from(counts).expect("a count for each expert"),
        }
    }
}
