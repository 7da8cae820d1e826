//! Drawing tokens from logits: temperature, top-k, top-p, min-p, in float32.
//!
//! One uniform number a row and the inverse of the cumulative distribution; no random tensor is
//! made, and rows without cuts pay nothing for those that have some.

use tch::{Kind, Tensor};
use training_gym_core::spec::SamplingSpec;

use super::request::TokenScore;

/// Below this a temperature is 0: greedy.
const COLDEST: f64 = 1e-5;

/// One row's wishes.
#[derive(Debug)]
pub(super) struct Draw<'a> {
    pub(super) sampling: &'a SamplingSpec,
    /// In [0, 1), see [`super::noise::uniform`].
    pub(super) uniform: f32,
    pub(super) top_logprobs: usize,
}

impl Draw<'_> {
    fn greedy(&self) -> bool {
        self.sampling.temperature < COLDEST
    }

    fn cut(&self, vocabulary: i64) -> bool {
        let SamplingSpec { top_p, top_k, min_p, .. } = *self.sampling;
        !self.greedy() && (top_p < 1.0 || (top_k > 0 && top_k < vocabulary) || min_p > 0.0)
    }
}

/// Draws one token a row.
///
/// # Shapes
/// `logits [B, V]`, `draws` `B` of them.
pub(super) fn draw(logits: &Tensor, draws: &[Draw<'_>]) -> Vec<TokenScore> {
    let logprobs = tempered(&logits.to_kind(Kind::Float), draws).log_softmax(-1, Kind::Float);
    let greedy = draws.iter().filter(|draw| draw.greedy()).count();
    let mut tokens = if greedy == draws.len() { logprobs.argmax(-1, false) } else { sampled(&logprobs, draws) };
    if greedy > 0 && greedy < draws.len() {
        let mask: Vec<bool> = draws.iter().map(Draw::greedy).collect();
        tokens =
            logprobs.argmax(-1, false).where_self(&Tensor::from_slice(&mask).to_device(logprobs.device()), &tokens);
    }
    scores(&logprobs, &tokens, &draws.iter().map(|draw| draw.top_logprobs).collect::<Vec<_>>())
}

/// Tokens with their log-probabilities and the likeliest others.
///
/// # Shapes
/// `logprobs [N, V]`, `tokens [N]`, `top` `N` counts.
pub(super) fn scores(logprobs: &Tensor, tokens: &Tensor, top: &[usize]) -> Vec<TokenScore> {
    let chosen = logprobs.gather(1, &tokens.unsqueeze(1), false).squeeze_dim(1);
    let widest = top.iter().copied().max().unwrap_or(0).min(logprobs.size()[1] as usize);
    let mut likeliest = vec![Vec::new(); top.len()];
    if widest > 0 {
        let (values, ids) = logprobs.topk(widest as i64, -1, true, true);
        let (values, ids) = (host::<f32>(&values.flatten(0, -1)), host::<i64>(&ids.flatten(0, -1)));
        for (row, list) in likeliest.iter_mut().enumerate() {
            let from = row * widest;
            let places = from..from + top[row].min(widest);
            list.extend(ids[places.clone()].iter().copied().zip(values[places].iter().copied()));
        }
    }
    let (tokens, chosen) = (host::<i64>(tokens), host::<f32>(&chosen));
    let rows = tokens.into_iter().zip(chosen).zip(likeliest);
    rows.map(|((token, logprob), top)| TokenScore { token, logprob: Some(logprob), top }).collect()
}

fn host<T: tch::kind::Element + Default + Copy>(tensor: &Tensor) -> Vec<T> {
    let mut values = vec![T::default(); tensor.numel()];
    tensor.contiguous().copy_data(&mut values, tensor.numel());
    values
}

fn tempered(logits: &Tensor, draws: &[Draw<'_>]) -> Tensor {
    let at = |draw: &Draw<'_>| if draw.greedy() { 1.0 } else { draw.sampling.temperature as f32 };
    let temperatures: Vec<f32> = draws.iter().map(at).collect();
    match temperatures.iter().all(|&temperature| temperature == 1.0) {
        true => logits.shallow_clone(),
        false => logits / column(&temperatures, logits),
    }
}

/// # Shapes
/// `[N]` numbers → `[N, 1]` where `like` is.
fn column(values: &[f32], like: &Tensor) -> Tensor {
    Tensor::from_slice(values).view([-1, 1]).to_device(like.device())
}

fn sampled(logprobs: &Tensor, draws: &[Draw<'_>]) -> Tensor {
    let vocabulary = logprobs.size()[1];
    let probabilities = logprobs.exp();
    let uniforms: Vec<f32> = draws.iter().map(|draw| draw.uniform).collect();
    let cut: Vec<i64> = (0..draws.len() as i64).filter(|&row| draws[row as usize].cut(vocabulary)).collect();
    if cut.is_empty() {
        return inverted(&probabilities, &uniforms);
    }
    let rows = Tensor::from_slice(&cut).to_device(logprobs.device());
    let some: Vec<&Draw<'_>> = cut.iter().map(|&row| &draws[row as usize]).collect();
    let (kept, ids) = cut_and_sorted(&probabilities.index_select(0, &rows), &some);
    let uniforms_of_some: Vec<f32> = some.iter().map(|draw| draw.uniform).collect();
    let places = inverted(&kept, &uniforms_of_some);
    let picked = ids.gather(1, &places.unsqueeze(1), false).squeeze_dim(1);
    if cut.len() == draws.len() {
        return picked;
    }
    inverted(&probabilities, &uniforms).index_copy_(0, &rows, &picked)
}

/// Probabilities in falling order, 0 where cut, and the tokens they belong to. top-k first, top-p
/// of what it left, min-p of the likeliest.
///
/// # Shapes
/// `[N, V]` → `[N, V]` and `[N, V]` int64.
fn cut_and_sorted(probabilities: &Tensor, draws: &[&Draw<'_>]) -> (Tensor, Tensor) {
    let (falling, ids) = probabilities.sort_stable(true, -1, true);
    let vocabulary = falling.size()[1];
    let wishes = |wish: &dyn Fn(&SamplingSpec) -> f32| {
        column(&draws.iter().map(|draw| wish(draw.sampling)).collect::<Vec<_>>(), probabilities)
    };
    let counts = wishes(&|s| if s.top_k > 0 { s.top_k.min(vocabulary) as f32 } else { vocabulary as f32 });
    // Above 1, so that rounding of the sum cuts nothing where nothing should be cut.
    let mass = wishes(&|s| if s.top_p < 1.0 { s.top_p as f32 } else { 2.0 });
    let floor = wishes(&|s| s.min_p as f32) * falling.narrow(1, 0, 1);
    let ranks = Tensor::arange(vocabulary, (Kind::Float, falling.device()));
    let first = &falling * ranks.lt_tensor(&counts);
    let up_to = first.cumsum(-1, Kind::Float);
    let before = &up_to - &first;
    let keep = before.lt_tensor(&(mass * up_to.narrow(1, vocabulary - 1, 1))).logical_and(&first.ge_tensor(&floor));
    (first * keep, ids)
}

/// The first index of each row at which the cumulative sum exceeds `uniform` of the whole; an
/// entry of 0 is never it.
///
/// # Shapes
/// `[N, V]` → `[N]` int64.
fn inverted(weights: &Tensor, uniforms: &[f32]) -> Tensor {
    let cumulative = weights.cumsum(-1, Kind::Float);
    let last = cumulative.size()[1] - 1;
    let targets = cumulative.narrow(1, last, 1) * column(uniforms, weights);
    // The clamp matters only where weights are not numbers.
    targets.searchsorted::<Tensor>(&cumulative, false, true, "right", None).squeeze_dim(1).clamp_max(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::noise::uniform;

    const SPEC: SamplingSpec = SamplingSpec { temperature: 1.0, top_p: 1.0, top_k: -1, min_p: 0.0 };

    fn many(logits: &[f32], sampling: &SamplingSpec, count: u64) -> Vec<TokenScore> {
        let rows = Tensor::from_slice(logits).unsqueeze(0).repeat([count as i64, 1]);
        let draws: Vec<_> = (0..count).map(|i| Draw { sampling, uniform: uniform(i, 0), top_logprobs: 0 }).collect();
        draw(&rows, &draws)
    }

    fn shares(scores: &[TokenScore], vocabulary: usize) -> Vec<f64> {
        let mut shares = vec![0.0; vocabulary];
        for score in scores {
            shares[score.token as usize] += 1.0 / scores.len() as f64;
        }
        shares
    }

    #[test]
    fn frequencies_follow_the_distribution() {
        let target = [0.5_f32, 0.25, 0.0, 0.15, 0.1];
        let logits: Vec<f32> = target.iter().map(|p| p.ln()).collect();
        for temperature in [1.0, 0.5] {
            let scores = many(&logits, &SamplingSpec { temperature, ..SPEC }, 20_000);
            let powered: Vec<f64> = target.iter().map(|p| f64::from(*p).powf(1.0 / temperature)).collect();
            let total: f64 = powered.iter().sum();
            for (token, share) in shares(&scores, 5).into_iter().enumerate() {
                let expected = powered[token] / total;
                assert!((share - expected).abs() < 0.012, "token {token} at {temperature}: {share} for {expected}");
            }
            for score in &scores {
                let expected = (powered[score.token as usize] / total).ln();
                assert!((f64::from(score.logprob.unwrap()) - expected).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn cuts_keep_what_they_promise_and_report_uncut_logprobs() {
        let target = [0.1_f32, 0.4, 0.3, 0.15, 0.05];
        let logits: Vec<f32> = target.iter().map(|p| p.ln()).collect();
        for (sampling, kept) in [
            (SamplingSpec { top_k: 2, ..SPEC }, vec![1, 2]),
            (SamplingSpec { top_k: 1, ..SPEC }, vec![1]),
            (SamplingSpec { top_k: 99, ..SPEC }, vec![0, 1, 2, 3, 4]),
            (SamplingSpec { top_p: 0.69, ..SPEC }, vec![1, 2]),
            (SamplingSpec { top_p: 0.75, ..SPEC }, vec![1, 2, 3]),
            (SamplingSpec { top_p: 1e-9, ..SPEC }, vec![1]),
            // Of the two that top-k leaves, 0.4 / 0.7 is enough.
            (SamplingSpec { top_k: 2, top_p: 0.5, ..SPEC }, vec![1]),
            (SamplingSpec { min_p: 0.3, ..SPEC }, vec![1, 2, 3]),
            (SamplingSpec { min_p: 1.0, ..SPEC }, vec![1]),
        ] {
            let scores = many(&logits, &sampling, 3_000);
            let shares = shares(&scores, 5);
            let total: f32 = kept.iter().map(|&token: &usize| target[token]).sum();
            for (token, share) in shares.into_iter().enumerate() {
                let expected = if kept.contains(&token) { f64::from(target[token] / total) } else { 0.0 };
                assert!((share - expected).abs() < 0.03, "{sampling:?}: token {token} {share} for {expected}");
                assert!(expected > 0.0 || share == 0.0, "{sampling:?}: token {token} was cut");
            }
            for score in scores {
                assert!((score.logprob.unwrap() - target[score.token as usize].ln()).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn rows_of_one_batch_keep_their_own_wishes() {
        let logits = Tensor::from_slice(&[0.0_f32, 3.0, 1.0, 2.0]).unsqueeze(0).repeat([4, 1]);
        let greedy = SamplingSpec { temperature: 0.0, ..SPEC };
        let cut = SamplingSpec { top_k: 2, ..SPEC };
        let wishes = [(&greedy, 0.9, 0), (&SPEC, 0.0, 2), (&cut, 0.99, 9), (&SPEC, 0.999, 0)];
        let draws = wishes.map(|(sampling, uniform, top_logprobs)| Draw { sampling, uniform, top_logprobs });
        let together = draw(&logits, &draws);
        for (row, alone) in draws.iter().enumerate() {
            let single = draw(&logits.narrow(0, row as i64, 1), std::slice::from_ref(alone));
            assert_eq!(single[0], together[row]);
        }
        let tokens: Vec<i64> = together.iter().map(|score| score.token).collect();
        assert_eq!(tokens, [1, 0, 3, 3]);
        let top: Vec<i64> = together[1].top.iter().map(|entry| entry.0).collect();
        assert_eq!((top, together[2].top.len(), together[0].top.len()), (vec![1, 3], 4, 0));
    }

    #[test]
    fn logits_that_are_not_numbers_neither_panic_nor_leave_the_vocabulary() {
        let logits = Tensor::from_slice(&[f32::NAN, 1.0, 2.0]).unsqueeze(0);
        for sampling in [SPEC, SamplingSpec { top_p: 0.5, ..SPEC }, SamplingSpec { temperature: 0.0, ..SPEC }] {
            let scores = draw(&logits, &[Draw { sampling: &sampling, uniform: 0.5, top_logprobs: 1 }]);
            assert!((0..3).contains(&scores[0].token) && scores[0].logprob.unwrap().is_nan());
        }
    }
}
