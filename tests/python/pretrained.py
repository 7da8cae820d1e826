"""A converted chat model under transformers, in float32.

argv: the folder, then a JSON object of `chats` (lists of messages), `texts`, `new_tokens`. Prints a JSON
object: for each chat its prompt ids, the greedy answer as ids and text, and the log-probability of every
id of both given those before it; for each text its ids.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, asked = sys.argv[1], json.loads(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
chats = []
for messages in asked["chats"]:
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    with torch.no_grad():
        whole = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=asked["new_tokens"],
            do_sample=False,
        )[0]
        logprobs = torch.log_softmax(model(whole[None]).logits[0].double(), dim=-1)
    answer = whole[len(ids) :].tolist()
    chats.append(
        {
            "prompt_ids": ids,
            "answer_ids": answer,
            "answer": tokenizer.decode(answer, skip_special_tokens=True),
            "logprobs": [logprobs[t, whole[t + 1]].item() for t in range(len(whole) - 1)],
        }
    )
texts = [tokenizer.encode(text) for text in asked["texts"]]
print(json.dumps({"chats": chats, "texts": texts, "eos": model.generation_config.eos_token_id}))
