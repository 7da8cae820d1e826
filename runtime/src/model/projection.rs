//! Linear maps whose weights are stored side by side.

use tch::Tensor;

/// A weight by its name in the checkpoint.
pub(super) type Named = (String, Tensor);

/// Several linear maps of one input (q, k, v; gate, up).
///
/// Their weights are rows of one tensor. Training uses the parts, each a leaf of its own under its
/// checkpoint name; inference multiplies by the whole at once. Both see the same memory, so an
/// in-place update of a part is an update of the whole, and nothing has to be refreshed.
#[derive(Debug)]
pub(super) struct Projection {
    weight: Tensor,
    bias: Option<Tensor>,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    weight: Named,
    bias: Option<Named>,
}

impl Projection {
    /// Weights (`[rows, columns]` each) and biases (`[rows]` each), with the whole they are rows of.
    pub(super) fn new((weight, weights): (Tensor, Vec<Named>), biases: Option<(Tensor, Vec<Named>)>) -> Self {
        let (bias, biases) = biases.unzip();
        let mut biases = biases.into_iter().flatten();
        let parts = weights.into_iter().map(|weight| Part { weight, bias: biases.next() }).collect();
        Self { weight, bias, parts }
    }

    /// The same memory, with leaves of its own.
    pub(super) fn share(&self) -> Self {
        let own = |named: &Named| (named.0.clone(), named.1.detach());
        Self {
            weight: self.weight.shallow_clone(),
            bias: self.bias.as_ref().map(Tensor::shallow_clone),
            parts: self
                .parts
                .iter()
                .map(|part| Part { weight: own(&part.weight), bias: part.bias.as_ref().map(own) })
                .collect(),
        }
    }

    /// One part, differentiable. # Shapes: `[n, columns]` → `[n, rows of the part]`.
    pub(super) fn part(&self, index: usize, x: &Tensor) -> Tensor {
        let part = &self.parts[index];
        x.linear(&part.weight.1, part.bias.as_ref().map(|named| &named.1))
    }

    /// All parts at once, for inference. # Shapes: `[n, columns]` → `[n, all rows]`.
    pub(super) fn all(&self, x: &Tensor) -> Tensor {
        x.linear(&self.weight, self.bias.as_ref())
    }

    /// `residual + all(x)` in one operation, for inference.
    pub(super) fn add_to(&self, residual: &Tensor, x: &Tensor) -> Tensor {
        let sum = residual.addmm(x, &self.weight.tr());
        match &self.bias {
            None => sum,
            Some(bias) => sum + bias,
        }
    }

    pub(super) fn collect(&self, into: &mut Vec<Named>) {
        for part in &self.parts {
            for (name, tensor) in std::iter::once(&part.weight).chain(&part.bias) {
                into.push((name.clone(), tensor.shallow_clone()));
            }
        }
    }
}
