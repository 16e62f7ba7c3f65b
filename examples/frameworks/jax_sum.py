"""Every process adds its number plus one, over all of them, with JAX:
muster run --env PATH --framework jax --gpus 4 --nodes 2 -- python jax_sum.py

One process runs on each node, and sees all of its devices; initialize() needs no arguments.
"""

# ruff: noqa: INP001, T201 - a program for people to run and read, no part of the package

import jax
from jax.experimental import multihost_utils

jax.config.update("jax_cpu_collectives_implementation", "gloo")  # where there are no GPUs
jax.distributed.initialize()
total = multihost_utils.process_allgather(jax.process_index() + 1).sum()
print(f"jax: process {jax.process_index()} of {jax.process_count()}, the sum is {total}", flush=True)
jax.distributed.shutdown()
