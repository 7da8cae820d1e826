//! AdamW over named tensors (Loshchilov and Hutter, "Decoupled Weight Decay Regularization",
//! 2019, algorithm 2, as PyTorch computes it), with float32 master weights and moments.

use tch::{Device, Kind, Tensor, no_grad};
use training_gym_core::spec::OptimizerSpec;

/// One tensor that is trained.
#[derive(Debug)]
pub(super) struct Slot {
    /// Its name in the checkpoint.
    pub(super) name: String,
    /// What the model computes with.
    pub(super) parameter: Tensor,
    /// Its float32 original; the parameter itself where that is float32.
    pub(super) master: Tensor,
    /// m.
    pub(super) exp_avg: Tensor,
    /// v.
    pub(super) exp_avg_sq: Tensor,
    decays: bool,
}

impl Slot {
    /// The moments, and the master where it is not the parameter itself.
    fn state(&self) -> impl Iterator<Item = &Tensor> {
        let master = (self.parameter.kind() != Kind::Float).then_some(&self.master);
        [&self.exp_avg, &self.exp_avg_sq].into_iter().chain(master)
    }

    /// Puts the state into a device's memory; returns the bytes that moved.
    fn place(&mut self, device: Device) -> usize {
        let masters = self.parameter.kind() != Kind::Float;
        let state = [&mut self.exp_avg, &mut self.exp_avg_sq].into_iter().chain(masters.then_some(&mut self.master));
        no_grad(|| state.map(|tensor| move_to(tensor, device)).sum())
    }

    /// Hands the master's value to the parameter.
    pub(super) fn publish(&mut self) {
        if self.parameter.kind() != Kind::Float {
            self.parameter.copy_(&self.master);
        }
    }
}

/// Bytes of a tensor.
pub(super) fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

/// Moves a tensor to a device, unless it is there; returns the bytes that moved.
fn move_to(tensor: &mut Tensor, device: Device) -> usize {
    if tensor.device() == device {
        return 0;
    }
    *tensor = tensor.to_device(device);
    bytes_of(tensor)
}

/// The optimizer: its state and the constants of its rule.
#[derive(Debug)]
pub struct AdamW {
    spec: OptimizerSpec,
    pub(super) slots: Vec<Slot>,
    pub(super) steps: u64,
    /// Whether the state is in host memory until the next step.
    resting: bool,
}

impl AdamW {
    /// An optimizer of these tensors, which it changes in place. Tensors of one dimension (norms,
    /// biases) have no weight decay.
    pub fn new(parameters: &[(String, Tensor)], spec: &OptimizerSpec) -> Self {
        let slot = |(name, parameter): &(String, Tensor)| {
            // `detach` shares storage: where the parameter is float32, it is its own master.
            let master = parameter.detach().to_kind(Kind::Float);
            Slot {
                name: name.clone(),
                parameter: parameter.detach(),
                exp_avg: master.zeros_like(),
                exp_avg_sq: master.zeros_like(),
                decays: parameter.dim() > 1,
                master,
            }
        };
        Self { spec: spec.clone(), slots: no_grad(|| parameters.iter().map(slot).collect()), steps: 0, resting: false }
    }

    /// Goes on with `parameters`, the same in other memory, which are to hold the values of the old.
    /// The state comes along where asked for, unless it rests.
    pub(super) fn relocate(&mut self, parameters: &[(String, Tensor)], with_state: bool) {
        no_grad(|| {
            for (slot, (_, parameter)) in self.slots.iter_mut().zip(parameters) {
                slot.parameter = parameter.detach();
                slot.master = match parameter.kind() {
                    Kind::Float => parameter.detach(),
                    _ => slot.master.shallow_clone(),
                };
                if with_state && !self.resting {
                    slot.place(parameter.device());
                }
            }
        });
    }

    /// Moves the state into host memory; returns the bytes moved, 0 where it is there already.
    pub(super) fn rest(&mut self) -> usize {
        self.resting = true;
        self.slots.iter_mut().map(|slot| slot.place(Device::Cpu)).sum()
    }

    /// Moves the state to where the parameters are; returns the bytes moved.
    pub(super) fn wake(&mut self) -> usize {
        self.resting = false;
        self.slots.iter_mut().map(|slot| slot.place(slot.parameter.device())).sum()
    }

    /// Bytes of the state: what a rest would move from a device of its own.
    pub(super) fn state_bytes(&self) -> usize {
        self.slots.iter().flat_map(Slot::state).map(bytes_of).sum()
    }

    /// Steps applied so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// One step along `grads`, which it uses up.
    ///
    /// # Shapes
    /// One float32 gradient a parameter, in the order and shapes of the parameters.
    ///
    /// # Panics
    /// When the count differs.
    pub fn step(&mut self, grads: Vec<Tensor>, lr: f64) {
        assert_eq!(grads.len(), self.slots.len(), "one gradient a parameter");
        self.steps += 1;
        let OptimizerSpec { adam_beta1: beta1, adam_beta2: beta2, adam_eps: eps, weight_decay, .. } = self.spec;
        let power = |beta: f64| 1.0 - beta.powf(self.steps as f64);
        let (correction1, correction2) = (power(beta1), power(beta2));
        // w ← w − (lr/c₁)·m / (√v/√c₂ + ε), with the factor of m moved into the denominator:
        // one operation less, and the moments stay as they are.
        let step_size = lr / correction1;
        let (root_factor, eps_term) = (-1.0 / (correction2.sqrt() * step_size), -eps / step_size);
        no_grad(|| {
            for (slot, grad) in self.slots.iter_mut().zip(grads) {
                let _ = slot.exp_avg.lerp_(&grad, 1.0 - beta1);
                let _ = slot.exp_avg_sq.lerp_(&grad.square(), 1.0 - beta2);
                if lr == 0.0 {
                    continue;
                }
                if slot.decays && weight_decay != 0.0 {
                    let _ = slot.master.g_mul_scalar_(1.0 - lr * weight_decay);
                }
                let mut denominator = slot.exp_avg_sq.sqrt();
                let _ = denominator.g_mul_scalar_(root_factor).g_add_scalar_(eps_term);
                let _ = slot.master.addcdiv_(&slot.exp_avg, &denominator);
                slot.publish();
            }
        });
    }
}

/// Gradients of all parameters, summed over micro-batches in float32.
#[derive(Debug)]
pub struct Gradients(Vec<Option<Tensor>>);

impl Gradients {
    /// No gradients yet, of this many parameters.
    pub fn new(count: usize) -> Self {
        Self(std::iter::repeat_with(|| None).take(count).collect())
    }

    /// Adds to one parameter's gradient; an undefined tensor adds nothing.
    pub fn add(&mut self, index: usize, grad: Tensor) {
        if !grad.defined() {
            return;
        }
        match &mut self.0[index] {
            Some(sum) => no_grad(|| *sum += grad),
            empty => *empty = Some(grad.to_kind(Kind::Float)),
        }
    }

    /// One parameter's gradient to add into, made of zeros like `parameter` where there is none.
    pub fn accumulator(&mut self, index: usize, parameter: &Tensor) -> &mut Tensor {
        self.0[index].get_or_insert_with(|| Tensor::zeros(parameter.size(), (Kind::Float, parameter.device())))
    }

    /// The norm of all gradients together, and the gradients, scaled down to `clip` where the norm
    /// is greater (factor `clip / (norm + 1e-6)`, as PyTorch's). Parameters that nothing reached
    /// get zeros. A norm that is not finite scales nothing.
    pub fn finish(self, parameters: &[(String, Tensor)], clip: Option<f64>) -> (f64, Vec<Tensor>) {
        no_grad(|| {
            let norms: Vec<Tensor> = self.0.iter().flatten().map(|grad| grad.norm()).collect();
            let norm = match norms.len() {
                0 => 0.0,
                _ => Tensor::stack(&norms, 0).to_kind(Kind::Double).norm().double_value(&[]),
            };
            let factor = clip.map_or(1.0, |clip| (clip / (norm + 1e-6)).min(1.0));
            let grads = self.0.into_iter().zip(parameters).map(|(grad, (_, parameter))| match grad {
                Some(mut grad) if factor < 1.0 => grad.g_mul_scalar_(factor),
                Some(grad) => grad,
                None => Tensor::zeros(parameter.size(), (Kind::Float, parameter.device())),
            });
            (norm, grads.collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use training_gym_core::spec::LrDecayStyle;

    fn spec() -> OptimizerSpec {
        OptimizerSpec {
            lr: 1e-2,
            min_lr: 0.0,
            lr_warmup_iters: 0,
            lr_decay_iters: 0,
            lr_decay_style: LrDecayStyle::Constant,
            weight_decay: 0.1,
            adam_beta1: 0.9,
            adam_beta2: 0.98,
            adam_eps: 1e-8,
            clip_grad: Some(1.0),
        }
    }

    /// The rule as the paper writes it, in float64.
    fn by_hand(weights: &mut [f64], grads: &[Vec<f64>], decay: f64, lr: f64) {
        let (mut m, mut v) = (vec![0.0; weights.len()], vec![0.0; weights.len()]);
        for (step, grad) in grads.iter().enumerate() {
            let t = step as i32 + 1;
            for i in 0..weights.len() {
                m[i] = 0.9 * m[i] + 0.1 * grad[i];
                v[i] = 0.98 * v[i] + 0.02 * grad[i] * grad[i];
                let (m_hat, v_hat) = (m[i] / (1.0 - 0.9f64.powi(t)), v[i] / (1.0 - 0.98f64.powi(t)));
                weights[i] -= lr * decay * weights[i];
                weights[i] -= lr * m_hat / (v_hat.sqrt() + 1e-8);
            }
        }
    }

    #[test]
    fn follows_the_rule_and_spares_norms_from_decay() {
        let matrix: Vec<f32> = vec![0.5, -1.0, 2.0, 0.0];
        let norm: Vec<f32> = vec![1.0, 1.5];
        let parameters =
            [("m".to_owned(), Tensor::from_slice(&matrix).view([2, 2])), ("n".to_owned(), Tensor::from_slice(&norm))];
        let mut optimizer = AdamW::new(&parameters, &spec());
        let steps: Vec<Vec<f64>> = (0..20).map(|t| (0..6).map(|i| ((t * 7 + i * 3) as f64).sin()).collect()).collect();
        for grad in &steps {
            let tensor = Tensor::from_slice(grad).to_kind(Kind::Float);
            optimizer.step(vec![tensor.narrow(0, 0, 4).view([2, 2]), tensor.narrow(0, 4, 2)], 1e-2);
        }
        let part = |range: std::ops::Range<usize>| -> Vec<Vec<f64>> {
            steps.iter().map(|grad| grad[range.clone()].to_vec()).collect()
        };
        let mut expected: Vec<f64> = matrix.iter().map(|&w| f64::from(w)).collect();
        by_hand(&mut expected, &part(0..4), 0.1, 1e-2);
        let mut expected_norm: Vec<f64> = norm.iter().map(|&w| f64::from(w)).collect();
        by_hand(&mut expected_norm, &part(4..6), 0.0, 1e-2);
        expected.extend(expected_norm);
        let ours: Vec<f64> = parameters
            .iter()
            .flat_map(|(_, p)| Vec::<f64>::try_from(p.flatten(0, -1).to_kind(Kind::Double)).unwrap())
            .collect();
        for (a, b) in ours.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-6, "{ours:?} against {expected:?}");
        }
    }

    #[test]
    fn a_bfloat16_model_trains_on_its_float32_master() {
        let parameters = [("w".to_owned(), Tensor::ones([4, 4], (Kind::BFloat16, Device::Cpu)))];
        let mut optimizer = AdamW::new(&parameters, &OptimizerSpec { weight_decay: 0.0, ..spec() });
        // Each step is far below bfloat16's resolution at 1; together they are not.
        for _ in 0..100 {
            optimizer.step(vec![Tensor::ones([4, 4], tch::kind::FLOAT_CPU)], 1e-4);
        }
        let value = parameters[0].1.to_kind(Kind::Double).mean(None).double_value(&[]);
        assert!((value - 0.99).abs() < 2e-3, "{value}");
    }

    #[test]
    fn the_norm_is_over_all_parameters_and_clips() {
        let parameters: Vec<(String, Tensor)> =
            (0..3).map(|i| (i.to_string(), Tensor::zeros([2], tch::kind::FLOAT_CPU))).collect();
        let mut gradients = Gradients::new(3);
        gradients.add(0, Tensor::from_slice(&[3f32, 0.0]));
        gradients.add(1, Tensor::from_slice(&[0f32, 2.0]));
        gradients.add(1, Tensor::from_slice(&[0f32, 2.0]));
        let (norm, grads) = gradients.finish(&parameters, Some(1.0));
        assert!((norm - 5.0).abs() < 1e-6);
        let all: Vec<f32> = grads.iter().flat_map(|g| Vec::<f32>::try_from(g).unwrap()).collect();
        let expected = [0.6, 0.0, 0.0, 0.8, 0.0, 0.0];
        assert!(all.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{all:?}");
    }
}
