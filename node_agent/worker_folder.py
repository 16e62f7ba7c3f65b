"""A worker's folder, from the agent's side: tickets written and revoked, orders given, what the keeper wrote read.

`keeper` describes the files. This side adds `acknowledged`: the log has the worker's exit, so that the folder is kept
for its output alone.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from muster.events.types import DETAIL_LIMIT, ExitReason, ExitStatus, Natural, Token
from muster.node_agent import tree
from muster.node_agent.accounts import Account
from muster.node_agent.cleanup import removed
from muster.node_agent.keeper_files import open_regular, read_small, write_file
from muster.node_agent.launch import MARKER
from muster.node_agent.removal import remove_tree
from muster.node_agent.runtime import VARIABLES

Content = TypeVar("Content")
_PID_BYTES: Final = 16
IN_THE_PYTHON_THERE: Final = """\
#!/bin/sh
"exec" "$(command -v python || command -v python3)" "$0" "$@"
"""
"""For a shell a command, for Python a text: in some images Python has but one of its names."""


class Ticket(msgspec.Struct, frozen=True):
    """What a keeper is to run, and what a later agent must know of it. `claims_mib`: device (uuid) →
    usable memory that the worker holds of it. It runs as `account` (None = the agent's own);
    `limits` are files of its cgroup and what is written there; `cleanup` removes its container, with `env`; `hint` is
    what may help where its program is not found in PATH."""

    job: int
    attempt: int
    rank: int
    argv: list[str]
    env: dict[str, str]
    cwd: str
    token: str
    cgroup: str
    lease_path: str
    lease_deadline_ns: int
    claims_mib: dict[str, int]
    compute: int
    account: Account | None = None
    limits: dict[str, str] = {}
    cleanup: list[str] = []
    hint: str = ""

    @property
    def leased(self) -> bool:
        """Whether the worker ends with its agent's lease."""
        return bool(self.lease_path)


class Started(msgspec.Struct, frozen=True):
    """The worker's first process, written before its program runs."""

    pid: Natural
    start_ticks: Natural
    boot_id: str
    cgroup: str


class StopOrder(msgspec.Struct, frozen=True):
    """End the worker: `signal` (without SIG; "" = none) and up to `notice_ms` to end by itself, then TERM and up to
    `grace_ms`, then KILL. See `ending`."""

    reason: ExitReason
    grace_ms: Natural
    signal: Token = ""
    notice_ms: Natural = 0  # counts only with a signal

    @property
    def term_ms(self) -> int:
        """When TERM comes at the latest, from the order on."""
        return self.notice_ms if self.signal else 0

    @property
    def kill_ms(self) -> int:
        """When KILL comes at the latest, from the order on."""
        return self.term_ms + self.grace_ms

    def hastened_by(self, other: "StopOrder") -> "StopOrder":
        """As urgent as both; the reason is this one's."""
        first = min(self, other, key=lambda order: order.term_ms)
        kill_ms = min(self.kill_ms, other.kill_ms)
        return StopOrder(self.reason, kill_ms - first.term_ms, first.signal, first.term_ms)


class WorkerFolder:
    """One worker's folder. Methods are quick: small files, no fsync."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.output = path / "output"
        self.work = path / "work"

    def prepare(
        self, ticket: Ticket, programs: Iterable[str] = (), variables: str = "", owner: Account | None = None
    ) -> None:
        """Make the folder, with these programs of ours and a container's variables, and put the ticket there, last and
        at once. An `owner` other than the agent gets to what is the worker's own. Raises OSError."""
        self.path.mkdir(mode=0o700)
        for name in ("work", "cache", "bin"):
            (self.path / name).mkdir()
        for program in programs:
            text = Path(__file__).with_name(f"{program}_program.py").read_text()
            (self.path / "bin" / program).write_text(IN_THE_PYTHON_THERE + text)
            (self.path / "bin" / program).chmod(0o755)
        if owner is not None:
            self.path.chmod(0o711)
            for path in (self.path / "bin", *(self.path / "bin").iterdir()):
                path.chmod(0o755)
            for name in ("work", "cache"):
                (self.path / name).chmod(0o700)
                os.chown(self.path / name, owner.uid, owner.gid)
        if variables:
            write_file(str(self.path / VARIABLES), variables)
        os.mkfifo(self.path / "control", 0o600)
        write_file(str(self.path / "ticket"), msgspec.json.encode(ticket).decode())

    def revoke(self) -> bool:
        """Take the ticket back; False if a keeper has it."""
        try:
            (self.path / "ticket").rename(self.path / "revoked")
        except OSError:
            return False
        return True

    def offer_again(self) -> None:
        """Put a revoked ticket back."""
        (self.path / "revoked").rename(self.path / "ticket")

    def claimed(self) -> Ticket | None:
        """The ticket that a keeper took; None if none ever did, or it cannot be read, or is another worker's."""
        ticket = self._read("claimed", Ticket)
        return (
            ticket if ticket is not None and self.path.name == f"{ticket.job}.{ticket.attempt}.{ticket.rank}" else None
        )

    def started(self) -> Started | None:
        """The first process, if it came so far."""
        return self._read("started", Started)

    def exit(self) -> ExitStatus | None:
        """How the worker ended; None while it has not, or nobody was left to write it."""
        return self._read("exit", ExitStatus)

    def write_exit(self, status: ExitStatus) -> None:
        """Record an exit in the place of a keeper that cannot."""
        write_file(str(self.path / "exit"), msgspec.json.encode(status).decode())

    def keeper_pid(self) -> int | None:
        """The pid of the live keeper; None where there is none. Only for claimed tickets: it touches the lock."""
        try:
            lock = open_regular(str(self.path / "lock"))
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(lock, _PID_BYTES).strip()
            return int(pid) or None if pid.isdigit() else None
        finally:
            os.close(lock)
        return None

    def order_stop(self, order: StopOrder) -> None:
        """Tell the keeper to end the worker. The order stays in the file: a keeper yet to come reads it too. An earlier
        one that may not have been read yet is in the new one. Raises OSError."""
        before = self.stop_order()
        order = before.hastened_by(order) if before is not None else order
        write_file(str(self.path / "stop"), msgspec.json.encode(order).decode())
        with contextlib.suppress(OSError):  # ENXIO: no keeper listens (yet)
            control = os.open(self.path / "control", os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(control, b"s")
            finally:
                os.close(control)

    def stop_order(self) -> StopOrder | None:
        """What it was told, if it was told to end."""
        return self._read("stop", StopOrder)

    def kill_remains(self, ticket: Ticket) -> int:
        """Kill what a keeper that is gone left behind; how many processes, or containers, there still were. What the
        folder does not tell any more is in the ticket. Blocks."""
        started = self.started()
        pids = set(tree.marked(f"{MARKER}={ticket.token}".encode()))
        of_this_boot = started if started is not None and started.boot_id == tree.boot_id() else None
        if of_this_boot is not None and tree.is_running(of_this_boot.pid, of_this_boot.start_ticks):
            pids.update(tree.with_descendants({of_this_boot.pid}, tree.processes()))
        if ticket.cgroup:
            tree.kill_cgroup(ticket.cgroup)
            pids.update(tree.cgroup_processes(ticket.cgroup))
        tree.send(sorted(pids), 9)
        if pids:
            return len(pids)
        if ticket.cgroup:
            tree.remove_cgroup(ticket.cgroup)
        return 1 if ticket.cleanup and not removed(ticket.cleanup, ticket.env) else 0

    def acknowledge(self) -> None:
        """The log has the exit. Without the mark (a full disk, a folder that is gone) it is only reported once more."""
        with contextlib.suppress(OSError):
            (self.path / "acknowledged").touch()

    def acknowledged_s(self) -> float | None:
        """When the log had the exit (seconds since the epoch); None while it has not."""
        try:
            return (self.path / "acknowledged").lstat().st_mtime
        except OSError:
            return None

    def remove_cache(self) -> None:
        """Delete what the worker compiled."""
        remove_tree(self.path / "cache")

    def remove(self) -> None:
        """Delete the folder. What cannot be deleted stays for the next time."""
        remove_tree(self.path)

    def _read(self, name: str, kind: type[Content]) -> Content | None:
        try:
            return msgspec.json.decode(read_small(str(self.path / name)), type=kind)
        except (OSError, msgspec.MsgspecError, RecursionError):
            return None


def lost(detail: str) -> ExitStatus:
    """The exit of a worker of which nobody knows how it ended."""
    return ExitStatus("lost", detail=detail[:DETAIL_LIMIT])
