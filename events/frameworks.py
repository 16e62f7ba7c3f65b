"""What the launchers of training frameworks read from their environment, so that nothing need be typed. Pure.

A worker runs the job's command once on its node. torchrun and msrun start from there a process for each of its devices
(one where it has none); for TensorFlow and JAX the command itself is the one process, and sees all of them.
"""

import json
from typing import Final

from muster.events.binding import local_processes
from muster.events.types import StartWorker

STARTS_PROCESSES: Final = ("pytorch", "mindspore")
"""Their launchers start a process for each device."""


def framework_environment(command: StartWorker) -> dict[str, str]:
    """What the framework's own launcher reads."""
    match command.framework:
        case "pytorch":
            return _torchrun(command)
        case "tensorflow":
            return _tf_config(command)
        case "jax":
            return _jax(command)
        case _:
            return {}


def thread_environment(command: StartWorker) -> dict[str, str]:
    """Each process's part of the worker's CPUs."""
    processes = local_processes(command) if command.framework in STARTS_PROCESSES else 1
    return {"OMP_NUM_THREADS": str(max(1, command.cpus // processes))}


def _torchrun(command: StartWorker) -> dict[str, str]:
    """A static rendezvous: the nodes are known, may have different numbers of devices, and a failure is retried by the
    scheduler, on devices that work."""
    return {
        "PET_NNODES": str(command.world),
        "PET_NPROC_PER_NODE": str(local_processes(command)),
        "PET_NODE_RANK": str(command.rank),
        "PET_RDZV_BACKEND": "static",
        "PET_MASTER_ADDR": command.master_address,
        "PET_MASTER_PORT": str(command.master_port),
        "PET_RDZV_ID": f"{command.job}.{command.attempt}",
        "PET_MAX_RESTARTS": "0",
    }


def _tf_config(command: StartWorker) -> dict[str, str]:
    workers = [_host_port(endpoint.address, endpoint.port) for endpoint in command.endpoints]
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": command.rank}}
    return {"TF_CONFIG": json.dumps(config)}


def _jax(command: StartWorker) -> dict[str, str]:
    """JAX has variables for the coordinator and for the devices, but finds the two numbers only where it takes this for
    a Slurm step; there it would pin a process to one device if it were not told which are its own."""
    return {
        "JAX_COORDINATOR_ADDRESS": _host_port(command.master_address, command.master_port),
        "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(local_processes(command)))),
        "SLURM_JOB_ID": str(command.job),
        "SLURM_STEP_NODELIST": command.master_address,
        "SLURM_NTASKS": str(command.world),
        "SLURM_PROCID": str(command.rank),
        "SLURM_LOCALID": "0",
    }


def _host_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
