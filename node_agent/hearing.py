"""Hearing of Xids: from the kernel's log, which also names the process, and from NVML, which is sure to tell.

What NVML tells of an error that fails a job alone waits a moment, for the log's word of it, and because a storm of
equal ones is one error; what is told already, and waits to be asked for, is not told twice. Nothing is lost while
nobody asks; to ask for the next one is to have dealt with the one before.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from muster.node_agent.blame import Source
from muster.node_agent.health import finding_of
from muster.node_agent.kernel_log import KernelLog
from muster.node_agent.readings import XidEvent

logger = logging.getLogger(__name__)

HELD_S: Final = 0.5
RETRY_S: Final = 1.0


class Told(NamedTuple):
    """An Xid, who told of it, and when, by the event loop's clock."""

    event: XidEvent
    source: Source
    at_s: float


class Hearing:
    """Both sources together. `next_xid` waits for the next one that NVML tells of."""

    def __init__(self, kernel_log: Path, next_xid: Callable[[], Awaitable[XidEvent]]) -> None:
        self._log = KernelLog(kernel_log)
        self._next_xid = next_xid
        self._told: asyncio.Queue[Told | asyncio.Event] = asyncio.Queue()
        self._waiting: set[tuple[XidEvent, Source]] = set()  # in `_told`
        self._held: dict[XidEvent, asyncio.TimerHandle] = {}
        self._ears: list[asyncio.Task[None]] = []

    async def next(self) -> Told:
        """Wait for the next one."""
        if not self._ears:
            self._ears = [asyncio.create_task(_for_ever(ear)) for ear in (self._hear_log, self._hear_nvml)]
        while isinstance(told := await self._told.get(), asyncio.Event):
            told.set()
        self._waiting.discard((told.event, told.source))
        return told

    async def read_log(self) -> None:
        """Take what the kernel's log has by now."""
        for events in self._log.read():
            for event in events:
                self._tell(event, "log")
            await asyncio.sleep(0)

    async def dealt(self) -> None:
        """Return when all that was told or held back before has been dealt with; at once where nobody asks."""
        await self.read_log()
        for event in list(self._held):
            self._release(event)
        if self._ears:
            dealt = asyncio.Event()
            self._told.put_nowait(dealt)
            await dealt.wait()

    async def close(self) -> None:
        """Hear nothing more."""
        for ear in self._ears:
            ear.cancel()
        await asyncio.gather(*self._ears, return_exceptions=True)
        self._ears = []
        for timer in self._held.values():
            timer.cancel()
        self._log.close()

    async def _hear_log(self) -> None:
        await self._log.wait()
        await self.read_log()

    async def _hear_nvml(self) -> None:
        event = await self._next_xid()
        if finding_of(event) is not None:
            self._tell(event, "nvml")
        elif event not in self._held:
            self._held[event] = asyncio.get_running_loop().call_later(HELD_S, self._release, event)

    def _release(self, event: XidEvent) -> None:
        self._held.pop(event).cancel()
        self._tell(event, "nvml")

    def _tell(self, event: XidEvent, source: Source) -> None:
        if (event, source) not in self._waiting:
            self._waiting.add((event, source))
            self._told.put_nowait(Told(event, source, asyncio.get_running_loop().time()))


async def _for_ever(hear: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await hear()
        except Exception:
            logger.exception("errors of devices are not heard for a moment")
            await asyncio.sleep(RETRY_S)
