"""Watching the devices: samples for who looks, and for the log what has changed since it was last told.

A registration tells all that is wrong at that time; the differences to it follow as events of that life. A look that
was begun before a registration is not compared with it. Nothing here may end the agent, or hold up its beats.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from muster.events.log import LogError
from muster.events.telemetry import GpuSampled
from muster.events.types import DETAIL_LIMIT, DeviceFault, Inventory
from muster.node_agent.devices import Degraded, DeviceSource, Look, Work
from muster.node_agent.health import BADNESS, LASTING, parts_of
from muster.node_agent.readings import Worktree
from muster.node_agent.reporter import Reporter

logger = logging.getLogger(__name__)

SAMPLE_TIMEOUT_S: Final = 10.0
SETTLE_TIMEOUT_S: Final = 6.0
"""Beyond what a source allows itself."""
SOON_S: Final = 0.05
RETRY_S: Final = 1.0
NOTHING: Final = Look([])


class Survey(NamedTuple):
    """What a registration tells of devices."""

    inventory: Inventory
    look: Look

    def degraded(self) -> str:
        """What is wrong with the node as a whole, in words; "" = nothing."""
        degraded = self.look.degraded
        return f"{degraded.cause}: {degraded.detail}"[:DETAIL_LIMIT] if degraded is not None else ""


class DeviceWatch:
    """The devices of one agent. `changed` is set when they are others than its registration said."""

    def __init__(
        self, devices: DeviceSource, work: Work, reporter: Reporter, send: Callable[[GpuSampled], Awaitable[None]]
    ) -> None:
        self.changed = asyncio.Event()
        self._devices = devices
        self._work = work
        self._reporter = reporter
        self._send = send
        self._survey = Survey(Inventory([], 0, 0, ""), NOTHING)
        self._faults: dict[str, DeviceFault] = {}  # as the log was told, lasting ones only
        self._told = NOTHING  # likewise, of foreign usage and the node as a whole
        self._registrations = 0
        self._soon = asyncio.Event()

    # -- registrations ------------------------------------------------------------------------------------------

    async def survey(self) -> Survey:
        """What there is and what is wrong, for a registration. Where the devices cannot be had: as they were."""
        try:
            self._survey = self._survey._replace(inventory=await self._devices.inventory())
            self._survey = self._survey._replace(look=await self._devices.look(self._work))
        except Exception:
            logger.exception("the devices cannot be looked at")
        return self._survey

    def begin(self, survey: Survey) -> None:
        """A registration with this is on its way to the log; nothing else is until this returns."""
        self._survey = survey
        self._registrations += 1
        self._faults = {fault.uuid: fault for fault in survey.look.faults}
        self._told = survey.look
        self.changed.clear()

    # -- looking ------------------------------------------------------------------------------------------------

    async def watch(self, every_ms: int) -> None:
        """Look once every `every_ms`, and whenever something has happened, for ever."""
        while True:
            try:
                await self._look()
            except Exception:
                logger.exception("the devices cannot be looked at")
            self._soon.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_ms / 1000):
                    await self._soon.wait()
                    await asyncio.sleep(SOON_S)

    async def _look(self) -> None:
        before = self._registrations
        look = await self._devices.look(self._work)
        if before == self._registrations:
            if look.changed:
                self.changed.set()
            else:
                self._tell(look)
        if look.samples:
            sample = GpuSampled(self._reporter.node, self._reporter.incarnation, look.samples)
            try:
                async with asyncio.timeout(SAMPLE_TIMEOUT_S):
                    await self._send(sample)
            except (LogError, OSError, TimeoutError) as error:
                logger.debug("no sample: %s", error)

    def _tell(self, look: Look) -> None:
        """Report what is different from what the log was told."""
        now = {fault.uuid: fault for fault in look.faults}
        for uuid, fault in list(self._faults.items()):
            if uuid not in now:
                del self._faults[uuid]
                self._reporter.recovered(_recovery(fault))
        for fault in now.values():
            self._fault(fault)
        if list(look.foreign) != list(self._told.foreign):
            self._reporter.foreign(look.foreign)
        if look.degraded is None and self._told.degraded is not None:
            self._reporter.restored()
        elif look.degraded is not None and _cause(look.degraded) != _cause(self._told.degraded):
            self._reporter.degraded(look.degraded)
        self._told = look

    def _fault(self, fault: DeviceFault) -> None:
        """Report a fault that lasts, unless the log has just that; before a lesser one, the end of the other."""
        told = self._faults.get(fault.uuid)
        self._faults[fault.uuid] = fault
        if told is not None and _same(told, fault):
            return
        if told is not None and BADNESS[fault.action] < BADNESS[told.action]:
            self._reporter.recovered(_recovery(told))
        self._reporter.faulted(fault)

    # -- errors as they happen ----------------------------------------------------------------------------------

    async def hear(self) -> None:
        """Report errors as they happen, for ever."""
        while True:
            try:
                fault = await self._devices.next_fault(self._work)
            except Exception:
                logger.exception("errors of devices cannot be heard")
                await asyncio.sleep(RETRY_S)
                continue
            placed = self._placed(fault)
            if placed is None:
                logger.warning("an error of a device that is not registered: %s", fault)
            elif placed.action in LASTING:
                self._fault(placed)
            else:
                self._reporter.faulted(placed)
            self._soon.set()

    def _placed(self, fault: DeviceFault) -> DeviceFault | None:
        """With the device's number in the registration."""
        indices = (device.index for device in self._survey.inventory.devices if device.uuid == fault.uuid)
        index = next(indices, None)
        return None if index is None else msgspec.structs.replace(fault, index=index)

    async def settle(self, tree: Worktree) -> None:
        """A worker has ended: return when the log is being told all that befell its devices before, and nothing of it
        is on them any more. In a few seconds at the most."""
        if not tree.claims_mib:
            return
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await self._devices.settle(tree)
        except TimeoutError:
            logger.warning("the devices of job %d do not settle", tree.job)
        except Exception:
            logger.exception("the devices of job %d do not settle", tree.job)


def _same(one: DeviceFault, other: DeviceFault) -> bool:
    return one.action == other.action and set(parts_of(one)) == set(parts_of(other))


def _cause(degraded: Degraded | None) -> str:
    return degraded.cause if degraded is not None else ""


def _recovery(fault: DeviceFault) -> DeviceFault:
    return msgspec.structs.replace(fault, detail=f"over: {fault.detail}"[:DETAIL_LIMIT])
