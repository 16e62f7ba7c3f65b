"""This machine's devices, as NVML shows them and as they were before: see `RawDevices`.

Identity is the uuid, order is PCI order, a device's number is its position. What NVML cannot tell now stays as it was
known to be, with a fault that says so; a trouble with NVML as a whole degrades the node and changes no device.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from muster.events.telemetry import DeviceSample
from muster.events.types import Device, DeviceFault, FaultAction, FaultCause, Inventory
from muster.node_agent.devices import Degraded, Look
from muster.node_agent.host import Host
from muster.node_agent.inventory import Site, inventory_of
from muster.node_agent.known_devices import Seen, merged, read_known, write_known
from muster.node_agent.models import is_integrated, model_of, nominal_mib
from muster.node_agent.nvml import NvmlProcess, NvmlSettings
from muster.node_agent.readings import DeviceReading, MachineReading, NvmlTroubleError, Trouble, Worktree, XidEvent
from muster.node_agent.topology import links_between

logger = logging.getLogger(__name__)

KNOWN_FILE: Final = "devices.json"
NVLINK_LABEL: Final = "nvlink"
_UNIFIED_PERCENT: Final = 90
_NO_MEMORY: Final[dict[Trouble | None, str]] = {
    "not_supported": "NVML does not support that for it",
    "unreadable": "NVML gives an error, or a size that cannot be",
    "lost": "it is lost",
    None: "NVML says nothing",
}


class NvmlDevices:
    """The devices of this machine. `folder` keeps which ones there are."""

    def __init__(
        self, site: Site, folder: Path, settings: NvmlSettings | None = None, host: Host | None = None
    ) -> None:
        self._site = site
        self._path = folder / KNOWN_FILE
        self._settings = settings or NvmlSettings()
        self._host = host or Host()
        self._process = NvmlProcess(self._settings)
        self._known = read_known(self._path)
        self._reading: MachineReading | None = None
        self._trouble: NvmlTroubleError | None = None
        self._enumerated_at = 0.0

    @property
    def reading(self) -> MachineReading | None:
        """See `RawDevices.reading`."""
        return self._reading

    @property
    def own_pids(self) -> frozenset[int]:
        """See `RawDevices.own_pids`."""
        return frozenset({self._process.pid} - {0})

    async def found(self) -> bool:
        """Whether this machine has a driver, or had devices."""
        await self._read(enumerate_=True, may_lack=not self._known.devices)
        return self._trouble is None or self._trouble.kind != "absent" or bool(self._known.devices)

    async def inventory(self) -> Inventory:
        """See `RawDevices.inventory`."""
        await self._read(enumerate_=True)
        if self._reading is not None:
            self._learn(self._reading)
        known, site = self._known, self._site
        domains = {device.domain for device in known.devices}
        if len(domains) == 1 and domains != {""} and NVLINK_LABEL not in site.labels:
            site = site.labelled(NVLINK_LABEL, *domains)
        driver = self._reading.driver if self._reading is not None else known.driver
        return inventory_of(known.devices, self._host, site, driver, known.topology)

    async def look(self, work: Sequence[Worktree]) -> Look:  # noqa: ARG002  # what runs matters to who judges
        """See `RawDevices.look`."""
        await self._read(enumerate_=self._is_to_enumerate())
        reading, known = self._reading, self._known
        if reading is None:
            return Look([DeviceSample(d.index, d.uuid) for d in known.devices], degraded=self._degraded())
        by_uuid = _by_uuid(reading)
        samples = [self._sample(device, by_uuid.get(device.uuid)) for device in known.devices]
        faults = [fault for device in known.devices if (fault := self._fault(device, reading, by_uuid)) is not None]
        return Look(samples, faults, changed=self._has_changed(reading))

    async def next_xid(self) -> XidEvent:
        """See `RawDevices.next_xid`."""
        return await self._process.next_xid()

    async def close(self) -> None:
        """See `RawDevices.close`."""
        self._process.try_again()
        await self._process.close()
        self._enumerated_at = 0.0

    # -- reading ------------------------------------------------------------------------------------------------

    async def _read(self, *, enumerate_: bool, may_lack: bool = False) -> None:
        try:
            self._reading = await (self._process.inventory() if enumerate_ else self._process.samples())
            self._trouble = None
        except NvmlTroubleError as error:
            if self._trouble is None or self._trouble.kind != error.kind:
                level = logging.INFO if may_lack and error.kind == "absent" else logging.WARNING
                logger.log(level, "NVML cannot be asked (%s): %s", error.kind, error)
            self._reading, self._trouble = None, error
        if enumerate_:
            self._enumerated_at = asyncio.get_running_loop().time()

    def _is_to_enumerate(self) -> bool:
        """A process of NVML's knows no device that came later: while one is missing, there is a new one at times."""
        if self._reading is None or not self._enumerated_at:
            return True
        is_complete = {d.uuid for d in self._known.devices} == set(_by_uuid(self._reading))
        return not is_complete and asyncio.get_running_loop().time() - self._enumerated_at >= self._settings.skip_s

    def _degraded(self) -> Degraded | None:
        assert self._trouble is not None
        match self._trouble.kind:
            case "absent":
                return Degraded("nvml_failed", f"no driver: {self._trouble}") if self._known.devices else None
            case kind:
                return Degraded(kind, str(self._trouble))

    def _learn(self, reading: MachineReading) -> None:
        for one in reading.devices:
            if one.trouble is not None:
                where = one.pci_bus_id or self._missing_from(reading)
                logger.warning("NVML's device %d (%s) is %s", one.nvml_index, where, one.trouble)
        readable, known = list(_by_uuid(reading).values()), self._known_by_uuid()
        seen = Seen(
            [self._device(one, known.get(one.uuid)) for one in readable], links_between(readable, reading.paths)
        )
        now = merged(self._known, seen, reading.driver)
        if now == self._known:
            return
        self._known = now
        try:
            write_known(self._path, now)
        except OSError as error:
            logger.warning("which devices there are cannot be kept: %s", error)

    # -- devices ------------------------------------------------------------------------------------------------

    def _missing_from(self, machine: MachineReading) -> str:
        """Where a device may be that does not tell where it is."""
        told = {reading.pci_bus_id for reading in machine.devices} | {reading.uuid for reading in machine.devices}
        missing = [d.pci_bus_id for d in self._known.devices if not {d.uuid, d.pci_bus_id} & told]
        return " or ".join(missing) or "at an unknown place"

    def _known_by_uuid(self) -> dict[str, Device]:
        return {device.uuid: device for device in self._known.devices}

    def _device(self, reading: DeviceReading, was: Device | None) -> Device:
        """What a reading leaves open stays as it was."""
        total_mib, usable_mib = self._memory_mib(reading)
        model = model_of(reading.name, total_mib)
        device = Device(
            index=0,
            uuid=reading.uuid,
            model=model or "unknown",
            memory_mib=usable_mib,
            nominal_mib=nominal_mib(model, total_mib),
            pci_bus_id=reading.pci_bus_id,
            minor=reading.minor,
            capability=reading.capability,
            numa=reading.numa,
            mig=reading.mig is True,
            unified=self._is_unified(reading),
            domain=reading.domain,
        )
        if was is not None and (not reading.name or (usable_mib == 0 and was.memory_mib > 0)):
            size = {"model": was.model, "memory_mib": was.memory_mib, "nominal_mib": was.nominal_mib}
            device = msgspec.structs.replace(device, **size)
        return device

    def _memory_mib(self, reading: DeviceReading) -> tuple[int, int]:
        """Total and usable; 0 = unknown."""
        if self._is_unified(reading):
            total_mib = self._host.meminfo_mib()[0]
            return total_mib, total_mib
        memory = reading.memory
        return (0, 0) if memory is None else (memory.total_mib, memory.total_mib - memory.reserved_mib)

    def _is_unified(self, reading: DeviceReading) -> bool:
        if not is_integrated(reading.name):
            return False
        if reading.memory is None:
            return reading.memory_trouble == "not_supported"
        return reading.memory.total_mib * 100 >= self._host.meminfo_mib()[0] * _UNIFIED_PERCENT

    def _has_changed(self, reading: MachineReading) -> bool:
        """Whether the devices are not those of the inventory: others, elsewhere, or of another kind now."""
        known = self._known_by_uuid()
        for uuid, one in _by_uuid(reading).items():
            change = _change(known.get(uuid), self._device(one, known.get(uuid)))
            if change:
                logger.warning("%s at %s %s", uuid, one.pci_bus_id, change)
                return True
        return False

    # -- what is wrong, and what goes on ------------------------------------------------------------------------

    def _fault(
        self, device: Device, machine: MachineReading, by_uuid: Mapping[str, DeviceReading]
    ) -> DeviceFault | None:
        reading = by_uuid.get(device.uuid)
        if reading is None:
            return _missing(device, machine)
        if reading.mig:
            return _fault(device, "mig", "drain", "it is in MIG mode")
        if reading.memory is None and not self._is_unified(reading):
            return _fault(
                device, "memory_unknown", "drain", f"its memory cannot be read: {_NO_MEMORY[reading.memory_trouble]}"
            )
        return None

    def _sample(self, device: Device, reading: DeviceReading | None) -> DeviceSample:
        if reading is None:
            return DeviceSample(device.index, device.uuid, healthy=False)
        total_mib, used_mib, reserved_mib = self._memory_now_mib(reading)
        return DeviceSample(
            index=device.index,
            uuid=device.uuid,
            memory_total_mib=total_mib,
            memory_used_mib=used_mib,
            sm_percent=reading.sm_percent,
            temperature_c=reading.temperature_c,
            power_w=reading.power_w,
            healthy=True,
            memory_reserved_mib=reserved_mib,
            sm_clock_mhz=reading.sm_clock_mhz,
            memory_clock_mhz=reading.memory_clock_mhz,
            ecc_corrected=reading.ecc_corrected,
            ecc_uncorrected=reading.ecc_uncorrected,
        )

    def _memory_now_mib(self, reading: DeviceReading) -> tuple[int | None, int | None, int | None]:
        if self._is_unified(reading):
            total_mib, available_mib = self._host.meminfo_mib()
            return total_mib, total_mib - available_mib, 0
        memory = reading.memory
        return (None, None, None) if memory is None else (memory.total_mib, memory.used_mib, memory.reserved_mib)


def _change(was: Device | None, now: Device) -> str:
    """What makes it another device for whom it is given to, in words; "" = nothing."""
    if was is None:
        return "is new"
    if now.pci_bus_id != was.pci_bus_id:
        return f"was at {was.pci_bus_id} before"
    if now.mig != was.mig:
        return f"is {'now' if now.mig else 'no longer'} in MIG mode"
    if now.domain != was.domain:
        return f"is of NVLink domain {now.domain or 'none'}, and was of {was.domain or 'none'}"
    if (now.memory_mib > 0) != (was.memory_mib > 0):
        return f"has {now.memory_mib} MiB of memory, and had {was.memory_mib}"
    return ""


def _by_uuid(machine: MachineReading) -> dict[str, DeviceReading]:
    """Those that can be read; of two that say they are the same, the later."""
    return {reading.uuid: reading for reading in machine.devices if reading.trouble is None and reading.uuid}


def _missing(device: Device, machine: MachineReading) -> DeviceFault:
    """A device that should be there. One that cannot be read may not even tell who it is."""
    named = [
        r for r in machine.devices if device.uuid == r.uuid or (r.pci_bus_id and device.pci_bus_id == r.pci_bus_id)
    ]
    nameless = [r for r in machine.devices if r.trouble is not None and not r.uuid and not r.pci_bus_id]
    if any(reading.trouble == "unreadable" for reading in named or nameless):
        return _fault(device, "unreadable", "quarantine", "NVML cannot read it")
    return _fault(device, "lost", "quarantine", "it is lost" if named or nameless else "it is not there any more")


def _fault(device: Device, cause: FaultCause, action: FaultAction, detail: str) -> DeviceFault:
    return DeviceFault(index=device.index, uuid=device.uuid, cause=cause, action=action, detail=detail)
