"""Limits on what a worker takes of its machine, by cgroup v2: where they can be had, which, and what became of them.

Rules: standard library only, like the keeper. A cgroup that gives controllers to those below it may hold no process
itself (the hierarchy's root excepted), so an agent that is alone in its cgroup moves to a leaf of it; one that is not
alone leaves things as they are, and its workers have no limits.
"""
# Importing pathlib would cost a keeper's start milliseconds:
# ruff: noqa: PTH103, PTH110, PTH119, PTH120, PTH123

import contextlib
import os

from muster.node_agent import tree

LEAF = "agent"
"""Where an agent moves to, and where systemd may put it at once (DelegateSubgroup=agent)."""
WORKERS = "muster"
CONTROLLERS = frozenset({"cpu", "memory", "pids"})
CPU_PERIOD_US = 100_000


def limits_of(controllers: frozenset[str], cpus: int, memory_mib: int, max_processes: int) -> dict[str, str]:
    """The files of a worker's cgroup, and what to write there. 0 = no limit."""
    limits = {}
    if "cpu" in controllers and cpus:
        limits["cpu.max"] = f"{cpus * CPU_PERIOD_US} {CPU_PERIOD_US}"
    if "memory" in controllers and memory_mib:
        limits["memory.max"] = str(memory_mib << 20)
        limits["memory.oom.group"] = "1"
    if "pids" in controllers and max_processes:
        limits["pids.max"] = str(max_processes)
    return limits


def apply_limits(cgroup: str, limits: dict[str, str]) -> None:
    """Write the limits. Raises OSError."""
    for name, value in limits.items():
        with open(f"{cgroup}/{name}", "w", encoding="ascii") as file:
            file.write(value)


def killed_for_memory(cgroup: str) -> bool:
    """Whether the kernel killed anything there because its limit was reached."""
    with contextlib.suppress(OSError), open(f"{cgroup}/memory.events", encoding="ascii") as file:
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in file)
    return False


def worker_cgroups() -> tuple[str, frozenset[str]]:
    """Where cgroups of workers may be made ("" = nowhere), and which controllers they have there."""
    own = tree.own_cgroup()
    if own is None:
        return "", frozenset()
    base = os.path.dirname(own) if os.path.basename(own) == LEAF else own
    folder = f"{base}/{WORKERS}"
    if not tree.make_cgroup(folder):
        return "", frozenset()
    return folder, delegate(base, folder)


def delegate(base: str, folder: str) -> frozenset[str]:
    """Give the cgroups in `folder`, which is in `base`, what controllers can be given; which those are."""
    wanted = CONTROLLERS & _names(f"{base}/cgroup.controllers")
    with contextlib.suppress(OSError):
        if not wanted <= _names(f"{base}/cgroup.subtree_control"):
            is_root = not os.path.exists(f"{base}/cgroup.type")
            if is_root or _leave(base):
                _enable(base, wanted)
        _enable(folder, wanted & _names(f"{folder}/cgroup.controllers"))
    return CONTROLLERS & _names(f"{folder}/cgroup.subtree_control")


def _leave(base: str) -> bool:
    """Move this process and its children to a leaf; whether nobody is left. Nobody else's process is moved."""
    with open(f"{base}/cgroup.procs", encoding="ascii") as file:
        pids = {int(line) for line in file}
    if not pids <= {os.getpid(), *tree.descendants(os.getpid())}:
        return False
    leaf = f"{base}/{LEAF}"
    os.makedirs(leaf, exist_ok=True)
    for pid in sorted(pids):
        with contextlib.suppress(ProcessLookupError):
            apply_limits(leaf, {"cgroup.procs": str(pid)})
    return True


def _enable(cgroup: str, controllers: frozenset[str]) -> None:
    if controllers:
        apply_limits(cgroup, {"cgroup.subtree_control": " ".join(f"+{name}" for name in sorted(controllers))})


def _names(path: str) -> frozenset[str]:
    try:
        with open(path, encoding="ascii") as file:
            return frozenset(file.read().split())
    except OSError:
        return frozenset()
