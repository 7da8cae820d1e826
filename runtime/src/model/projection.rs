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
    /// Lays weights (`[rows, columns]` each) and biases (`[rows]` each, all or none) together.
    pub(super) fn new(weights: Vec<Named>, biases: Vec<Named>) -> Self {
        let (weight, weights) = side_by_side(weights);
        let (bias, biases) = if biases.is_empty() {
            (None, weights.iter().map(|_| None).collect())
        } else {
            let (bias, biases) = side_by_side(biases);
            (Some(bias), biases.into_iter().map(Some).collect::<Vec<_>>())
        };
        let parts = weights.into_iter().zip(biases).map(|(weight, bias)| Part { weight, bias }).collect();
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

fn side_by_side(named: Vec<Named>) -> (Tensor, Vec<Named>) {
    let (names, tensors): (Vec<_>, Vec<_>) = named.into_iter().unzip();
    let whole = if tensors.len() == 1 { tensors[0].contiguous() } else { Tensor::cat(&tensors, 0) };
    let rows: Vec<i64> = tensors.iter().map(|tensor| tensor.size()[0]).collect();
    let parts = whole.split_with_sizes(&rows, 0).into_iter().map(|part| part.detach());
    let parts = names.into_iter().zip(parts).collect();
    (whole, parts)
}
