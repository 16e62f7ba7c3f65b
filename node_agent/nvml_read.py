"""Asks NVML everything about one device. Each call can fail by itself, and then only its own value is unknown.

`nvml` is NVIDIA's bindings, which only the NVML process loads. A symbol that the driver's library lacks is an error of
the bindings that is no NVMLError: both are caught.
"""

import ctypes
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from muster.node_agent.readings import DeviceReading, MemoryReading, ProcessReading, RemapReading, Trouble

MIB: Final = 1 << 20
SWITCH: Final = "switch"
NUMA_WORDS: Final = 16  # of 64 nodes each
_FABRIC_COMPLETED: Final = 3
_RIGHT_SINCE_535: Final = 86
T = TypeVar("T")


class Static(NamedTuple):
    """What of a device does not change while NVML is in use."""

    name: str = ""
    minor: int | None = None
    capability: str = ""
    numa: int | None = None
    nvlink_to: tuple[str, ...] = ()


class Reader:
    """Reads devices. `sysfs` is where the kernel tells of PCI devices and NUMA nodes."""

    def __init__(self, nvml: Any, sysfs: Path) -> None:
        self._nvml = nvml
        self._sysfs = sysfs
        self._errors = (nvml.NVMLError, nvml.NVMLLibraryMismatchError)
        self._static: dict[str, Static] = {}
        self.driver = _text(self.ask(nvml.nvmlSystemGetDriverVersion) or "")
        self._wrong_processes = tells_wrong_processes(self.driver)

    def ask(self, question: Callable[[], T]) -> T | None:
        """The answer; None where there is none."""
        try:
            return question()
        except self._errors:
            return None

    def trouble(self, error: Exception) -> Trouble:
        """Why a call failed."""
        match getattr(error, "value", None):
            case self._nvml.NVML_ERROR_GPU_IS_LOST:
                return "lost"
            case self._nvml.NVML_ERROR_NOT_SUPPORTED | self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                return "not_supported"
            case _:
                return "unreadable"

    def bus_id(self, handle: Any) -> str:
        """Raises an error of NVML's."""
        return bus_id_of(self._nvml.nvmlDeviceGetPciInfo(handle))

    def device(self, handle: Any, index: int, bus_id: str) -> DeviceReading:
        """All of a device."""
        nvml, ask = self._nvml, self.ask
        try:
            uuid_ = _text(nvml.nvmlDeviceGetUUID(handle))
        except self._errors as error:
            return DeviceReading(nvml_index=index, pci_bus_id=bus_id, trouble=self.handle_trouble(error))
        static = self._static.get(uuid_)
        if static is None:
            static = self._static[uuid_] = self._read_static(handle, bus_id)
        mig = ask(lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]))
        memory, memory_trouble = self._memory(handle)
        rates = None if mig else ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        power_mw = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        fabric = self._fabric(handle)
        return DeviceReading(
            nvml_index=index,
            uuid=uuid_,
            pci_bus_id=bus_id,
            trouble="lost" if memory_trouble == "lost" else None,
            name=static.name,
            minor=static.minor,
            capability=static.capability,
            numa=static.numa,
            mig=mig,
            memory=memory,
            memory_trouble=memory_trouble,
            recovery_action=ask(lambda: self._field(handle, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)),
            remap=ask(lambda: _remap(nvml.nvmlDeviceGetRemappedRows(handle))),
            ecc_uncorrected=ask(lambda: self._ecc(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)),
            ecc_corrected=ask(lambda: self._ecc(handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)),
            fabric_state=None if fabric is None else int(fabric.state),
            fabric_status=None if fabric is None else int(fabric.status),
            domain=_domain(fabric),
            nvlink_to=list(static.nvlink_to),
            sm_percent=None if rates is None else int(rates.gpu),
            temperature_c=ask(lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
            power_w=None if power_mw is None else power_mw / 1000,
            sm_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            memory_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
            processes=self._processes(handle),
        )

    def path(self, one: Any, two: Any) -> int | None:
        """The common ancestor of two devices, in NVML's numbers."""
        return self.ask(lambda: int(self._nvml.nvmlDeviceGetTopologyCommonAncestor(one, two)))

    def handle_trouble(self, error: Exception) -> Trouble:
        """Why a device cannot be used at all."""
        return "lost" if self.trouble(error) == "lost" else "unreadable"

    # -- what does not change -----------------------------------------------------------------------------------

    def _read_static(self, handle: Any, bus_id: str) -> Static:
        nvml, ask = self._nvml, self.ask
        capability = ask(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
        return Static(
            name=ask(lambda: _text(nvml.nvmlDeviceGetName(handle))) or "",
            minor=ask(lambda: int(nvml.nvmlDeviceGetMinorNumber(handle))),
            capability="" if capability is None else "{}.{}".format(*capability),
            numa=self._numa(handle, bus_id),
            nvlink_to=tuple(self._links(handle)),
        )

    def _numa(self, handle: Any, bus_id: str) -> int | None:
        """The nearest node that has CPUs: NVML's word first, since the kernel often does not know it."""
        nvml = self._nvml
        words = self.ask(lambda: nvml.nvmlDeviceGetMemoryAffinity(handle, NUMA_WORDS, nvml.NVML_AFFINITY_SCOPE_NODE))
        for node in _bits(words or ()):
            if self._has_cpus(node):
                return node
        domain, _, rest = bus_id.lower().partition(":")
        try:
            node = int((self._sysfs / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _has_cpus(self, node: int) -> bool:
        try:
            return (self._sysfs / "devices/system/node" / f"node{node}" / "cpulist").read_text().strip() != ""
        except OSError:
            return True  # nothing speaks against it

    def _links(self, handle: Any) -> list[str]:
        nvml, found = self._nvml, []
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            try:
                active = nvml.nvmlDeviceGetNvLinkState(handle, link)
            except self._errors:
                break  # no link of this number, or none at all
            if not active:
                continue
            kind = self.ask(lambda link=link: int(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)))  # type: ignore[misc]
            if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                found.append(SWITCH)
            elif kind in (nvml.NVML_NVLINK_DEVICE_TYPE_GPU, None):
                remote = self.ask(lambda link=link: bus_id_of(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)))  # type: ignore[misc]
                found.extend([remote] if remote else [])
        return found

    # -- what changes -------------------------------------------------------------------------------------------

    def _memory(self, handle: Any) -> tuple[MemoryReading | None, Trouble | None]:
        """By the newer call, which tells what the driver reserves; where there is only the older one, nothing is."""
        nvml = self._nvml
        memory = self.ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        reserved_mib = 0 if memory is None else memory.reserved // MIB
        if memory is None:
            try:
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            except self._errors as error:
                return None, self.trouble(error)
        if memory.total // MIB <= reserved_mib:  # a device that is broken may say so
            return None, "unreadable"
        return MemoryReading(memory.total // MIB, reserved_mib, memory.used // MIB), None

    def _field(self, handle: Any, field: int) -> int | None:
        value = self._nvml.nvmlDeviceGetFieldValues(handle, [field])[0]
        return int(value.value.uiVal) if value.nvmlReturn == self._nvml.NVML_SUCCESS else None

    def _ecc(self, handle: Any, kind: int) -> int:
        return int(self._nvml.nvmlDeviceGetTotalEccErrors(handle, kind, self._nvml.NVML_VOLATILE_ECC))

    def _fabric(self, handle: Any) -> Any | None:
        nvml = self._nvml
        for version in ("v3", "v2"):
            make = getattr(nvml, f"c_nvmlGpuFabricInfo_{version}_t", None)
            if make is None:
                continue
            info = make()
            if self.ask(lambda info=info: nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))) is not None:  # type: ignore[misc]
                return info
        info = nvml.c_nvmlGpuFabricInfo_t()
        return (
            info if self.ask(lambda: nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))) is not None else None
        )

    def _processes(self, handle: Any) -> list[ProcessReading] | None:
        """Compute and graphics together; None where the compute ones cannot be had, or cannot be trusted."""
        compute = None if self._wrong_processes else self._listed(handle, "Compute")
        if compute is None:
            return None
        found: dict[int, int | None] = {}
        for process in [*compute, *(self._listed(handle, "Graphics") or [])]:
            used = process.usedGpuMemory
            held_mib = None if used is None else used // MIB
            found[process.pid] = held_mib if process.pid not in found else _most(found[process.pid], held_mib)
        return [ProcessReading(pid, held_mib) for pid, held_mib in sorted(found.items())]

    def _listed(self, handle: Any, kind: str) -> list[Any] | None:
        for version in ("v3", "v2"):
            function = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses_{version}", None)
            listed: list[Any] | None = None if function is None else self.ask(lambda f=function: f(handle))  # type: ignore[misc]
            if listed is not None:
                return listed
        return None


def tells_wrong_processes(driver: str) -> bool:
    """Drivers 535.43 to 535.85 list processes that are not there."""
    series, _, rest = driver.partition(".")
    release = rest.partition(".")[0]
    return series == "535" and release.isdecimal() and int(release) < _RIGHT_SINCE_535


def bus_id_of(info: Any) -> str:
    """NVML's PCI information → ``00000000:01:00.0``."""
    return _text(info.busId).upper()


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _bits(words: Any) -> list[int]:
    return [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def _remap(rows: tuple[int, int, int, int]) -> RemapReading:
    corrected, uncorrected, pending, failed = rows
    return RemapReading(corrected, uncorrected, bool(pending), bool(failed))


def _domain(fabric: Any | None) -> str:
    """Cluster and clique, once the fabric is there; a machine whose links lead nowhere else has no cluster."""
    if fabric is None or fabric.state != _FABRIC_COMPLETED or fabric.status != 0 or not any(fabric.clusterUuid):
        return ""
    return f"{uuid.UUID(bytes=bytes(fabric.clusterUuid))}.{fabric.cliqueId}"


def _most(one: int | None, two: int | None) -> int | None:
    return max((value for value in (one, two) if value is not None), default=None)
