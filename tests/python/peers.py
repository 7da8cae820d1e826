"""The peer's side of `cargo xtask bench peers`: transformers on a checkpoint, on a CPU.

    peers.py workload MODEL FILE              writes the token ids both sides compute
    peers.py WHAT MODEL FILE DTYPE THREADS ROUNDS   prints one JSON line: seconds, cpu_seconds, tokens, peak_mib

WHAT: rollouts, scoring, update. The first round is not counted; seconds is the middle of the others.
"""

import json
import random
import resource
import sys
import time

QUESTIONS = [
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "What is the capital of Portugal?",
    "Explain recursion to a child.",
    "List three uses of a paper clip.",
    "How does a bicycle stay upright?",
    "What is 17 times 24?",
    "Name a book you would recommend and say why.",
]


def write_workload(folder, path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    chats = []
    for index in range(64):
        text = f"{QUESTIONS[index % len(QUESTIONS)]} Answer number {index + 1}."
        messages = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        chats.append(tokenizer.encode(prompt, add_special_tokens=False))
    draw = random.Random(1)
    sequences = [[draw.randrange(1000, 32000) for _ in range(256)] for _ in range(48)]
    workload = {"chats": chats, "new_tokens": 64, "scoring": sequences[:32], "update": sequences[32:]}
    with open(path, "w") as file:
        json.dump(workload, file)


def seconds_of(rounds, work):
    work()
    took = []
    for _ in range(rounds):
        start, cpu = time.perf_counter(), time.process_time()
        work()
        took.append((time.perf_counter() - start, time.process_time() - cpu))
    return sorted(took)[len(took) // 2]


def main():
    if sys.argv[1] == "workload":
        return write_workload(*sys.argv[2:4])
    what, folder, path, dtype, threads, rounds = sys.argv[1:7]
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    with open(path) as file:
        workload = json.load(file)
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]

    def load():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=kind)

    def chosen_logprobs(model, ids):
        logits = model(ids, use_cache=False).logits[:, :-1].float()
        return torch.log_softmax(logits, dim=-1).gather(-1, ids[:, 1:, None])[..., 0]

    if what == "rollouts":
        model = load().eval()
        chats, new = workload["chats"], workload["new_tokens"]
        longest = max(map(len, chats))
        ids = torch.tensor([[0] * (longest - len(chat)) + chat for chat in chats])
        mask = torch.tensor([[0] * (longest - len(chat)) + [1] * len(chat) for chat in chats])
        options = dict(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0)

        def work():
            with torch.no_grad():
                out = model.generate(ids, attention_mask=mask, min_new_tokens=new, max_new_tokens=new, **options)
            assert out.shape == (len(chats), longest + new)

        tokens = len(chats) * new
    elif what == "scoring":
        model = load().eval()
        ids = torch.tensor(workload["scoring"])

        def work():
            with torch.no_grad():
                assert torch.isfinite(chosen_logprobs(model, ids)).all()

        tokens = ids.numel()
    elif what == "update":
        teacher, student = load().eval(), load().train()
        ids = torch.tensor(workload["update"])
        optimizer = torch.optim.AdamW(student.parameters(), lr=1e-6, betas=(0.9, 0.98), weight_decay=0.1)
        with torch.no_grad():
            behaviour = chosen_logprobs(student, ids)

        def work():
            with torch.no_grad():
                advantages = chosen_logprobs(teacher, ids) - behaviour
            ratio = torch.exp(chosen_logprobs(student, ids) - behaviour)
            clipped = torch.clamp(ratio, 0.8, 1.28)
            loss = torch.maximum(-advantages * ratio, -advantages * clipped).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()

        tokens = ids.numel()
    else:
        raise SystemExit(f"no measurement {what!r}: rollouts, scoring or update")
    seconds, cpu = seconds_of(int(rounds), work)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "tokens": tokens, "peak_mib": peak}))


main()
