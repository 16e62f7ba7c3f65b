"""What a bind means: to the devices it claims, and to the program it starts. One meaning for the scheduler that writes
it, the agent that obeys it and the auditor that checks it. Pure.

Users ask for device memory in the model's nominal size, which is more than the driver leaves usable: a claim is the
same fraction of the usable memory, so that two jobs of 40 GiB fill an A100-80GB, and whoever asks for at least the
usable memory gets the whole of it.
"""

from typing import Final, Literal

from muster.events.types import Device, StartWorker

WHOLE_COMPUTE: Final = 1000
"""All of a device's compute, in thousandths."""

VisibleDevices = Literal["index", "uuid"]
"""How CUDA_VISIBLE_DEVICES names devices: by position in PCI order, or by uuid."""

RESERVED_PREFIX: Final = "MUSTER_"
"""Variables of this prefix are Muster's own: a job cannot set them."""

VARIABLE_LINE_BYTES: Final = 1 << 16
"""A container's variable with its name is shorter than this: engines read no longer line of a file of variables."""


def device_claim_mib(device: Device, asked_mib: int) -> int:
    """Usable MiB that a nominal `asked_mib` (0 = whole) claims of a device; more than it has where it cannot fit."""
    if asked_mib == 0 or device.memory_mib <= asked_mib <= device.nominal_mib:
        return device.memory_mib
    if asked_mib > device.nominal_mib:
        return asked_mib
    return max(asked_mib * device.memory_mib // device.nominal_mib, 1)


def worker_name(command: StartWorker) -> str:
    """``<job>.<attempt>.<rank>``: one worker of one try, on one node."""
    return f"{command.job}.{command.attempt}.{command.rank}"


def local_processes(command: StartWorker) -> int:
    """How many of the gang's processes are this worker's: one for each of its devices, one where it has none."""
    return max(1, len(command.devices))


def rendezvous(command: StartWorker) -> dict[str, str]:
    """How the workers of a gang find each other. One worker a node: its rank is the node rank."""
    return {
        "RANK": str(command.rank),
        "WORLD_SIZE": str(command.world),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(command.rank),
        "MASTER_ADDR": command.master_address,
        "MASTER_PORT": str(command.master_port),
    }


def device_environment(command: StartWorker, visible: VisibleDevices = "index") -> dict[str, str]:
    """Which devices the worker sees: empty, never unset, for a job without devices."""
    devices = sorted(command.devices, key=lambda device: device.index)
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(device.uuid if visible == "uuid" else str(device.index) for device in devices),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def identity(command: StartWorker) -> dict[str, str]:
    """Who the worker is."""
    return {
        "MUSTER_JOB_ID": str(command.job),
        "MUSTER_ATTEMPT": str(command.attempt),
        "MUSTER_RANK": str(command.rank),
        "MUSTER_WORLD_SIZE": str(command.world),
        "MUSTER_PROCESSES": str(command.processes),
        "MUSTER_LOCAL_PROCESSES": str(local_processes(command)),
        "MUSTER_FIRST_PROCESS": str(command.first_process),
        "MUSTER_NODE": command.node,
        "MUSTER_ALLOCATION": f"{command.job}.{command.attempt}",
    }
