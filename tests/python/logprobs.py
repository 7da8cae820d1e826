"""Log-probabilities of a checkpoint under transformers, as it lies in its folder.

argv: the folder, then a JSON list of token ids. Prints a JSON object: log p(id[t+1] | id[..=t]) for
every t, and the text of the chat template for one user message. The model's own class must find
every weight it has, and no other but those its own loader leaves out.
"""

import json
import sys

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer

folder, ids = sys.argv[1], json.loads(sys.argv[2])
kind = getattr(transformers, AutoConfig.from_pretrained(folder).architectures[0])
model, info = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
problems = {key: list(found) for key, found in info.items() if found}
assert not problems, f"{kind.__name__}: {problems}"
tokenizer = AutoTokenizer.from_pretrained(folder)
with torch.no_grad():
    logits = model(torch.tensor([ids])).logits[0]
logprobs = torch.log_softmax(logits.double(), dim=-1)
chosen = [logprobs[t, ids[t + 1]].item() for t in range(len(ids) - 1)]
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": "What is 1 + 1?"}], add_generation_prompt=True, tokenize=False
)
print(json.dumps({"logprobs": chosen, "prompt_ids": tokenizer.encode(prompt, add_special_tokens=False)}))
