"""Shards of a tiny model as an FSDP trainer writes them, on CPU processes.

argv: a Hugging Face folder, an empty folder, a world size, and `fsdp2`, `hybrid` or `fsdp1`. Writes
OUT/global_step_1/actor/model_world_size_W_rank_R.pt with huggingface/ beside them, and the unsharded
state dict as OUT/expected.safetensors.
"""

import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoModelForCausalLM


def wrapped(model, world, kind):
    """The model, sharded, and its sharded state dict."""
    if kind == "fsdp1":
        from torch.distributed.fsdp import (
            FullyShardedDataParallel,
            ShardedStateDictConfig,
            StateDictType,
        )

        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
        sharded = FullyShardedDataParallel(model, device_mesh=mesh, use_orig_params=True, device_id=torch.device("cpu"))
        config = ShardedStateDictConfig(offload_to_cpu=True)
        FullyShardedDataParallel.set_state_dict_type(sharded, StateDictType.SHARDED_STATE_DICT, config)
        return sharded.state_dict()
    from torch.distributed.fsdp import fully_shard

    if kind == "hybrid":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("ddp", "fsdp"))
    else:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    state = model.state_dict()
    # What a module does not shard stays a plain tensor, equal on every rank.
    state["model.plain_buffer"] = torch.arange(5, dtype=torch.float32)
    return state


def write(rank, world, source, out, kind, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if rank == 0:
        expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if model.config.tie_word_embeddings:
            expected.pop("lm_head.weight", None)
        if kind != "fsdp1":
            expected["model.plain_buffer"] = torch.arange(5, dtype=torch.float32)
        save_file(expected, os.path.join(out, "expected.safetensors"))
    state = wrapped(model, world, kind)
    actor = os.path.join(out, "global_step_1", "actor")
    torch.save(state, os.path.join(actor, f"model_world_size_{world}_rank_{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


if __name__ == "__main__":
    source, out, world, kind = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    actor = os.path.join(out, "global_step_1", "actor")
    os.makedirs(actor)
    shutil.copytree(source, os.path.join(actor, "huggingface"), ignore=shutil.ignore_patterns("*.safetensors"))
    mp.spawn(write, args=(world, source, out, kind, free_port()), nprocs=world)
