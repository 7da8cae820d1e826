//! Sequence ratios, truncated weights, samples that are left out.

use super::*;

/// The loss of GSPO or CISPO as its definition says, one sample at a time.
pub(super) fn naive(updater: &Updater, batch: &TrainBatch) -> Tensor {
    let mut total = Tensor::zeros([1], tch::kind::FLOAT_CPU);
    let weighed = batch.rollouts().iter().zip(batch.advantages()).zip(batch.weights());
    let tokens: usize =
        weighed.clone().filter(|(_, weight)| **weight > 0.0).map(|((rollout, _), _)| rollout.drawn()).sum();
    // Weights are relative: those that count have mean 1.
    let counted: Vec<f64> = batch.weights().iter().copied().filter(|weight| *weight > 0.0).collect();
    let mean = counted.iter().sum::<f64>() / counted.len() as f64;
    for ((rollout, advantages), &weight) in weighed {
        let (prompt, response) = (&rollout.prompt.prompt_ids, &rollout.response_ids);
        let (logprob, entropy) = logprobs(&updater.model, prompt, response, updater.temperature);
        let (logprob, entropy) = (drawn(rollout, &logprob), drawn(rollout, &entropy));
        let log_ratio = &logprob - Tensor::from_slice(&rollout.rollout_logprobs);
        let advantages = Tensor::from_slice(advantages);
        let loss = match updater.spec.policy_loss {
            PolicyLoss::SequenceRatio => {
                let ratio = log_ratio.mean(None).exp();
                (&ratio * &advantages).minimum(&(ratio.clamp(0.8, 1.28) * &advantages)).neg()
            }
            _ => (log_ratio.exp().clamp(0.8, 1.28).detach() * &advantages * logprob).neg(),
        };
        let loss = loss - entropy * updater.spec.entropy_coef;
        total += loss.sum(None) * (weight / mean / tokens as f64);
    }
    total
}

#[test]
fn whole_sequences_and_truncated_weights_have_the_naive_gradients() {
    for (policy_loss, entropy_coef, weights) in [
        (PolicyLoss::SequenceRatio, 0.0, [1.0; 6]),
        (PolicyLoss::SequenceRatio, 0.03, [1.0, 0.0, 0.5, 2.0, 0.0, 1.0]),
        (PolicyLoss::Cispo, 0.0, [1.0, 0.5, 0.0, 1.0, 1.0, 3.0]),
    ] {
        let spec = UpdateSpec { policy_loss, entropy_coef, eps_clip_c: None, ..spec() };
        let updater = Updater::new(model(Kind::Float, true), spec, 0.8).unwrap();
        let batch = batch(&updater.model, 0.8, 11).with_weights(weights.to_vec());
        let kept: Vec<usize> = (0..6).filter(|&sample| weights[sample] > 0.0).collect();
        let (gradients, sums) = updater.gradients(&batch, &kept, None).unwrap();
        let (_, ours) = gradients.finish(updater.model.parameters(), None);
        let loss = naive(&updater, &batch);
        assert!((loss.double_value(&[0]) - sums.loss).abs() < 1e-5, "{policy_loss:?}: {loss:?} and {sums:?}");
        let inputs: Vec<&Tensor> = updater.model.parameters().iter().map(|(_, parameter)| parameter).collect();
        let naive = Tensor::run_backward(&[&loss], &inputs, false, false);
        for ((name, _), (ours, naive)) in updater.model.parameters().iter().zip(ours.iter().zip(&naive)) {
            let gap = (ours - naive).abs().max().double_value(&[]);
            assert!(gap < 1e-5, "{policy_loss:?} {name}: {gap}");
            assert!(naive.abs().max().double_value(&[]) > 1e-6, "{name} has a gradient");
        }
    }
}

#[test]
fn a_batch_that_is_left_out_moves_nothing_and_fails_nothing() {
    let mut updater =
        Updater::new(model(Kind::Float, true), UpdateSpec { global_batch_size: 3, ..spec() }, 1.0).unwrap();
    let before = master(&updater);
    let all = batch(&updater.model, 1.0, 4);
    let none = all.clone().with_weights(vec![0.0; 6]);
    let report = updater.apply(&none).unwrap();
    assert_eq!((report.updates, report.skipped_updates, updater.optimizer_steps()), (0, 0, 0));
    assert_eq!(master(&updater), before);
    let half = all.with_weights(vec![0.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
    let report = updater.apply(&half).unwrap();
    assert_eq!((report.updates, report.skipped_updates), (1, 0));
    assert!(report.logprob_gap > 0.0 && report.entropy > 0.0, "{report:?}");
}

#[test]
fn the_reference_is_the_start_whatever_became_of_the_weights() {
    let mut updater = Updater::new(model(Kind::Float, true), spec(), 0.8).unwrap().with_reference();
    let batch = batch(&updater.model, 0.8, 12);
    let start = updater.reference_logprobs(batch.rollouts());
    shake(&updater.model);
    assert_eq!(updater.reference_logprobs(batch.rollouts()), start);
    for (rollout, ours) in batch.rollouts().iter().zip(&start) {
        let fresh = logprobs(&model(Kind::Float, true), &rollout.prompt.prompt_ids, &rollout.response_ids, 0.8).0;
        let fresh = Vec::<f32>::try_from(fresh.detach()).unwrap();
        assert!(ours.iter().zip(&fresh).all(|(a, b)| (a - b).abs() < 1e-5), "{ours:?} and {fresh:?}");
    }
}

#[test]
fn demonstrations_have_the_loss_and_the_gradients_of_cross_entropy() {
    let spec = UpdateSpec { policy_loss: PolicyLoss::Likelihood, kl_loss: None, ..spec() };
    let spec = UpdateSpec { entropy_coef: 0.0, loss_aggregation: LossAggregation::TokenMean, ..spec };
    let updater = Updater::new(model(Kind::Float, true), spec, 1.0).unwrap();
    let all = batch(&updater.model, 1.0, 13);
    // What an engine said of them is not asked for.
    let given =
        |rollout: &Rollout| Rollout { rollout_logprobs: vec![0.0; rollout.response_ids.len()], ..rollout.clone() };
    let rollouts: Vec<Rollout> = all.rollouts().iter().map(given).collect();
    let ones = rollouts.iter().map(|rollout| vec![1.0; rollout.response_ids.len()]).collect();
    let batch = RolloutBatch::new(1, rollouts).scored(all.scores().to_vec()).with_advantages(ones);
    let (gradients, sums) = updater.gradients(&batch, &[0, 1, 2, 3, 4, 5], None).unwrap();
    let (_, ours) = gradients.finish(updater.model.parameters(), None);
    // libtorch's own cross-entropy over whole logits; prompts have the label that it leaves out.
    let (mut logits, mut labels) = (Vec::new(), Vec::new());
    for rollout in batch.rollouts() {
        let (prompt, response) = (&rollout.prompt.prompt_ids, &rollout.response_ids);
        let ids = [&prompt[..], response].concat();
        let hidden = updater.model.hidden(&Tensor::from_slice(&ids[..ids.len() - 1]), &[ids.len() - 1]);
        logits.push(updater.model.logits(&hidden));
        labels.extend((1..ids.len()).map(|at| if at < prompt.len() { -100 } else { ids[at] }));
    }
    let logits = Tensor::cat(&logits, 0).to_kind(Kind::Double);
    let loss = logits.cross_entropy_loss::<Tensor>(&Tensor::from_slice(&labels), None, tch::Reduction::Mean, -100, 0.0);
    assert!((loss.double_value(&[]) - sums.loss).abs() < 1e-5, "{loss:?} and {sums:?}");
    let inputs: Vec<&Tensor> = updater.model.parameters().iter().map(|(_, parameter)| parameter).collect();
    let reference = Tensor::run_backward(&[&loss], &inputs, false, false);
    for ((name, _), (ours, reference)) in updater.model.parameters().iter().zip(ours.iter().zip(&reference)) {
        let gap = (ours - reference).abs().max().double_value(&[]);
        assert!(gap < 1e-5, "{name}: {gap}");
        assert!(reference.abs().max().double_value(&[]) > 1e-6, "{name} has a gradient");
    }
}
