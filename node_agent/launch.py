"""From a StartWorker to what is executed: argument list, environment, working directory. Pure.

The worker's environment is built from nothing: a short list of the agent's own variables, the rendezvous, the job's
`env` (which wins over those), and last what Muster alone decides: MUSTER_* and which devices are visible.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from muster.events.types import StartWorker

PASSED_ON: Final = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
"""All that a worker gets of its agent's environment."""
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELL: Final = "/bin/sh"
RESERVED_PREFIX: Final = "MUSTER_"
MARKER: Final = "MUSTER_WORKER"
"""Holds the ticket's random token: every process that inherits it belongs to that worker."""

VisibleDevices = Literal["index", "uuid"]
"""How CUDA_VISIBLE_DEVICES names devices: by position in PCI order, or by uuid."""


class Launch(msgspec.Struct, frozen=True):
    """What the keeper executes."""

    argv: list[str]
    env: dict[str, str]
    cwd: str


def allocation_name(command: StartWorker) -> str:
    """``<job>.<attempt>.<rank>``: one worker of one try, on one node."""
    return f"{command.job}.{command.attempt}.{command.rank}"


def _visible(command: StartWorker, visible: VisibleDevices) -> str:
    devices = sorted(command.devices, key=lambda device: device.index)
    return ",".join(device.uuid if visible == "uuid" else str(device.index) for device in devices)


def _rendezvous(command: StartWorker) -> dict[str, str]:
    return {
        "RANK": str(command.rank),
        "WORLD_SIZE": str(command.world),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(command.rank),
        "MASTER_ADDR": command.master_address,
        "MASTER_PORT": str(command.master_port),
    }


def launch(
    command: StartWorker, own_env: Mapping[str, str], default_cwd: str, token: str, visible: VisibleDevices = "index"
) -> Launch:
    """What to execute for `command`. `own_env` is the agent's environment, `token` marks the worker's processes."""
    job_env = {name: value for name, value in command.env.items() if not name.startswith(RESERVED_PREFIX)}
    env = {
        "PATH": DEFAULT_PATH,
        **{name: own_env[name] for name in PASSED_ON if name in own_env},
        **_rendezvous(command),
        **job_env,
        "CUDA_VISIBLE_DEVICES": _visible(command, visible),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "MUSTER_JOB_ID": str(command.job),
        "MUSTER_ATTEMPT": str(command.attempt),
        "MUSTER_RANK": str(command.rank),
        "MUSTER_WORLD_SIZE": str(command.world),
        "MUSTER_NODE": command.node,
        "MUSTER_ALLOCATION": allocation_name(command),
        MARKER: token,
    }
    argv = [SHELL, "-c", command.command] if isinstance(command.command, str) else list(command.command)
    return Launch(argv, env, command.workdir or default_cwd)
