"""Compares a converted Llama with what ggml's own Python makes of its GGUF, number by number.

argv: the GGUF file, the converted folder. Prints a JSON object: tensors compared, encodings seen, and
the names that differ in any bit.
"""

import json
import sys

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import load_file

NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
reader = GGUFReader(sys.argv[1])
heads = {
    "attn_q": reader.get_field("llama.attention.head_count").contents(),
    "attn_k": reader.get_field("llama.attention.head_count_kv").contents(),
}
converted = load_file(f"{sys.argv[2]}/model.safetensors")
compared = len(converted)
differing = []
for tensor in reader.tensors:
    expected = dequantize(tensor.data, tensor.tensor_type)
    if tensor.name.startswith("blk."):
        _, layer, part, _ = tensor.name.split(".")
        name = f"model.layers.{layer}.{NAMES[part]}.weight"
        if part in heads:
            # llama.cpp's converter: view(heads, 2, half, columns).swapaxes(1, 2); this is the way back.
            half = expected.shape[0] // heads[part] // 2
            expected = expected.reshape(heads[part], half, 2, -1).swapaxes(1, 2).reshape(expected.shape)
    else:
        name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[
            tensor.name.split(".")[0]
        ] + ".weight"
    ours = converted.pop(name)
    same = ours.dtype == np.float32 and np.array_equal(ours.view(np.uint32), expected.view(np.uint32))
    if not same:
        differing.append(name)
print(
    json.dumps(
        {
            "tensors": compared,
            "encodings": sorted({tensor.tensor_type.name for tensor in reader.tensors}),
            "differing": differing + sorted(converted),
        }
    )
)
