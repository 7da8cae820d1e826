//! Memory given up for time changes no bit.

use training_gym_core::spec::MemorySpec;

use super::*;

fn kl_loss() -> Option<KlLossSpec> {
    Some(KlLossSpec { kl_loss_coef: 0.1, kl_loss_type: KlLossType::K3, unbiased: false })
}

#[test]
fn no_option_changes_a_bit_of_the_weights_or_the_report() {
    let all = MemorySpec {
        param_offload: true,
        optimizer_offload: true,
        free_cache_engine: true,
        gpu_memory_utilization: Some(0.5),
        gradient_checkpointing: true,
    };
    let options = [
        MemorySpec { gradient_checkpointing: true, ..MemorySpec::default() },
        MemorySpec { optimizer_offload: true, ..MemorySpec::default() },
        MemorySpec { param_offload: true, ..MemorySpec::default() },
        all,
    ];
    for dtype in [Kind::Float, Kind::BFloat16] {
        let fresh = || Updater::new(model(dtype, true), UpdateSpec { kl_loss: kl_loss(), ..spec() }, 1.0).unwrap();
        let mut plain = fresh();
        let batches: Vec<TrainBatch> = (0..2).map(|seed| batch(&plain.model, 1.0, seed)).collect();
        let without_seconds = |report: UpdateReport| UpdateReport { head_seconds: 0.0, ..report };
        let expected: Vec<UpdateReport> =
            batches.iter().map(|batch| without_seconds(plain.apply(batch).unwrap())).collect();
        for memory in options {
            let mut sparing = fresh().sparing(memory);
            assert!(!sparing.offload_student() && !sparing.onload_student(), "the host is the device");
            let found: Vec<UpdateReport> =
                batches.iter().map(|batch| without_seconds(sparing.apply(batch).unwrap())).collect();
            assert_eq!(found, expected, "{dtype:?} {memory:?}");
            assert_eq!(master(&sparing), master(&plain), "{dtype:?} {memory:?}");
            assert_eq!(bytes(&sparing.model), bytes(&plain.model), "{dtype:?} {memory:?}");
            assert_eq!(sparing.take_moves(), Moves::default(), "nothing moves on a CPU, and nothing is said to");
        }
    }
}

#[test]
fn what_is_resident_is_what_there_is() {
    let of = |dtype, kl_loss| Updater::new(model(dtype, true), UpdateSpec { kl_loss, ..spec() }, 1.0).unwrap();
    let count: usize = model(Kind::Float, true).parameters().iter().map(|(_, weight)| weight.numel()).sum();
    assert_eq!(of(Kind::Float, None).resident_bytes(), count * (4 + 8));
    // Two bytes of weight, a float32 master and two moments, and the weights it started from.
    assert_eq!(of(Kind::BFloat16, kl_loss()).resident_bytes(), count * (2 + 4 + 8 + 2));
}

#[test]
fn weights_that_leave_without_their_state_train_on_when_they_are_back() {
    for dtype in [Kind::Float, Kind::BFloat16] {
        let fresh = || Updater::new(model(dtype, true), spec(), 1.0).unwrap();
        let (mut stays, mut moves) = (fresh(), fresh());
        let batches: Vec<TrainBatch> = (0..3).map(|seed| batch(&stays.model, 1.0, seed)).collect();
        for batch in &batches {
            stays.apply(batch).unwrap();
            moves.apply(batch).unwrap();
            // To other memory of the same device: all that a CPU can show of a move.
            moves.relocate_weights(Device::Cpu, false);
            moves.optimizer.rest();
            moves.relocate_weights(Device::Cpu, true);
            moves.optimizer.wake();
        }
        assert_eq!(master(&moves), master(&stays), "{dtype:?}");
        assert_eq!(bytes(&moves.model), bytes(&stays.model), "{dtype:?}");
    }
}
