"""From a StartWorker to what is executed: argument list, environment, working directory. Pure.

The worker's environment is built from nothing: a short list of the agent's own variables, the rendezvous, what the
job's framework reads, the job's `env` (which wins over those), and last what Muster alone decides: MUSTER_* and which
devices are visible.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from muster.events.binding import RESERVED_PREFIX, VisibleDevices, device_environment, identity, rendezvous
from muster.events.frameworks import framework_environment, thread_environment
from muster.events.types import StartWorker
from muster.node_agent.frameworks import PROGRAMS, cache_environment, interface_environment

PASSED_ON: Final = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
"""All that a worker gets of its agent's environment."""
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELL: Final = "/bin/sh"
MARKER: Final = "MUSTER_WORKER"
"""Holds the ticket's random token: every process that inherits it belongs to that worker."""
_STAND_IN_DIGITS: Final = 16


def stand_in(token: str) -> str:
    """For the token in names that everybody can read: who learns it cannot pass off processes as the worker's."""
    return hashlib.sha256(token.encode()).hexdigest()[:_STAND_IN_DIGITS]


class Launch(msgspec.Struct, frozen=True):
    """What the keeper executes, with `programs` of ours in the worker's `bin`, the first folder of its PATH then."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    programs: tuple[str, ...] = ()


def launch(
    command: StartWorker,
    own_env: Mapping[str, str],
    folder: str,
    token: str,
    visible: VisibleDevices = "index",
    interface: str = "",
) -> Launch:
    """What to execute for `command`. `own_env` is the agent's environment, `token` marks the worker's processes. The
    worker's `folder` has `work`, `cache` and `bin`; `interface` is the network that gangs meet on ("" = unknown)."""
    cache = f"{folder}/cache"
    job_env = {name: value for name, value in command.env.items() if not name.startswith(RESERVED_PREFIX)}
    env = {
        "PATH": DEFAULT_PATH,
        **{name: own_env[name] for name in PASSED_ON if name in own_env},
        **rendezvous(command),
        **thread_environment(command),
        **cache_environment(command, cache),
        **interface_environment(command, interface),
        **framework_environment(command),
        **job_env,
        **device_environment(command, visible),
        **identity(command),
        MARKER: token,
    }
    programs = PROGRAMS.get(command.framework, ())
    if programs:
        env["PATH"] = f"{folder}/bin:{env['PATH']}"
        env |= {f"MUSTER_{name.upper()}": f"{folder}/bin/{name}" for name in programs}
    argv = [SHELL, "-c", command.command] if isinstance(command.command, str) else list(command.command)
    if argv[0] in programs:
        argv[0] = f"{folder}/bin/{argv[0]}"  # a container's PATH is its image's
    return Launch(argv, env, command.workdir or f"{folder}/work", programs)
