//! Whole distributions from a teacher that takes turns with the student.

use std::path::Path;

use training_gym_core::spec::{Divergence, SelectionRule, TokenSelection};

use super::*;

/// A teacher's folder: another shape, its vocabulary padded to another size.
pub(super) fn teacher_folder(folder: &Path, vocab: i64, hidden: i64) -> Model {
    let json = config_json(vocab % 2 == 0, vocab, hidden);
    std::fs::write(folder.join("config.json"), json.to_string()).unwrap();
    let options = LoadOptions { device: Device::Cpu, dtype: Kind::Float };
    let model = Model::init(ModelConfig::from_json(&json).unwrap(), options, 21);
    model.save_weights(folder).unwrap();
    model
}

pub(super) fn co_teacher(folder: &Path, student: &Updater) -> CoTeacher {
    let options = LoadOptions { device: Device::Cpu, dtype: Kind::Float };
    CoTeacher::new(folder, options, student.model.config(), VOCAB as usize - 2, 19).unwrap()
}

pub(super) fn signal(updater: &mut Updater, teacher: &CoTeacher, batch: &TrainBatch) -> TeacherSignal {
    let parked = updater.park();
    assert!(parked.moved().is_none(), "on a CPU the host is the device");
    let signal = teacher.score(&parked, batch.rollouts()).unwrap();
    parked.seat();
    signal
}

/// log-probabilities of one response's rows over the first `vocab` entries. Differentiable.
pub(super) fn rows(model: &Model, rollout: &Rollout, vocab: i64, temperature: f64) -> Tensor {
    let ids = [&rollout.prompt.prompt_ids[..], &rollout.response_ids].concat();
    let hidden = model.hidden(&Tensor::from_slice(&ids), &[ids.len()]);
    let logits = model.logits(&hidden).to_kind(Kind::Float) / temperature;
    let (start, length) = (rollout.prompt.prompt_ids.len() as i64 - 1, rollout.response_ids.len() as i64);
    drawn(rollout, &logits.narrow(0, start, length).narrow(1, 0, vocab).log_softmax(-1, None))
}

/// From the definition, traced through whole logits.
pub(super) fn naive(student: &Tensor, teacher: &Tensor, divergence: Divergence) -> Tensor {
    let kl = |p: &Tensor, q: &Tensor| (p.exp() * (p - q)).sum_dim_intlist([-1i64].as_slice(), false, None);
    match divergence {
        Divergence::ReverseKl => kl(student, teacher),
        Divergence::ForwardKl => kl(teacher, student),
        Divergence::AdaptiveKl { .. } => unreachable!("not tested here"),
        Divergence::Jsd { beta } => {
            let middle = (teacher.exp() * beta + student.exp() * (1.0 - beta)).log();
            kl(teacher, &middle) * beta + kl(student, &middle) * (1.0 - beta)
        }
    }
}

#[test]
fn both_phases_have_the_gradients_of_whole_logits() {
    // Hidden states are the smaller, then logits; the teacher's vocabulary is larger, then smaller.
    for (vocab, hidden, divergence, rewarded) in [
        (VOCAB + 3, 24, Divergence::ReverseKl, false),
        (VOCAB + 3, 24, Divergence::Jsd { beta: 0.3 }, true),
        (VOCAB - 2, 48, Divergence::ForwardKl, false),
        (VOCAB, 48, Divergence::ReverseKl, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let teacher_model = teacher_folder(folder.path(), vocab, hidden);
        let coef = 0.7;
        let mut updater = Updater::new(model(Kind::Float, true), spec(), 0.8)
            .unwrap()
            .distilling(Distillation { divergence, coef, selection: None, seed: 0 }, rewarded);
        let batch = low_tokens(&updater);
        let teacher = co_teacher(folder.path(), &updater);
        let signal = signal(&mut updater, &teacher, &batch);
        assert_eq!(signal.keeps_logits(), hidden > vocab);

        let (gradients, sums) = updater.gradients(&batch, &[0, 1, 2, 3, 4, 5], Some(&signal)).unwrap();
        let (_, ours) = gradients.finish(updater.model.parameters(), None);
        let common = vocab.min(VOCAB);
        let tokens: usize = batch.rollouts().iter().map(|rollout| rollout.response_ids.len()).sum();
        let mut distance = Tensor::zeros([1], tch::kind::FLOAT_CPU);
        for rollout in batch.rollouts() {
            let theirs = no_grad(|| rows(&teacher_model, rollout, common, 0.8));
            distance +=
                naive(&rows(&updater.model, rollout, common, 0.8), &theirs, divergence).sum(None) / tokens as f64;
        }
        let mut loss = &distance * coef;
        if rewarded {
            loss += naive_loss(&updater.model, None, &batch, &updater);
        }
        assert!((loss.double_value(&[0]) - sums.loss).abs() < 1e-5, "{divergence:?}: {loss:?} and {sums:?}");
        let mean = sums.divergence / sums.taught;
        assert!((distance.double_value(&[0]) - mean).abs() < 1e-5 && sums.taught == tokens as f64);
        let inputs: Vec<&Tensor> = updater.model.parameters().iter().map(|(_, parameter)| parameter).collect();
        let naive = Tensor::run_backward(&[&loss], &inputs, false, false);
        for ((name, _), (ours, naive)) in updater.model.parameters().iter().zip(ours.iter().zip(&naive)) {
            let gap = (ours - naive).abs().max().double_value(&[]);
            assert!(gap < 1e-5, "{divergence:?} {name}: {gap}");
            assert!(naive.abs().max().double_value(&[]) > 1e-5, "{name} has a gradient");
        }
    }
}

/// A batch whose tokens all models here have.
pub(super) fn low_tokens(updater: &Updater) -> TrainBatch {
    let all = batch(&updater.model, 0.8, 6);
    let rollouts = all
        .rollouts()
        .iter()
        .map(|rollout| {
            let low = |ids: &[i64]| ids.iter().map(|id| id % (VOCAB - 2)).collect();
            let prompt = PreparedPrompt { prompt_ids: low(&rollout.prompt.prompt_ids), ..(*rollout.prompt).clone() };
            Rollout { response_ids: low(&rollout.response_ids), prompt: Arc::new(prompt), ..rollout.clone() }
        })
        .collect();
    RolloutBatch::new(1, rollouts).scored(all.scores().to_vec()).with_advantages(all.advantages().to_vec())
}

#[test]
fn chosen_tokens_alone_have_the_gradient_of_their_mean() {
    let folder = tempfile::tempdir().unwrap();
    let teacher_model = teacher_folder(folder.path(), VOCAB + 3, 24);
    let half = TokenSelection { rule: SelectionRule::SoftOr { entropy_clip_quantile: None }, ratio: 0.5 };
    let distillation = Distillation { divergence: Divergence::ReverseKl, coef: 1.0, selection: Some(half), seed: 3 };
    let mut updater = Updater::new(model(Kind::Float, true), spec(), 0.8).unwrap().distilling(distillation, false);
    let (batch, teacher) = (low_tokens(&updater), co_teacher(folder.path(), &updater));
    let signal = signal(&mut updater, &teacher, &batch);
    let (gradients, sums) = updater.gradients(&batch, &[0, 1, 2, 3, 4, 5], Some(&signal)).unwrap();
    let (_, ours) = gradients.finish(updater.model.parameters(), None);

    let pair = |rollout: &Rollout| {
        let theirs = no_grad(|| rows(&teacher_model, rollout, VOCAB, 0.8));
        (rows(&updater.model, rollout, VOCAB, 0.8), theirs)
    };
    let column = |of: &dyn Fn(&Tensor, &Tensor) -> Tensor| -> Vec<f32> {
        let each = batch.rollouts().iter().flat_map(|rollout| {
            let (ours, theirs) = pair(rollout);
            Vec::<f32>::try_from(of(&ours, &theirs).detach()).unwrap()
        });
        each.collect()
    };
    let entropy =
        column(&|ours, _| -(ours.exp() * ours).sum_dim_intlist([-1i64].as_slice(), false, None) / (VOCAB as f64).ln());
    let reverse_kl = column(&|ours, theirs| naive(ours, theirs, Divergence::ReverseKl));
    let lengths: Vec<usize> = batch.rollouts().iter().map(|rollout| rollout.response_ids.len()).collect();
    let zeros = vec![0.0; entropy.len()];
    let stats = selection::TokenStats { entropy, reverse_kl, forward_kl: zeros.clone(), jsd: zeros };
    let chosen = selection::select(&half, &stats, &lengths, 0);
    let count: usize = chosen.iter().map(Vec::len).sum();
    assert_eq!(chosen.iter().map(Vec::len).collect::<Vec<_>>(), [2, 0, 4, 6, 1, 3], "a response of one token has none");
    assert_eq!(sums.taught, count as f64);
    let mut loss = Tensor::zeros([1], tch::kind::FLOAT_CPU);
    for (rollout, chosen) in batch.rollouts().iter().zip(&chosen) {
        let (ours, theirs) = pair(rollout);
        let kept = naive(&ours, &theirs, Divergence::ReverseKl).index_select(0, &Tensor::from_slice(chosen));
        loss += kept.sum(None) / count as f64;
    }
    assert!((loss.double_value(&[0]) - sums.loss).abs() < 1e-5, "{loss:?} and {sums:?}");
    let inputs: Vec<&Tensor> = updater.model.parameters().iter().map(|(_, parameter)| parameter).collect();
    let naive = Tensor::run_backward(&[&loss], &inputs, false, false);
    for ((name, _), (ours, naive)) in updater.model.parameters().iter().zip(ours.iter().zip(&naive)) {
        let gap = (ours - naive).abs().max().double_value(&[]);
        assert!(gap < 1e-5, "{name}: {gap}");
    }
    let report = updater.apply_taught(&batch, &signal).unwrap();
    assert!((report.selected.unwrap() - count as f64 / 35.0).abs() < 1e-9, "{report:?}");
    let whole = Updater::new(model(Kind::Float, true), spec(), 0.8).unwrap();
    let all = whole.gradients(&batch, &[0, 1, 2, 3, 4, 5], None).unwrap().1;
    assert!((report.entropy - all.surprisal / 35.0).abs() < 1e-4, "the entropy is of all tokens: {report:?}, {all:?}");
}

#[test]
fn a_batch_of_which_nothing_is_chosen_is_no_step() {
    let folder = tempfile::tempdir().unwrap();
    teacher_folder(folder.path(), VOCAB + 3, 24);
    let selection = Some(TokenSelection { rule: SelectionRule::Entropy, ratio: 0.01 });
    let distillation = Distillation { divergence: Divergence::ReverseKl, coef: 1.0, selection, seed: 3 };
    let mut updater = Updater::new(model(Kind::Float, true), spec(), 0.8).unwrap().distilling(distillation, false);
    let (batch, teacher) = (low_tokens(&updater), co_teacher(folder.path(), &updater));
    let signal = signal(&mut updater, &teacher, &batch);
    let before = master(&updater);
    let report = updater.apply_taught(&batch, &signal).unwrap();
    assert_eq!((report.updates, report.skipped_updates, report.selected), (0, 0, Some(0.0)));
    assert_eq!(master(&updater), before);
}

#[test]
fn the_device_never_holds_two_models() {
    let folder = tempfile::tempdir().unwrap();
    let theirs = teacher_folder(folder.path(), VOCAB + 3, 48);
    let distillation = Distillation { divergence: Divergence::ReverseKl, coef: 1.0, selection: None, seed: 0 };
    let mut updater = Updater::new(model(Kind::Float, true), spec(), 0.8).unwrap().distilling(distillation, false);
    let (batch, teacher) = (low_tokens(&updater), co_teacher(folder.path(), &updater));
    let weights = |model: &Model| model.parameters().iter().map(|(_, weight)| weight.numel() * 4).sum::<usize>();
    let (student_bytes, teacher_bytes) = (weights(&updater.model), weights(&theirs));
    assert!(teacher_bytes > student_bytes);
    let mut before = f64::INFINITY;
    for step in 1..=12 {
        let signal = signal(&mut updater, &teacher, &batch);
        let report = updater.apply_taught(&batch, &signal).unwrap();
        let seat = updater.seat();
        // The student, then the teacher and the student again in each step.
        assert_eq!((seat.turns(), seat.most()), (1 + 2 * step, 1));
        assert_eq!(seat.most_bytes(), teacher_bytes, "the larger of the two, never their sum");
        let divergence = report.divergence.unwrap();
        assert!(divergence < before, "step {step}: {divergence} after {before}");
        assert!((report.loss - divergence).abs() < 1e-5 && report.log_ratio.is_some(), "{report:?}");
        before = divergence;
    }
}

#[test]
#[should_panic(expected = "holds one model at a time")]
fn a_second_model_is_not_seated() {
    let updater = Updater::new(model(Kind::Float, true), spec(), 1.0).unwrap();
    let _ = updater.seat().take(1);
}

#[test]
fn a_move_to_other_memory_and_back_changes_no_bit() {
    for dtype in [Kind::Float, Kind::BFloat16] {
        let kl_loss = Some(KlLossSpec { kl_loss_coef: 0.1, kl_loss_type: KlLossType::K3, unbiased: false });
        let fresh =
            || Updater::new(model(dtype, true), UpdateSpec { kl_loss: kl_loss.clone(), ..spec() }, 1.0).unwrap();
        let (mut stays, mut moves) = (fresh(), fresh());
        let batches: Vec<TrainBatch> = (0..2).map(|seed| batch(&stays.model, 1.0, seed)).collect();
        for batch in &batches {
            stays.apply(batch).unwrap();
            moves.apply(batch).unwrap();
            let old = moves.model.share();
            moves.relocate(Device::Cpu);
            assert_ne!(old.output_weight().data_ptr(), moves.model.output_weight().data_ptr(), "other memory");
        }
        assert_eq!(bytes(&moves.model), bytes(&stays.model));
        assert_eq!(master(&moves), master(&stays));
        // Where the parameter is its own master it still is, so that the next step is seen by both.
        let seen = moves.model.share();
        moves.apply(&batches[0]).unwrap();
        stays.apply(&batches[0]).unwrap();
        assert_eq!(bytes(&seen), bytes(&stays.model));
    }
}

#[test]
fn what_a_teacher_cannot_score_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    teacher_folder(folder.path(), VOCAB - 2, 24);
    let mut updater = Updater::new(model(Kind::Float, true), spec(), 0.8).unwrap();
    let options = LoadOptions { device: Device::Cpu, dtype: Kind::Float };
    let error = CoTeacher::new(folder.path(), options, updater.model.config(), VOCAB as usize, 19).unwrap_err();
    assert!(error.to_string().starts_with("the tokenizer has 29 entries; the teacher in "), "{error}");
    let teacher = co_teacher(folder.path(), &updater);
    let batch = batch(&updater.model, 0.8, 5);
    let largest = batch.rollouts().iter().flat_map(|r| r.response_ids.iter()).max().copied().unwrap();
    assert!(largest >= VOCAB - 2, "the batch has a token the teacher has not");
    let parked = updater.park();
    assert!(matches!(teacher.score(&parked, batch.rollouts()), Err(Error::Token { .. })));
    parked.seat();
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let parked = updater.park();
    assert!(matches!(teacher.score(&parked, &[]), Err(Error::Teacher { .. })));
}
