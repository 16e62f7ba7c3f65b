"""What a worker's program is executed as: a plain process, or the client of a container engine. Pure but for
`find_engine` and `own_ulimits`.

A container gets its environment by a file of the worker's folder: neither does a secret stand in a command line, nor
can a job set a variable of the client, which has the agent's rights.
"""

import os
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from muster.events.binding import VARIABLE_LINE_BYTES, worker_name
from muster.events.types import StartWorker
from muster.node_agent.accounts import Account, Person
from muster.node_agent.launch import MARKER, PASSED_ON, Launch, stand_in
from muster.node_agent.refusal import RefusalError

ContainerRuntime = Literal["auto", "docker", "podman", "none"]
"""`auto`: podman where it is found, else docker."""

SHM_UNLIMITED: Final = "64g"
VARIABLES: Final = "variables"
"""The file of a container's variables, in the worker's folder."""


class Engine(NamedTuple):
    """A container engine's client."""

    kind: Literal["docker", "podman"]
    path: str


class Limits(NamedTuple):
    """What a container may take besides what its bind says: processes (0 = no limit), and by name what `ulimit` limits,
    soft and hard (-1 = no limit)."""

    processes: int
    ulimits: tuple[tuple[str, int, int], ...]


class Program(msgspec.Struct, frozen=True):
    """What a keeper executes, and as whom (None = as its agent); `owner` is whose its folders are. For a container:
    `variables` is the text of its file of those, `cleanup` the command that removes it; else both are empty."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    account: Account | None = None
    owner: Account | None = None
    variables: str = ""
    cleanup: list[str] = []


def own_ulimits() -> tuple[tuple[str, int, int], ...]:
    """This process's limits, which plain workers inherit, for containers. Engines have others of their own: for locked
    memory too low ones, for files and processes perhaps higher ones than they may set."""
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    processes = [most if limit == resource.RLIM_INFINITY else min(limit, most) for limit in _limits("NPROC")]
    return (
        ("memlock", *_limits("MEMLOCK")),
        ("nofile", *_limits("NOFILE")),
        ("nproc", processes[0], processes[1]),
    )


def _limits(name: str) -> tuple[int, int]:
    return resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))


def find_engine(asked: ContainerRuntime) -> Engine | None:
    """The engine that was asked for, or the first there is. Raises FileNotFoundError where that asked for is not."""
    kinds: tuple[Literal["podman", "docker"], ...] = ("podman", "docker")
    for kind in kinds:
        path = shutil.which(kind) if asked in (kind, "auto") else None
        if path is not None:
            return Engine(kind, os.path.abspath(path))  # noqa: PTH100 - links stay: their names may mean something
    if asked in ("auto", "none"):
        return None
    raise FileNotFoundError(f"{asked} is not on this machine")


def plain(command: StartWorker, plan: Launch, person: Person | None) -> Program:
    """A process as its agent, or as somebody."""
    if person is None:
        return Program(plan.argv, plan.env, plan.cwd)
    env = {name: value for name, value in plan.env.items() if name != "TMPDIR" or name in command.env}
    own = {name: value for name, value in person.environment().items() if name not in command.env}
    return Program(plan.argv, {**env, **own}, plan.cwd, person.account, person.account)


def in_container(engine: Engine | None, person: Person | None, uid: int, gid: int) -> Account | None:
    """Who a container's processes are; None = whom the image says. Docker's daemon is root: an agent that is not must
    not become it by an image. Without root, podman maps the image's root to the agent's own account."""
    if person is not None:
        return person.account
    return Account(uid, gid, []) if engine is not None and engine.kind == "docker" and uid != 0 else None


def container(
    engine: Engine | None,
    command: StartWorker,
    plan: Launch,
    folder: str,
    own_env: Mapping[str, str],
    account: Account | None,
    limits: Limits,
) -> Program:
    """The client that runs a worker's container, of whose `folder` it sees `work`, `cache` and `bin`. `own_env` is what
    the client itself gets. Raises RefusalError."""
    if engine is None:
        raise RefusalError(f"the job wants the image {command.image}, and this node runs no containers")
    if command.image.startswith("-"):
        raise RefusalError(f"{command.image!r} is no image's name")
    token = plan.env[MARKER]
    name = f"muster-{worker_name(command)}-{stand_in(token)}"
    argv = [
        *(engine.path, "run", "--rm", "--name", name),
        *("--pull", "missing", "--log-driver", "none"),
        *("--network", "host", "--security-opt", "no-new-privileges"),
        *(["--http-proxy=false"] if engine.kind == "podman" else []),  # the agent's, which may have a password
        *_limited(command, limits),
        *_identity(account),
        *_mounted(folder, plan.cwd),
        *("--env-file", f"{folder}/{VARIABLES}"),
        *_devices(engine, command),
        command.image,
        *plan.argv,
    ]
    ignore = ["--ignore"] if engine.kind == "podman" else []
    return Program(
        argv=argv,
        env={**own_env, MARKER: token},
        cwd=f"{folder}/work",
        owner=account,
        variables=_lines(_variables(engine, command, plan)),
        cleanup=[engine.path, "rm", "--force", *ignore, name],
    )


def _limited(command: StartWorker, limits: Limits) -> list[str]:
    options = [option for name, soft, hard in limits.ulimits for option in ("--ulimit", f"{name}={soft}:{hard}")]
    options += ["--shm-size", f"{command.memory_mib}m" if command.memory_mib else SHM_UNLIMITED]
    if command.cpus:
        options += ["--cpus", str(command.cpus)]
    if command.memory_mib:
        options += ["--memory", f"{command.memory_mib}m"]
    if limits.processes:
        options += ["--pids-limit", str(limits.processes)]
    return options


def _identity(account: Account | None) -> list[str]:
    if account is None:
        return []
    groups = [option for group in account.groups if group != account.gid for option in ("--group-add", str(group))]
    return ["--user", f"{account.uid}:{account.gid}", *groups]


def _mounted(folder: str, cwd: str) -> list[str]:
    """What is the worker's own, and the folder that the job asked for, where they are outside."""
    options = []
    for path in sorted({f"{folder}/work", f"{folder}/cache", f"{folder}/bin", cwd}):
        if not path.startswith("/") or {",", '"', "\n"} & set(path):
            raise RefusalError(f"{path!r} cannot be mounted in a container")
        options += ["--mount", f"type=bind,source={path},target={path}"]
    return [*options, "--workdir", cwd]


def _devices(engine: Engine, command: StartWorker) -> list[str]:
    uuids = [device.uuid for device in sorted(command.devices, key=lambda device: device.index)]
    if engine.kind == "podman":
        return [option for uuid in uuids for option in ("--device", f"nvidia.com/gpu={uuid}")]
    return ["--gpus", f'"device={",".join(uuids)}"'] if uuids else []


def _variables(engine: Engine, command: StartWorker, plan: Launch) -> dict[str, str]:
    """A container's environment: without what is the agent's own. What decides which devices an image of NVIDIA's sees
    is Muster's: under docker those of `--gpus`; under podman CDI alone decides."""
    env = {name: value for name, value in plan.env.items() if name in command.env or name not in PASSED_ON}
    uuids = [device.uuid for device in sorted(command.devices, key=lambda device: device.index)]
    env["NVIDIA_VISIBLE_DEVICES"] = ",".join(uuids) if engine.kind == "docker" and uuids else "void"
    return env


def _lines(env: Mapping[str, str]) -> str:
    for name, value in env.items():
        if {"\n", "\r"} & set(name + value) or name.startswith("#"):
            raise RefusalError(f"the variable {name!r} cannot be given to a container: a line break, or a comment")
        if len(f"{name}={value}\n".encode()) >= VARIABLE_LINE_BYTES:
            raise RefusalError(f"the variable {name!r} cannot be given to a container: it is longer than 64 KiB")
    return "".join(f"{name}={value}\n" for name, value in env.items())
