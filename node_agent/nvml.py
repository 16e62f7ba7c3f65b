"""Asks NVML through a process of its own, behind deadlines.

A process that hangs is killed; one that cannot even be killed is left alone, and no other is started while it lives. A
device that made it hang or crash is left out for a while; what goes wrong outside of any device is a trouble with NVML,
and is tried again more and more rarely.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from muster.node_agent.nvml_messages import Answer, Ask, AskKind, Told, Touching, Trouble, Xid
from muster.node_agent.readings import MachineReading, NvmlTroubleError, XidEvent

logger = logging.getLogger(__name__)

LONGEST_LINE: Final = 1 << 24
PASSED_ON: Final = ("LD_LIBRARY_PATH", "PATH")
XIDS_KEPT: Final = 10_000


class NvmlSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How NVML is asked. `start_s` is allowed for starting it (a driver without persistence takes its time) and then
    for all devices together, `answer_s` for each of them, and `kill_s` for dying. A device that cannot be read is tried
    again every `skip_s`, a trouble every `retry_s` to `retry_most_s`."""

    start_s: float = 30.0
    answer_s: float = 8.0
    kill_s: float = 2.0
    skip_s: float = 180.0
    retry_s: float = 2.0
    retry_most_s: float = 60.0
    library_path: str = ""  # in place of the environment's LD_LIBRARY_PATH
    version_file: str = "/proc/driver/nvidia/version"
    sysfs: str = "/sys"


class _EndedError(Exception):
    """The process hung or crashed. `device` is whose doing that is, "" for nobody's; `young`: it had answered nothing
    before."""

    def __init__(self, device: str, detail: str, *, hung: bool, young: bool) -> None:
        super().__init__(detail)
        self.device = device
        self.hung = hung
        self.young = young


class NvmlProcess:
    """NVML, asked one question at a time. The process starts with the first one, and again where it has ended."""

    def __init__(self, settings: NvmlSettings | None = None) -> None:
        self._settings = settings or NvmlSettings()
        self._lock = asyncio.Lock()
        self._child: _Child | None = None
        self._stuck: _Child | None = None
        self._skipped: dict[str, float] = {}  # device → when it is tried again
        self._trouble: NvmlTroubleError | None = None
        self._retry_at = 0.0
        self._retry_s = self._settings.retry_s
        self._xids: deque[XidEvent] = deque(maxlen=XIDS_KEPT)
        self._xid_came = asyncio.Event()

    @property
    def pid(self) -> int:
        """Of the process; 0 = none runs."""
        return self._child.process.pid if self._child is not None else 0

    async def inventory(self) -> MachineReading:
        """All there is, by a new process: which devices there are is settled at its start. Raises NvmlTroubleError."""
        async with self._lock:
            await self._end()
            return await self._ask("inventory")

    async def samples(self) -> MachineReading:
        """The same without the paths, of the devices that the last inventory found. Raises NvmlTroubleError."""
        async with self._lock:
            return await self._ask("samples")

    async def next_xid(self) -> XidEvent:
        """Wait for the next Xid."""
        while not self._xids:
            self._xid_came.clear()
            await self._xid_came.wait()
        return self._xids.popleft()

    async def close(self) -> None:
        """Let go: nothing of ours holds the devices until the next question."""
        async with self._lock:
            await self._end()

    def try_again(self) -> None:
        """Forget what is skipped and what was wrong: the devices may be others now."""
        self._skipped.clear()
        self._trouble = None

    # -- asking -------------------------------------------------------------------------------------------------

    async def _ask(self, kind: AskKind) -> MachineReading:
        now = asyncio.get_running_loop().time()
        if self._trouble is not None and now < self._retry_at:
            raise self._trouble
        self._skipped = {device: again for device, again in self._skipped.items() if again > now}
        try:
            machine = await self._ask_around(kind)
        except NvmlTroubleError as error:
            self._trouble = error
            self._retry_at = asyncio.get_running_loop().time() + self._retry_s
            self._retry_s = min(self._retry_s * 2, self._settings.retry_most_s)
            raise
        self._trouble, self._retry_s = None, self._settings.retry_s
        return machine

    async def _ask_around(self, kind: AskKind) -> MachineReading:
        """Ask, leaving out device after device that it ends at: as many as there is time for, the others next time."""
        give_up_at = asyncio.get_running_loop().time() + self._settings.start_s
        while True:
            try:
                return await self._ask_once(kind)
            except _EndedError as error:
                if not error.device and not error.hung and not error.young:
                    continue  # it ended some time ago, or was killed
                now = asyncio.get_running_loop().time()
                known = not error.device or error.device in self._skipped
                if not known:
                    logger.warning("device %s cannot be read: %s", error.device, error)
                    self._skipped[error.device] = now + self._settings.skip_s
                if known or now >= give_up_at:
                    raise NvmlTroubleError("nvml_hung" if error.hung else "nvml_failed", str(error)) from error

    async def _ask_once(self, kind: AskKind) -> MachineReading:
        """Raises _EndedError, and NvmlTroubleError where NVML says so itself."""
        child = await self._running()
        try:
            told = await child.ask(Ask(kind, sorted(self._skipped)))
        except BaseException:  # a cancelled question too: its answer would be the next one's
            await self._end()
            raise
        if isinstance(told, Trouble):
            await self._end()
            raise NvmlTroubleError(told.kind, told.detail)
        return told.machine

    async def _running(self) -> "_Child":
        if self._stuck is not None:
            if self._stuck.alive:
                raise NvmlTroubleError("nvml_hung", f"process {self._stuck.process.pid} hangs and cannot be killed")
            self._stuck = None
        if self._child is None or not self._child.alive:
            await self._end()
            try:
                self._child = await _Child.start(self._settings, self._heard)
            except OSError as error:
                raise NvmlTroubleError("nvml_failed", f"the NVML process does not start: {error}") from error
        return self._child

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None and not await asyncio.shield(child.end()):
            self._stuck = child
            logger.error("the NVML process %d cannot be killed", child.process.pid)

    def _heard(self, event: XidEvent) -> None:
        self._xids.append(event)
        self._xid_came.set()


class _Child:
    """One life of the process."""

    def __init__(
        self, process: asyncio.subprocess.Process, settings: NvmlSettings, heard: Callable[[XidEvent], None]
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._input = process.stdin
        self._output = process.stdout
        self._settings = settings
        self._heard = heard
        self._touching = ""
        self._ready = False
        self._young = True
        self._deadline: asyncio.Timeout | None = None
        self._give_up_at = 0.0
        self._answer: asyncio.Future[Answer | Trouble] | None = None
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, settings: NvmlSettings, heard: Callable[[XidEvent], None]) -> "_Child":
        """Start it. Raises OSError."""
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        if settings.library_path:
            env["LD_LIBRARY_PATH"] = settings.library_path
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-m", "muster.node_agent.nvml_child", "--parent", str(os.getpid())),
            *("--version-file", settings.version_file, "--sysfs", settings.sysfs),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=env,
            limit=LONGEST_LINE,
            start_new_session=True,  # a Ctrl-C is the agent's
        )
        return cls(process, settings, heard)

    @property
    def alive(self) -> bool:
        """Whether it can be asked, or lives all the same."""
        return self.process.returncode is None

    async def ask(self, ask: Ask) -> Answer | Trouble:
        """The answer. Raises _EndedError."""
        clock = asyncio.get_running_loop().time
        self._answer = asyncio.get_running_loop().create_future()
        self._give_up_at = clock() + self._settings.start_s
        within_s = self._settings.answer_s if self._ready else self._settings.start_s
        try:
            async with asyncio.timeout(within_s) as self._deadline:
                with contextlib.suppress(OSError):  # it has ended, which is noticed below
                    self._input.write(msgspec.json.encode(ask) + b"\n")
                    await self._input.drain()
                waited: set[asyncio.Future[Any]] = {self._answer, self._listening}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            all_slow = clock() >= self._give_up_at  # which is not the doing of the one that happens to be asked
            device = "" if all_slow else self._touching
            raise _EndedError(device, "NVML does not answer in time", hung=True, young=self._young) from None
        finally:
            self._deadline = None
        if not self._answer.done():
            detail = await self._how_it_ended()
            killed = self.process.returncode == -signal.SIGKILL  # by somebody, or for want of memory: no device's doing
            raise _EndedError("" if killed else self._touching, detail, hung=False, young=self._young)
        self._young = False
        return self._answer.result()

    async def _listen(self) -> None:
        """Until it says no more."""
        decode = msgspec.json.Decoder(Told).decode
        while line := await self._output.readline():
            match decode(line):
                case Touching(device):
                    self._touch(device)
                case Xid(event):
                    self._heard(event)
                case told if self._answer is not None and not self._answer.done():
                    self._answer.set_result(told)

    def _touch(self, device: str) -> None:
        """NVML is initialised: from now on each device must be quick, and all of them together not too slow."""
        now = asyncio.get_running_loop().time()
        self._touching = device
        if not self._ready:
            self._ready = True
            self._give_up_at = now + self._settings.start_s
        if self._deadline is not None:
            self._deadline.reschedule(min(now + self._settings.answer_s, self._give_up_at))

    async def _how_it_ended(self) -> str:
        try:
            async with asyncio.timeout(self._settings.kill_s):
                code = await self.process.wait()
        except TimeoutError:
            return "the NVML process fell silent"
        if code < 0:
            return f"the NVML process was ended by {signal.Signals(-code).name}"
        return f"the NVML process ended with exit code {code}"

    async def end(self) -> bool:
        """Kill it; gives whether it is gone."""
        if self.alive:
            self.kill()
        try:
            async with asyncio.timeout(self._settings.kill_s):
                await self.process.wait()
        except TimeoutError:
            return False
        self._input.close()
        await asyncio.gather(self._listening, return_exceptions=True)
        return True

    def kill(self) -> None:
        """Ask the kernel to end it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
