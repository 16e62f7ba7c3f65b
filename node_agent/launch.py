"""From a StartWorker to what is executed: argument list, environment, working directory. Pure.

The worker's environment is built from nothing: a short list of the agent's own variables, the rendezvous, the job's
`env` (which wins over those), and last what Muster alone decides: MUSTER_* and which devices are visible.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from muster.events.binding import RESERVED_PREFIX, VisibleDevices, device_environment, identity, rendezvous
from muster.events.types import StartWorker

PASSED_ON: Final = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
"""All that a worker gets of its agent's environment."""
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELL: Final = "/bin/sh"
MARKER: Final = "MUSTER_WORKER"
"""Holds the ticket's random token: every process that inherits it belongs to that worker."""


class Launch(msgspec.Struct, frozen=True):
    """What the keeper executes."""

    argv: list[str]
    env: dict[str, str]
    cwd: str


def launch(
    command: StartWorker, own_env: Mapping[str, str], default_cwd: str, token: str, visible: VisibleDevices = "index"
) -> Launch:
    """What to execute for `command`. `own_env` is the agent's environment, `token` marks the worker's processes."""
    job_env = {name: value for name, value in command.env.items() if not name.startswith(RESERVED_PREFIX)}
    env = {
        "PATH": DEFAULT_PATH,
        **{name: own_env[name] for name in PASSED_ON if name in own_env},
        **rendezvous(command),
        **job_env,
        **device_environment(command, visible),
        **identity(command),
        MARKER: token,
    }
    argv = [SHELL, "-c", command.command] if isinstance(command.command, str) else list(command.command)
    return Launch(argv, env, command.workdir or default_cwd)
