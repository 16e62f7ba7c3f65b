"""The keeper of one worker: ``python -m muster.node_agent.keeper DIR``. Outlives the agent; standard library only.

Its folder is all it knows, and all that anybody needs to know of it:

- `ticket` → `claimed`: what to run. A keeper renames it, or the agent renames it to `revoked`: whichever comes first
  decides, so that a worker is never both given up and started.
- `lock`: locked for the keeper's life, holds its pid. · `control`: a FIFO; a byte means "look at `stop`".
- `started`: written before the worker's program runs. · `stop`: an order, kept in the file, so that it cannot be lost.
- `exit`: written, with fsync, when nothing of the worker's tree is left, and no container of its. Its room on disk is
  taken beforehand.

The tree is everything below the keeper, which is a subreaper, and everything in the worker's cgroup, where it has one.
When the keeper is killed the kernel kills the worker's first process; the agent finds the rest by its marker.
How the tree is brought to its end is in `ending`.
"""

import contextlib
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from muster.node_agent import cgroups, tree
from muster.node_agent.cleanup import removed_at_last
from muster.node_agent.ending import Ending
from muster.node_agent.keeper_files import (
    boottime_ns,
    claim,
    lock,
    read_lease,
    read_stop,
    reserve_exit,
    write_exit,
    write_file,
)

LEASE_LOOK_MS = 2000
"""A suspended machine stops the clock that sleeps are measured by, but not the lease's: look this often."""
LEFTOVER_GRACE_MS = 2000
"""What the first process leaves behind when it ends by itself gets this long to end too."""
CLEANUP_S = 60.0
"""For so long a container is removed again and again; then the agent goes on with it."""
LONGEST_WAIT_MS = 3_600_000
"""Within what poll takes."""
DETAIL_LIMIT = 1000
ENGINES_CODES = (125, 126, 127)
"""The engine itself failed; what is to be run in the container cannot be executed; it is not there."""

Reply = Callable[[str], None]


class _Keeper:
    """One worker, from its ticket to its exit status."""

    def __init__(self, ticket: dict[str, Any], control: int, wakeup: int) -> None:
        self.ticket = ticket
        self.control = control
        self.wakeup = wakeup
        self.cgroup: str | None = ticket["cgroup"] or None
        self.lease_path: str | None = ticket["lease_path"] or None
        self.lease_deadline_ns: int = ticket["lease_deadline_ns"]
        self.leader = 0
        self.leader_status: int | None = None
        self.has_children = True
        self.reason: str | None = None  # why the keeper ended it; None = it ended by itself
        self.detail = ""
        self.ending = Ending(self.everything, self.kill)

    def begin(self, reply: Reply) -> None:
        """Run the program, or note why it does not. What is wrong with this machine is not the program's fault."""
        try:
            self.detail = self.start()
        except OSError as error:
            self.reason = "lost"
            self.detail = f"{error.filename or 'the worker'}: {error.strerror}"
        if not self.detail:
            reply(f"started {self.leader} {os.getpid()}")
            return
        self.reason = self.reason or "start_failed"
        self.ending.order(0)

    def start(self) -> str:
        """Fork, record, then let the program run; why that could not be executed ("" = it runs)."""
        if self.cgroup and not tree.make_cgroup(self.cgroup):
            self.cgroup = None
        if self.cgroup:
            cgroups.apply_limits(self.cgroup, self.ticket["limits"])
        output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        account = self.ticket["account"]
        if account:
            os.fchown(output, account["uid"], account["gid"])  # so that it can open /dev/stdout
        go_read, go_write = os.pipe()
        failure_read, failure_write = os.pipe()
        keeper = os.getpid()
        self.leader = tree.fork_into_cgroup(self.cgroup) if self.cgroup else os.fork()
        if self.leader == 0:
            os.close(go_write)
            _run_program(self.ticket, keeper, output, go_read, failure_write)
        for fd in (output, go_read, failure_write):
            os.close(fd)
        stat = tree.read_stat(self.leader)
        started = {
            "pid": self.leader,
            "start_ticks": stat.start_ticks if stat else 0,
            "boot_id": tree.boot_id(),
            "cgroup": self.cgroup or "",
        }
        write_file("started", json.dumps(started))
        os.write(go_write, b"g")
        os.close(go_write)
        failure = os.read(failure_read, DETAIL_LIMIT)
        os.close(failure_read)
        return failure.decode("utf-8", "replace")

    def keep(self) -> None:
        """Return when nothing of the tree is left."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.wakeup, select.POLLIN)
        while True:
            self.reap()
            if not self.has_children and not (self.cgroup and tree.cgroup_populated(self.cgroup)):
                return
            self.read_order()
            self.check_lease()
            if self.leader_status is not None and self.ending.waits_for_nobody():
                self.ending.order(LEFTOVER_GRACE_MS)
            if self.ending.act():
                self.reap()
            poller.poll(self.timeout_ms())
            for fd in (self.control, self.wakeup):
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 4096)

    def timeout_ms(self) -> int | None:
        """How long nothing needs doing."""
        due_in_ms = self.ending.due_in_ms()
        waits = [] if due_in_ms is None else [min(due_in_ms, LONGEST_WAIT_MS)]
        if self.lease_path:
            left_ms = max((self.lease_deadline_ns - boottime_ns()) // 1_000_000 + 1, 1)
            waits.append(min(left_ms, LEASE_LOOK_MS))
        return min(waits) if waits else None

    def reap(self) -> None:
        """Take the statuses of all that ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.has_children = False
                return
            if pid == 0:
                self.has_children = True
                return
            if pid == self.leader:
                self.leader_status = status

    def read_order(self) -> None:
        """Obey the order in `stop`; a later one can only hasten the end."""
        order = read_stop()
        if order is None:
            return
        if self.reason is None and self.leader_status is None:
            self.reason = order["reason"]
        self.ending.order(order["grace_ms"], order["notice_ms"], order["signal"])

    def check_lease(self) -> None:
        """Past the lease there is no grace: the devices may be given to others."""
        if not self.lease_path or boottime_ns() < self.lease_deadline_ns:
            return
        renewed = read_lease(self.lease_path)
        if renewed is not None and renewed > boottime_ns():
            self.lease_deadline_ns = renewed
            return
        self.lease_path = None
        if self.reason is None and self.leader_status is None:
            self.reason = "lease_expired"
        self.ending.order(0)

    def everything(self) -> list[int]:
        """The pids of the tree."""
        inside = tree.cgroup_processes(self.cgroup) if self.cgroup else []
        return sorted({*tree.descendants(os.getpid()), *inside})

    def kill(self) -> None:
        """One round of SIGKILL. What is forked meanwhile is met in the next one."""
        if self.cgroup:
            tree.kill_cgroup(self.cgroup)
        tree.send(tree.descendants(os.getpid()), signal.SIGKILL)

    def tidy(self) -> bool:
        """Remove what is not the tree's and would outlive it; whether all of it is gone."""
        if self.cgroup:
            if cgroups.killed_for_memory(self.cgroup):
                self.detail = self.detail or "killed: its memory limit was reached"
            tree.remove_cgroup(self.cgroup)
        cleanup = self.ticket["cleanup"]
        return not cleanup or removed_at_last(cleanup, self.ticket["env"], CLEANUP_S)

    def exit_record(self) -> dict[str, Any]:
        """How the first process ended, and why."""
        status = None if self.reason in ("start_failed", "lost") else self.leader_status
        code = os.waitstatus_to_exitcode(status) if status is not None else None
        return {
            "reason": self.reason or "exited",
            "exit_code": code if code is None or code >= 0 else 128 - code,
            "signal": -code if code is not None and code < 0 else None,
            "detail": self.detail or self.ending.detail or self.engines_word(code),
        }

    def engines_word(self, code: int | None) -> str:
        """What a container's exit code may say of its engine ("" = nothing)."""
        if self.reason is not None or not self.ticket["cleanup"] or code not in ENGINES_CODES:
            return ""
        engine = os.path.basename(self.ticket["argv"][0])  # noqa: PTH119  no pathlib here
        return f"{engine} could not start it, unless its program ends so itself (see muster logs)"


def _run_program(ticket: dict[str, Any], keeper: int, output: int, go: int, failure: int) -> NoReturn:
    """In the worker's first process: become the program. It waits until it is on record."""
    try:
        os.setsid()
        if account := ticket["account"]:
            tree.become(account["uid"], account["gid"], account["groups"])
        tree.die_with_parent()  # after that: a change of account ends it
        if os.getppid() != keeper or os.read(go, 1) != b"g":
            os._exit(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(ticket["cwd"])
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(ticket["argv"][0], ticket["argv"], ticket["env"])  # noqa: S606  # no shell is the point
    except BaseException as error:  # noqa: BLE001  # whatever it was is told to the keeper
        with contextlib.suppress(OSError):
            os.write(failure, _failure(ticket, error).encode("utf-8", "replace")[:DETAIL_LIMIT])
    os._exit(127)


def _failure(ticket: dict[str, Any], error: BaseException) -> str:
    """Why the program was not executed, in words."""
    program = ticket["argv"][0]
    if not isinstance(error, OSError):
        return f"{program}: {error}"
    if error.filename == ticket["cwd"]:
        return f"{error.filename}: {error.strerror}"
    hint = ticket["hint"] if isinstance(error, FileNotFoundError) and "/" not in program else ""
    return f"{program}: {error.strerror}{f' ({hint})' if hint else ''}"


def _watch_signals() -> int:
    """A descriptor that is readable after a child's end. Other signals are not for the keeper: it ends last."""
    wakeup, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)  # a handler, not SIG_IGN, which the worker would inherit
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    return wakeup


def keep(directory: str, reply: Reply) -> None:
    """Keep the worker of this folder. `reply` gets ``started PID KEEPER_PID`` once its program runs, ``ended`` if it
    never did."""
    os.chdir(directory)
    if not lock():
        return
    tree.become_subreaper()
    wakeup = _watch_signals()
    control = os.open("control", os.O_RDWR | os.O_NONBLOCK)
    room = reserve_exit()
    ticket = claim()
    if ticket is None:
        return
    keeper = _Keeper(ticket, control, wakeup)
    keeper.read_order()
    keeper.check_lease()
    if keeper.reason is None:
        keeper.begin(reply)
    keeper.keep()
    if keeper.tidy():
        write_exit(room, keeper.exit_record())


def serve_one(directory: str, reply: Reply) -> NoReturn:
    """The whole life of a keeper's process, in a session of its own."""
    code = 1
    try:
        keep(directory, reply)
        code = 0
    except BaseException:  # noqa: BLE001  # this process ends here, whatever happened; the agent sees no exit file
        traceback.print_exc()
    finally:
        reply("ended")
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if os.getpid() != os.getsid(0):
        os.setsid()
    serve_one(sys.argv[1], lambda _: None)
