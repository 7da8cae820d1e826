//! Activations computed again, for every kind of layer.

use super::*;

/// Responses to two prompts that begin alike, and one by itself.
fn pack() -> (Tensor, Vec<usize>, Tensor) {
    let lengths = vec![9, 40, 12, 12];
    let ids: Vec<i64> = lengths.iter().flat_map(|&length| (0..length).map(|i| (i * i + 3) % 40)).collect();
    let rows: Vec<i64> = [3..9, 20..49, 55..61, 70..73].into_iter().flatten().collect();
    (
        Tensor::from_slice(&ids),
        lengths.into_iter().map(|length: i64| length as usize).collect(),
        Tensor::from_slice(&rows),
    )
}

#[test]
fn the_way_back_is_that_of_the_traced_road_bit_for_bit() {
    let (ids, lengths, rows) = pack();
    for dtype in [Kind::Float, Kind::BFloat16] {
        for config in [config_json(true), config_json(false), moe_json(), hybrid_json()] {
            let config = ModelConfig::from_json(&config).unwrap();
            let name = config.architecture.name();
            let model = Model::init(config, LoadOptions { device: Device::Cpu, dtype }, 3);
            model.set_requires_grad(true);
            let traced = model.hidden_rows(&ids, &lengths, &rows);
            let pull = Tensor::arange(traced.numel() as i64, (Kind::Float, Device::Cpu)).sin().view_as(&traced);
            let pull = pull.to_kind(dtype);
            let leaves: Vec<&Tensor> = model.parameters().iter().map(|(_, weight)| weight).collect();
            let expected = Tensor::run_backward(&[&(&traced * &pull).sum(None)], &leaves, false, false);

            let again = model.hidden_rows_recomputed(&ids, &lengths, &rows);
            assert!(!again.hidden().requires_grad());
            assert_eq!(*again.hidden(), traced.detach(), "{name} {dtype:?}: forward");
            let width = if dtype == Kind::Float { 4 } else { 2 };
            let (layers, count) = (model.config().num_hidden_layers, rows.size()[0] as usize);
            // Some of the pack's 73 tokens are computed once for several sequences.
            assert!(again.kept_bytes() <= (73 * layers + 2 * count) * 16 * width, "{name}: {}", again.kept_bytes());
            let mut seen = 0;
            again.backward(&pull, |place, grad| {
                seen += 1;
                let (weight, expected) = (&model.parameters()[place].0, &expected[place]);
                assert_eq!(grad.defined(), expected.defined(), "{name} {dtype:?} {weight}");
                assert!(!grad.defined() || grad == *expected, "{name} {dtype:?} {weight}");
            });
            // A head of its own is not of the layers.
            assert_eq!(seen, leaves.len() - usize::from(!model.config().tie_word_embeddings), "{name}");
        }
    }
}

#[test]
fn no_rows_carry_nothing_back() {
    for model in families() {
        model.set_requires_grad(true);
        let none = Tensor::from_slice::<i64>(&[]);
        let again = model.hidden_rows_recomputed(&Tensor::from_slice(&[1_i64, 2, 3]), &[3], &none);
        let grad = again.hidden().zeros_like();
        again.backward(&grad, |_, grad| {
            assert!(!grad.defined() || grad.abs().sum(None).double_value(&[]) == 0.0);
        });
    }
}
