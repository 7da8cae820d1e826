//! Responses in which the student was told something: no loss has a row for it.

use training_gym_core::spec::{Divergence, SelectionRule, TokenSelection};

use super::distilled::{co_teacher, low_tokens, naive as distance, rows, signal, teacher_folder};
use super::*;

/// The same batch, of which two tokens in four were told.
fn masked(batch: &TrainBatch) -> TrainBatch {
    let mask = |length: usize| (0..length).map(|token| length < 3 || !matches!(token % 4, 1 | 2)).collect();
    let rollouts: Vec<Rollout> = batch
        .rollouts()
        .iter()
        .map(|whole| {
            let told = Rollout { response_mask: mask(whole.response_ids.len()), ..whole.clone() };
            Rollout { rollout_logprobs: told.of_drawn(whole.rollout_logprobs.clone()), ..told }
        })
        .collect();
    let advantages = rollouts.iter().zip(batch.advantages()).map(|(told, row)| told.of_drawn(row.clone())).collect();
    RolloutBatch::new(1, rollouts).scored(batch.scores().to_vec()).with_advantages(advantages)
}

fn equal(updater: &Updater, ours: &[Tensor], loss: &Tensor, what: &str) {
    let inputs: Vec<&Tensor> = updater.model.parameters().iter().map(|(_, parameter)| parameter).collect();
    let naive = Tensor::run_backward(&[loss], &inputs, false, false);
    for ((name, _), (ours, naive)) in updater.model.parameters().iter().zip(ours.iter().zip(&naive)) {
        let gap = (ours - naive).abs().max().double_value(&[]);
        assert!(gap < 1e-5, "{what}, {name}: {gap}");
        assert!(naive.abs().max().double_value(&[]) > 1e-6, "{what}, {name} has a gradient");
    }
}

const ALL: [usize; 6] = [0, 1, 2, 3, 4, 5];

#[test]
fn every_policy_loss_is_that_of_the_drawn_tokens_alone() {
    for (policy_loss, aggregation, extras) in [
        (PolicyLoss::TokenRatio, LossAggregation::TokenMean, true),
        (PolicyLoss::TokenRatio, LossAggregation::SampleMean, false),
        (PolicyLoss::TokenRatio, LossAggregation::ConstantLength { length: 9 }, false),
        (PolicyLoss::SequenceRatio, LossAggregation::TokenMean, false),
        (PolicyLoss::Cispo, LossAggregation::TokenMean, false),
    ] {
        let mut spec = UpdateSpec { policy_loss, loss_aggregation: aggregation, ..spec() };
        if extras {
            spec.entropy_coef = 0.03;
            spec.kl_loss = Some(KlLossSpec { kl_loss_coef: 0.2, kl_loss_type: KlLossType::K3, unbiased: false });
        }
        if policy_loss != PolicyLoss::TokenRatio {
            spec.eps_clip_c = None;
        }
        let updater = Updater::new(model(Kind::Float, true), spec, 0.8).unwrap();
        shake(&updater.model);
        let batch = masked(&batch(&updater.model, 0.8, 5));
        let (gradients, sums) = updater.gradients(&batch, &ALL, None).unwrap();
        let (_, ours) = gradients.finish(updater.model.parameters(), None);
        let loss = match policy_loss {
            PolicyLoss::TokenRatio => naive_loss(&updater.model, updater.reference.as_ref(), &batch, &updater),
            _ => methods::naive(&updater, &batch),
        };
        assert!((loss.double_value(&[0]) - sums.loss).abs() < 1e-5, "{policy_loss:?}: {loss:?} and {sums:?}");
        equal(&updater, &ours, &loss, &format!("{policy_loss:?} {aggregation:?}"));
    }
}

#[test]
fn a_teachers_distributions_count_at_the_drawn_tokens_alone() {
    let folder = tempfile::tempdir().unwrap();
    let theirs = teacher_folder(folder.path(), VOCAB + 3, 24);
    for divergence in [Divergence::ReverseKl, Divergence::ForwardKl, Divergence::Jsd { beta: 0.3 }] {
        let distillation = Distillation { divergence, coef: 1.0, selection: None, seed: 0 };
        let mut updater = Updater::new(model(Kind::Float, true), spec(), 0.8).unwrap().distilling(distillation, false);
        let batch = masked(&low_tokens(&updater));
        let teacher = co_teacher(folder.path(), &updater);
        let signal = signal(&mut updater, &teacher, &batch);
        let (gradients, sums) = updater.gradients(&batch, &ALL, Some(&signal)).unwrap();
        let (_, ours) = gradients.finish(updater.model.parameters(), None);
        let tokens: usize = batch.rollouts().iter().map(Rollout::drawn).sum();
        let mut loss = Tensor::zeros([1], tch::kind::FLOAT_CPU);
        for rollout in batch.rollouts() {
            let teacher = no_grad(|| rows(&theirs, rollout, VOCAB, 0.8));
            let student = rows(&updater.model, rollout, VOCAB, 0.8);
            loss += distance(&student, &teacher, divergence).sum(None) / tokens as f64;
        }
        assert!((loss.double_value(&[0]) - sums.loss).abs() < 1e-5, "{divergence:?}: {loss:?} and {sums:?}");
        assert_eq!(sums.taught, tokens as f64);
        equal(&updater, &ours, &loss, &format!("{divergence:?}"));
    }
}

#[test]
fn a_selection_is_among_the_drawn_tokens() {
    let folder = tempfile::tempdir().unwrap();
    teacher_folder(folder.path(), VOCAB + 3, 24);
    let selection = Some(TokenSelection { rule: SelectionRule::SoftOr { entropy_clip_quantile: None }, ratio: 0.5 });
    let distillation = Distillation { divergence: Divergence::ReverseKl, coef: 1.0, selection, seed: 3 };
    let mut updater = Updater::new(model(Kind::Float, true), spec(), 0.8).unwrap().distilling(distillation, false);
    let batch = masked(&low_tokens(&updater));
    let teacher = co_teacher(folder.path(), &updater);
    let signal = signal(&mut updater, &teacher, &batch);
    let report = updater.apply_taught(&batch, &signal).unwrap();
    // Drawn are 2, 1, 5, 6, 2 and 3; half of each, rounded down.
    let (chosen, drawn) = (1.0 + 2.0 + 3.0 + 1.0 + 1.0, 2.0 + 1.0 + 5.0 + 6.0 + 2.0 + 3.0);
    assert!((report.selected.unwrap() - chosen / drawn).abs() < 1e-9, "{report:?}");
}

#[test]
fn the_reference_is_asked_of_the_drawn_tokens() {
    let mut updater = Updater::new(model(Kind::Float, true), spec(), 0.8).unwrap().with_reference();
    let whole = batch(&updater.model, 0.8, 12);
    let told = masked(&whole);
    let (all, some) = (updater.reference_logprobs(whole.rollouts()), updater.reference_logprobs(told.rollouts()));
    for ((rollout, all), some) in told.rollouts().iter().zip(all).zip(some) {
        let expected = rollout.of_drawn(all);
        assert_eq!(expected.len(), some.len());
        assert!(expected.iter().zip(&some).all(|(a, b)| (a - b).abs() < 1e-5), "{expected:?} and {some:?}");
    }
}
