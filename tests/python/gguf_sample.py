"""A random Llama as GGUF in which every supported encoding occurs.

argv: the file to write. Blocks are random bytes with float16 scales of a sensible size, so that every
bit of every field is exercised.
"""

import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, TokenType

SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}
HIDDEN, HEADS, KEY_VALUE_HEADS, WIDE, LAYERS = 256, 4, 2, 512, 2
random = np.random.default_rng(7)


def blocks(shape, name):
    kind = GGMLQuantizationType[name]
    numbers, size = GGML_QUANT_SIZES[kind]
    count = int(np.prod(shape)) // numbers
    data = random.integers(0, 256, (count, size), dtype=np.uint8)
    for at in SCALES[name]:
        scales = random.normal(0, 0.01, count).astype(np.float16)
        data[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
    return data.reshape(*shape[:-1], -1), kind


def plain(shape, kind):
    values = random.normal(0, 0.02, shape).astype(np.float32)
    if kind == "F16":
        return values.astype(np.float16), GGMLQuantizationType.F16
    if kind == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), GGMLQuantizationType.BF16
    return values, GGMLQuantizationType.F32


def alphabet():
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(256 + index) for index in range(len(hidden))]


writer = GGUFWriter(sys.argv[1], "llama")
writer.add_block_count(LAYERS)
writer.add_context_length(128)
writer.add_embedding_length(HIDDEN)
writer.add_feed_forward_length(WIDE)
writer.add_head_count(HEADS)
writer.add_head_count_kv(KEY_VALUE_HEADS)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_rope_freq_base(10000.0)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("llama-bpe")
tokens = [*alphabet(), "ab", "<|begin_of_text|>", "<|eot_id|>"]
writer.add_token_list(tokens)
writer.add_token_types([TokenType.NORMAL] * 257 + [TokenType.CONTROL] * 2)
writer.add_token_merges(["a b"])
writer.add_bos_token_id(257)
writer.add_eos_token_id(258)
encodings = iter([*SCALES, "F16", "BF16"] * 3)


def add(name, shape, encoding=None):
    encoding = encoding or next(encodings)
    data, kind = blocks(shape, encoding) if encoding in SCALES else plain(shape, encoding)
    writer.add_tensor(name, data, raw_dtype=kind)


add("token_embd.weight", (len(tokens), HIDDEN))
for layer in range(LAYERS):
    width = HIDDEN // HEADS * KEY_VALUE_HEADS
    add(f"blk.{layer}.attn_norm.weight", (HIDDEN,), "F32")
    add(f"blk.{layer}.ffn_norm.weight", (HIDDEN,), "F32")
    add(f"blk.{layer}.attn_q.weight", (HIDDEN, HIDDEN))
    add(f"blk.{layer}.attn_k.weight", (width, HIDDEN))
    add(f"blk.{layer}.attn_v.weight", (width, HIDDEN))
    add(f"blk.{layer}.attn_output.weight", (HIDDEN, HIDDEN))
    add(f"blk.{layer}.ffn_gate.weight", (WIDE, HIDDEN))
    add(f"blk.{layer}.ffn_up.weight", (WIDE, HIDDEN))
    add(f"blk.{layer}.ffn_down.weight", (HIDDEN, WIDE))
add("output_norm.weight", (HIDDEN,), "F32")
add("output.weight", (len(tokens), HIDDEN))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
