//! Likeliest tokens from a server.

use training_gym_core::spec::{Divergence, TopK};
use training_gym_core::wire::teacher::TopLogprobs;

use super::*;

const K: i64 = 6;

/// The batch as a server scored it: `of_vocabulary` entries, of which the K likeliest are named.
fn scored(batch: &TrainBatch, teacher: &Model) -> TrainBatch {
    let scores = batch.rollouts().iter().zip(batch.scores()).map(|(rollout, score)| {
        let rows = no_grad(|| whole(teacher, rollout));
        let (named, ids) = rows.topk(K, 1, true, true);
        let own = rows.gather(1, &Tensor::from_slice(&rollout.response_ids).unsqueeze(1), false).squeeze_dim(1);
        let floats = |tensor: Tensor| Vec::<f32>::try_from(tensor.flatten(0, -1)).unwrap();
        let ids = Vec::<i64>::try_from(ids.flatten(0, -1)).unwrap();
        let top = TopLogprobs::from_rows(K as usize, ids, floats(named)).unwrap();
        Score { teacher_logprobs: Some(floats(own)), teacher_top: Some(top), ..score.clone() }
    });
    let rollouts = batch.rollouts().to_vec();
    RolloutBatch::new(1, rollouts).scored(scores.collect()).with_advantages(batch.advantages().to_vec())
}

/// log-probabilities of one response's rows. Differentiable.
fn whole(model: &Model, rollout: &Rollout) -> Tensor {
    let ids = [&rollout.prompt.prompt_ids[..], &rollout.response_ids].concat();
    let logits = model.logits(&model.hidden(&Tensor::from_slice(&ids), &[ids.len()])).to_kind(Kind::Float);
    let (start, length) = (rollout.prompt.prompt_ids.len() as i64 - 1, rollout.response_ids.len() as i64);
    logits.narrow(0, start, length).log_softmax(-1, None)
}

/// From the definition, by autograd: the sum over one response's rows.
fn naive(student: &Tensor, rollout_top: &TopLogprobs, spec: &TopK) -> Tensor {
    let shape = [-1, K];
    let ids = Tensor::from_slice(rollout_top.ids()).view(shape);
    let likely = Tensor::from_slice(rollout_top.logprobs()).view(shape).exp();
    let ours = student.gather(1, &ids, false).exp();
    let rest = |likely: &Tensor| {
        let sum = likely.sum_dim_intlist([1i64].as_slice(), true, None);
        sum.neg() + 1.0
    };
    let (t, s) = match spec.tail {
        true => (Tensor::cat(&[&likely, &rest(&likely)], 1), Tensor::cat(&[&ours, &rest(&ours)], 1)),
        false => (likely, ours),
    };
    let (p, q) = if spec.divergence == Divergence::ReverseKl { (s, t) } else { (t, s) };
    (&p * (p.log() - q.log())).sum(None)
}

#[test]
fn the_step_has_the_gradient_of_whole_logits() {
    let teacher = Model::init(config(true), LoadOptions { device: Device::Cpu, dtype: Kind::Float }, 21);
    for (divergence, tail, rewarded) in [
        (Divergence::ForwardKl, true, false),
        (Divergence::ForwardKl, false, false),
        (Divergence::ReverseKl, true, false),
        (Divergence::ForwardKl, true, true),
    ] {
        let top = TopK { k: K as usize, divergence, tail };
        let updater = Updater::new(model(Kind::Float, true), spec(), 1.0)
            .unwrap()
            .distilling(Distillation { divergence, coef: 0.7, selection: None, seed: 0 }, rewarded);
        let batch = scored(&batch(&updater.model, 1.0, 6), &teacher);
        let signal = TeacherSignal::of_server(&batch, top, VOCAB).unwrap();
        assert!(!signal.keeps_logits());
        let (gradients, sums) = updater.gradients(&batch, &[0, 1, 2, 3, 4, 5], Some(&signal)).unwrap();
        let (_, ours) = gradients.finish(updater.model.parameters(), None);
        let mut distance = Tensor::zeros([], tch::kind::FLOAT_CPU);
        let mut log_ratio = 0.0;
        for (rollout, score) in batch.rollouts().iter().zip(batch.scores()) {
            let student = whole(&updater.model, rollout);
            distance += naive(&student, score.teacher_top.as_ref().unwrap(), &top) / 35.0;
            let own = student.gather(1, &Tensor::from_slice(&rollout.response_ids).unsqueeze(1), false);
            let theirs: f32 = score.teacher_logprobs.as_ref().unwrap().iter().sum();
            log_ratio += own.sum(None).double_value(&[]) - f64::from(theirs);
        }
        assert_eq!(sums.taught, 35.0);
        assert!((sums.divergence / 35.0 - distance.double_value(&[])).abs() < 1e-5, "{top:?}: {sums:?}");
        assert!((sums.log_ratio - log_ratio).abs() < 1e-3, "{top:?}: {log_ratio} and {sums:?}");
        let mut loss = &distance * 0.7;
        if rewarded {
            loss += naive_loss(&updater.model, None, &batch, &updater).sum(None);
        }
        let inputs: Vec<&Tensor> = updater.model.parameters().iter().map(|(_, parameter)| parameter).collect();
        let naive = Tensor::run_backward(&[&loss], &inputs, false, false);
        for ((name, _), (ours, naive)) in updater.model.parameters().iter().zip(ours.iter().zip(&naive)) {
            let gap = (ours - naive).abs().max().double_value(&[]);
            assert!(gap < 1e-5, "{top:?} {name}: {gap}");
        }
    }
}

#[test]
fn what_a_server_did_not_name_is_refused_by_sample() {
    let teacher = Model::init(config(true), LoadOptions { device: Device::Cpu, dtype: Kind::Float }, 21);
    let plain = batch(&teacher, 1.0, 6);
    let top = TopK { k: K as usize, divergence: Divergence::ForwardKl, tail: true };
    let missing = TeacherSignal::of_server(&plain, top, VOCAB).unwrap_err();
    assert!(matches!(missing, Error::NoLikeliest { sample: 0 }), "{missing}");
    let batch = scored(&plain, &teacher);
    let fewer = TeacherSignal::of_server(&batch, TopK { k: 5, ..top }, VOCAB).unwrap_err();
    assert!(matches!(fewer, Error::NoLikeliest { .. }), "{fewer}");
    let outside = TeacherSignal::of_server(&batch, top, 3).unwrap_err();
    assert!(matches!(outside, Error::TeacherToken { vocab_size: 3, .. }), "{outside}");
}
