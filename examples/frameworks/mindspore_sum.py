"""Every process adds its rank plus one, over all of them, with MindSpore:
muster run --env PATH --framework mindspore --gpus 4 -- msrun mindspore_sum.py

msrun gets its options from Muster: see docs/frameworks.md.
"""

# ruff: noqa: INP001, T201 - a program for people to run and read, no part of the package

import mindspore
import numpy as np
from mindspore import Tensor, ops
from mindspore.communication import get_group_size, get_rank, init

mindspore.set_device("CPU")
init("mccl")
total = ops.AllReduce(ops.ReduceOp.SUM)(Tensor(np.array([get_rank() + 1], np.float32)))
print(f"mindspore: process {get_rank()} of {get_group_size()}, the sum is {float(total.asnumpy()[0]):.0f}", flush=True)
