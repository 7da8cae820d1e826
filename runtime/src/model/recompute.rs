//! Activations that are computed again on the way back (Chen et al. 2016, "Training Deep Nets with
//! Sublinear Memory Cost", section 4: one segment a layer).
//!
//! Forward, nothing is traced and only each layer's input is kept. Back, from the last layer to the
//! first, a layer is computed once more from its input, now traced, and its gradient carried on to the
//! input. At any time the activations of one layer exist, in place of those of all; the price is a second
//! forward pass. The operations and their order are those of the traced road, so the numbers are too.

use tch::{Tensor, no_grad};

use super::Model;
use super::decoder::Decoder;
use super::packing::Packing;
use super::projection::Named;

/// A forward pass of which only the layers' inputs were kept.
#[derive(Debug)]
pub struct Recomputed<'a> {
    decoder: &'a Decoder,
    packing: Packing,
    rows: Tensor,
    /// What each layer saw, then what the final norm saw.
    inputs: Vec<Tensor>,
    hidden: Tensor,
}

impl Model {
    /// As [`Model::hidden_rows`], without a graph: the way back is [`Recomputed::backward`].
    ///
    /// # Panics
    /// As [`Model::hidden_rows`].
    pub fn hidden_rows_recomputed(&self, input_ids: &Tensor, lengths: &[usize], rows: &Tensor) -> Recomputed<'_> {
        let (packing, rows) = self.packed_rows(input_ids, lengths, rows);
        let decoder = &self.decoder;
        let (inputs, hidden) = no_grad(|| {
            let angles = decoder.angles(&packing);
            let mut inputs = vec![decoder.embed(packing.ids())];
            for index in 0..decoder.depth() {
                let next = decoder.layer(index, &inputs[index], &angles, (&packing, Some(&rows)));
                inputs.push(next);
            }
            let hidden = decoder.last_norm().forward(&inputs[decoder.depth()]);
            (inputs, hidden)
        });
        Recomputed { decoder, packing, rows, inputs, hidden }
    }
}

impl Recomputed<'_> {
    /// `[N, H]`, without gradients.
    pub fn hidden(&self) -> &Tensor {
        &self.hidden
    }

    /// Bytes kept between the way there and the way back.
    pub fn kept_bytes(&self) -> usize {
        let bytes = |tensor: &Tensor| tensor.numel() * tensor.kind().elt_size_in_bytes();
        self.inputs.iter().chain([&self.hidden]).map(bytes).sum()
    }

    /// Carries the gradient with respect to the hidden rows back through all layers. `add` takes each
    /// weight's gradient by its place in [`Model::parameters`]; one that nothing reached is undefined.
    ///
    /// # Shapes
    /// `hidden_grad [N, H]`.
    pub fn backward(mut self, hidden_grad: &Tensor, mut add: impl FnMut(usize, Tensor)) {
        let decoder = self.decoder;
        let angles = decoder.angles(&self.packing);
        let mut place = decoder.first_of_norm();
        let mut grad = hidden_grad.shallow_clone();
        for stage in (0..=decoder.depth()).rev() {
            let input = self.inputs.pop().expect("an input a stage").detach().set_requires_grad(true);
            let (output, weights) = if stage == decoder.depth() {
                (decoder.last_norm().forward(&input), decoder.norm_weights())
            } else {
                let output = decoder.layer(stage, &input, &angles, (&self.packing, Some(&self.rows)));
                (output, decoder.layer_weights(stage))
            };
            if stage < decoder.depth() {
                place -= weights.len();
            }
            let leaves: Vec<&Tensor> =
                std::iter::once(&input).chain(weights.iter().map(|(_, weight)| weight)).collect();
            let mut grads = Tensor::run_backward(&[&(output * grad).sum(None)], &leaves, false, false).into_iter();
            grad = grads.next().expect("the input's gradient");
            grads.enumerate().for_each(|(index, grad)| add(place + index, grad));
        }
        let embedded = decoder.embed(self.packing.ids());
        let (_, embedding): &Named = decoder.embedding();
        let carried = (embedded * grad).sum(None);
        add(0, Tensor::run_backward(&[&carried], &[embedding], false, false).remove(0));
    }
}
