"""Real processes: the programs of Muster that a test kills and freezes, and the jobs that they run.

Rules: waiting is looking at a condition until a deadline; the programs' own output is kept over all their lives.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

MUSTER: Final = str(Path(sys.executable).with_name("muster"))
DEADLINE_S: Final = 90.0
LOOK_S: Final = 0.05
T = TypeVar("T")


async def until(truth: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Look again and again until it is so; gives what was found."""

    async def look() -> T | None:
        return truth()

    return await until_answer(look, what, deadline_s)


async def until_answer(truth: Callable[[], Awaitable[T | None]], what: str, deadline_s: float = DEADLINE_S) -> T:
    """The same for what is asked of a program."""
    end_s = time.monotonic() + deadline_s
    while True:
        found = await truth()
        if found:
            return found
        assert time.monotonic() < end_s, f"not in time: {what}"
        await asyncio.sleep(LOOK_S)


class Part:
    """One program of Muster, with `variables` on top of the test's own. `output` is what its present life prints,
    `output.before` what the earlier ones did."""

    def __init__(self, name: str, words: list[str], folder: Path, variables: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._variables = variables or {}
        self._words = words
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process, which runs or has run."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        output = self._folder / "output"
        if output.exists():
            with (self._folder / "output.before").open("ab") as before:
                before.write(output.read_bytes())
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [MUSTER, *self._words],
                env=os.environ | self._variables,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        """What this life has printed."""
        return (self._folder / "output").read_text(errors="replace")

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it by a signal, frozen or not, and reap it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
            self._process.wait(DEADLINE_S)

    def freeze(self) -> None:
        """Stop it in place."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)


def lives(pid: int) -> bool:
    """Whether a process runs (one that has ended and waits to be reaped does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes_with(marker: str) -> list[int]:
    """Live processes with this variable in their environment. Those that have ended show none."""
    wanted = marker.encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in variables:
            found.append(int(path.parent.name))
    return found


def processes_in(folder: Path) -> list[int]:
    """Live processes whose working directory is below `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if path.readlink().is_relative_to(folder):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def kill_processes(marker: str) -> list[int]:
    """Kill those processes; gives which there were."""
    found = processes_with(marker)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return found
