//! Tensors under their Hugging Face names, rows in their order.

use std::collections::BTreeSet;

use safetensors::Dtype;

use super::Gguf;
use super::hyperparameters::Hyperparameters;
use super::reader::Stored;
use crate::convert::error::{Problem, damaged, unsupported};
use crate::convert::number;
use crate::convert::plan::{self, Content, Planned};
use crate::model::Architecture;
use crate::settings::Number;

/// Files hold this beside the weights; the config says the same.
const ROPE_FREQS: &str = "rope_freqs.weight";
/// Far above any model's: 94 layers of 128 experts make 36,000.
const MOST_TENSORS: usize = 1 << 20;
/// As many experts a layer, at most.
const MOST_EXPERTS: usize = 1 << 14;

/// The type that loses nothing: the one all matrices have, float32 where any is quantised.
pub(crate) fn lossless(file: &Gguf<'_>) -> Number {
    let mut kinds = file.tensors.values().filter(|tensor| tensor.shape.len() > 1).map(|tensor| tensor.encoding.plain());
    let first = kinds.next().flatten();
    let same = kinds.all(|kind| kind == first);
    first.filter(|_| same).and_then(number::number).unwrap_or(Number::F32)
}

/// Every tensor of the model, in type `number`, in the order of its layers.
///
/// # Errors
/// By name, for a tensor that is missing, has another shape, or has no place in the model.
pub(crate) fn plan<'a>(
    file: &'a Gguf<'a>,
    model: &Hyperparameters,
    number: Number,
) -> Result<Vec<Planned<'a>>, Problem> {
    let mut planner = Planner { file, dtype: number::stored(number), used: BTreeSet::new(), planned: Vec::new() };
    let (hidden, head) = (model.hidden_size, model.head_dim);
    planner.whole("token_embd.weight", "model.embed_tokens.weight", &[model.vocab_size, hidden])?;
    for layer in 0..model.layers {
        planner.attention(layer, model)?;
        if model.architecture.qk_norm() {
            for part in ["q_norm", "k_norm"] {
                let (from, to) = names(layer, &format!("attn_{part}"), &format!("self_attn.{part}"));
                planner.whole(&format!("{from}.weight"), &format!("{to}.weight"), &[head])?;
            }
        }
        for (from, to) in [("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")] {
            let (from, to) = names(layer, from, to);
            planner.whole(&format!("{from}.weight"), &format!("{to}.weight"), &[hidden])?;
        }
        planner.feed_forward(layer, model)?;
        if planner.planned.len() > MOST_TENSORS {
            return unsupported(format!("more than {MOST_TENSORS} tensors"));
        }
    }
    planner.whole("output_norm.weight", "model.norm.weight", &[hidden])?;
    if file.tensors.contains_key("output.weight") {
        planner.whole("output.weight", "lm_head.weight", &[model.vocab_size, hidden])?;
    }
    planner.used.insert(ROPE_FREQS.to_owned());
    let surplus: Vec<&str> = file.tensors.keys().filter(|name| !planner.used.contains(**name)).copied().collect();
    if let Some(first) = surplus.first() {
        let family = model.key;
        return unsupported(format!("{} tensor(s) that a `{family}` has no place for, `{first}` first", surplus.len()));
    }
    Ok(planner.planned)
}

fn names(layer: usize, from: &str, to: &str) -> (String, String) {
    (format!("blk.{layer}.{from}"), format!("model.layers.{layer}.{to}"))
}

struct Planner<'a> {
    file: &'a Gguf<'a>,
    dtype: Dtype,
    used: BTreeSet<String>,
    planned: Vec<Planned<'a>>,
}

impl<'a> Planner<'a> {
    fn stored(&mut self, name: &str, shape: &[usize]) -> Result<&'a Stored<'a>, Problem> {
        self.used.insert(name.to_owned());
        let Some(tensor) = self.file.tensors.get(name) else {
            return damaged(format!("tensor `{name}` is missing"));
        };
        if tensor.shape != shape {
            return damaged(format!("tensor `{name}` has shape {:?}, the metadata ask for {shape:?}", tensor.shape));
        }
        Ok(tensor)
    }

    fn add(&mut self, name: &str, shape: &[usize], content: Content<'a>) {
        self.planned.push(Planned { name: name.to_owned(), shape: shape.to_vec(), dtype: self.dtype, content });
    }

    fn whole(&mut self, from: &str, to: &str, shape: &[usize]) -> Result<(), Problem> {
        let tensor = self.stored(from, shape)?;
        self.add(to, shape, rows(tensor, 0, tensor.shape[..tensor.shape.len() - 1].iter().product()));
        Ok(())
    }

    /// A projection and, where the file has one, its bias.
    fn projection(&mut self, from: &str, to: &str, shape: [usize; 2]) -> Result<(), Problem> {
        self.whole(&format!("{from}.weight"), &format!("{to}.weight"), &shape)?;
        let bias = format!("{from}.bias");
        if self.file.tensors.contains_key(bias.as_str()) {
            self.whole(&bias, &format!("{to}.bias"), &shape[..1])?;
        }
        Ok(())
    }

    fn attention(&mut self, layer: usize, model: &Hyperparameters) -> Result<(), Problem> {
        let (query, key_value) = (model.heads * model.head_dim, model.key_value_heads * model.head_dim);
        for (part, heads) in [("q", model.heads), ("k", model.key_value_heads)] {
            let (from, to) = names(layer, &format!("attn_{part}"), &format!("self_attn.{part}_proj"));
            let size = heads * model.head_dim;
            // llama.cpp wants a Llama's rows in pairs for the rotation.
            if model.architecture != Architecture::Llama {
                self.projection(&from, &to, [size, model.hidden_size])?;
                continue;
            }
            let weight = self.stored(&format!("{from}.weight"), &[size, model.hidden_size])?;
            self.add(&format!("{to}.weight"), &weight.shape, unpermuted(weight, model.head_dim));
            let bias = format!("{from}.bias");
            if self.file.tensors.contains_key(bias.as_str()) {
                let bias = self.stored(&bias, &[size])?;
                self.add(&format!("{to}.bias"), &bias.shape, unpermuted_bias(bias, model.head_dim));
            }
        }
        let (from, to) = names(layer, "attn_v", "self_attn.v_proj");
        self.projection(&from, &to, [key_value, model.hidden_size])?;
        let (from, to) = names(layer, "attn_output", "self_attn.o_proj");
        self.projection(&from, &to, [model.hidden_size, query])?;
        self.same_biases(layer, model)
    }

    /// A config says of all layers at once which projections have biases.
    fn same_biases(&self, layer: usize, model: &Hyperparameters) -> Result<(), Problem> {
        let has =
            |layer: usize, part: &str| self.file.tensors.contains_key(format!("blk.{layer}.{part}.bias").as_str());
        let query = has(0, "attn_q");
        let expected = match model.architecture {
            Architecture::Qwen2 => [true, true, true, false],
            _ => [query; 4],
        };
        let parts = ["attn_q", "attn_k", "attn_v", "attn_output"].into_iter().zip(expected);
        let wide = model.architecture == Architecture::Llama && has(0, "ffn_up");
        for (part, expected) in parts.chain(["ffn_gate", "ffn_up", "ffn_down"].map(|part| (part, wide))) {
            if has(layer, part) != expected {
                let verb = if expected { "lacks" } else { "has" };
                return unsupported(format!("`blk.{layer}.{part}` {verb} a bias, unlike any `{}`", model.key));
            }
        }
        Ok(())
    }

    fn feed_forward(&mut self, layer: usize, model: &Hyperparameters) -> Result<(), Problem> {
        let router = format!("blk.{layer}.ffn_gate_inp.weight");
        let (hidden, wide) = (model.hidden_size, model.intermediate_size);
        match model.experts {
            Some(experts) if self.file.tensors.contains_key(router.as_str()) => {
                self.whole(&router, &format!("model.layers.{layer}.mlp.gate.weight"), &[experts.count, hidden])?;
                let (narrow, count) = (experts.width, experts.count);
                if count > MOST_EXPERTS {
                    return unsupported(format!("{count} experts a layer; at most {MOST_EXPERTS}"));
                }
                for (part, shape) in [("gate", [narrow, hidden]), ("up", [narrow, hidden]), ("down", [hidden, narrow])]
                {
                    let fused =
                        self.stored(&format!("blk.{layer}.ffn_{part}_exps.weight"), &[count, shape[0], shape[1]])?;
                    for expert in 0..count {
                        let name = format!("model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight");
                        self.add(&name, &shape, rows(fused, expert * shape[0], shape[0]));
                    }
                }
                Ok(())
            }
            _ => {
                for (part, shape) in [("gate", [wide, hidden]), ("up", [wide, hidden]), ("down", [hidden, wide])] {
                    let (from, to) = names(layer, &format!("ffn_{part}"), &format!("mlp.{part}_proj"));
                    self.projection(&from, &to, shape)?;
                }
                Ok(())
            }
        }
    }
}

/// `count` rows from `first` on.
fn rows<'a>(tensor: &'a Stored<'a>, first: usize, count: usize) -> Content<'a> {
    let row_bytes = tensor.row_bytes();
    let bytes = &tensor.bytes[first * row_bytes..(first + count) * row_bytes];
    if let Some(from) = tensor.encoding.plain() {
        return plan::stored(bytes, from);
    }
    let piece = (plan::PIECE / tensor.encoding.block_numbers()).max(1) * tensor.encoding.block_bytes();
    Box::new(move |sink| {
        let mut values = Vec::with_capacity(plan::PIECE);
        for piece in bytes.chunks(piece) {
            values.clear();
            tensor.encoding.decode(piece, &mut values);
            sink.floats(&values)?;
        }
        Ok(())
    })
}

/// Row `h·D + i·D/2 + j` of a head in halves lies at `h·D + 2·j + i` of one in pairs.
fn paired(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    let (half, pair) = (within / (head_dim / 2), within % (head_dim / 2));
    head * head_dim + 2 * pair + half
}

fn unpermuted<'a>(tensor: &'a Stored<'a>, head_dim: usize) -> Content<'a> {
    let row_bytes = tensor.row_bytes();
    Box::new(move |sink| {
        let mut values = Vec::with_capacity(tensor.row());
        for row in 0..tensor.shape[0] {
            let row = &tensor.bytes[paired(row, head_dim) * row_bytes..][..row_bytes];
            match tensor.encoding.plain() {
                Some(from) => sink.stored(row, from)?,
                None => {
                    values.clear();
                    tensor.encoding.decode(row, &mut values);
                    sink.floats(&values)?;
                }
            }
        }
        Ok(())
    })
}

fn unpermuted_bias<'a>(tensor: &'a Stored<'a>, head_dim: usize) -> Content<'a> {
    Box::new(move |sink| {
        let mut values = Vec::new();
        tensor.encoding.decode(tensor.bytes, &mut values);
        let ordered: Vec<f32> = (0..values.len()).map(|row| values[paired(row, head_dim)]).collect();
        sink.floats(&ordered)
    })
}
