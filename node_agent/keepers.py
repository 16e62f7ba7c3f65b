"""Starting keepers through the zygote, and knowing when one is gone.

A zygote that died is replaced at the next start.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import muster
from muster.node_agent.worker_folder import WorkerFolder

logger = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 30.0
ANSWER_LIMIT_BYTES: Final = 8192
KEEPER_CODE: Final = b"muster.node_agent"
"""Stands in the command line of every keeper, as the next lines and `python -m` have it."""
_BOOTSTRAP: Final = (
    "import sys; sys.path.append(sys.argv[1]); from muster.node_agent import zygote; zygote.main(int(sys.argv[2]))"
)


class Running(NamedTuple):
    """A worker's first process, and its keeper."""

    pid: int
    keeper_pid: int


class Keepers:
    """The agent's end of the zygote. `log_path` gets what keepers have to complain of."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self.mark = os.path.realpath(log_path)
        """An argument in the command line of every keeper of this agent, and of earlier ones on its data folder."""
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._answers: dict[str, asyncio.Future[Running | None]] = {}
        self._sending = asyncio.Lock()

    @property
    def zygote_pid(self) -> int:
        """0 = none runs."""
        return self._process.pid if self._process is not None else 0

    async def start(self, folder: WorkerFolder) -> Running | None:
        """Have the folder's ticket taken. None if no program ran, or that is not known: the folder tells."""
        key = str(folder.path)
        answer: asyncio.Future[Running | None] = asyncio.get_running_loop().create_future()
        self._answers[key] = answer
        try:
            async with self._sending:
                await asyncio.get_running_loop().sock_sendall(self._connected(), key.encode())
            async with asyncio.timeout(START_TIMEOUT_S):
                return await answer
        except (OSError, TimeoutError) as error:
            logger.warning("no keeper for %s: %s", key, error)
            return None
        finally:
            self._answers.pop(key, None)

    def warm(self) -> None:
        """Start the zygote, so that the first worker need not wait for it."""
        self._connected()

    def close(self) -> None:
        """Let the zygote end. Keepers stay."""
        self._disconnect()

    def _connected(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            root = str(Path(muster.__file__).parent.parent)
            arguments = ["-I", "-S", "-E", "-X", "utf8", "-c", _BOOTSTRAP, root, str(theirs.fileno()), self.mark]
            with theirs, os.fdopen(self._open_log(), "ab") as complaints:
                self._process = subprocess.Popen(
                    [sys.executable, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=complaints,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            ours.setblocking(False)  # noqa: FBT003  # the standard library's signature
            self._socket = ours
            asyncio.get_running_loop().add_reader(ours.fileno(), self._read)
        return self._socket

    def _open_log(self) -> int:
        descriptor = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.fchmod(descriptor, 0o600)  # earlier ones were open to all
        return descriptor

    def _read(self) -> None:
        if self._socket is None:
            return
        try:
            message = self._socket.recv(ANSWER_LIMIT_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._disconnect()
            return
        words, _, key = message.decode().partition("\n")
        answer = self._answers.get(key)
        if answer is not None and not answer.done():
            kind, *numbers = words.split()
            answer.set_result(Running(*map(int, numbers)) if kind == "started" else None)

    def _disconnect(self) -> None:
        if self._socket is None or self._process is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()
        self._socket = None
        self._process.kill()
        self._process.wait()
        self._process = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(None)


async def keeper_gone(folder: WorkerFolder, known_pid: int = 0) -> None:
    """Return when no keeper holds this claimed folder. `known_pid` is the keeper's, where it is known: it goes on
    whatever the worker has made of its folder, and of the lock there."""
    pid = known_pid if _is_keeper(known_pid) else folder.keeper_pid()
    if not pid:
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    try:
        if _is_keeper(pid) or folder.keeper_pid() == pid:  # still: so the descriptor is of no later one of its number
            loop.add_reader(descriptor, ended.set)
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _is_keeper(pid: int) -> bool:
    try:
        return KEEPER_CODE in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
