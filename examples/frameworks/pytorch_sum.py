"""Every process adds its rank plus one, over all of them, with PyTorch:
muster run --env PATH --framework pytorch --gpus 4 -- torchrun pytorch_sum.py

torchrun finds its nodes, processes and rendezvous in the environment; so does a program without it, once on each node.
"""

# ruff: noqa: INP001, T201 - a program for people to run and read, no part of the package

import os

import torch
import torch.distributed as dist

on_gpus = torch.cuda.is_available()
local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank) if on_gpus else torch.device("cpu")
dist.init_process_group("nccl" if on_gpus else "gloo")
total = torch.tensor([dist.get_rank() + 1.0], device=device)
dist.all_reduce(total)
print(f"torch: process {dist.get_rank()} of {dist.get_world_size()}, the sum is {total.item():.0f}", flush=True)
dist.destroy_process_group()
