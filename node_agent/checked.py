"""This machine's devices, judged: what NVML and the kernel's log tell, put together to faults, foreign usage and
resets.

Rules: what NVML cannot tell at the moment stays as it was last. A device is reset only when nothing uses it, and not
before its fault was in a look: so that nothing new is on its way there. Processes come and go between a look at /proc
and NVML's word of them: who is a stranger then is one only if a second look at /proc says so too. Devices are asked one
question at a time, and nobody's impatience ends it: who cannot wait goes on without.
"""

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from muster.events.telemetry import DeviceSample
from muster.events.types import Device, DeviceFault, ForeignUse, Inventory
from muster.node_agent.blame import EVERYBODY, Blame, is_alive
from muster.node_agent.devices import Degraded, Look, RawDevices, Work
from muster.node_agent.foreign import Steadied, foreign_mib, in_steps, strangers_in
from muster.node_agent.health import LASTING, Finding, fault_of, finding_of, findings_of, incident_of
from muster.node_agent.hearing import Hearing, Told
from muster.node_agent.kernel_log import KERNEL_LOG, bus_address
from muster.node_agent.readings import DeviceReading, MachineReading, Worktree
from muster.node_agent.resets import ResetSettings, reset_device
from muster.node_agent.standing import Standing

logger = logging.getLogger(__name__)

SETTLE_S: Final = 5.0
SETTLE_LOOK_S: Final = 0.1
INIT_PID_NAMESPACE: Final = "pid:[4026531836]"


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How devices are judged. What stands against them is kept in the file `kept` (None = nowhere); `forget`: it is
    forgotten at the start. `host_pids`: NVML and the kernel's log name processes as this process sees them; None = if
    it is in the machine's first pid namespace."""

    kept: Path | None = None
    forget: bool = False
    kernel_log: Path = KERNEL_LOG
    resets: ResetSettings = ResetSettings()
    host_pids: bool | None = None


class _View(NamedTuple):
    look: Look
    reading: MachineReading | None


class CheckedDevices:
    """A `DeviceSource` of real devices."""

    def __init__(self, raw: RawDevices, settings: CheckSettings) -> None:
        self._raw = raw
        self._settings = settings
        self._host_pids = settings.host_pids if settings.host_pids is not None else in_first_pid_namespace()
        self._standing = Standing(settings.kept)
        if settings.forget:
            self._standing.forget()
        self._hearing = Hearing(settings.kernel_log, raw.next_xid)
        self._blame = Blame()
        self._steadied = Steadied()
        self._devices: list[Device] = []
        self._read: dict[str, list[Finding]] = {}  # what the last reading of each device showed
        self._raw_faults: dict[str, DeviceFault] = {}
        self._uncorrected: dict[str, int] = {}
        self._wanted: set[str] = set()  # devices for which the driver wants something done
        self._faulty: set[str] = set()  # devices with a fault in the last look
        self._work: Sequence[Worktree] = ()
        self._learned_s = -math.inf  # when what `work` told last was asked for
        self._passing: frozenset[int] = frozenset()  # strangers that had ended before they were looked at
        self._asking = asyncio.Lock()
        self._next_view: asyncio.Task[_View] | None = None  # asked for, not begun
        self._views: set[asyncio.Task[_View]] = set()

    # -- DeviceSource -------------------------------------------------------------------------------------------

    async def inventory(self) -> Inventory:
        """See `DeviceSource`."""
        async with self._asking:
            inventory = await self._raw.inventory()
        self._devices = list(inventory.devices)
        return inventory

    async def look(self, work: Work) -> Look:
        """See `DeviceSource`."""
        await self._learn(work)
        view = await self._view()
        self._judge(view)
        tried = await self._reset_idle(view.reading)
        if tried:
            view = await self._view()
            self._judge(view)
            self._give_up(tried)
        await asyncio.to_thread(self._standing.save)
        return self._look(view, await self._ours(view.reading, work))

    async def next_fault(self, work: Work) -> DeviceFault:
        """See `DeviceSource`."""
        while True:
            fault = await self._fault(await self._hearing.next(), work)
            if fault is not None:
                return fault

    async def settle(self, tree: Worktree) -> None:
        """See `DeviceSource`."""
        self._blame.remember(tree, _now_s())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self._hearing.read_log()
                await self._unlisted(tree)
                await self._hearing.dealt()

    async def close(self) -> None:
        """See `DeviceSource`."""
        await self._hearing.close()
        views = list(self._views)
        for view in views:
            view.cancel()
        await asyncio.gather(*views, return_exceptions=True)
        self._next_view = None
        await self._raw.close()

    # -- asking NVML --------------------------------------------------------------------------------------------

    async def _view(self) -> _View:
        """A look that was begun after the call; those who ask meanwhile share it."""
        if self._next_view is None:
            self._next_view = asyncio.create_task(self._take_view())
            self._views.add(self._next_view)
            self._next_view.add_done_callback(self._taken)
        return await asyncio.shield(self._next_view)

    def _taken(self, view: asyncio.Task[_View]) -> None:
        self._views.discard(view)
        if not view.cancelled() and view.exception() is not None:  # perhaps nobody waits for it any more
            logger.debug("no look at the devices: %s", view.exception())

    async def _take_view(self) -> _View:
        async with self._asking:
            self._next_view = None
            look = await self._raw.look(self._work)
            return _View(look, self._raw.reading)

    async def _unlisted(self, tree: Worktree) -> None:
        """Return when NVML lists nothing of the tree's on its devices any more, nor any process that is gone."""
        while True:
            reading = (await self._view()).reading
            if reading is None or not self._host_pids:
                return
            pids = tree.pids | self._blame.pids_of((tree.job, tree.attempt))
            listed = {
                process.pid
                for device in reading.devices
                if device.uuid in tree.claims_mib
                for process in device.processes or ()
            }
            if not any(pid in pids or not is_alive(pid) for pid in listed):
                return
            await asyncio.sleep(SETTLE_LOOK_S)

    # -- judging ------------------------------------------------------------------------------------------------

    async def _learn(self, work: Work) -> None:
        began_s = _now_s()
        self._work = await work()
        self._learned_s = began_s
        self._blame.learn(self._work, _now_s())

    def _judge(self, view: _View) -> None:
        self._raw_faults = {fault.uuid: fault for fault in view.look.faults}
        if view.reading is None:
            return
        self._read = {}
        for device in view.reading.devices:
            if not device.uuid:
                continue
            found = findings_of(device, self._uncorrected.get(device.uuid))
            for finding in found:
                if finding.cause == "ecc":
                    self._standing.add(device.uuid, finding)
            self._read[device.uuid] = [finding for finding in found if finding.cause != "ecc"]
            if device.ecc_uncorrected is not None:
                self._uncorrected[device.uuid] = device.ecc_uncorrected
            self._follow_driver(device)

    def _follow_driver(self, device: DeviceReading) -> None:
        """A driver that wanted something done and does not want it any more: somebody has done it."""
        if device.recovery_action:
            self._wanted.add(device.uuid)
        elif device.recovery_action == 0 and device.uuid in self._wanted:
            self._wanted.discard(device.uuid)
            self._standing.heal(device.uuid)

    def _findings(self, uuid: str) -> list[Finding]:
        found = [*self._read.get(uuid, ()), *self._standing.of(uuid)]
        raw = self._raw_faults.get(uuid)
        if raw is not None and raw.action in LASTING:
            found.append(Finding(raw.action, raw.cause, raw.detail, raw.xid))
        return found

    def _faults(self) -> list[DeviceFault]:
        faults = (fault_of(device.index, device.uuid, self._findings(device.uuid)) for device in self._devices)
        return [fault for fault in faults if fault is not None]

    def _degraded(self) -> Degraded | None:
        for device in self._devices:
            for finding in self._findings(device.uuid):
                if finding.reboot:
                    return Degraded("reboot", f"device {device.index}: {finding.detail}")
        return None

    # -- the look -----------------------------------------------------------------------------------------------

    async def _ours(self, reading: MachineReading | None, work: Work) -> frozenset[int]:
        """Processes that are not foreign. A stranger that has ended meanwhile may have been ours, unless the look
        before listed it already."""
        before, self._passing = self._passing, frozenset()
        ours = self._blame.pids() | self._raw.own_pids
        if reading is None or not self._host_pids or not strangers_in(reading, ours):
            return ours
        await self._learn(work)
        ours = self._blame.pids() | self._raw.own_pids
        self._passing = frozenset(pid for pid in strangers_in(reading, ours) if not is_alive(pid))
        return ours | (self._passing - before)

    def _look(self, view: _View, ours: frozenset[int]) -> Look:
        faults = self._faults()
        self._faulty = {fault.uuid for fault in faults}
        held_mib = self._foreign_mib(view.reading, ours)
        steady_mib = self._steadied.look({uuid: in_steps(mib) for uuid, mib in held_mib.items()})
        foreign = [
            ForeignUse(device.index, device.uuid, min(steady_mib[device.uuid], device.memory_mib))
            for device in self._devices
            if steady_mib.get(device.uuid)
        ]
        return view.look._replace(
            samples=[self._sample(sample, held_mib.get(sample.uuid)) for sample in view.look.samples],
            faults=faults,
            foreign=foreign,
            degraded=view.look.degraded or self._degraded(),
        )

    def _sample(self, sample: DeviceSample, held_mib: int | None) -> DeviceSample:
        healthy = False if sample.uuid in self._faulty else sample.healthy
        return msgspec.structs.replace(sample, foreign_mib=held_mib, healthy=healthy)

    def _foreign_mib(self, reading: MachineReading | None, ours: frozenset[int]) -> dict[str, int]:
        """By uuid, of the devices where it is known."""
        if reading is None or not self._host_pids:
            return {}
        claimed = self._claimed()
        known = ((device.uuid, foreign_mib(device, ours, device.uuid in claimed)) for device in reading.devices)
        return {uuid: held_mib for uuid, held_mib in known if held_mib is not None}

    def _claimed(self) -> set[str]:
        return {uuid for tree in self._work for uuid in tree.claims_mib}

    # -- resets -------------------------------------------------------------------------------------------------

    async def _reset_idle(self, reading: MachineReading | None) -> list[Device]:
        """Reset what needs it and is idle; what was tried."""
        waiting = self._idle(reading) if self._settings.resets.may_reset() else []
        for device in waiting:
            async with self._asking:
                await self._raw.close()
                why_not = await reset_device(self._settings.resets, device.pci_bus_id)
            if why_not:
                self._quarantine(device, why_not)
            else:
                self._standing.heal(device.uuid)
                self._wanted.discard(device.uuid)
                self._uncorrected.pop(device.uuid, None)
        return waiting

    def _give_up(self, tried: Sequence[Device]) -> None:
        """What is as it was before its reset is not reset again and again."""
        for device in tried:
            if _waits_for_reset(self._findings(device.uuid)):
                self._quarantine(device, "a reset did not help")

    def _quarantine(self, device: Device, reason: str) -> None:
        logger.error("device %d (%s): %s", device.index, device.pci_bus_id, reason)
        cause = max(self._findings(device.uuid), key=lambda finding: finding.resettable)
        self._standing.add(device.uuid, Finding("quarantine", cause.cause, reason, cause.xid, resettable=True))

    def _idle(self, reading: MachineReading | None) -> list[Device]:
        """The devices that wait for a reset, that nobody uses, and whose fault has been told."""
        claimed = self._claimed()
        used = {device.uuid for device in reading.devices if self._is_used(device)} if reading is not None else set()
        return [
            device
            for device in self._devices
            if device.pci_bus_id
            and device.uuid in self._faulty
            and device.uuid not in claimed | used
            and _waits_for_reset(self._findings(device.uuid))
        ]

    def _is_used(self, device: DeviceReading) -> bool:
        return any(process.pid not in self._raw.own_pids for process in device.processes or ())

    # -- Xids ---------------------------------------------------------------------------------------------------

    async def _fault(self, told: Told, work: Work) -> DeviceFault | None:
        """What an Xid makes of a device; None where that is known already."""
        event = told.event
        device = self._device_at(event.pci_bus_id)
        if device is None:
            logger.warning("Xid %d of a device that is not known here, at %s", event.xid, event.pci_bus_id)
            return None
        finding = finding_of(event)
        if finding is not None:
            again = not self._blame.is_told(device.uuid, event.xid, EVERYBODY, told.source, _now_s())
            if not self._standing.add(device.uuid, finding, again=again):
                return None
            await asyncio.to_thread(self._standing.save)
            return fault_of(device.index, device.uuid, self._findings(device.uuid))
        if self._blame.is_repeated(device.uuid, event.xid, event.pid, _now_s()):
            return None
        if told.at_s >= self._learned_s:  # else all that was told meanwhile has one look at /proc
            await self._learn(work)
        owner = self._blame.owner(device.uuid, event.pid if self._host_pids else 0)
        if self._blame.is_told(device.uuid, event.xid, owner, told.source, _now_s()):
            return None
        return incident_of(event, device.index, device.uuid, owner)

    def _device_at(self, bus_id: str) -> Device | None:
        where = bus_address(bus_id)
        found = (device for device in self._devices if where and bus_address(device.pci_bus_id) == where)
        return next(found, None)


def _waits_for_reset(findings: Sequence[Finding]) -> bool:
    """A device that cannot be read, because of what a reset heals, is not beyond it."""
    wanted = any(finding.resettable and finding.action in ("reset", "drain") for finding in findings)
    return wanted and not any(f.action == "quarantine" and f.cause != "unreadable" for f in findings)


def in_first_pid_namespace() -> bool:
    """Whether this process sees pids as the kernel numbers them."""
    try:
        return os.readlink("/proc/self/ns/pid") == INIT_PID_NAMESPACE  # noqa: PTH115  # no path: a name of a namespace
    except OSError:
        return False


def _now_s() -> float:
    return asyncio.get_running_loop().time()
