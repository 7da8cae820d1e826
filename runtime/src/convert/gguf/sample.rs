//! GGUF files for tests: a writer, and small models whose Hugging Face weights are known.

/// A file being put together.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) version: u32,
    values: Vec<Vec<u8>>,
    tensors: Vec<(Vec<u8>, Vec<u8>)>,
    data: Vec<u8>,
}

/// A tensor under its Hugging Face name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl File {
    pub(crate) fn new() -> Self {
        Self { version: 3, values: Vec::new(), tensors: Vec::new(), data: Vec::new() }
    }

    /// The file without a value.
    pub(crate) fn without(mut self, key: &str) -> Self {
        let before = self.values.len();
        self.values.retain(|value| !value.starts_with(&text(key)));
        assert_eq!(self.values.len() + 1, before, "`{key}` was there");
        self
    }

    /// A value of type `kind`, as it lies in the file.
    pub(crate) fn raw(&mut self, key: &str, kind: u32, bytes: &[u8]) -> &mut Self {
        self.values.push([&text(key), &kind.to_le_bytes()[..], bytes].concat());
        self
    }

    pub(crate) fn count(&mut self, key: &str, value: u32) -> &mut Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn number(&mut self, key: &str, value: f32) -> &mut Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, 7, &[value.into()])
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.raw(key, 8, &text(value))
    }

    pub(crate) fn texts(&mut self, key: &str, values: &[String]) -> &mut Self {
        let items: Vec<u8> = values.iter().flat_map(|value| text(value)).collect();
        self.raw(key, 9, &[&8_u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &items].concat())
    }

    pub(crate) fn signed(&mut self, key: &str, values: &[i32]) -> &mut Self {
        let items: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.raw(key, 9, &[&5_u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &items].concat())
    }

    /// A tensor of type `kind`; `shape` has the outermost dimension first.
    pub(crate) fn tensor(&mut self, name: &str, shape: &[usize], kind: u32, bytes: &[u8]) -> &mut Self {
        let sizes: Vec<u8> = shape.iter().rev().flat_map(|&size| (size as u64).to_le_bytes()).collect();
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        let entry = [&text(name), &(shape.len() as u32).to_le_bytes()[..], &sizes, &kind.to_le_bytes()].concat();
        self.tensors.push((entry, (self.data.len() as u64).to_le_bytes().to_vec()));
        self.data.extend_from_slice(bytes);
        self
    }

    pub(crate) fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) -> &mut Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, shape, 0, &bytes)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.values.len() as u64).to_le_bytes());
        file.extend(self.values.concat());
        self.tensors.iter().for_each(|(entry, offset)| file.extend([entry.as_slice(), offset].concat()));
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&self.data);
        file
    }
}

/// A small model's sizes.
const HIDDEN: usize = 8;
const HEADS: usize = 2;
const KEY_VALUE_HEADS: usize = 1;
const HEAD_DIM: usize = 8;
const WIDE: usize = 12;
const EXPERTS: usize = 4;
const NARROW: usize = 6;
const LAYERS: usize = 2;
pub(crate) const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                                   {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Numbers that differ from tensor to tensor and place to place.
fn numbers(name: &str, count: usize) -> Vec<f32> {
    let seed: u32 = name.bytes().fold(7, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    (0..count).map(|index| ((seed % 1000 + index as u32) as f32 * 0.37).sin() * 0.3).collect()
}

/// GPT-2's characters for bytes.
pub(crate) fn alphabet() -> Vec<String> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256_u32;
    (0..=255_u8)
        .map(|byte| {
            let character = if printable(byte) {
                char::from(byte)
            } else {
                next += 1;
                char::from_u32(next - 1).expect("a letter")
            };
            character.to_string()
        })
        .collect()
}

/// Adds a vocabulary of bytes, two merges, and three control tokens at its end; then `filling` tokens.
pub(crate) fn vocabulary(file: &mut File, pre: &str, filling: usize) -> usize {
    let mut tokens = alphabet();
    tokens.extend(["he", "hel", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"].map(str::to_owned));
    let mut types = vec![1; 258];
    types.extend([3, 3, 3, 4]);
    tokens.extend((0..filling).map(|index| format!("[PAD{index}]")));
    types.extend(vec![5; filling]);
    file.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", &tokens)
        .signed("tokenizer.ggml.token_type", &types)
        .texts("tokenizer.ggml.merges", &["h e".to_owned(), "he l".to_owned()])
        .count("tokenizer.ggml.bos_token_id", 258)
        .count("tokenizer.ggml.eos_token_id", 260)
        .count("tokenizer.ggml.padding_token_id", 258)
        .flag("tokenizer.ggml.add_bos_token", false)
        .text("tokenizer.chat_template", TEMPLATE);
    tokens.len()
}

/// A model of the family `key` (as GGUF calls it), and its weights as a Hugging Face folder has them.
pub(crate) fn model(key: &str) -> (File, Vec<Named>) {
    let mut file = File::new();
    file.text("general.architecture", key).text("general.name", "sample");
    let hyper = |name: &str| format!("{key}.{name}");
    for (name, value) in [
        ("block_count", LAYERS),
        ("context_length", 64),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", WIDE),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KEY_VALUE_HEADS),
        ("attention.key_length", HEAD_DIM),
        ("attention.value_length", HEAD_DIM),
        ("rope.dimension_count", HEAD_DIM),
    ] {
        file.count(&hyper(name), value as u32);
    }
    if key == "qwen3moe" {
        file.count(&hyper("expert_count"), EXPERTS as u32)
            .count(&hyper("expert_used_count"), 2)
            .count(&hyper("expert_feed_forward_length"), NARROW as u32);
    }
    file.number(&hyper("rope.freq_base"), 10_000.0).number(&hyper("attention.layer_norm_rms_epsilon"), 1e-5);
    let rows = vocabulary(&mut file, if key == "llama" { "llama-bpe" } else { "qwen2" }, 2);

    let mut weights = Weights { file, named: Vec::new() };
    weights.same("token_embd.weight", "model.embed_tokens.weight", &[rows, HIDDEN]);
    for layer in 0..LAYERS {
        weights.layer(layer, key);
    }
    weights.same("output_norm.weight", "model.norm.weight", &[HIDDEN]);
    if key == "qwen2" {
        weights.same("output.weight", "lm_head.weight", &[rows, HIDDEN]);
    }
    if key == "llama" {
        weights.file.floats("rope_freqs.weight", &[HEAD_DIM / 2], &[1.0, 1.0, 8.0, 8.0]);
    }
    (weights.file, weights.named)
}

struct Weights {
    file: File,
    named: Vec<Named>,
}

impl Weights {
    fn named(&mut self, name: &str, shape: &[usize]) -> Vec<f32> {
        let values = numbers(name, shape.iter().product());
        self.named.push(Named { name: name.to_owned(), shape: shape.to_vec(), values: values.clone() });
        values
    }

    fn same(&mut self, from: &str, to: &str, shape: &[usize]) {
        let values = self.named(to, shape);
        self.file.floats(from, shape, &values);
    }

    /// Rows in pairs, as llama.cpp's converter lays them: row h·D + 2j + i is h·D + i·D/2 + j.
    fn paired(&mut self, from: &str, to: &str, rows: usize) {
        let values = self.named(to, &[rows, HIDDEN]);
        let mut paired = Vec::new();
        for row in 0..rows {
            let (head, within) = (row / HEAD_DIM, row % HEAD_DIM);
            let source = head * HEAD_DIM + within % 2 * (HEAD_DIM / 2) + within / 2;
            paired.extend_from_slice(&values[source * HIDDEN..(source + 1) * HIDDEN]);
        }
        self.file.floats(from, &[rows, HIDDEN], &paired);
    }

    fn layer(&mut self, layer: usize, key: &str) {
        let from = |part: &str| format!("blk.{layer}.{part}");
        let to = |part: &str| format!("model.layers.{layer}.{part}");
        let (query, key_value) = (HEADS * HEAD_DIM, KEY_VALUE_HEADS * HEAD_DIM);
        self.same(&from("attn_norm.weight"), &to("input_layernorm.weight"), &[HIDDEN]);
        self.same(&from("ffn_norm.weight"), &to("post_attention_layernorm.weight"), &[HIDDEN]);
        for (part, rows) in [("q", query), ("k", key_value), ("v", key_value)] {
            let (from, to) = (from(&format!("attn_{part}.weight")), to(&format!("self_attn.{part}_proj.weight")));
            if key == "llama" && part != "v" {
                self.paired(&from, &to, rows);
            } else {
                self.same(&from, &to, &[rows, HIDDEN]);
            }
            if key == "qwen2" {
                self.same(&from.replace("weight", "bias"), &to.replace("weight", "bias"), &[rows]);
            }
        }
        self.same(&from("attn_output.weight"), &to("self_attn.o_proj.weight"), &[HIDDEN, query]);
        if key.starts_with("qwen3") {
            self.same(&from("attn_q_norm.weight"), &to("self_attn.q_norm.weight"), &[HEAD_DIM]);
            self.same(&from("attn_k_norm.weight"), &to("self_attn.k_norm.weight"), &[HEAD_DIM]);
        }
        if key != "qwen3moe" {
            for (part, shape) in [("gate", [WIDE, HIDDEN]), ("up", [WIDE, HIDDEN]), ("down", [HIDDEN, WIDE])] {
                self.same(&from(&format!("ffn_{part}.weight")), &to(&format!("mlp.{part}_proj.weight")), &shape);
            }
            return;
        }
        self.same(&from("ffn_gate_inp.weight"), &to("mlp.gate.weight"), &[EXPERTS, HIDDEN]);
        for (part, shape) in [("gate", [NARROW, HIDDEN]), ("up", [NARROW, HIDDEN]), ("down", [HIDDEN, NARROW])] {
            let names = (0..EXPERTS).map(|expert| to(&format!("mlp.experts.{expert}.{part}_proj.weight")));
            let fused: Vec<f32> = names.flat_map(|name| self.named(&name, &shape)).collect();
            self.file.floats(&from(&format!("ffn_{part}_exps.weight")), &[EXPERTS, shape[0], shape[1]], &fused);
        }
    }
}
