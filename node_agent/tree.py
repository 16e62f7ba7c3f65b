"""Process trees as the kernel tells of them: /proc, cgroup v2, prctl.

Only the standard library is imported here: the keeper and its server start with this module.
A process is known by its pid *and* its start time; pids are reused.
"""
# Importing pathlib would cost a keeper's start milliseconds:
# ruff: noqa: PTH102, PTH106, PTH115, PTH120, PTH123, PTH208

import contextlib
import ctypes
import functools
import os
import signal
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_ZOMBIE_STATES = frozenset({"Z", "X"})
_HANGING = "D"

_SYS_CLONE3 = 435
_CLONE_INTO_CGROUP = 0x2_0000_0000

_libc = ctypes.CDLL(None, use_errno=True)


_NOT_DEFAULT = (b"SigBlk:", b"SigIgn:", b"SigCgt:")


class ProcessStat(NamedTuple):
    """One line of /proc: `start_ticks` counts from boot in clock ticks."""

    pid: int
    parent: int
    state: str
    start_ticks: int


class _CloneArguments(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("pidfd", ctypes.c_uint64),
        ("child_tid", ctypes.c_uint64),
        ("parent_tid", ctypes.c_uint64),
        ("exit_signal", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("stack_size", ctypes.c_uint64),
        ("tls", ctypes.c_uint64),
        ("set_tid", ctypes.c_uint64),
        ("set_tid_size", ctypes.c_uint64),
        ("cgroup", ctypes.c_uint64),
    )


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def become_subreaper() -> None:
    """Orphans among this process's descendants become its own children from now on."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """The kernel kills this process when its parent dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def become(uid: int, gid: int, groups: list[int]) -> None:
    """Be that account for good: no program can give rights back. Raises OSError."""
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


@functools.cache
def boot_id() -> str:
    """This boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read().decode().strip()


def read_stat(pid: int) -> ProcessStat | None:
    """What /proc says of a process; None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = line[line.rindex(b")") + 2 :].split()
    return ProcessStat(pid, int(fields[1]), fields[0].decode(), int(fields[19]))


def is_running(pid: int, start_ticks: int) -> bool:
    """Whether that very process still runs (a zombie does not)."""
    stat = read_stat(pid)
    return stat is not None and stat.start_ticks == start_ticks and stat.state not in _ZOMBIE_STATES


def processes() -> dict[int, ProcessStat]:
    """Every process that is no zombie."""
    stats = (read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {stat.pid: stat for stat in stats if stat is not None and stat.state not in _ZOMBIE_STATES}


def with_descendants(roots: set[int], among: dict[int, ProcessStat]) -> list[int]:
    """The pids of `roots` and of everything below them, sorted."""
    children: dict[int, list[int]] = {}
    for stat in among.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    found = set(roots)
    todo = list(roots)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return sorted(found)


def descendants(root: int) -> list[int]:
    """Everything below a process, zombies left out."""
    return [pid for pid in with_descendants({root}, processes()) if pid != root]


def marked(marker: bytes) -> list[int]:
    """Every process whose environment holds `marker` (``NAME=value``), and everything below those."""
    everyone = processes()
    wanted = b"\0" + marker + b"\0"
    roots = set()
    for pid in everyone:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if wanted in b"\0" + file.read() + b"\0":
                roots.add(pid)
    return with_descendants(roots, everyone)


def carriers(name: bytes, among: dict[int, ProcessStat]) -> dict[bytes, set[int]]:
    """Those of the processes that have the variable in their environment, by its value. One that hangs in the kernel
    is not asked: it could hold up who asks for as long."""
    found: dict[bytes, set[int]] = {}
    beginning = b"\0" + name + b"="
    for pid in [stat.pid for stat in among.values() if stat.state != _HANGING]:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            _, named, rest = (b"\0" + file.read()).partition(beginning)
            if named:
                found.setdefault(rest.partition(b"\0")[0], set()).add(pid)
    return found


def working_for(folder: str, code: bytes, mark: bytes) -> set[int]:
    """Processes with `code` in their command line that have `mark` as an argument, or work in a folder directly below
    `folder`, deleted or not. One that hangs in the kernel is asked only if it works there: see `carriers`."""
    found = set()
    for pid, stat in processes().items():
        with contextlib.suppress(OSError):
            below = _works_below(pid, folder)
            if below or stat.state != _HANGING:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    line = file.read()
                if code in line and (below or mark in line.split(b"\0")):
                    found.add(pid)
    return found


def _works_below(pid: int, folder: str) -> bool:
    where = os.readlink(f"/proc/{pid}/cwd").removesuffix(" (deleted)")
    return os.path.dirname(where) == folder


def send(pids: list[int], *signals: int) -> None:
    """Send each of the signals to each process that still is there."""
    for pid in pids:
        for number in signals:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def signal_number(name: str) -> int | None:
    """The number of a signal named without its SIG; None where this machine has none of that name."""
    return signal.Signals.__members__.get(f"SIG{name}")


def listening(pids: list[int], number: int) -> list[ProcessStat]:
    """Those of the processes that handle, block or ignore the signal: it is not at its default action there."""
    return [stat for pid in pids if _signals_taken(pid) >> (number - 1) & 1 and (stat := read_stat(pid)) is not None]


def _signals_taken(pid: int) -> int:
    """Bit n - 1 for each signal n that is not left to its default action by the process's first thread."""
    taken = 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(_NOT_DEFAULT):
                taken |= int(line.split()[1], 16)
    return taken


# -- cgroup v2 --------------------------------------------------------------------------------------------------


def own_cgroup() -> str | None:
    """The folder of this process's cgroup v2; None where there is none."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        inside = [line[3:].rstrip("\n") for line in file if line.startswith("0::")]
    with open("/proc/self/mounts", encoding="utf-8") as file:
        mounts = [fields[1] for fields in map(str.split, file) if fields[2] == "cgroup2"]
    return (mounts[0] + inside[0]).rstrip("/") if inside and mounts else None


def make_cgroup(path: str) -> bool:
    """Make a cgroup that can be killed as a whole; False where that may not be."""
    try:
        os.mkdir(path)
    except FileExistsError:
        pass
    except OSError:
        return False
    if os.access(f"{path}/cgroup.kill", os.W_OK):
        return True
    remove_cgroup(path)
    return False


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def fork_into_cgroup(path: str) -> int:
    """Fork, with the child there from its first instant: moving a process costs a machine that idles 20 ms.

    Only for a process of one thread: Python's own hooks around a fork are not run.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        arguments = _CloneArguments(flags=_CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=folder)
        pid = int(_libc.syscall(_SYS_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments)))
    finally:
        os.close(folder)
    if pid >= 0:
        return pid
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(OSError):  # held as a descendant, then
            _write(f"{path}/cgroup.procs", "0")
    return pid


def kill_cgroup(path: str) -> None:
    """SIGKILL to everything in it, cgroups below included. A cgroup that is gone is empty."""
    with contextlib.suppress(FileNotFoundError):
        _write(f"{path}/cgroup.kill", "1")


def cgroup_populated(path: str) -> bool:
    """Whether a process that is no zombie is in it or below."""
    try:
        with open(f"{path}/cgroup.events", encoding="utf-8") as file:
            return "populated 1" in file.read()
    except FileNotFoundError:
        return False


def cgroup_processes(path: str) -> list[int]:
    """The pids in it and below."""
    pids: list[int] = []
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError), open(f"{folder}/cgroup.procs", encoding="utf-8") as file:
            pids.extend(int(line) for line in file)
    return pids


def remove_cgroup(path: str) -> None:
    """Remove an empty cgroup and those below it; one that is not empty stays."""
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
