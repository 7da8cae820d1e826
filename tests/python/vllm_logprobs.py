"""Log-probabilities of checkpoints under vLLM's CPU build, each as it lies in its folder.

argv: a JSON object of `checkpoints` (`folder`, `class`, `dtype`), `prompts` (lists of token ids) and
`new_tokens`. vLLM answers all prompts of a checkpoint in one batch, greedily. Prints a JSON list: for
each checkpoint, for each prompt, `ids` (the prompt's and the answer's) and `logprobs`, log p(id[t+1] |
id[..=t]). A model class other than the one named, such as a fallback, is an error; vLLM itself ends
with one when a weight is missing or unknown.
"""

import gc
import json
import os
import sys

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="2",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    VLLM_CACHE_ROOT=os.path.join(sys.prefix, "vllm-cache"),
    HF_HUB_OFFLINE="1",
)

from vllm import LLM, SamplingParams  # noqa: E402: it reads the environment as it loads
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory  # noqa: E402


def scored(prompt, output):
    answer = output.outputs[0]
    ids = prompt + list(answer.token_ids)
    entries = list(output.prompt_logprobs[1:]) + list(answer.logprobs)
    return {"ids": ids, "logprobs": [entry[token].logprob for entry, token in zip(entries, ids[1:], strict=True)]}


def measured(checkpoint, prompts, new_tokens):
    engine = LLM(
        model=checkpoint["folder"],
        dtype=checkpoint["dtype"],
        enforce_eager=True,
        trust_remote_code=False,
        max_model_len=128,
        max_num_seqs=len(prompts),
        seed=0,
    )
    found = engine.apply_model(lambda model: type(model).__name__)
    assert found == [checkpoint["class"]], f"{checkpoint['folder']} became {found}"
    sampling = SamplingParams(
        temperature=0, max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True, logprobs=0, prompt_logprobs=0
    )
    outputs = engine.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
    return [scored(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]


asked = json.loads(sys.argv[1])
answers = []
for checkpoint in asked["checkpoints"]:
    answers.append(measured(checkpoint, asked["prompts"], asked["new_tokens"]))
    gc.collect()
    cleanup_dist_env_and_memory()
print(json.dumps(answers))
