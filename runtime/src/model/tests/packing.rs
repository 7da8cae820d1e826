//! Packed sequences against each by itself, for every kind of layer.

use super::*;

/// Lengths around the borders of chunks and of tails.
fn lengths() -> Vec<Vec<usize>> {
    vec![
        vec![5],
        vec![4, 4, 4],
        vec![1, 60, 2, 17, 60, 18],
        vec![3, 30, 3, 3],
        vec![100, 2, 100],
        vec![64, 128, 63, 65, 16, 1, 129],
    ]
}

#[test]
fn packed_sequences_do_not_see_each_other() {
    let _guard = tch::no_grad_guard();
    for model in families() {
        for lengths in lengths() {
            let tokens: usize = lengths.iter().sum();
            let ids: Vec<i64> = (0..tokens as i64).map(|i| (i * i + 3 * i) % 40).collect();
            let packed = model.hidden(&Tensor::from_slice(&ids), &lengths);
            assert_eq!(packed.size(), [tokens as i64, 16]);
            let rows: Vec<i64> = (0..tokens as i64).rev().step_by(3).collect();
            let chosen = packed.index_select(0, &Tensor::from_slice(&rows));
            let name = model.config().architecture.name();
            let near = |other: &Tensor, ours: &Tensor, way: &str| {
                let difference = (ours - other).abs().max().double_value(&[]);
                assert!(difference < 1e-5, "{name}, {way} of {lengths:?}: {difference:e}");
            };
            near(&model.prefill(&ids, &lengths, &rows, None), &chosen, "inference road");
            let some = model.hidden_rows(&Tensor::from_slice(&ids), &lengths, &Tensor::from_slice(&rows));
            near(&some, &chosen, "some rows");
            let mut start = 0;
            for &length in &lengths {
                let alone = model.hidden(&Tensor::from_slice(&ids[start..start + length]), &[length]);
                near(&alone, &packed.narrow(0, start as i64, length as i64), "each alone");
                start += length;
            }
        }
    }
}

#[test]
fn no_rows_are_no_work() {
    for model in families() {
        let hidden = model.hidden_rows(&Tensor::from_slice(&[1_i64, 2, 3]), &[3], &Tensor::from_slice::<i64>(&[]));
        assert_eq!(hidden.size(), [0, 16]);
    }
}

#[test]
fn packed_gradients_are_the_sum_of_single_ones() {
    let apart: Vec<Vec<i64>> =
        [7, 25, 9, 1, 80].map(|length| (0..length).map(|i| (i * i + length) % 40).collect()).into();
    // Responses to two prompts, one of them a beginning of another.
    let begin = |prompt: i64, rest: &[i64]| (0..70).map(|i| (i * prompt) % 40).chain(rest.iter().copied()).collect();
    let alike = vec![begin(3, &[1, 2]), begin(3, &[1, 3, 4]), begin(7, &[9]), begin(3, &[]), begin(7, &[9, 9, 9])];
    let loss = |model: &Model, ids: &[i64], lengths: &[usize]| {
        model.logits(&model.hidden(&Tensor::from_slice(ids), lengths)).square().sum(Kind::Float)
    };
    for sequences in [apart, alike] {
        for (packed, single) in families().into_iter().zip(families()) {
            packed.set_requires_grad(true);
            single.set_requires_grad(true);
            let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
            loss(&packed, &sequences.concat(), &lengths).backward();
            for ids in &sequences {
                loss(&single, ids, &[ids.len()]).backward();
            }
            let largest = |tensor: &Tensor| tensor.grad().abs().max().double_value(&[]);
            // How fast a delta net forgets has a gradient in which much cancels out: rounding is
            // measured by the model's largest there. (`delta_rule` compares in float64.)
            let cancels = single.config().delta_net.is_some();
            let overall = single.parameters().iter().map(|(_, tensor)| largest(tensor)).fold(0.0, f64::max);
            for ((name, one), (_, other)) in packed.parameters().iter().zip(single.parameters()) {
                let own = largest(other);
                let scale = if cancels { overall } else { own };
                let difference = (one.grad() - other.grad()).abs().max().double_value(&[]);
                assert!(
                    own > 0.0 && difference < 1e-5 * scale.max(1.0),
                    "`{name}` differs by {difference:e} of {scale:e}"
                );
            }
        }
    }
}

#[test]
fn common_beginnings_are_one_row() {
    let ids = [1, 2, 3, 4, 1, 2, 3, 5, 6, 1, 2, 9, 3, 4];
    let packing = Packing::new(&ids, &[4, 5, 2, 3], Device::Cpu);
    assert_eq!(packing.rows(), [0, 1, 2, 3, 0, 1, 2, 4, 5, 0, 1, 6, 7, 8]);
    assert_eq!(Vec::<i64>::try_from(packing.ids()).unwrap(), [1, 2, 3, 4, 5, 6, 9, 3, 4]);
    assert_eq!(Vec::<i64>::try_from(packing.positions()).unwrap(), [0, 1, 2, 3, 3, 4, 0, 1, 2]);
    assert!(packing.shared());
    // One token in common is not worth the gathering.
    let ids: Vec<i64> = (0..30).map(|i| if i % 10 == 0 { 0 } else { i }).collect();
    assert!(!Packing::new(&ids, &[10, 10, 10], Device::Cpu).shared());
}

#[test]
fn earlier_rows_follow_each_sequence() {
    let ids = [1, 2, 3, 4, 1, 2, 3, 5, 6, 1, 2, 9, 3, 4];
    let packing = Packing::new(&ids, &[4, 5, 2, 3], Device::Cpu);
    let earlier = packing.earlier(2);
    let list = |tensor: &Tensor| Vec::<i64>::try_from(tensor.flatten(0, -1)).unwrap();
    // Rows are 1 2 3 4 | 5 6 after 1 2 3 | 9 3 4; each counts from 1, and 0 is nothing.
    assert_eq!(list(&earlier[0]), [0, 1, 2, 3, 3, 5, 0, 7, 8]);
    assert_eq!(list(&earlier[1]), [0, 0, 1, 2, 2, 3, 0, 0, 7]);
    assert_eq!(list(&packing.endings(3)), [2, 3, 4, 3, 5, 6, 0, 1, 2, 7, 8, 9]);
}
